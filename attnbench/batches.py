"""Examples as arrays, in the order of training and of evaluation.

Shape letters: B batch, N rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attnbench.columns import Split, filled
from attnbench.config import Padding
from attnbench.questions import Asked, Question
from attnbench.randomness import batch_indices, key

Indices = Sequence[int] | np.ndarray
#: Batches that padding.rule=grouped sorts by length together: the more, the less padding and the less random.
GROUPED = 16


@dataclass(frozen=True)
class Batch:
    """Documents as (tokens (B, N) int64, mask (B, N) bool or None), what is asked of them, indices (B,) int64."""

    documents: list[tuple[np.ndarray, np.ndarray | None]]
    asked: Asked
    indices: np.ndarray


@dataclass(frozen=True)
class Batches:
    """Makes batches of one split. Without `padded` all rows are equally long and there is no mask, but for the one that
    the padding rules ask for.
    """

    split: Split
    question: Question
    padding: Padding
    padded: bool
    max_length: int

    def collate(self, indices: Indices) -> Batch:
        """The examples as arrays, filled with 0 behind: to the maximum, or to the longest document of the batch."""
        documents, length = [], 0
        for ragged in self.split.documents:
            rows = [ragged[int(i)] for i in indices]
            length = self.max_length if self.padding.rule == "max" else max(len(row) for row in rows)
            tokens, mask = filled(rows, length, 0)
            mask = mask & (tokens != 0) if self.padding.mask_zeros else mask
            documents.append((tokens, mask if self.padded or self.padding.mask_zeros else None))
        return Batch(documents, self.question.ask(self.split, indices, length), np.asarray(indices, dtype=np.int64))

    def drawn(self, seed: int, size: int, step: int) -> np.ndarray:
        """The examples of a training step, (size,), a function of (seed, step).

        With padding.rule=grouped those of GROUPED steps are sorted by length and the batches dealt out at random.
        """
        if self.padding.rule != "grouped":
            return batch_indices(seed, len(self.split), size, step)
        group, place = divmod(step, GROUPED)
        steps = range(group * GROUPED, (group + 1) * GROUPED)
        pool = np.concatenate([batch_indices(seed, len(self.split), size, one) for one in steps])
        by_length = pool[np.argsort(self._lengths(pool), kind="stable")].reshape(GROUPED, size)
        deal = np.random.Generator(np.random.PCG64(key(seed, "groups", group))).permutation(GROUPED)
        found: np.ndarray = by_length[deal[place]]
        return found

    def in_order(self, size: int) -> Iterator[Batch]:
        """All examples once, the last batch included; with padding.rule=grouped from the shortest to the longest."""
        order = np.arange(len(self.split))
        if self.padding.rule == "grouped":
            order = np.argsort(self._lengths(order), kind="stable")
        for start in range(0, len(order), size):
            yield self.collate(order[start : start + size])

    def _lengths(self, indices: np.ndarray) -> np.ndarray:
        """Of the longest document of each example."""
        found: np.ndarray = np.max([[len(ragged[int(i)]) for i in indices] for ragged in self.split.documents], axis=0)
        return found
