"""The layout of Pathfinder images by compiled code: where each dash lies (Linsley et al. 2018).

Two target contours grow dash by dash from nearby seeds, each dash's space joining the occupied area one dash late;
shorter distractors follow. The distribution is that of the original generator as of 2019, reached by short cuts that do
not change it: directions without room are not drawn, candidates are drawn by rejection, stamps are looked up.

Each image has its own stream of random integers, so that it does not depend on which images are drawn along with it.
No compiled function is called from another file: numba's cache notices changes of a file, not of what it calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from .geometry import DEGREES, WEIGHT_ONE, Floats, Ints
from .stamps import Levels, Tables

Function = TypeVar("Function", bound=Callable[..., Any])
Words = npt.NDArray[np.uint64]
Whole = int | np.int64  # what compiled code returns as int is numpy's for the type checker

_DRAWS = 3  # tries of a seed or of a dash, before its contour fails
_DISTRACTOR_TRIES = 5
_LEAST_WEIGHT = WEIGHT_ONE * 255 * 1e-4  # of all candidates together; less is a dead end
_FULL = 76  # occupancy up to this level (0.3 of 255) counts as free for a seed
_QUICK_DRAWS = 16  # candidates drawn by rejection, before all are weighed
_QUICK_TRIES = 64  # random pixels looked at, before all are


def compiled(function: Function) -> Function:
    """Compile with numba; the cache on disk is used where some cache folder can be written."""
    try:
        return cast(Function, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # numba found no place for its cache
        return cast(Function, numba.njit(nogil=True)(function))


@compiled
def _mix(z: np.uint64) -> np.uint64:
    """The finaliser of splitmix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled
def _start_stream(key: Words, index: Whole, state: Words) -> None:
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
def _below(state: Words, bound: Whole) -> Whole:
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
def _inside(side: Whole, y: Whole, x: Whole) -> bool:
    return bool(0 <= y < side and 0 <= x < side)


@compiled
def _step(y: Whole, x: Whole, displacement: Floats) -> tuple[Whole, Whole]:
    """Coordinate plus displacement, both rounded up."""
    return math.ceil(y + displacement[0]), math.ceil(x + displacement[1])


@compiled
def _place(frame: Ints, y: Whole, x: Whole) -> Whole:
    """The place of a pixel in the occupied area; `frame` (2,) is its stride and border."""
    place: Whole = (y + frame[1]) * frame[0] + x + frame[1]
    return place


@compiled
def _occupy(t: Tables, occupied: Levels, frame: Ints, dash: Ints) -> None:
    """Join the space of a dash (y, x, stamp) to the occupied area (maximum)."""
    place = _place(frame, dash[0], dash[1])
    for row in range(t.mask_start[dash[2]], t.mask_start[dash[2] + 1]):
        where = np.uint64(place + t.mask_places[row])
        occupied[where] = max(occupied[where], t.mask_levels[row])


@compiled
def _release(t: Tables, occupied: Levels, before: Levels, frame: Ints, dashes: Ints) -> None:
    """Undo a failed contour: set the space of its dashes (n, 3) back to what it was. Cheaper than copying the area."""
    for k in range(dashes.shape[0]):
        place, stamp = _place(frame, dashes[k, 0], dashes[k, 1]), dashes[k, 2]
        for row in range(t.mask_start[stamp], t.mask_start[stamp + 1]):
            where = np.uint64(place + t.mask_places[row])
            occupied[where] = before[where]


@compiled
def _crosses(t: Tables, occupied: Levels, place: Whole, stamp: Whole) -> bool:
    """Whether a dash's space overlaps the occupied area too much."""
    for row in range(t.mask_start[stamp], t.mask_core[stamp]):
        if t.mask_levels[row] >= t.crossing[occupied[np.uint64(place + t.mask_places[row])]]:
            return True
    return False


@compiled
def _freedom(t: Tables, occupied: Levels, place: Whole) -> Whole:
    """255 less the greatest occupancy within the margin of a place; 0 outside the image."""
    greatest = np.uint8(0)
    for k in range(t.near.shape[0]):
        greatest = max(greatest, occupied[np.uint64(place + t.near[k])])
    return 255 - np.int64(greatest)


@compiled
def _draw_candidate(
    t: Tables, occupied: Levels, state: Words, direction: Whole, pivot: Whole, cumulative: Ints
) -> Whole:
    """Draw the next tip with probability proportional to weight * freedom; its row of `ahead`, or -1 at a dead end.

    Rejection first: a candidate drawn by weight is kept with probability freedom / 255. When one alone reaches the
    least total, the others need no look. Else all are summed; the distribution is the same.
    """
    first, end = t.ahead_start[direction], t.ahead_start[direction + 1]
    kept: Whole = np.int64(-1)
    for _ in range(_QUICK_DRAWS):
        drawn = _below(state, 255 * t.ahead[end - 1, 3])
        row: Whole = first
        while t.ahead[row, 3] <= drawn // 255:
            row += 1
        freedom = _freedom(t, occupied, pivot + t.ahead[row, 2])
        if drawn % 255 < freedom:
            if t.ahead[row, 1] * freedom >= _LEAST_WEIGHT:
                return row
            kept = row
            break
    total = np.int64(0)
    for row in range(first, end):
        total += t.ahead[row, 1] * _freedom(t, occupied, pivot + t.ahead[row, 2])
        cumulative[row - first] = total
    if total < _LEAST_WEIGHT:
        return -1
    if kept >= 0:
        return kept
    drawn = _below(state, total)
    row = first
    while cumulative[row - first] <= drawn:
        row += 1
    return row


@compiled
def _extend(t: Tables, occupied: Levels, frame: Ints, state: Words, tip: Ints, cumulative: Ints) -> bool:
    """Grow a contour by a dash; False at a dead end or crossing.

    `tip` (6,): its last dash (y, x, stamp), then the pivot and direction of that dash; overwritten. The occupied area
    takes in the *previous* dash only.
    """
    tip[3], tip[4] = _step(tip[3], tip[4], t.steps[2, tip[5]])
    pivot = _place(frame, tip[3], tip[4])
    for _ in range(_DRAWS):
        row = _draw_candidate(t, occupied, state, tip[5], pivot, cumulative)
        if row < 0:
            return False
        candidate = t.ahead[row, 0]
        if not _crosses(t, occupied, pivot + t.ahead[row, 2], DEGREES + candidate):
            _occupy(t, occupied, frame, tip)
            tip[0], tip[1] = tip[3] + t.offsets[candidate, 0], tip[4] + t.offsets[candidate, 1]
            tip[2] = tip[5] = DEGREES + candidate
            return True
    return False


@compiled
def _seed(t: Tables, side: Whole, y: Whole, x: Whole, stamp: Whole, tip: Ints) -> bool:
    """Put a contour's first dash at a tail; False if its head or pivot is outside the image."""
    head_y, head_x = _step(y, x, t.steps[0, stamp])
    tip[3], tip[4] = _step(head_y, head_x, t.steps[1, stamp])
    tip[0], tip[1], tip[2], tip[5] = y, x, stamp, stamp
    return _inside(side, head_y, head_x) and _inside(side, tip[3], tip[4])


@compiled
def _seed_targets(t: Tables, side: Whole, state: Words, tips: Ints) -> bool:
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
def _is_free(t: Tables, occupied: Levels, frame: Ints, side: Whole, pixel: Whole, stamp: Whole) -> bool:
    """Whether the first dash of a distractor has room at a tail; what lies outside the image does not matter."""
    place = _place(frame, pixel // side, pixel % side)
    for row in range(t.footprint_start[stamp], t.footprint_start[stamp + 1]):
        where = place + t.footprint_places[row]
        if occupied[where] > _FULL and _inside(side, where // frame[0] - frame[1], where % frame[0] - frame[1]):
            return False
    return True


@compiled
def _draw_tail(t: Tables, occupied: Levels, frame: Ints, side: Whole, state: Words, stamp: Whole, free: Ints) -> Whole:
    """A uniform free tail as y * side + x; -1 if there is none. `free` (side * side,) is scratch.

    A few random pixels are tried before all are looked at; the outcome is uniform either way.
    """
    for _ in range(_QUICK_TRIES):
        pixel = _below(state, side * side)
        if _is_free(t, occupied, frame, side, pixel, stamp):
            return pixel
    found = 0
    for pixel in range(side * side):
        if _is_free(t, occupied, frame, side, pixel, stamp):
            free[found] = pixel
            found += 1
    return free[_below(state, found)] if found > 0 else -1


@compiled
def _any_room(occupied: Levels, side: Whole) -> bool:
    """Whether at least 1 % of the image's pixels are free; the border counts as occupied."""
    count = 0
    for k in range(occupied.size):
        count += occupied[k] <= _FULL
        if count >= 0.01 * side * side:
            return True
    return False


@compiled
def _seed_distractor(
    t: Tables, occupied: Levels, frame: Ints, side: Whole, state: Words, tip: Ints, free: Ints
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
    t: Tables, side: Whole, frame: Ints, state: Words, empty: Levels, occupied: Levels, dashes: Ints, free: Ints
) -> Whole:
    """Draw pairs of target contours until one succeeds; the number of trials.

    `occupied` equals `empty` before and holds the dashes' space after. `dashes` (2, N, 3) gets (y, x, stamp)
    of every dash.
    """
    length = dashes.shape[1]
    tips = np.empty((2, 6), np.int64)
    trials, grown = 0, 0
    while grown < length:
        for k in range(2):
            _release(t, occupied, empty, frame, dashes[k, :grown])
        trials += 1
        grown = 0
        if not _seed_targets(t, side, state, tips):
            continue
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
    t: Tables, side: Whole, frame: Ints, state: Words, occupied: Levels, before: Levels, dashes: Ints, free: Ints
) -> bool:
    """Try once to place a distractor.

    `occupied` and `before` are alike before and after: on success both take the distractor in, else neither does.
    """
    tip = np.empty(6, np.int64)
    if not _seed_distractor(t, occupied, frame, side, state, tip, free):
        return False
    for k in range(dashes.shape[0]):
        if k > 0 and not _extend(t, occupied, frame, state, tip, free):
            _release(t, occupied, before, frame, dashes[:k])
            return False
        for c in range(3):
            dashes[k, c] = tip[c]
    _occupy(t, occupied, frame, tip)
    for k in range(dashes.shape[0]):
        _occupy(t, before, frame, dashes[k])
    return True


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
def lay_out(
    t: Tables, sizes: Ints, which: int, key: Words, indices: Ints, facts: Ints, targets: Ints, distractors: Ints
) -> None:
    """Lay out those of n images whose margin is number `which`.

    `sizes` (4,): R, padding, border, number of margins. Outputs: `facts` (n, 6): label, number of the margin, which
    target's origin gets a disc, distractors placed, attempts to place them, trials of the targets; `targets`
    (n, 2, N, 3) and `distractors` (n, K, N', 3): (y, x, stamp) of every dash, the placed distractors first.
    """
    side = sizes[0]
    frame = np.array([side + 2 * sizes[2], sizes[2]])
    state = np.empty(4, np.uint64)
    scratch = np.empty(side * side, np.int64)
    empty = _empty_area(sizes, frame)
    occupied, before = empty.copy(), empty.copy()
    for i in range(indices.shape[0]):
        _start_stream(key, indices[i], state)
        label = _below(state, 2)
        if _below(state, sizes[3]) != which:
            continue
        occupied[:] = empty
        trials = _grow_targets(t, side, frame, state, empty, occupied, targets[i], scratch)
        before[:] = occupied
        placed, attempts = 0, 0
        for _ in range(distractors.shape[1]):
            for _ in range(_DISTRACTOR_TRIES):
                attempts += 1
                if _grow_distractor(t, side, frame, state, occupied, before, distractors[i, placed], scratch):
                    placed += 1
                    break
        facts[i, 0], facts[i, 1], facts[i, 2] = label, which, _below(state, 2)
        facts[i, 3], facts[i, 4], facts[i, 5] = placed, attempts, trials
