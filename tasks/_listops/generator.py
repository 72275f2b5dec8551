"""ListOps trees drawn by compiled code, node by node in the order of the text, evaluated as they close.

A tree that must become too long is given up at once, and one that is too short at its end; the trees that are kept have
the distribution of the grammar. Trees come in chunks, each with a stream of its own, so that chunks can be drawn in any
order and by any number of workers.

All compiled functions stand in this file, and the ids of tokens are handed over: see `_compiled`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .._compiled import compiled
from .expressions import CLOSE, FIRST_DIGIT, FIRST_OPERATOR
from .grammar import Grammar

CHUNK = 1000
"""Trees of a chunk; part of what a seed means."""

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Whole = int | np.int64

_MIN, _MAX, _MED = 0, 1, 2  # and SM; the order of their tokens


class Trees(NamedTuple):
    """Tree i is tokens[offsets[i] : offsets[i + 1]] and is worth labels[i]; `drawn` counts those given up too."""

    tokens: Bytes
    offsets: Ints
    labels: Ints
    drawn: int


def draw(grammar: Grammar, seed: int, chunk: int) -> Trees:
    """The trees of one chunk, a function of the arguments alone. Some of different chunks may be equal."""
    parts = [seed, grammar.min_length, grammar.max_length, grammar.max_depth, grammar.max_args, chunk]
    state = np.random.SeedSequence(parts).generate_state(4, np.uint64).astype(np.uint64)
    tokens = np.empty(CHUNK * grammar.max_length, np.uint8)
    offsets, labels = np.zeros(CHUNK + 1, np.int64), np.empty(CHUNK, np.int64)
    limits = np.array([grammar.min_length, grammar.max_length, grammar.max_depth, grammar.max_args])
    ids = np.array([FIRST_DIGIT, FIRST_OPERATOR, CLOSE], np.uint8)
    work = np.empty((4, grammar.max_length), np.int64)
    drawn = _fill(state, limits, ids, work, tokens, offsets, labels)
    return Trees(tokens[: offsets[-1]].copy(), offsets, labels, int(drawn))


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
def _share(word: np.uint64, bound: Whole) -> Whole:
    """A uniform integer in 0 .. bound - 1 from the upper half of a word; `bound` is small, so the bias is 1e-8."""
    return (np.int64(word >> np.uint64(32)) * bound) >> 32


@compiled
def _value(operator: Whole, values: Ints) -> Whole:
    """What an operator makes of its arguments, digits all."""
    if operator == _MIN:
        return np.int64(values.min())
    if operator == _MAX:
        return np.int64(values.max())
    if operator != _MED:
        return np.int64(values.sum() % 10)
    below, low = 0, -1
    for digit in range(10):  # the middle two of the sorted arguments, which are one when their count is odd
        for value in values:
            if value == digit:
                below += 1
        if low < 0 and below > (len(values) - 1) // 2:
            low = digit
        if below > len(values) // 2:
            return (low + digit) // 2
    return -1


@compiled
def _tree(state: Words, limits: Ints, ids: Bytes, work: Ints, tokens: Bytes) -> Whole:
    """Draws one tree into `tokens`: its length, or 0 when it is not within the limits; its value stands in work[0, 0].

    work (4, max_length): values of finished nodes; of each open operator its kind, the arguments that it lacks, and
    the number of values before its own.
    """
    values, kinds, lacking, first = work
    length, least, count, level = 0, 1, 0, 0  # `least`: tokens that the tree will have if all that it lacks are digits
    while True:
        word = _next(state)
        if level + 1 < limits[2] and word & np.uint64(3) == 0:
            kinds[level] = np.int64(word >> np.uint64(2)) & 3
            lacking[level] = 2 + _share(word, limits[3] - 1)
            first[level] = count
            least += 1 + lacking[level]
            if least >= limits[1]:
                return 0
            tokens[length] = ids[1] + kinds[level]
            level += 1
            length += 1
            continue
        values[count] = _share(word, 10)
        tokens[length] = ids[0] + values[count]
        count += 1
        length += 1
        while level > 0:
            lacking[level - 1] -= 1
            if lacking[level - 1] > 0:
                break
            level -= 1
            values[first[level]] = _value(kinds[level], values[first[level] : count])
            count = first[level] + 1
            tokens[length] = ids[2]
            length += 1
        if level == 0:
            return length if length > limits[0] else 0


@compiled
def _fill(state: Words, limits: Ints, ids: Bytes, work: Ints, tokens: Bytes, offsets: Ints, labels: Ints) -> int:
    """Draws trees until there are enough; how many it drew."""
    drawn = 0
    for index in range(len(labels)):
        start = offsets[index + 1] = offsets[index]
        while offsets[index + 1] == start:
            drawn += 1
            offsets[index + 1] += _tree(state, limits, ids, work, tokens[start:])
        labels[index] = work[0, 0]
    return drawn
