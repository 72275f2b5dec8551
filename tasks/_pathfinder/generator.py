"""Pathfinder images by compiled code: the algorithm of Linsley et al. 2018 under the parameters of LRA.

Two target contours grow dash by dash from nearby seeds, each dash's space joining the occupied area one dash late;
shorter distractors follow; two discs mark ends of the same target (label 1) or of different ones (label 0).
The distribution is that of the original generator as of 2019. Instead of redrawing dashes, stamps are looked up; instead
of drawing directions until one has room, only such directions are drawn.

Each image has its own integer random stream, so that it does not depend on which images are drawn along with it.
All compiled functions live in this one file: the cache of numba notices changes of a file, not of what it calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from .geometry import DEGREES, WEIGHT_ONE, Ints, Parameters
from .stamps import Levels, Tables, tables

Function = TypeVar("Function", bound=Callable[..., Any])

_DRAWS = 3  # tries of a seed or of a dash, before its contour fails
_DISTRACTOR_TRIES = 5
_LEAST_WEIGHT = WEIGHT_ONE * 255 * 1e-4  # of all candidates together; less is a dead end
_FULL = 76  # occupancy up to this level (0.3 of 255) counts as free for a seed
_QUICK_TRIES = 64  # random pixels looked at before all are

TARGET, DISTRACTOR, MARKER = 0, 1, 2

Words = npt.NDArray[np.uint64]


def compiled(function: Function) -> Function:
    """Compile with numba; the cache on disk is used where some cache folder can be written."""
    try:
        return cast(Function, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # numba found no place for its cache
        return cast(Function, numba.njit(nogil=True)(function))


class Batch(NamedTuple):
    """Images and what is known about them; n images of side R. Points are (y, x) pixels."""

    images: Levels
    """(n, R, R) white on black; every image spans 0 to 255"""
    labels: npt.NDArray[np.int8]
    """(n,) 1 if both discs lie on the same target contour"""
    margins: Ints
    """(n,) the margin drawn for the image"""
    origin_tips: Ints
    """(n, 2, 2) start of each target contour"""
    terminal_tips: Ints
    """(n, 2, 2) end of each target contour"""
    disc_centres: Ints
    """(n, 2, 2) the disc on an origin, then the disc on a terminal tip"""
    distractors_placed: Ints
    """(n,) distractor contours that found room"""
    distractor_attempts: Ints
    """(n,) attempts to place them"""
    contour_trials: Ints
    """(n,) pairs of target contours begun, the successful one included"""
    contours: Levels
    """(n, 2, R, R) each target contour drawn alone; (0, 2, R, R) unless asked for"""


@compiled
def _mix(z: np.uint64) -> np.uint64:
    """The finaliser of splitmix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled
def _start_stream(key: Words, index: int, state: Words) -> None:
    """Set the xoshiro256** `state` (4,) from the words of `key` and the image's index."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    word = np.uint64(0)
    for part in key:
        word = _mix((word ^ part) + golden)
    word = _mix((word ^ np.uint64(index)) + golden)
    for k in range(4):
        word += golden
        state[k] = _mix(word)


@compiled
def _below(state: Words, bound: int) -> int:
    """A uniform integer in 0 .. bound - 1 from xoshiro256**; `bound` below 2^40, so the modulo's bias is negligible."""
    x = state[1] * np.uint64(5)
    drawn = ((x << np.uint64(7)) | (x >> np.uint64(57))) * np.uint64(9)
    shifted = state[1] << np.uint64(17)
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= shifted
    state[3] = (state[3] << np.uint64(45)) | (state[3] >> np.uint64(19))
    return np.int64(drawn % np.uint64(bound))


@compiled
def _inside(side: int, y: int, x: int) -> bool:
    return 0 <= y < side and 0 <= x < side


@compiled
def _step(y: int, x: int, displacement: npt.NDArray[np.float64]) -> tuple[int, int]:
    """Coordinate plus displacement, both rounded up."""
    return math.ceil(y + displacement[0]), math.ceil(x + displacement[1])


@compiled
def _occupy(t: Tables, occupied: Levels, y: int, x: int, stamp: int) -> None:
    """Join a dash's space to the occupied area (maximum)."""
    side = occupied.shape[0]
    for row in range(t.mask_start[stamp], t.mask_start[stamp + 1]):
        v, u = y + t.mask_pixels[row, 0], x + t.mask_pixels[row, 1]
        if _inside(side, v, u):
            occupied[v, u] = max(occupied[v, u], np.uint8(t.mask_pixels[row, 2]))


@compiled
def _crosses(t: Tables, occupied: Levels, y: int, x: int, stamp: int) -> bool:
    """Whether a dash's space overlaps the occupied area too much."""
    side = occupied.shape[0]
    for row in range(t.mask_start[stamp], t.mask_start[stamp + 1]):
        v, u = y + t.mask_pixels[row, 0], x + t.mask_pixels[row, 1]
        if _inside(side, v, u) and t.mask_pixels[row, 2] >= t.crossing[occupied[v, u]]:
            return True
    return False


@compiled
def _freedom(t: Tables, occupied: Levels, y: int, x: int) -> int:
    """255 less the greatest occupancy within the margin of a pixel."""
    side = occupied.shape[0]
    greatest = 0
    for k in range(t.near.shape[0]):
        v, u = y + t.near[k, 0], x + t.near[k, 1]
        if _inside(side, v, u):
            greatest = max(greatest, int(occupied[v, u]))
    return 255 - greatest


@compiled
def _extend(t: Tables, occupied: Levels, state: Words, last: Ints, pivot: Ints, cumulative: Ints) -> bool:
    """Grow a contour by a dash.

    `last` (3,) is its last dash (y, x, stamp) and `pivot` (3,) the pivot and direction number of that dash; both are
    overwritten. The occupied area takes in the *previous* dash. False at a dead end or crossing.
    """
    pivot[0], pivot[1] = _step(pivot[0], pivot[1], t.forward[pivot[2]])
    total = np.int64(0)
    for c in range(t.offsets.shape[0]):
        weight = t.weights[pivot[2], c]
        y, x = pivot[0] + t.offsets[c, 0], pivot[1] + t.offsets[c, 1]
        if weight > 0 and _inside(occupied.shape[0], y, x):
            total += weight * _freedom(t, occupied, y, x)
        cumulative[c] = total
    if total < _LEAST_WEIGHT:
        return False
    for _ in range(_DRAWS):
        drawn = _below(state, total)
        c = 0
        while cumulative[c] <= drawn:
            c += 1
        y, x = pivot[0] + t.offsets[c, 0], pivot[1] + t.offsets[c, 1]
        if not _crosses(t, occupied, y, x, DEGREES + c):
            _occupy(t, occupied, last[0], last[1], last[2])
            last[0], last[1], last[2] = y, x, DEGREES + c
            pivot[2] = DEGREES + c
            return True
    return False


@compiled
def _seed(t: Tables, side: int, y: int, x: int, stamp: int, last: Ints, pivot: Ints) -> bool:
    """Put a contour's first dash at a tail; False if its head or pivot is outside the image."""
    head_y, head_x = _step(y, x, t.head[stamp])
    pivot[0], pivot[1] = _step(head_y, head_x, t.back[stamp])
    pivot[2] = stamp
    last[0], last[1], last[2] = y, x, stamp
    return _inside(side, head_y, head_x) and _inside(side, pivot[0], pivot[1])


@compiled
def _seed_targets(t: Tables, side: int, state: Words, last: Ints, pivot: Ints) -> bool:
    """First dashes of both targets; False if the second one is outside the image three times.

    The first one is uniform over directions with room, then over the free tails of that direction. Drawing it again
    whenever it is outside is the same as failing, since it is the first thing that a trial draws.
    """
    while True:
        room = t.room[_below(state, t.room.shape[0])]
        y = room[1] + _below(state, room[2] - room[1] + 1)
        x = room[3] + _below(state, room[4] - room[3] + 1)
        if _seed(t, side, y, x, room[0], last[0], pivot[0]):
            break
    for _ in range(_DRAWS):
        stamp = _below(state, DEGREES)
        ring = t.ring[_below(state, DEGREES)]
        if _seed(t, side, int(np.rint(y + ring[0])), int(np.rint(x + ring[1])), stamp, last[1], pivot[1]):
            return True
    return False


@compiled
def _free_tail(t: Tables, occupied: Levels, y: int, x: int, stamp: int) -> bool:
    """Whether the first dash of a distractor has room at a tail: nothing occupied, nothing on the outermost pixels."""
    side = occupied.shape[0]
    for row in range(t.footprint_start[stamp], t.footprint_start[stamp + 1]):
        v, u = y + t.footprint_pixels[row, 0], x + t.footprint_pixels[row, 1]
        if _inside(side, v, u) and (not (0 < v < side - 1 and 0 < u < side - 1) or occupied[v, u] > _FULL):
            return False
    return True


@compiled
def _draw_tail(t: Tables, occupied: Levels, state: Words, stamp: int, free: Ints) -> int:
    """A uniform free tail as y * side + x; -1 if there is none. `free` (side * side,) is scratch.

    A few random pixels are tried before all are looked at; the outcome is uniform either way.
    """
    side = occupied.shape[0]
    for _ in range(_QUICK_TRIES):
        place = _below(state, side * side)
        if _free_tail(t, occupied, place // side, place % side, stamp):
            return place
    found = 0
    for place in range(side * side):
        if _free_tail(t, occupied, place // side, place % side, stamp):
            free[found] = place
            found += 1
    return free[_below(state, found)] if found > 0 else -1


@compiled
def _seed_distractor(t: Tables, occupied: Levels, state: Words, last: Ints, pivot: Ints, free: Ints) -> bool:
    """First dash of a distractor; False without room, or if it is outside the image three times."""
    side = occupied.shape[0]
    for _ in range(_DRAWS):
        stamp = _below(state, DEGREES)
        if t.searchable[stamp] == 0:
            return False
        place = _draw_tail(t, occupied, state, stamp, free)
        if place < 0:
            return False
        if _seed(t, side, place // side, place % side, stamp, last, pivot):
            return True
    return False


@compiled
def _grow_targets(t: Tables, padding: int, state: Words, occupied: Levels, dashes: Ints, free: Ints) -> int:
    """Draw pairs of target contours until one succeeds; the number of trials.

    `dashes` (2, N, 3) gets (y, x, stamp) of every dash, `occupied` (R, R) the area they take.
    """
    side, length = occupied.shape[0], dashes.shape[1]
    last, pivot = np.empty((2, 3), np.int64), np.empty((2, 3), np.int64)
    trials = 0
    while True:
        trials += 1
        if not _seed_targets(t, side, state, last, pivot):
            continue
        occupied[:] = 255
        occupied[padding : side - padding, padding : side - padding] = 0
        dashes[:, 0] = last
        grown = 1
        while grown < length:
            if not _extend(t, occupied, state, last[0], pivot[0], free):
                break
            if not _extend(t, occupied, state, last[1], pivot[1], free):
                break
            dashes[:, grown] = last
            grown += 1
        if grown == length:
            # As in the original, the first contour's last dash is not taken in: distractors may cross it.
            _occupy(t, occupied, last[1, 0], last[1, 1], last[1, 2])
            return trials


@compiled
def _grow_distractor(t: Tables, state: Words, occupied: Levels, dashes: Ints, free: Ints) -> bool:
    """Try once to place a distractor; on failure `occupied` is left as it was."""
    last, pivot = np.empty(3, np.int64), np.empty(3, np.int64)
    # Without 1 % of free pixels the original gives up before it looks for a tail.
    if np.sum(occupied <= _FULL) < 0.01 * occupied.size or not _seed_distractor(t, occupied, state, last, pivot, free):
        return False
    before = occupied.copy()
    dashes[0] = last
    for k in range(1, dashes.shape[0]):
        if not _extend(t, occupied, state, last, pivot, free):
            occupied[:] = before
            return False
        dashes[k] = last
    _occupy(t, occupied, last[0], last[1], last[2])
    return True


@compiled
def _paint(t: Tables, canvas: npt.NDArray[np.float64], dashes: Ints, kind: int) -> None:
    """Join dashes (n, 3) to a canvas (maximum)."""
    side = canvas.shape[0]
    for k in range(dashes.shape[0]):
        stamp = dashes[k, 2]
        for row in range(t.dash_start[stamp], t.dash_start[stamp + 1]):
            y, x = dashes[k, 0] + t.dash_pixels[row, 0], dashes[k, 1] + t.dash_pixels[row, 1]
            if _inside(side, y, x):
                canvas[y, x] = max(canvas[y, x], t.values[kind, t.dash_pixels[row, 2]])


@compiled
def _paint_disc(t: Tables, canvas: npt.NDArray[np.float64], y: int, x: int) -> None:
    """Join a disc to a canvas (maximum)."""
    side, size = canvas.shape[0], t.markers.shape[0]
    middle = size // 2
    # The place of the disc on its small canvas: in the middle, unless an edge is near.
    v = min(y, middle) if y < side - 1 - middle else size - side + y
    u = min(x, middle) if x < side - 1 - middle else size - side + x
    top, left = y - v, x - u
    for row in range(size):
        for column in range(size):
            value = t.values[MARKER, t.markers[v, u, row, column]]
            canvas[top + row, left + column] = max(canvas[top + row, left + column], value)


@compiled
def _stretch(canvas: npt.NDArray[np.float64], image: Levels) -> None:
    """Write a canvas as 8 bits, its least value as 0 and its greatest as 255."""
    least = canvas.min()
    scale = 255.0 / (canvas.max() - least)
    for y in range(canvas.shape[0]):
        for x in range(canvas.shape[1]):
            image[y, x] = np.uint8((canvas[y, x] - least) * scale + 0.5)


@compiled
def _draw(
    t: Tables, sizes: Ints, which: int, key: Words, indices: Ints, images: Levels, contours: Levels, facts: Ints
) -> None:
    """Draw those of the images whose margin is number `which`.

    `sizes`: padding, number of margins, N, distractor length, distractors. `images` (n, R, R), `contours` (n or 0, 2,
    R, R) and `facts` (n, 17) (label, number of the margin, placed, attempts, trials, then three pairs of points) are
    outputs.
    """
    side = images.shape[1]
    state = np.empty(4, np.uint64)
    free = np.empty(side * side, np.int64)
    occupied = np.empty((side, side), np.uint8)
    canvas = np.empty((side, side), np.float64)
    targets = np.empty((2, sizes[2], 3), np.int64)
    distractor = np.empty((sizes[3], 3), np.int64)
    for i in range(indices.shape[0]):
        _start_stream(key, indices[i], state)
        label = _below(state, 2)
        if _below(state, sizes[1]) != which:
            continue
        trials = _grow_targets(t, sizes[0], state, occupied, targets, free)
        if contours.shape[0] > 0:
            for k in range(2):
                canvas[:] = 0.0
                _paint(t, canvas, targets[k], TARGET)
                _stretch(canvas, contours[i, k])
        canvas[:] = 0.0
        _paint(t, canvas, targets[0], TARGET)
        _paint(t, canvas, targets[1], TARGET)
        placed, attempts = 0, 0
        for _ in range(sizes[4]):
            for _ in range(_DISTRACTOR_TRIES):
                attempts += 1
                if _grow_distractor(t, state, occupied, distractor, free):
                    placed += 1
                    _paint(t, canvas, distractor, DISTRACTOR)
                    break
        origin = _below(state, 2)
        terminal = origin if label == 1 else 1 - origin
        _paint_disc(t, canvas, targets[origin, 0, 0], targets[origin, 0, 1])
        _paint_disc(t, canvas, targets[terminal, -1, 0], targets[terminal, -1, 1])
        _stretch(canvas, images[i])
        facts[i, 0], facts[i, 1], facts[i, 2], facts[i, 3], facts[i, 4] = label, which, placed, attempts, trials
        for c in range(2):
            facts[i, 5 + c], facts[i, 7 + c] = targets[0, 0, c], targets[1, 0, c]
            facts[i, 9 + c], facts[i, 11 + c] = targets[0, -1, c], targets[1, -1, c]
            facts[i, 13 + c], facts[i, 15 + c] = targets[origin, 0, c], targets[terminal, -1, c]


def generate(parameters: Parameters, seed: int, indices: Ints | range, *, contours: bool = False) -> Batch:
    """Draw the images with these indices (0 to 2^63 - 1, in any order; repeats allowed).

    An image is a function of (parameters, seed, its index) alone: batches, order and processes do not matter.
    `ValueError` on a negative index or a seed outside 0 .. 2^64 - 1.
    """
    numbers = np.asarray(indices, dtype=np.int64).reshape(-1)
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"Pathfinder seed {seed}: it must lie in 0 .. 2^64 - 1")
    if numbers.size and numbers.min() < 0:
        raise ValueError(f"Pathfinder image index {numbers.min()}: it must not be negative")
    side, count, margins = parameters.resolution, len(numbers), parameters.margins
    images = np.empty((count, side, side), np.uint8)
    alone = np.empty((count if contours else 0, 2, side, side), np.uint8)
    facts = np.empty((count, 17), np.int64)
    key = np.array([seed, side, parameters.contour_length], dtype=np.uint64)
    length, distractor_length = parameters.contour_length, parameters.distractor_length
    sizes = np.array([parameters.padding, len(margins), length, distractor_length, parameters.distractors], np.int64)
    for which, margin in enumerate(margins):
        _draw(tables(parameters, margin), sizes, which, key, numbers, images, alone, facts)
    points = facts[:, 5:].reshape(count, 3, 2, 2)
    return Batch(
        images=images,
        labels=facts[:, 0].astype(np.int8),
        margins=np.array(margins, np.int64)[facts[:, 1]],
        origin_tips=points[:, 0],
        terminal_tips=points[:, 1],
        disc_centres=points[:, 2],
        distractors_placed=facts[:, 2],
        distractor_attempts=facts[:, 3],
        contour_trials=facts[:, 4],
        contours=alone,
    )
