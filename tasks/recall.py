"""Associative recall with pair tokens: one token carries a key and its value; queries stand at the end.

Layout of an example: fillers with `pairs` pair tokens at random places, `distance` fillers, then one query per pair in
random order. A query token names a key; the answer is the value that was paired with it. Keys of an example differ,
values are drawn with replacement. Attention solves it in one step if the pair is in sight (after the recall tasks of
Arora et al. 2023, Zoology, whose form has key and value as two tokens).
"""

from __future__ import annotations

from dataclasses import dataclass

import datasets
import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from attnbench.contracts import NO_TARGET, Controls, Preparation, Source, TagTokens, Task


@dataclass(frozen=True, kw_only=True)
class Options:
    """length: tokens of an example. pairs: how many; keys, values: of how many kinds. distance: fillers between the
    last possible pair and the first query. train, validation, test: examples. data_seed: of the whole set.
    """

    length: PositiveInt = 64
    pairs: PositiveInt = 2
    keys: PositiveInt = 4
    values: PositiveInt = 4
    distance: NonNegativeInt = 28
    fillers: PositiveInt = 8
    train: PositiveInt = 20_000
    validation: PositiveInt = 500
    test: PositiveInt = 1_000
    data_seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.pairs > self.keys:
            raise ValueError(
                f"keys of an example differ, so pairs={self.pairs} needs at least as many keys, not {self.keys}"
            )
        if self.room < self.pairs:
            raise ValueError(
                f"length={self.length} leaves {self.room} places for {self.pairs} pairs "
                f"next to distance={self.distance} and {self.pairs} queries"
            )

    @property
    def room(self) -> int:
        """Places in front where a pair may stand."""
        return self.length - self.distance - self.pairs

    @property
    def vocab(self) -> int:
        """Fillers, then pair tokens (key * values + value), then queries (one a key)."""
        return self.fillers + self.keys * self.values + self.keys


def examples(options: Options, count: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """tokens and targets, both (count, length)."""
    o = options
    tokens = generator.integers(0, o.fillers, (count, o.length)).astype(np.uint32)
    targets = np.full((count, o.length), NO_TARGET, dtype=np.int32)
    rows = np.arange(count)[:, None]
    keys = generator.permuted(np.broadcast_to(np.arange(o.keys), (count, o.keys)), axis=1)[:, : o.pairs]
    values = generator.integers(0, o.values, (count, o.pairs))
    places = generator.permuted(np.broadcast_to(np.arange(o.room), (count, o.room)), axis=1)[:, : o.pairs]
    tokens[rows, places] = o.fillers + keys * o.values + values
    order = generator.permuted(np.broadcast_to(np.arange(o.pairs), (count, o.pairs)), axis=1)
    tokens[:, -o.pairs :] = o.fillers + o.keys * o.values + keys[rows, order]
    targets[:, -o.pairs :] = values[rows, order]
    return {"tokens": tokens, "targets": targets}


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    sizes = {"train": options.train, "validation": options.validation, "test": options.test}
    made = {}
    for number, (name, count) in enumerate(sizes.items()):
        generator = np.random.Generator(np.random.PCG64([options.data_seed, number]))
        features = datasets.Features(
            tokens=datasets.List(datasets.Value("uint32")), targets=datasets.List(datasets.Value("int32"))
        )
        made[name] = datasets.Dataset.from_dict(examples(options, count, generator), features=features)
    return datasets.DatasetDict(made)


def guess_a_value_present(options: Options, made: datasets.DatasetDict) -> dict[str, float]:
    """The best that reading without matching can do: answer the value most pairs of the example carry."""
    scores = []
    for tokens, targets in zip(made["test"]["tokens"], made["test"]["targets"], strict=True):
        pairs = np.asarray(tokens, dtype=np.int64) - options.fillers
        pairs = pairs[(pairs >= 0) & (pairs < options.keys * options.values)]
        guess = np.bincount(pairs % options.values).argmax()
        scores.append(float(np.mean(np.asarray(targets)[-options.pairs :] == guess)))
    return {"most_frequent_value_present": float(np.mean(scores))}


TASK = Task(
    summary="Associative recall with pair tokens: does a mechanism carry one fact over a distance?",
    source=Source(citation="attnbench; after Arora et al. 2023, Zoology", licence="generated"),
    head=lambda options: TagTokens(options.values),
    vocab=lambda options: options.vocab,
    max_length=lambda options: options.length,
    prepare=prepare,
    options=Options,
    baselines=guess_a_value_present,
    controls=Controls(positive="dense", negative="local"),
)
