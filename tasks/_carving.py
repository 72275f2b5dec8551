"""Which rows of a published split are taken, in which order, and which of them are for validation.

All three are functions of a seed and of a row's own content, never of its place. So files sorted by label are shuffled,
the same rows in another layout give the same set, and equal rows never stand on both sides of a cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from attnbench.contracts import Preparation
from attnbench.errors import AttnbenchError

#: One row in so many is for validation.
ONE_IN = 10


def digests(seed: int, contents: Sequence[bytes]) -> np.ndarray:
    """(rows, 2) uint64: two independent draws for each row (BLAKE2, keyed with the seed)."""
    key = str(seed).encode()[:64]
    joined = b"".join(hashlib.blake2b(content, digest_size=16, key=key).digest() for content in contents)
    return np.frombuffer(joined, dtype="<u8").reshape(-1, 2)


def shuffled(what: str, drawn: np.ndarray, labels: Sequence[int] | np.ndarray, count: int | None) -> np.ndarray:
    """The rows in the order of their draws, the first `count` of them, or all.

    Raises:
        AttnbenchError: there are not so many.
    """
    if count is not None and count > len(drawn):
        raise AttnbenchError(f"{what} has {len(drawn):,} rows, {count:,} are asked for; ask for fewer")
    order: np.ndarray = np.lexsort((np.asarray(labels), drawn[:, 1], drawn[:, 0]))
    return order[:count]


def for_validation(drawn: np.ndarray) -> np.ndarray:
    """(rows,) bool: about one row in ten."""
    chosen: np.ndarray = (drawn[:, 1] % ONE_IN) == 0
    return chosen


def carved(rows: np.ndarray, held_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows for training and those for validation.

    Raises:
        AttnbenchError: one of the two is empty.
    """
    if not 0 < held_out.sum() < len(rows):
        raise AttnbenchError(f"{len(rows)} rows are too few to carve a validation set from; ask for more examples")
    return rows[~held_out], rows[held_out]


def tell_duplicates(preparation: Preparation, what: str, splits: dict[str, np.ndarray]) -> None:
    """Notes how many rows repeat an earlier one of their split, and how many of the others the first split has too.

    `splits`: draws of each published split, the training rows first.
    """
    unique = {name: np.unique(drawn, axis=0) for name, drawn in splits.items()}
    first, *others = splits
    known = {row.tobytes() for row in unique[first]}
    found = {f"in {name}": len(drawn) - len(unique[name]) for name, drawn in splits.items()}
    found |= {f"of {name} also in {first}": sum(row.tobytes() in known for row in splits[name]) for name in others}
    preparation.fact("duplicates", {name.replace(" ", "_"): count for name, count in found.items()})
    if any(found.values()):
        listed = ", ".join(f"{count:,} {name}" for name, count in found.items())
        preparation.note(f"{what} that occur more than once, kept as they are: {listed}")
