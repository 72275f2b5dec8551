"""What the compiled code of Pathfinder is compiled with, and the arrays that it works with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.core.options import DefaultOptions

from .geometry import Ints
from .stamps import Levels, Tables

Function = TypeVar("Function", bound=Callable[..., Any])
Words = npt.NDArray[np.uint64]

# Without reference counts, which took most of the time: numba counts an array of a tuple wherever it is touched. The
# price is that compiled code cannot make arrays. The option is numba's own and may be dropped, hence the question.
_OPTIONS: dict[str, Any] = {"nogil": True, **({"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {})}


def compiled(function: Function, **options: Any) -> Function:
    """Compile with numba; the cache on disk is used where some cache folder can be written."""
    try:
        return cast(Function, numba.njit(cache=True, **_OPTIONS, **options)(function))
    except RuntimeError:  # numba found no place for its cache
        return cast(Function, numba.njit(**_OPTIONS, **options)(function))


def inlined(function: Function) -> Function:
    """Compile into the callers: to hand over the many arrays of `Tables` takes longer than a short function."""
    return compiled(function, inline="always")


class Work(NamedTuple):
    """Measures of the image and arrays to work with."""

    side: int
    frame: Ints
    """(2,) stride and border of the occupied area"""
    inside: Ints
    """(2, 2) least and greatest coordinate of a pixel inside the padding by more than the margin; of one inside it"""
    state: Words
    """(4,) of the stream"""
    tips: Ints
    """(2, 6) of the growing contours: last dash (y, x, stamp), then the pivot and direction of that dash"""
    taken: Ints
    """(n, 7) the dashes whose space is occupied: y, x, stamp; first and last row and column of pivots they matter to"""
    near: Ints
    """(n + 1, 3) y, x, stamp of those that matter to the present pivot"""
    cumulative: Ints
    """(candidates,)"""
    occupied: Levels
    """(stride * stride,) the occupied area"""
    empty: Levels
    """(stride * stride,) the occupied area before the first dash: all but the image within its padding"""
    tails: Ints
    """(side * side,)"""


def work(t: Tables, sizes: Ints, dashes: int) -> Work:
    """For this many dashes in an image."""
    side, padding, edge = sizes[:3].tolist()
    first, last, stride = padding, side - 1 - padding, side + 2 * edge
    empty = np.full((stride, stride), 255, np.uint8)
    empty[edge + first : edge + last + 1, edge + first : edge + last + 1] = 0
    return Work(
        side=side,
        frame=np.array([stride, edge]),
        inside=np.array([[first + t.margin, last - t.margin], [first, last]]),
        state=np.empty(4, np.uint64),
        tips=np.empty((2, 6), np.int64),
        taken=np.empty((dashes, 7), np.int64),
        near=np.empty((dashes + 1, 3), np.int64),
        cumulative=np.empty(len(t.offsets), np.int64),
        occupied=np.empty(stride * stride, np.uint8),
        empty=empty.ravel(),
        tails=np.empty(side * side, np.int64),
    )


def _mix(z: Words) -> Words:
    """The finaliser of splitmix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def streams(key: Words, indices: Ints) -> Words:
    """(n, 4) the first states of xoshiro256**, from the words of `key` and the images' indices."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    words = np.zeros(len(indices), np.uint64)
    for part in (*key, indices.astype(np.uint64)):
        words = _mix((words ^ part) + golden)
    counts = np.arange(1, 5, dtype=np.uint64) * golden
    return _mix(words[:, None] + counts)
