"""What is estimated in a study, with an interval and the smallest effect it could have seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import stats

from attnbench.comparison import Difference, difference
from attnbench.statistics import LEVEL, ROUNDING, Scores

#: How likely a true effect of the size `Estimate.smallest` is to show.
POWER = 0.8
ALPHA = 1 - LEVEL


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval.

    Attributes:
        p: two-sided, of "it is 0"; `adjusted` by Holm over the claims of a study.
        seeds: how many are in it.
        smallest: the least true value that would have shown at level 0.05, unadjusted, with probability POWER, had
            seeds varied as they do here.
    """

    mean: float
    low: float
    high: float
    p: float
    seeds: int
    smallest: float
    adjusted: float | None = None

    @property
    def shows(self) -> bool:
        """By the adjusted p-value where there is one."""
        return (self.p if self.adjusted is None else self.adjusted) < ALPHA


def smallest(half_width: float, seeds: int) -> float:
    """The effect that a t test of level 0.05 shows with probability POWER, by the half width of its interval."""
    deviation = half_width * math.sqrt(seeds) / float(stats.t.ppf(1 - ALPHA / 2, seeds - 1))
    return deviation * _effect(seeds)


@cache
def _effect(seeds: int) -> float:
    """In standard deviations over seeds."""
    from statsmodels.stats.power import TTestPower

    return float(TTestPower().solve_power(nobs=seeds, alpha=ALPHA, power=POWER))


def over_seeds(values: Mapping[int, float]) -> Estimate:
    """t over seeds.

    Raises:
        ValueError: fewer than two seeds.
    """
    found = np.array([values[seed] for seed in sorted(values)], dtype=np.float64)
    if len(found) < 2:
        raise ValueError(f"{len(found)} of the two seeds that an interval needs")
    mean, error = float(found.mean()), float(found.std(ddof=1)) / math.sqrt(len(found))
    half = error * float(stats.t.ppf(1 - ALPHA / 2, len(found) - 1))
    # seeds without any spread are no certainty
    p = 2 * float(stats.t.sf(abs(mean) / error, len(found) - 1)) if error > ROUNDING else 1.0
    return Estimate(mean, mean - half, mean + half, p, len(found), smallest(half, len(found)))


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Estimate:
    """The first minus the second, t over the seeds of both."""
    return over_seeds({seed: first[seed] - second[seed] for seed in first.keys() & second.keys()})


def of_scores(first: Mapping[int, Scores], second: Mapping[int, Scores]) -> Estimate:
    """Test scores of the first minus the second, paired by seed and example (`attnbench.comparison`)."""
    if len(first.keys() & second.keys()) < 2:
        raise ValueError("fewer than the two common seeds that an interval over trainings needs")
    found: Difference = difference("a", "b", first, second)
    half = max(found.high - found.mean, found.mean - found.low)
    return Estimate(found.mean, found.low, found.high, found.p, found.seeds, smallest(half, found.seeds))


def slopes(scores: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """Least-squares slope of a score over log2(1 + count), for each seed that has every count.

    Args:
        scores: by count, then by seed.
    """
    seeds = set.intersection(*(set(by_seed) for by_seed in scores.values())) if scores else set()
    x = np.log2(1.0 + np.array(sorted(scores)))
    return {seed: float(np.polyfit(x, [scores[count][seed] for count in sorted(scores)], 1)[0]) for seed in seeds}
