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
from .stamps import Levels, Tables, border, tables

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
def _place(frame: Ints, y: int, x: int) -> int:
    """The place of a pixel in the occupied area; `frame` (2,) is its stride and border."""
    return (y + frame[1]) * frame[0] + x + frame[1]


@compiled
def _occupy(t: Tables, occupied: Levels, frame: Ints, dash: Ints) -> None:
    """Join the space of a dash (y, x, stamp) to the occupied area (maximum)."""
    place = _place(frame, dash[0], dash[1])
    for row in range(t.mask_start[dash[2]], t.mask_start[dash[2] + 1]):
        where = place + t.mask_places[row]
        occupied[where] = max(occupied[where], t.mask_levels[row])


@compiled
def _crosses(t: Tables, occupied: Levels, place: int, stamp: int) -> bool:
    """Whether a dash's space overlaps the occupied area too much."""
    for row in range(t.mask_start[stamp], t.mask_core[stamp]):
        if t.mask_levels[row] >= t.crossing[occupied[place + t.mask_places[row]]]:
            return True
    return False


@compiled
def _extend(t: Tables, occupied: Levels, frame: Ints, state: Words, tip: Ints, cumulative: Ints) -> bool:
    """Grow a contour by a dash; False at a dead end or crossing.

    `tip` (6,): its last dash (y, x, stamp), then the pivot and direction of that dash; overwritten. The occupied area
    takes in the *previous* dash only.
    """
    direction = tip[5]
    tip[3], tip[4] = _step(tip[3], tip[4], t.steps[2, direction])
    pivot = _place(frame, tip[3], tip[4])
    first, end = t.ahead_start[direction], t.ahead_start[direction + 1]
    total = np.int64(0)
    for row in range(first, end):
        greatest = np.uint8(0)
        for k in range(t.near.shape[0]):
            greatest = max(greatest, occupied[pivot + t.ahead[row, 2] + t.near[k]])
        total += t.ahead[row, 1] * (255 - np.int64(greatest))
        cumulative[row - first] = total
    if total < _LEAST_WEIGHT:
        return False
    for _ in range(_DRAWS):
        drawn = _below(state, total)
        row = first
        while cumulative[row - first] <= drawn:
            row += 1
        candidate = t.ahead[row, 0]
        if not _crosses(t, occupied, pivot + t.ahead[row, 2], DEGREES + candidate):
            _occupy(t, occupied, frame, tip)
            tip[0], tip[1] = tip[3] + t.offsets[candidate, 0], tip[4] + t.offsets[candidate, 1]
            tip[2] = tip[5] = DEGREES + candidate
            return True
    return False


@compiled
def _seed(t: Tables, side: int, y: int, x: int, stamp: int, tip: Ints) -> bool:
    """Put a contour's first dash at a tail; False if its head or pivot is outside the image."""
    head_y, head_x = _step(y, x, t.steps[0, stamp])
    tip[3], tip[4] = _step(head_y, head_x, t.steps[1, stamp])
    tip[0], tip[1], tip[2], tip[5] = y, x, stamp, stamp
    return _inside(side, head_y, head_x) and _inside(side, tip[3], tip[4])


@compiled
def _seed_targets(t: Tables, side: int, state: Words, tips: Ints) -> bool:
    """First dashes of both targets; False if the second one is outside the image three times.

    The first one is uniform over directions with room, then over the free tails of that direction. Drawing it again
    whenever it is outside is the same as failing, since it is the first thing that a trial draws.
    """
    while True:
        room = t.room[_below(state, t.room.shape[0])]
        y = room[1] + _below(state, room[2] - room[1] + 1)
        x = room[3] + _below(state, room[4] - room[3] + 1)
        if _seed(t, side, y, x, room[0], tips[0]):
            break
    for _ in range(_DRAWS):
        stamp = _below(state, DEGREES)
        ring = t.steps[3, _below(state, DEGREES)]
        if _seed(t, side, int(np.rint(y + ring[0])), int(np.rint(x + ring[1])), stamp, tips[1]):
            return True
    return False


@compiled
def _is_free(t: Tables, occupied: Levels, place: int, stamp: int) -> bool:
    """Whether the first dash of a distractor has room at a tail; the outermost pixels are always occupied."""
    for row in range(t.footprint_start[stamp], t.footprint_start[stamp + 1]):
        if occupied[place + t.footprint_places[row]] > _FULL:
            return False
    return True


@compiled
def _draw_tail(t: Tables, occupied: Levels, frame: Ints, side: int, state: Words, stamp: int, free: Ints) -> int:
    """A uniform free tail as y * side + x; -1 if there is none. `free` (side * side,) is scratch.

    A few random pixels are tried before all are looked at; the outcome is uniform either way.
    """
    for _ in range(_QUICK_TRIES):
        pixel = _below(state, side * side)
        if _is_free(t, occupied, _place(frame, pixel // side, pixel % side), stamp):
            return pixel
    found = 0
    for pixel in range(side * side):
        if _is_free(t, occupied, _place(frame, pixel // side, pixel % side), stamp):
            free[found] = pixel
            found += 1
    return free[_below(state, found)] if found > 0 else -1


@compiled
def _any_room(occupied: Levels, side: int) -> bool:
    """Whether at least 1 % of the image's pixels are free; the border counts as occupied."""
    count = 0
    for k in range(occupied.size):
        count += occupied[k] <= _FULL
        if count >= 0.01 * side * side:
            return True
    return False


@compiled
def _seed_distractor(
    t: Tables, occupied: Levels, frame: Ints, side: int, state: Words, tip: Ints, free: Ints
) -> bool:
    """First dash of a distractor; False without room, or if it is outside the image three times."""
    if not _any_room(occupied, side):
        return False
    for _ in range(_DRAWS):
        stamp = _below(state, DEGREES)
        if t.searchable[stamp] == 0:
            return False
        pixel = _draw_tail(t, occupied, frame, side, state, stamp, free)
        if pixel < 0:
            return False
        if _seed(t, side, pixel // side, pixel % side, stamp, tip):
            return True
    return False


@compiled
def _grow_targets(
    t: Tables, sizes: Ints, frame: Ints, state: Words, empty: Levels, occupied: Levels, dashes: Ints, free: Ints
) -> int:
    """Draw pairs of target contours until one succeeds; the number of trials.

    `empty` is the occupied area before the first dash, `occupied` after the last. `dashes` (2, N, 3) gets (y, x, stamp)
    of every dash.
    """
    length = dashes.shape[1]
    tips = np.empty((2, 6), np.int64)
    trials, grown = 0, 0
    while grown < length:
        trials += 1
        grown = 0
        if not _seed_targets(t, sizes[0], state, tips):
            continue
        occupied[:] = empty
        while True:
            for k in range(2):
                for c in range(3):
                    dashes[k, grown, c] = tips[k, c]
            grown += 1
            if grown == length:
                break
            if not _extend(t, occupied, frame, state, tips[0], free):
                break
            if not _extend(t, occupied, frame, state, tips[1], free):
                break
    # As in the original, the first contour's last dash is not taken in: distractors may cross it.
    _occupy(t, occupied, frame, tips[1])
    return trials


@compiled
def _grow_distractor(
    t: Tables, side: int, frame: Ints, state: Words, occupied: Levels, before: Levels, dashes: Ints, free: Ints
) -> bool:
    """Try once to place a distractor; on failure `occupied` is left as it was. `before` is scratch."""
    tip = np.empty(6, np.int64)
    if not _seed_distractor(t, occupied, frame, side, state, tip, free):
        return False
    before[:] = occupied
    for k in range(dashes.shape[0]):
        if k > 0 and not _extend(t, occupied, frame, state, tip, free):
            occupied[:] = before
            return False
        for c in range(3):
            dashes[k, c] = tip[c]
    _occupy(t, occupied, frame, tip)
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
    side = canvas.shape[0]
    least = greatest = canvas[0, 0]
    for y in range(side):
        for x in range(side):
            least, greatest = min(least, canvas[y, x]), max(greatest, canvas[y, x])
    scale = 255.0 / (greatest - least)
    for y in range(side):
        for x in range(side):
            image[y, x] = np.uint8((canvas[y, x] - least) * scale + 0.5)


@compiled
def _empty_area(sizes: Ints, frame: Ints) -> Levels:
    """The occupied area before the first dash: all but the image within its padding."""
    stride = frame[0]
    area = np.full(stride * stride, 255, np.uint8)
    for y in range(sizes[1], sizes[0] - sizes[1]):
        for x in range(sizes[1], sizes[0] - sizes[1]):
            area[_place(frame, y, x)] = 0
    return area


@compiled
def _record(facts: Ints, targets: Ints, origin: int, terminal: int) -> None:
    """Write the three pairs of points behind the first five facts."""
    for c in range(2):
        for k in range(2):
            facts[5 + 2 * k + c] = targets[k, 0, c]
            facts[9 + 2 * k + c] = targets[k, -1, c]
        facts[13 + c] = targets[origin, 0, c]
        facts[15 + c] = targets[terminal, -1, c]


@compiled
def _draw(
    t: Tables, sizes: Ints, which: int, key: Words, indices: Ints, images: Levels, contours: Levels, facts: Ints
) -> None:
    """Draw those of the images whose margin is number `which`.

    `sizes` (7,): R, padding, border, number of margins, N, distractor length, distractors. `images` (n, R, R),
    `contours` (n or 0, 2, R, R) and `facts` (n, 17) (label, number of the margin, placed, attempts, trials, then three
    pairs of points) are outputs.
    """
    side = sizes[0]
    frame = np.array([side + 2 * sizes[2], sizes[2]])
    state = np.empty(4, np.uint64)
    free = np.empty(side * side, np.int64)
    empty = _empty_area(sizes, frame)
    occupied, before = empty.copy(), empty.copy()
    canvas = np.empty((side, side), np.float64)
    targets = np.empty((2, sizes[4], 3), np.int64)
    distractor = np.empty((sizes[5], 3), np.int64)
    for i in range(indices.shape[0]):
        _start_stream(key, indices[i], state)
        label = _below(state, 2)
        if _below(state, sizes[3]) != which:
            continue
        trials = _grow_targets(t, sizes, frame, state, empty, occupied, targets, free)
        for k in range(2 * (contours.shape[0] > 0)):
            canvas[:] = 0.0
            _paint(t, canvas, targets[k], TARGET)
            _stretch(canvas, contours[i, k])
        canvas[:] = 0.0
        for k in range(2):
            _paint(t, canvas, targets[k], TARGET)
        placed, attempts = 0, 0
        for _ in range(sizes[6]):
            for _ in range(_DISTRACTOR_TRIES):
                attempts += 1
                if _grow_distractor(t, side, frame, state, occupied, before, distractor, free):
                    placed += 1
                    _paint(t, canvas, distractor, DISTRACTOR)
                    break
        origin = _below(state, 2)
        terminal = origin if label == 1 else 1 - origin
        _paint_disc(t, canvas, targets[origin, 0, 0], targets[origin, 0, 1])
        _paint_disc(t, canvas, targets[terminal, -1, 0], targets[terminal, -1, 1])
        _stretch(canvas, images[i])
        facts[i, 0], facts[i, 1], facts[i, 2], facts[i, 3], facts[i, 4] = label, which, placed, attempts, trials
        _record(facts[i], targets, origin, terminal)


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
    for which, margin in enumerate(margins):
        lengths = (parameters.contour_length, parameters.distractor_length, parameters.distractors)
        sizes = np.array([side, parameters.padding, border(parameters, margin), len(margins), *lengths])
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
