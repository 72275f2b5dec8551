"""What ListOps gives away to a reader of its surface, beyond the root operator, which the engine's own levels hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import datasets
import numpy as np

from .expressions import CLOSE, FIRST_DIGIT, FIRST_OPERATOR, apply
from .options import Options
from .tables import rows_of


def root_and_its_digits(options: Options, made: datasets.DatasetDict) -> dict[str, float]:
    """Test accuracy of a guess by the root operator and its value over its own digits, as if nothing were nested: the
    label which that most often had in training.
    """
    labels: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for seen, label in _surface(made["train"]):
        labels[seen][label] += 1
    guess = {seen: counts.most_common(1)[0][0] for seen, counts in labels.items()}
    right = [guess.get(seen) == label for seen, label in _surface(made["test"])]
    return {"root_and_its_digits": float(np.mean(right))}


def _surface(split: datasets.Dataset) -> Iterator[tuple[tuple[int, int], int]]:
    """The first token, its value over the digits that stand directly below it (-1 without any), and the label."""
    table = split.data.table
    for tokens, label in zip(rows_of(table), table.column("label").to_pylist(), strict=True):
        ids = np.frombuffer(tokens, np.uint8)
        is_digit = ids < FIRST_OPERATOR
        depths = np.cumsum(np.where(is_digit, 0, np.where(ids == CLOSE, -1, 1)))
        own = (ids[is_digit & (depths == 1)] - FIRST_DIGIT).tolist()
        yield (tokens[0], apply(tokens[0], own) if own else -1), label
