"""What the generated diagnostics share: splits without a common text, and the score of a guess that matches nothing.

A text is the tokens of one example; all texts of a set are equally long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Protocol

import datasets
import numpy as np
from pydantic import Field

from attnbench.contracts import NO_TARGET, Preparation
from attnbench.errors import AttnbenchError

from . import _arrow

#: Kinds of answers; with one kind there is nothing to ask.
Kinds = Annotated[int, Field(ge=2)]

#: (how many, generator, split) -> columns `tokens`, `targets`, both (how many, length), others of a number an example
Draw = Callable[[int, np.random.Generator, str], dict[str, np.ndarray]]

#: Examples drawn at once; part of what a seed means.
_AT_ONCE = 1_000
#: A split is given up when fewer than one text in so many is new.
_WORST_YIELD = 8


class Sizes(Protocol):
    """The options that every generated diagnostic has."""

    @property
    def train(self) -> int: ...
    @property
    def validation(self) -> int: ...
    @property
    def test(self) -> int: ...
    @property
    def data_seed(self) -> int: ...


def splits(options: Sizes, preparation: Preparation, draw: Draw) -> datasets.DatasetDict:
    """train, validation and test; no text occurs twice, neither within a split nor in two. Each split has a generator
    of its own, and a text that occurred before is left out.

    Raises:
        AttnbenchError: the options make too few different texts.
    """
    sizes = {"train": options.train, "validation": options.validation, "test": options.test}
    seen: set[bytes] = set()
    made = {}
    for number, (name, count) in enumerate(sizes.items()):
        generator = np.random.Generator(np.random.PCG64([options.data_seed, number]))
        pieces: list[Path] = []
        for columns in _different(name, count, draw, generator, seen):
            pieces.append(preparation.folder / f"{name}-{len(pieces)}.arrow")
            _arrow.write(pieces[-1], {key: _as_arrow(column) for key, column in columns.items()})
        made[name] = _arrow.joined(pieces)
    return datasets.DatasetDict(made)


def _different(
    name: str, count: int, draw: Draw, generator: np.random.Generator, seen: set[bytes]
) -> Iterator[dict[str, np.ndarray]]:
    """Pieces of a split, without the texts that were seen."""
    found = drawn = 0
    while found < count:
        if drawn > _AT_ONCE + _WORST_YIELD * count:
            raise AttnbenchError(
                f"{name}: only {found} of {count} texts are new among {drawn} drawn; these options make too few "
                "different ones: ask for fewer examples, longer texts or more kinds of symbols"
            )
        columns = draw(_AT_ONCE, generator, name)
        new = list(islice(_new(columns["tokens"], seen), count - found))
        found, drawn = found + len(new), drawn + _AT_ONCE
        if new:
            yield {key: column[new] for key, column in columns.items()}


def _new(texts: np.ndarray, seen: set[bytes]) -> Iterator[int]:
    """Which of the texts were not seen; each is seen as soon as it is told, so nobody reads further than he needs."""
    for number, text in enumerate(texts):
        key = hashlib.blake2b(text.tobytes(), digest_size=16).digest()
        if key not in seen:
            seen.add(key)
            yield number


def _as_arrow(column: np.ndarray) -> Any:
    return column if column.ndim == 1 else _arrow.rows(column.ravel(), np.full(len(column), column.shape[1]))


def distinct(kinds: int, picked: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """(count, picked) different numbers below `kinds` a row, in random order."""
    return generator.permuted(np.broadcast_to(np.arange(kinds), (count, kinds)), axis=1)[:, :picked]


def targets_of(shape: tuple[int, ...], places: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """(count, length): the answers (count, asked) at their places (count, asked), nothing asked elsewhere."""
    targets = np.full(shape, NO_TARGET, dtype=np.int32)
    np.put_along_axis(targets, places, answers.astype(np.int32), axis=1)
    return targets


def rows_of(split: datasets.Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(tokens, targets) of each text, (length,) int64 each."""
    for row in split.with_format("numpy"):
        yield row["tokens"].astype(np.int64), row["targets"].astype(np.int64)


def accuracy(made: Mapping[str, datasets.Dataset], guess: Callable[[np.ndarray], int | np.ndarray]) -> float:
    """On the test split: `guess(tokens)` is one class for the whole text, or (length,) one for each token."""
    scores = [
        float((targets == guess(tokens))[targets != NO_TARGET].mean()) for tokens, targets in rows_of(made["test"])
    ]
    return float(np.mean(scores))
