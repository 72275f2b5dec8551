"""Figures from samples: quantiles, exponents, ratios of neighbours in time, crossover. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from attnbench.speed.result import CellResult, Sample

LEVEL = 0.95
#: A sample whose threads waited for longer than this share of its time says more about the machine than about the cell.
DELAYED = 0.03
#: Fewer undelayed samples than this are no better than all of them.
FEWEST = 3


@dataclass(frozen=True)
class Quantiles:
    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Exponent:
    """Slope of log cost over log length; `half` is that of its 95 % interval, from the scatter around the line."""

    value: float
    half: float
    points: int
    first: int


@dataclass(frozen=True)
class Crossover:
    """From `length` on, the mechanism stays faster than the baseline, as far as both were measured.

    `always` and `never`: within the lengths from `first` to `last` that both have.
    """

    kind: Literal["at", "always", "never"]
    first: int
    last: int
    length: float | None = None


def undelayed(samples: Sequence[Sample]) -> list[Sample]:
    """Those whose threads had their cores; all, where too few had."""
    quiet = [one for one in samples if one.waited <= DELAYED]
    return quiet if len(quiet) >= FEWEST else list(samples)


def quantiles(samples: Sequence[Sample]) -> Quantiles:
    """Median and quartiles of seconds."""
    low, median, high = np.quantile([one.seconds for one in undelayed(samples)], [0.25, 0.5, 0.75])
    return Quantiles(float(low), float(median), float(high))


def exponent(costs: Mapping[int, float]) -> Exponent | None:
    """Least squares over the upper half of the lengths, at least three; None where there are fewer, or no cost."""
    known = sorted((length, cost) for length, cost in costs.items() if cost > 0)
    upper = known[-max(3, math.ceil(len(known) / 2)) :]
    if len(upper) < 3:
        return None
    line = stats.linregress(*np.log(upper).T)
    scatter = 0.0 if len({cost for _, cost in upper}) == 1 else line.stderr  # scipy has none for equal costs
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(upper) - 2) * scatter)
    return Exponent(float(line.slope), half, len(upper), upper[0][0])


def ratios(of: Sequence[Sample], to: Sequence[Sample]) -> list[float]:
    """Times of the first over those of the second, in the rounds in which both were undelayed, or in all."""
    a, b = ({one.round: one.seconds for one in undelayed(samples)} for samples in (of, to))
    if len(a.keys() & b.keys()) < FEWEST:
        a, b = ({one.round: one.seconds for one in samples} for samples in (of, to))
    return [a[number] / b[number] for number in sorted(a.keys() & b.keys())]


def ratio(of: CellResult, to: CellResult) -> float | None:
    """Median of `ratios`."""
    found = ratios(of.samples, to.samples)
    return float(np.median(found)) if found else None


def crossover(mechanism: Mapping[int, CellResult], baseline: Mapping[int, CellResult]) -> Crossover | None:
    """By the ratio of times at lengths that both have; between two lengths the logarithm of the ratio is taken for a
    line over that of the length.
    """
    shared = sorted(mechanism.keys() & baseline.keys())
    found = {length: ratio(mechanism[length], baseline[length]) for length in shared}
    return crossing({length: value for length, value in found.items() if value is not None})


def crossing(ratio_by_length: Mapping[int, float]) -> Crossover | None:
    points = sorted(ratio_by_length.items())
    if not points:
        return None
    first, last = points[0][0], points[-1][0]
    if points[-1][1] >= 1:
        return Crossover("never", first, last)
    slower = [index for index, (_, value) in enumerate(points) if value >= 1]
    if not slower:
        return Crossover("always", first, last)
    (n0, r0), (n1, r1) = points[slower[-1]], points[slower[-1] + 1]
    share = math.log(r0) / (math.log(r0) - math.log(r1))
    return Crossover("at", first, last, math.exp(math.log(n0) + share * math.log(n1 / n0)))
