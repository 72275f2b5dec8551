"""How long runs will take and what memory they need, from what was measured."""

from __future__ import annotations

import heapq
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

from pydantic import BaseModel


class Probe(BaseModel, frozen=True):
    """A few training steps and batches of an evaluation, in a process of its own.

    Attributes:
        seconds: of training, validation and test, by what one step and one batch took.
        measured: seconds that the probe itself spent on steps and batches.
        peak_bytes: of the process, as in a record's cost.
    """

    seconds: float
    measured: float
    peak_bytes: int


def seconds_of_a_call(act: Callable[[], object], most: int = 5) -> float:
    """The median of as many calls as it takes until two of them differ by a quarter at most.

    So a call in which the machine stalled, as it does when others work on it, is not taken for the cost.
    """
    taken: list[float] = []
    while len(taken) < most:
        began = time.monotonic()
        act()
        now = time.monotonic() - began
        taken.append(now)
        if any(max(now, other) <= 1.25 * min(now, other) for other in taken[:-1]):
            break
    return statistics.median(taken)


def projected(
    first: float, step: float, evaluation: float, *, steps: int, eval_every: int, batches: tuple[int, int]
) -> float:
    """Seconds of a run: the first step is dearer than the others; `batches` of one validation and of the test."""
    validations = -(-steps // eval_every)
    return first + (steps - 1) * step + (validations * batches[0] + batches[1]) * evaluation


def makespan(busy: Sequence[float], jobs: Iterable[float], workers: int) -> float:
    """Seconds until all jobs are done in their order; `busy` are what the jobs under way still need."""
    free = sorted(busy)[-workers:] + [0.0] * max(0, workers - len(busy))
    heapq.heapify(free)
    for job in jobs:
        heapq.heapreplace(free, free[0] + job)
    return max(free, default=0.0)


def in_words(seconds: float) -> str:
    """A time as a person says it."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 99.5 else f"{minutes / 60:.1f} h"
