"""A needle in a haystack: a long text of words holds one fact that matters, and ends with the question for it.

After Kamradt 2023 (github.com/gkamradt/LLMTest_NeedleInAHaystack), who hides a sentence in essays, at depths from the
beginning to the end, and asks a language model for it. Here the text is drawn: words by Zipf's law (word k has weight
1 / k), `facts` facts at random places, `distance` words, then the question. A fact is one token that names a key and
its value, a question is one token that names a key, and the answer is the value of that key. Keys of a text differ, so
the other facts are distractors that look like the one asked for; values are drawn with replacement.

A column `depth` beside the data tells where the fact that is asked for stands, 0 = first place, 1 = last;
scripts/needle_by_depth.py shows the accuracy of a run by it. With the option `depth` all texts of the test have it
there, and those of train and validation anywhere: a place that is known beforehand would need no search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import datasets
import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from attnbench.contracts import Controls, Preparation, Source, TagTokens, Task

from ._symbols import Kinds, accuracy, distinct, splits, targets_of


@dataclass(frozen=True, kw_only=True)
class Options:
    """length: tokens of a text, the question included. facts: in a text; keys, values: of how many kinds. words: how
    many kinds fill the text. distance: words between the last place for a fact and the question. depth: of the fact
    asked for in the test, from 0 to 1; none = anywhere. train, validation, test: examples. data_seed: of the whole set.
    """

    length: PositiveInt = 128
    facts: PositiveInt = 4
    keys: PositiveInt = 4
    values: Kinds = 4
    words: PositiveInt = 32
    distance: NonNegativeInt = 32
    depth: Annotated[float, Field(ge=0, le=1)] | None = None
    train: PositiveInt = 20_000
    validation: PositiveInt = 500
    test: PositiveInt = 1_000
    data_seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.facts > self.keys:
            raise ValueError(
                f"keys of a text differ, so facts={self.facts} needs keys >= {self.facts}, not {self.keys}"
            )
        if self.room < self.facts:
            raise ValueError(
                f"length={self.length} leaves {max(0, self.room)} places for facts={self.facts} next to "
                f"distance={self.distance} and the question; it takes {self.facts + self.distance + 1}"
            )

    @property
    def room(self) -> int:
        """Places in front where a fact may stand."""
        return self.length - self.distance - 1

    @property
    def first_question(self) -> int:
        return self.words + self.keys * self.values

    @property
    def vocab(self) -> int:
        """Words, then facts (key * values + value), then questions, one a key."""
        return self.first_question + self.keys


def examples(
    options: Options, count: int, generator: np.random.Generator, depth: float | None = None
) -> dict[str, np.ndarray]:
    """tokens and targets, both (count, length), and depth, (count,)."""
    o = options
    weights = 1 / np.arange(1, o.words + 1)
    tokens = generator.choice(o.words, (count, o.length), p=weights / weights.sum()).astype(np.uint32)
    keys = distinct(o.keys, o.facts, count, generator)
    values = generator.integers(0, o.values, (count, o.facts))
    places = distinct(o.room, o.facts, count, generator)
    # Keys and places are in random order, so the first fact can be the one that is asked for.
    if depth is not None:
        wanted = round(depth * (o.room - 1))
        places = np.where(places == wanted, places[:, :1], places)
        places[:, 0] = wanted
    np.put_along_axis(tokens, places, (o.words + keys * o.values + values).astype(np.uint32), axis=1)
    tokens[:, -1] = o.first_question + keys[:, 0]
    targets = targets_of(tokens.shape, np.full((count, 1), o.length - 1), values[:, :1])
    return {"tokens": tokens, "targets": targets, "depth": places[:, 0] / max(1, o.room - 1)}


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    def draw(count: int, generator: np.random.Generator, split: str) -> dict[str, np.ndarray]:
        return examples(options, count, generator, options.depth if split == "test" else None)

    return splits(options, preparation, draw)


def baselines(options: Options, made: datasets.DatasetDict) -> dict[str, float]:
    """What is possible without the question: the value that most facts of the text carry."""
    o = options

    def most_frequent(tokens: np.ndarray) -> int:
        facts = tokens[(tokens >= o.words) & (tokens < o.first_question)] - o.words
        return int(np.bincount(facts % o.values).argmax())

    return {"most_frequent_value_present": accuracy(made, most_frequent)}


TASK = Task(
    summary="A needle in a haystack: one fact among others in a long text, asked for at its end",
    source=Source(
        citation="attnbench; after Kamradt 2023, Needle In A Haystack",
        licence="generated",
        url="https://github.com/gkamradt/LLMTest_NeedleInAHaystack",
    ),
    head=lambda options: TagTokens(options.values),
    vocab=lambda options: options.vocab,
    max_length=lambda options: options.length,
    prepare=prepare,
    options=Options,
    baselines=baselines,
    controls=Controls(positive="dense", negative="local"),
)
