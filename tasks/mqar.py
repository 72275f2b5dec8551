"""Multi-query associative recall (MQAR): keys and values are tokens of their own, and every pair is asked for once.

Arora et al. 2023, Zoology: Measuring and Improving Recall in Efficient Language Models, section 3 and appendix; their
generator is zoology/data/multiquery_ar.py of HazyResearch/zoology. Layout of an example: key value key value ... in
front, then `distance` fillers, then every second token is a place where a query may stand. A query is the key again;
the answer, asked for at the query, is the value that followed the key. Keys of an example differ, and so do values.

Which place a query takes follows a power law of the gap: place k = 1, 2, ... has weight k ** (power - 1), drawn without
replacement, for the first pair first; power = 1 is uniform.

Equal to theirs with distance = 0: layout, places and their law, distinct keys and values, fillers (`fill`), answers.
Different: a head over the values, not over the whole vocabulary; sizes of keys and values are free (theirs: 4,095 and
4,096); texts of test are never in train (theirs: counted, with a warning); fillers come from the seed too; the encoder
reads both ways unless model.causal is set. Not here: more than one pass over the pairs (`num_passes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import datasets
import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from attnbench.contracts import Controls, Preparation, Source, TagTokens, Task

from ._symbols import Kinds, accuracy, distinct, rows_of, splits, targets_of

#: The token that fills; keys follow, then values.
BLANK = 0


@dataclass(frozen=True, kw_only=True)
class Options:
    """length: tokens of an example. pairs: of an example; keys, values: how many kinds. distance: fillers between the
    last pair and the first place of a query. power: of the law of gaps (Zoology's power_a). fill: `blank`, or `random`
    tokens of the whole vocabulary. train, validation, test: examples. data_seed: of the whole set.
    """

    length: PositiveInt = 48
    pairs: PositiveInt = 8
    keys: PositiveInt = 8
    values: Kinds = 8
    distance: NonNegativeInt = 16
    power: Annotated[float, Field(gt=0, le=1)] = 0.01
    fill: Literal["blank", "random"] = "blank"
    train: PositiveInt = 20_000
    validation: PositiveInt = 500
    test: PositiveInt = 1_000
    data_seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        for name, kinds in (("keys", self.keys), ("values", self.values)):
            if kinds < self.pairs:
                raise ValueError(
                    f"{name} of an example differ, so pairs={self.pairs} needs {name} >= {self.pairs}, not {kinds}"
                )
        if self.places < self.pairs:
            raise ValueError(
                f"length={self.length} leaves {max(0, self.places)} places for {self.pairs} queries behind "
                f"{self.pairs} pairs and distance={self.distance}; it takes {4 * self.pairs + self.distance}"
            )

    @property
    def first_place(self) -> int:
        return 2 * self.pairs + self.distance

    @property
    def places(self) -> int:
        """Where a query may stand: every second token from `first_place` on."""
        return (self.length - self.first_place) // 2

    @property
    def vocab(self) -> int:
        return 1 + self.keys + self.values


def examples(options: Options, count: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """tokens and targets, both (count, length)."""
    o = options
    keys = 1 + distinct(o.keys, o.pairs, count, generator)
    values = distinct(o.values, o.pairs, count, generator)
    tokens = np.full((count, o.length), BLANK, dtype=np.uint32)
    if o.fill == "random":
        tokens[:] = generator.integers(0, o.vocab, tokens.shape)
    tokens[:, 0 : 2 * o.pairs : 2] = keys
    tokens[:, 1 : 2 * o.pairs : 2] = 1 + o.keys + values
    weights = np.arange(1, o.places + 1) ** (o.power - 1)
    # The order in which exponential clocks of these rates ring is that of draws without replacement.
    rung = np.argsort(generator.standard_exponential((count, o.places)) / weights, axis=1)[:, : o.pairs]
    queries = o.first_place + 2 * rung
    np.put_along_axis(tokens, queries, keys.astype(np.uint32), axis=1)
    return {"tokens": tokens, "targets": targets_of(tokens.shape, queries, values)}


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    return splits(options, preparation, lambda count, generator, split: examples(options, count, generator))


def baselines(options: Options, made: datasets.DatasetDict) -> dict[str, float]:
    """What is possible without matching keys: the value of the pair that train asks for most often at this place. The
    law of gaps draws for the first pair first, so a place tells something about the pair.
    """
    o = options
    asked_at = np.zeros((o.length, o.pairs), dtype=np.int64)
    for tokens, targets in rows_of(made["train"]):
        asked_at += targets[:, None] == _values(o, tokens)
    likeliest = asked_at.argmax(1)
    return {"likeliest_pair_of_a_place": accuracy(made, lambda tokens: _values(o, tokens)[likeliest])}


def _values(options: Options, tokens: np.ndarray) -> np.ndarray:
    """(pairs,) in the order in which they stand."""
    found: np.ndarray = tokens[1 : 2 * options.pairs : 2] - 1 - options.keys
    return found


TASK = Task(
    summary="Multi-query associative recall, keys and values as two tokens: Zoology's MQAR",
    source=Source(
        citation="Arora et al. 2023, Zoology: Measuring and Improving Recall in Efficient Language Models",
        licence="generated",
        url="https://arxiv.org/abs/2312.04927",
    ),
    head=lambda options: TagTokens(options.values),
    vocab=lambda options: options.vocab,
    max_length=lambda options: options.length,
    prepare=prepare,
    options=Options,
    baselines=baselines,
    controls=Controls(positive="dense", negative="local"),
)
