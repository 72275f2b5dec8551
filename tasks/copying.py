"""Copying: symbols stand in front, blanks follow, then a mark and as many blanks, at which the symbols are asked for.

Arjovsky, Shah and Bengio 2016, Unitary Evolution Recurrent Neural Networks, section 5.1 (after Hochreiter and
Schmidhuber 1997), have 10 symbols of an alphabet of 8, T - 1 blanks, the mark and 10 blanks: symbols = spread = 10 and
length = T + 20 here. Their loss also counts the blanks that are to come out before; here only symbols are asked for.
With `spread` larger than `symbols` the symbols stand at random places among the first `spread` tokens, and come out in
their order: selective copying (Gu and Dao 2023, Mamba, section 4.1.1), there 16 symbols anywhere in 4,096 tokens.

Each symbol is asked for at a row of its own, so a model that reads the whole text at once need not keep anything: plain
copying asks whether it reaches a fixed distance, and selective copying whether it can count symbols as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import datasets
import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from attnbench.contracts import Controls, Preparation, Source, TagTokens, Task

from ._symbols import Kinds, accuracy, distinct, splits, targets_of


@dataclass(frozen=True, kw_only=True)
class Options:
    """length: tokens of an example. symbols: how many are to be copied; alphabet: of how many kinds. spread: tokens in
    front among which they stand; equal to `symbols` is plain copying, more is selective. train, validation, test:
    examples. data_seed: of the whole set.
    """

    length: PositiveInt = 64
    symbols: PositiveInt = 8
    spread: PositiveInt = 8
    alphabet: Kinds = 8
    train: PositiveInt = 20_000
    validation: PositiveInt = 500
    test: PositiveInt = 1_000
    data_seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.spread < self.symbols:
            raise ValueError(f"spread={self.spread} has no room for symbols={self.symbols}")
        least = self.spread + 1 + self.symbols
        if self.length < least:
            raise ValueError(
                f"length={self.length} is too short: spread={self.spread}, the mark and {self.symbols} rows that ask "
                f"take {least}"
            )

    @property
    def vocab(self) -> int:
        """The alphabet, the blank, the mark."""
        return self.alphabet + 2


def examples(options: Options, count: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """tokens and targets, both (count, length)."""
    o = options
    blank, mark = o.alphabet, o.alphabet + 1
    symbols = generator.integers(0, o.alphabet, (count, o.symbols), dtype=np.uint32)
    places = np.sort(distinct(o.spread, o.symbols, count, generator), axis=1)
    tokens = np.full((count, o.length), blank, dtype=np.uint32)
    np.put_along_axis(tokens, places, symbols, axis=1)
    tokens[:, -o.symbols - 1] = mark
    asked = np.broadcast_to(np.arange(o.length - o.symbols, o.length), symbols.shape)
    return {"tokens": tokens, "targets": targets_of(tokens.shape, asked, symbols)}


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    return splits(options, preparation, lambda count, generator, split: examples(options, count, generator))


def baselines(options: Options, made: datasets.DatasetDict) -> dict[str, float]:
    """What counting does without order: the symbol that stands most often in front, at every row."""
    o = options

    def most_frequent(tokens: np.ndarray) -> int:
        return int(np.bincount(tokens[: o.spread], minlength=o.vocab)[: o.alphabet].argmax())

    return {"most_frequent_symbol": accuracy(made, most_frequent)}


TASK = Task(
    summary="Copy symbols over a gap: plain, at a fixed distance, or selective, from among blanks",
    source=Source(
        citation="Arjovsky et al. 2016, Unitary Evolution Recurrent Neural Networks; selective: Gu and Dao 2023, Mamba",
        licence="generated",
        url="https://arxiv.org/abs/1511.06464",
    ),
    head=lambda options: TagTokens(options.alphabet),
    vocab=lambda options: options.vocab,
    max_length=lambda options: options.length,
    prepare=prepare,
    options=Options,
    baselines=baselines,
    controls=Controls(positive="dense", negative="local"),
)
