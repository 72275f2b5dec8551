"""The layout of Pathfinder images by compiled code: where each dash lies (Linsley et al. 2018).

Two target contours grow dash by dash from nearby seeds, each dash's space joining the occupied area one dash late;
shorter distractors follow. The distribution is that of the original generator as of 2019, reached by short cuts that do
not change it: directions without room are not drawn, candidates are drawn by rejection, stamps are looked up.

Each image has its own stream of random integers, so that it does not depend on which images are drawn along with it.
The occupied area is the maximum over the spaces of the dashes taken in, so a growing contour can ask the dashes
instead, of which few are near. The area is painted only for the search for a distractor's first dash.

No compiled function is called from another file: numba's cache notices changes of a file, not of what it calls.
"""

from __future__ import annotations

import math

import numpy as np

from .geometry import DEGREES, WEIGHT_ONE, Floats, Ints
from .stamps import Levels, Tables
from .workspace import Words, Work, compiled, inlined, streams, work

Whole = int | np.int64  # what compiled code returns as int is numpy's for the type checker

_DRAWS = 3  # tries of a seed or of a dash, before its contour fails
_DISTRACTOR_TRIES = 5
_LEAST_WEIGHT = WEIGHT_ONE * 255 * 1e-4  # of all candidates together; less is a dead end
_FULL = 76  # occupancy up to this level (0.3 of 255) counts as free for a seed
_QUICK_DRAWS = 16  # candidates drawn by rejection, before all are weighed
_DOUBT = 2  # candidates rejected, before it is asked whether there is any to be had
_QUICK_TRIES = 64  # random pixels looked at, before all are


@compiled
def _next(state: Words) -> np.uint64:
    """The next word of xoshiro256**; `state` (4,) is overwritten."""
    x = state[1] * np.uint64(5)
    drawn: np.uint64 = ((x << np.uint64(7)) | (x >> np.uint64(57))) * np.uint64(9)
    shifted = state[1] << np.uint64(17)
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= shifted
    state[3] = (state[3] << np.uint64(45)) | (state[3] >> np.uint64(19))
    return drawn


@compiled
def _below(state: Words, bound: Whole) -> Whole:
    """A uniform integer in 0 .. bound - 1; `bound` below 2^40, so the modulo's bias is negligible."""
    return np.int64(_next(state) % np.uint64(bound))


@compiled
def _inside(side: Whole, y: Whole, x: Whole) -> bool:
    return bool(0 <= y < side and 0 <= x < side)


@compiled
def _step(y: Whole, x: Whole, displacement: Floats) -> tuple[Whole, Whole]:
    """Coordinate plus displacement, both rounded up."""
    return math.ceil(y + displacement[0]), math.ceil(x + displacement[1])


@compiled
def _take_in(t: Tables, w: Work, number: Whole, dash: Ints) -> None:
    """Make a dash (y, x, stamp, ...) the row `number` of `Work.taken`."""
    for c in range(3):
        w.taken[number, c] = dash[c]
    for c in range(4):
        w.taken[number, 3 + c] = dash[c // 2] + t.reach[dash[2], c]


@inlined
def _select_near(w: Work, count: Whole, y: Whole, x: Whole) -> Ints:
    """Those of the first `count` dashes taken in that matter to a step from a pivot."""
    found: Whole = np.int64(0)
    for k in range(count):
        for c in range(3):
            w.near[found, c] = w.taken[k, c]  # overwritten by the next one, unless it is counted; without a branch
        found += (w.taken[k, 3] <= y) & (y <= w.taken[k, 4]) & (w.taken[k, 5] <= x) & (x <= w.taken[k, 6])
    return w.near[:found]


@compiled
def _freedom(table: Levels, inside: Ints, near: Ints, y: Whole, x: Whole) -> Whole:
    """255 less the greatest occupancy within the margin of a pixel, from `Tables.freedom` and `Work.inside[0]`."""
    if min(y, x) < inside[0] or max(y, x) > inside[1]:
        return 0
    least: Whole = np.int64(255)
    side = table.shape[1]
    for k in range(near.shape[0]):
        v, u = y - near[k, 0] + side // 2, x - near[k, 1] + side // 2
        if _inside(side, v, u):
            least = min(least, np.int64(table[near[k, 2], v, u]))
    return least


@inlined
def _crosses(t: Tables, w: Work, near: Ints, y: Whole, x: Whole, stamp: Whole) -> bool:
    """Whether a dash's space overlaps the frame or that of the dashes `near` too much. Only the cores need a look."""
    top, bottom, left, right = y + t.core[stamp, 0], y + t.core[stamp, 1], x + t.core[stamp, 2], x + t.core[stamp, 3]
    if min(top, left) < w.inside[1, 0] or max(bottom, right) > w.inside[1, 1]:
        return True
    half = t.masks.shape[1] // 2
    for k in range(near.shape[0]):
        v, u, other = near[k, 0], near[k, 1], near[k, 2]
        for row in range(max(top, v + t.core[other, 0]), min(bottom, v + t.core[other, 1]) + 1):
            for column in range(max(left, u + t.core[other, 2]), min(right, u + t.core[other, 3]) + 1):
                occupancy = t.masks[other, row - v + half, column - u + half]
                if t.masks[stamp, row - y + half, column - x + half] >= t.crossing[occupancy]:
                    return True
    return False


@compiled
def _weigh(t: Tables, w: Work, near: Ints, direction: Whole, y: Whole, x: Whole) -> Whole:
    """Sum weight * freedom of all candidates; the sums so far are in `Work.cumulative`."""
    first, total = t.ahead_start[direction], np.int64(0)
    for row in range(first, t.ahead_start[direction + 1]):
        total += t.ahead[row, 1] * _freedom(t.freedom, w.inside[0], near, y + t.ahead[row, 3], x + t.ahead[row, 4])
        w.cumulative[row - first] = total
    return total


@inlined
def _draw_candidate(t: Tables, w: Work, near: Ints, direction: Whole, y: Whole, x: Whole) -> Whole:
    """Draw the next tip with probability proportional to weight * freedom; its row of `ahead`, or -1 at a dead end.

    Rejection first: a candidate drawn by weight is kept with probability freedom / 255. When one alone reaches the
    least total, the others need no look. Else all are summed; the distribution is the same.
    """
    first, end = t.ahead_start[direction], t.ahead_start[direction + 1]
    kept: Whole = np.int64(-1)
    total: Whole = np.int64(0)
    for k in range(_QUICK_DRAWS):
        drawn = _below(w.state, 255 * t.ahead[end - 1, 2])
        row: Whole = first
        while t.ahead[row, 2] <= drawn // 255:
            row += 1
        freedom = _freedom(t.freedom, w.inside[0], near, y + t.ahead[row, 3], x + t.ahead[row, 4])
        if drawn % 255 < freedom:
            if t.ahead[row, 1] * freedom >= _LEAST_WEIGHT:
                return row
            kept = row
            break
        if k == _DOUBT:
            total = _weigh(t, w, near, direction, y, x)
            if total == 0:  # nothing would be kept: only the stream goes on
                for _ in range(k + 1, _QUICK_DRAWS):
                    _next(w.state)
                return -1
    if total == 0:
        total = _weigh(t, w, near, direction, y, x)
    if total < _LEAST_WEIGHT:
        return -1
    if kept >= 0:
        return kept
    drawn = _below(w.state, total)
    row = first
    while w.cumulative[row - first] <= drawn:
        row += 1
    return row


@compiled
def _extend(t: Tables, w: Work, count: Whole, tip: Ints) -> bool:
    """Grow a contour by a dash; False at a dead end or crossing.

    `tip` is a row of `Work.tips`, overwritten. The dashes taken in are `count`, then one more: the *previous* dash.
    """
    tip[3], tip[4] = _step(tip[3], tip[4], t.steps[2, tip[5]])
    near = _select_near(w, count, tip[3], tip[4])
    for _ in range(_DRAWS):
        row = _draw_candidate(t, w, near, tip[5], tip[3], tip[4])
        if row < 0:
            return False
        y, x, stamp = tip[3] + t.ahead[row, 3], tip[4] + t.ahead[row, 4], DEGREES + t.ahead[row, 0]
        if not _crosses(t, w, near, y, x, stamp):
            _take_in(t, w, count, tip)
            tip[0], tip[1], tip[2], tip[5] = y, x, stamp, stamp
            return True
    return False


@compiled
def _place(frame: Ints, y: Whole, x: Whole) -> Whole:
    """The place of a pixel in the occupied area; `frame` (2,) is its stride and border."""
    place: Whole = (y + frame[1]) * frame[0] + x + frame[1]
    return place


@compiled
def _occupy(t: Tables, w: Work, dash: Ints) -> None:
    """Join the space of a dash (y, x, stamp) to the occupied area (maximum)."""
    place = _place(w.frame, dash[0], dash[1])
    for row in range(t.mask_start[dash[2]], t.mask_start[dash[2] + 1]):
        where = np.uint64(place + t.mask_places[row])
        w.occupied[where] = max(w.occupied[where], t.mask_levels[row])


@compiled
def _seed(t: Tables, side: Whole, y: Whole, x: Whole, stamp: Whole, tip: Ints) -> bool:
    """Put a contour's first dash at a tail; False if its head or pivot is outside the image."""
    head_y, head_x = _step(y, x, t.steps[0, stamp])
    tip[3], tip[4] = _step(head_y, head_x, t.steps[1, stamp])
    tip[0], tip[1], tip[2], tip[5] = y, x, stamp, stamp
    return _inside(side, head_y, head_x) and _inside(side, tip[3], tip[4])


@compiled
def _seed_targets(t: Tables, w: Work) -> bool:
    """First dashes of both targets; False if the second one is outside the image three times.

    The first one is uniform over directions with room, then over the free tails of that direction. Drawing it again
    whenever it is outside is the same as failing, since it is the first thing that a trial draws.
    """
    while True:
        room = t.room[_below(w.state, t.room.shape[0])]
        y = room[1] + _below(w.state, room[2] - room[1] + 1)
        x = room[3] + _below(w.state, room[4] - room[3] + 1)
        if _seed(t, w.side, y, x, room[0], w.tips[0]):
            break
    for _ in range(_DRAWS):
        stamp = _below(w.state, DEGREES)
        ring = t.steps[3, _below(w.state, DEGREES)]
        if _seed(t, w.side, int(np.rint(y + ring[0])), int(np.rint(x + ring[1])), stamp, w.tips[1]):
            return True
    return False


@compiled
def _is_free(t: Tables, w: Work, pixel: Whole, stamp: Whole) -> bool:
    """Whether the first dash of a distractor has room at a tail; what lies outside the image does not matter."""
    side, frame = w.side, w.frame
    place = _place(frame, pixel // side, pixel % side)
    for row in range(t.footprint_start[stamp], t.footprint_start[stamp + 1]):
        where = place + t.footprint_places[row]
        if w.occupied[where] > _FULL and _inside(side, where // frame[0] - frame[1], where % frame[0] - frame[1]):
            return False
    return True


@compiled
def _draw_tail(t: Tables, w: Work, stamp: Whole) -> Whole:
    """A uniform free tail as y * side + x; -1 if there is none.

    A few random pixels are tried before all are looked at; the outcome is uniform either way.
    """
    for _ in range(_QUICK_TRIES):
        pixel = _below(w.state, w.side * w.side)
        if _is_free(t, w, pixel, stamp):
            return pixel
    found = 0
    for pixel in range(w.side * w.side):
        if _is_free(t, w, pixel, stamp):
            w.tails[found] = pixel
            found += 1
    return w.tails[_below(w.state, found)] if found > 0 else -1


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
def _seed_distractor(t: Tables, w: Work, tip: Ints) -> bool:
    """First dash of a distractor; False without room, or if it is outside the image three times."""
    if not _any_room(w.occupied, w.side):
        return False
    for _ in range(_DRAWS):
        stamp = _below(w.state, DEGREES)
        if t.searchable[stamp] == 0:
            return False
        pixel = _draw_tail(t, w, stamp)
        if pixel < 0:
            return False
        if _seed(t, w.side, pixel // w.side, pixel % w.side, stamp, tip):
            return True
    return False


@compiled
def _grow_targets(t: Tables, w: Work, dashes: Ints) -> Whole:
    """Draw pairs of target contours until one succeeds; the number of trials.

    `dashes` (2, N, 3) gets (y, x, stamp) of every dash; all but one are the first ones taken in after.
    """
    length = dashes.shape[1]
    trials, grown = 0, 0
    while grown < length:
        trials += 1
        grown = 0
        if not _seed_targets(t, w):
            continue
        while True:
            for k in range(2):
                for c in range(3):
                    dashes[k, grown, c] = w.tips[k, c]
            grown += 1
            if grown == length:
                break
            if not _extend(t, w, 2 * grown - 2, w.tips[0]) or not _extend(t, w, 2 * grown - 1, w.tips[1]):
                break
    # As in the original, the first contour's last dash is not taken in: distractors may cross it.
    _take_in(t, w, 2 * length - 2, w.tips[1])
    return trials


@compiled
def _grow_distractor(t: Tables, w: Work, count: Whole, dashes: Ints) -> bool:
    """Try once to place a distractor; if it fails, the dashes taken in are the first `count` as before."""
    tip = w.tips[0]
    if not _seed_distractor(t, w, tip):
        return False
    for k in range(dashes.shape[0]):
        if k > 0 and not _extend(t, w, count + k - 1, tip):
            return False
        for c in range(3):
            dashes[k, c] = tip[c]
    _take_in(t, w, count + dashes.shape[0] - 1, tip)
    return True


@compiled
def _lay_out(
    t: Tables, w: Work, margins: int, which: int, states: Words, facts: Ints, targets: Ints, distractors: Ints
) -> None:
    """See `lay_out`."""
    for i in range(states.shape[0]):
        for k in range(4):
            w.state[k] = states[i, k]
        label = _below(w.state, 2)
        if _below(w.state, margins) != which:
            continue
        trials = _grow_targets(t, w, targets[i])
        count, painted, placed, attempts = 2 * targets.shape[2] - 1, 0, 0, 0
        for k in range(w.empty.size):
            w.occupied[k] = w.empty[k]
        for _ in range(distractors.shape[1]):
            for k in range(painted, count):
                _occupy(t, w, w.taken[k])
            painted = count
            for _ in range(_DISTRACTOR_TRIES):
                attempts += 1
                if _grow_distractor(t, w, count, distractors[i, placed]):
                    count += distractors.shape[2]
                    placed += 1
                    break
        facts[i, 0], facts[i, 1], facts[i, 2] = label, which, _below(w.state, 2)
        facts[i, 3], facts[i, 4], facts[i, 5] = placed, attempts, trials


def lay_out(
    t: Tables, sizes: Ints, which: int, key: Words, indices: Ints, facts: Ints, targets: Ints, distractors: Ints
) -> None:
    """Lay out those of n images whose margin is number `which`.

    `sizes` (4,): R, padding, border, number of margins. Outputs: `facts` (n, 6): label, number of the margin, which
    target's origin gets a disc, distractors placed, attempts to place them, trials of the targets; `targets`
    (n, 2, N, 3) and `distractors` (n, K, N', 3): (y, x, stamp) of every dash, the placed distractors first.
    """
    w = work(t, sizes, 2 * targets.shape[2] + distractors.shape[1] * distractors.shape[2])
    _lay_out(t, w, int(sizes[3]), which, streams(key, indices), facts, targets, distractors)
