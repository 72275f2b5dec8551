"""Induction heads: the text ends with a token that stood in it once before; the answer is the token that followed it.

Olsson et al. 2022, In-context Learning and Induction Heads: [A][B] ... [A] -> [B]. Fu et al. 2023, Hungry Hungry Hippos
(H3), section 3.1, make a task of it: random symbols, A is a token of its own. `trigger` says which of the two is meant:
`special` is H3's form; with `any`, A is a symbol like the others, another one in every text, and occurs nowhere else.

It takes two steps of attention: a token has to learn what stands beside it, then the last row has to find it by that.
`distance` keeps the last symbols in front of the question free, so that no short window sees both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import datasets
import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from attnbench.contracts import Controls, Preparation, Source, TagTokens, Task

from ._symbols import Kinds, accuracy, splits, targets_of


@dataclass(frozen=True, kw_only=True)
class Options:
    """length: tokens of an example, the question included. symbols: how many kinds. distance: symbols between the last
    place for the answer and the question. trigger: `special` or `any`. train, validation, test: examples. data_seed:
    of the whole set.
    """

    length: PositiveInt = 32
    symbols: Kinds = 16
    distance: NonNegativeInt = 16
    trigger: Literal["special", "any"] = "special"
    train: PositiveInt = 20_000
    validation: PositiveInt = 500
    test: PositiveInt = 1_000
    data_seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.trigger == "any" and self.symbols == 2:
            raise ValueError(
                "symbols=2 leaves one answer only where the trigger is one of them; trigger=any takes 3 or more"
            )
        if self.room < 1:
            raise ValueError(
                f"length={self.length} leaves no place for the trigger and its answer next to distance={self.distance} "
                f"and the question; it takes {self.distance + 3}"
            )

    @property
    def room(self) -> int:
        """Places where the trigger may stand first."""
        return self.length - self.distance - 2

    @property
    def vocab(self) -> int:
        """The symbols, and behind them the special trigger."""
        return self.symbols + (self.trigger == "special")


def examples(options: Options, count: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """tokens and targets, both (count, length)."""
    o = options
    if o.trigger == "special":
        trigger = np.full((count, 1), o.symbols)
        tokens = generator.integers(0, o.symbols, (count, o.length))
    else:
        trigger = generator.integers(0, o.symbols, (count, 1))
        others = generator.integers(0, o.symbols - 1, (count, o.length))
        tokens = others + (others >= trigger)
    first = generator.integers(0, o.room, (count, 1))
    np.put_along_axis(tokens, first, trigger, axis=1)
    tokens[:, -1:] = trigger
    answers = np.take_along_axis(tokens, first + 1, axis=1)
    targets = targets_of(tokens.shape, np.full((count, 1), o.length - 1), answers)
    return {"tokens": tokens.astype(np.uint32), "targets": targets}


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    return splits(options, preparation, lambda count, generator, split: examples(options, count, generator))


def baselines(options: Options, made: datasets.DatasetDict) -> dict[str, float]:
    """What counting does without order: the symbol that stands most often where the answer may stand."""
    o = options

    def most_frequent(tokens: np.ndarray) -> int:
        there = tokens[1 : o.room + 1]
        return int(np.bincount(there[there != tokens[-1]], minlength=o.symbols).argmax())

    return {"most_frequent_symbol": accuracy(made, most_frequent)}


TASK = Task(
    summary="Induction heads: which token followed the one that the text ends with?",
    source=Source(
        citation="Fu et al. 2023, Hungry Hungry Hippos; Olsson et al. 2022, In-context Learning and Induction Heads",
        licence="generated",
        url="https://arxiv.org/abs/2212.14052",
    ),
    head=lambda options: TagTokens(options.symbols),
    vocab=lambda options: options.vocab,
    max_length=lambda options: options.length,
    prepare=prepare,
    options=Options,
    baselines=baselines,
    controls=Controls(positive="dense", negative="local"),
)
