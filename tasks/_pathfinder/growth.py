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
        return cast(Function, numba.njit(cache=True, nogil=True, _nrt=False)(function))
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
def _take_in(t: Tables, dash: Ints, row: Ints) -> None:
    """Write a dash (y, x, stamp) and the reach of its space, the pivots to which it matters, as a row of `taken`."""
    row[0], row[1], row[2] = dash[0], dash[1], dash[2]
    for c in range(4):
        row[3 + c] = dash[c // 2] + t.reach[dash[2], c]


@compiled
def _select_near(taken: Ints, y: Whole, x: Whole, near: Ints) -> Whole:
    """Write the rows of `taken` that matter to a step from this pivot to the front of `near`; how many they are."""
    found: Whole = np.int64(0)
    for k in range(taken.shape[0]):
        for c in range(3):
            near[found, c] = taken[k, c]
        found += (taken[k, 3] <= y) & (y <= taken[k, 4]) & (taken[k, 5] <= x) & (x <= taken[k, 6])
    return found


@compiled
def _freedom(free: Levels, within: Ints, near: Ints, y: Whole, x: Whole) -> Whole:
    """255 less the greatest occupancy within the margin of a pixel."""
    if y < within[0] or x < within[0] or y > within[1] or x > within[1]:
        return 0
    least: Whole = np.int64(255)
    half = free.shape[1] // 2
    for k in range(near.shape[0]):
        v, u = y - near[k, 0] + half, x - near[k, 1] + half
        if 0 <= v < free.shape[1] and 0 <= u < free.shape[1]:
            least = min(least, np.int64(free[near[k, 2], v, u]))
    return least


@compiled
def _crosses(t: Tables, inside: Ints, near: Ints, y: Whole, x: Whole, stamp: Whole) -> bool:
    """Whether a dash's space overlaps the frame or the space of the dashes `near` too much."""
    top, bottom = y + t.core[stamp, 0], y + t.core[stamp, 1]
    left, right = x + t.core[stamp, 2], x + t.core[stamp, 3]
    if top < inside[0] or left < inside[0] or bottom > inside[1] or right > inside[1]:
        return True
    half = t.masks.shape[1] // 2
    for k in range(near.shape[0]):
        v, u, other = near[k, 0], near[k, 1], near[k, 2]
        for row in range(max(top, v + t.core[other, 0]), min(bottom, v + t.core[other, 1]) + 1):
            for column in range(max(left, u + t.core[other, 2]), min(right, u + t.core[other, 3]) + 1):
                level = t.masks[stamp, row - y + half, column - x + half]
                if level >= t.crossing[t.masks[other, row - v + half, column - u + half]]:
                    return True
    return False


@compiled
def _draw_candidate(
    t: Tables, within: Ints, near: Ints, state: Words, direction: Whole, y: Whole, x: Whole, cumulative: Ints
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
        candidate = t.ahead[row, 0]
        freedom = _freedom(t.free, within, near, y + t.offsets[candidate, 0], x + t.offsets[candidate, 1])
        if drawn % 255 < freedom:
            if t.ahead[row, 1] * freedom >= _LEAST_WEIGHT:
                return row
            kept = row
            break
    total = np.int64(0)
    for row in range(first, end):
        candidate = t.ahead[row, 0]
        freedom = _freedom(t.free, within, near, y + t.offsets[candidate, 0], x + t.offsets[candidate, 1])
        total += t.ahead[row, 1] * freedom
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
def _extend(t: Tables, limits: Ints, taken: Ints, state: Words, tip: Ints, near: Ints, cumulative: Ints) -> bool:
    """Grow a contour by a dash; False at a dead end or crossing.

    `tip` (6,): its last dash (y, x, stamp), then the pivot and direction of that dash; overwritten. `taken` are the
    dashes whose space is occupied, and in its last row room for the *previous* dash, which is taken in now.
    """
    tip[3], tip[4] = _step(tip[3], tip[4], t.steps[2, tip[5]])
    count = taken.shape[0] - 1
    near = near[: _select_near(taken[:count], tip[3], tip[4], near)]
    for _ in range(_DRAWS):
        row = _draw_candidate(t, limits[0], near, state, tip[5], tip[3], tip[4], cumulative)
        if row < 0:
            return False
        candidate = t.ahead[row, 0]
        y, x = tip[3] + t.offsets[candidate, 0], tip[4] + t.offsets[candidate, 1]
        if not _crosses(t, limits[1], near, y, x, DEGREES + candidate):
            _take_in(t, tip, taken[count])
            tip[0], tip[1] = y, x
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
    t: Tables, side: Whole, limits: Ints, state: Words, taken: Ints, dashes: Ints, near: Ints, cumulative: Ints, tips: Ints
) -> Whole:
    """Draw pairs of target contours until one succeeds; the number of trials.

    `taken` (2 N - 1 or more rows) gets the dashes whose space is occupied after. `dashes` (2, N, 3) gets (y, x, stamp)
    of every dash.
    """
    length = dashes.shape[1]
    trials, grown = 0, 0
    while grown < length:
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
            if not _extend(t, limits, taken[: 2 * grown - 1], state, tips[0], near, cumulative):
                break
            if not _extend(t, limits, taken[: 2 * grown], state, tips[1], near, cumulative):
                break
    # As in the original, the first contour's last dash is not taken in: distractors may cross it.
    _take_in(t, tips[1], taken[2 * length - 2])
    return trials


@compiled
def _grow_distractor(
    t: Tables, limits: Ints, state: Words, taken: Ints, dashes: Ints, near: Ints, cumulative: Ints, tip: Ints
) -> bool:
    """Grow a distractor from its first dash, `tip`; its dashes become the last rows of `taken`. False if it fails."""
    count = taken.shape[0] - dashes.shape[0]
    for k in range(dashes.shape[0]):
        if k > 0 and not _extend(t, limits, taken[: count + k], state, tip, near, cumulative):
            return False
        for c in range(3):
            dashes[k, c] = tip[c]
    _take_in(t, tip, taken[taken.shape[0] - 1])
    return True


@compiled
def _lay_out(
    t: Tables, sizes: Ints, which: int, key: Words, indices: Ints, facts: Ints, targets: Ints, distractors: Ints, frame: Ints, limits: Ints, state: Words, tip:Ints, tips: Ints, free: Ints, cumulative: Ints, taken: Ints, near: Ints, empty: Levels, occupied: Levels
) -> None:
    """Lay out those of n images whose margin is number `which`.

    `sizes` (4,): R, padding, border, number of margins. Outputs: `facts` (n, 6): label, number of the margin, which
    target's origin gets a disc, distractors placed, attempts to place them, trials of the targets; `targets`
    (n, 2, N, 3) and `distractors` (n, K, N', 3): (y, x, stamp) of every dash, the placed distractors first.
    """
    side, padding, edge, margins = sizes
    length, more = targets.shape[2], distractors.shape[2]
    for i in range(indices.shape[0]):
        _start_stream(key, indices[i], state)
        label = _below(state, 2)
        if _below(state, margins) != which:
            continue
        trials = _grow_targets(t, side, limits, state, taken, targets[i], near, cumulative, tips)
        for k in range(empty.size):
            occupied[k] = empty[k]
        count = 2 * length - 1
        for k in range(count):
            _occupy(t, occupied, frame, taken[k])
        placed, attempts = 0, 0
        for _ in range(distractors.shape[1]):
            for _ in range(_DISTRACTOR_TRIES):
                attempts += 1
                if _seed_distractor(t, occupied, frame, side, state, tip, free) and _grow_distractor(
                    t, limits, state, taken[: count + more], distractors[i, placed], near, cumulative, tip
                ):
                    for k in range(count, count + more):
                        _occupy(t, occupied, frame, taken[k])
                    count += more
                    placed += 1
                    break
        facts[i, 0], facts[i, 1], facts[i, 2] = label, which, _below(state, 2)
        facts[i, 3], facts[i, 4], facts[i, 5] = placed, attempts, trials


def lay_out(
    t: Tables, sizes: Ints, which: int, key: Words, indices: Ints, facts: Ints, targets: Ints, distractors: Ints
) -> None:
    side, padding, edge, margins = sizes
    frame = np.array([side + 2 * edge, edge])
    length, more = targets.shape[2], distractors.shape[2]
    # The pixels inside the frame by more than the margin, and those inside.
    limits = np.array([[padding + t.margin, side - 1 - padding - t.margin], [padding, side - 1 - padding]])
    state, tip = np.empty(4, np.uint64), np.empty(6, np.int64)
    tips = np.empty((2, 6), np.int64)
    free = np.empty(side * side, np.int64)
    cumulative = np.empty(t.offsets.shape[0], np.int64)
    taken = np.empty((2 * length - 1 + distractors.shape[1] * more, 7), np.int64)
    near = np.empty((taken.shape[0] + 1, 3), np.int64)
    empty = np.full((side+2*edge, side+2*edge), 255, np.uint8)
    f = edge + padding
    empty[f:-f,f:-f]=0
    empty = empty.ravel()
    occupied = empty.copy()
    _lay_out(t, sizes, which, key, indices, facts, targets, distractors, frame, limits, state, tip, tips, free, cumulative, taken, near, empty, occupied)
