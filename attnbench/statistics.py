"""Intervals and tests: over the test examples of one trained model, and over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats

#: A run whose one-sided p-value is not below this is `not_above_chance`.
ABOVE_CHANCE_LEVEL = 0.001
#: Two-sided level of every interval.
LEVEL = 0.95

#: Scores closer together than this differ by rounding only.
ROUNDING = 1e-9

Scores = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Summary:
    """What several seeds of one cell gave.

    Attributes:
        sd: standard deviation over seeds (n - 1 in the denominator); None with one seed.
        low, high: 95 % t interval of the mean over seeds, not clipped; None with one seed.
    """

    mean: float
    sd: float | None
    n: int
    low: float | None
    high: float | None


def score_interval(scores: Scores) -> tuple[float, float, float]:
    """Mean of per-example scores with its 95 % interval over test examples, for this trained model only.

    Scores that are all 0 or 1 get Wilson's interval (1927). Others are means over the predictions inside an example,
    so examples, not predictions, are the independent draws: a t interval over them, clipped to [0, 1]. Where they
    show no spread, Wilson's interval at their mean is used: no score in [0, 1] varies more than 0/1 of the same mean.

    Args:
        scores: (examples,), each in [0, 1].

    Returns:
        (mean, low, high)

    Raises:
        ValueError: no scores, not one dimension, or a score outside [0, 1].
    """
    values = _checked(scores)
    mean, n = float(values.mean()), values.size
    if _binary(values) or _constant(values):
        return (mean, *_wilson(mean, n))
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * float(values.std(ddof=1)) / math.sqrt(n)
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def p_above(scores: Scores, chance: float) -> float:
    """One-sided p-value of "the mean score is not above chance".

    Exact binomial for 0/1 scores, else one-sided t over examples. Scores without any spread give t nothing to
    estimate with; they get Hoeffding's bound (1963, theorem 1), which holds for every distribution on [0, 1].

    Args:
        scores: (examples,), each in [0, 1].
        chance: score of a blind guess, in [0, 1].

    Raises:
        ValueError: as `score_interval`, or chance outside [0, 1].
    """
    values = _checked(scores)
    if not 0.0 <= chance <= 1.0:
        raise ValueError(f"chance must lie in [0, 1], got {chance}")
    if _binary(values):
        return float(stats.binomtest(int(values.sum()), values.size, chance, alternative="greater").pvalue)
    if _constant(values):
        return _hoeffding(float(values.mean()), chance, values.size)
    standard_error = float(values.std(ddof=1)) / math.sqrt(values.size)
    return float(stats.t.sf((float(values.mean()) - chance) / standard_error, values.size - 1))


def summarise(values: Sequence[float]) -> Summary:
    """Mean and spread of one number per seed.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(f"need at least one finite value, got {list(values)}")
    mean, n = float(array.mean()), array.size
    if n == 1:
        return Summary(mean=mean, sd=None, n=1, low=None, high=None)
    sd = float(array.std(ddof=1))
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * sd / math.sqrt(n)
    return Summary(mean=mean, sd=sd, n=n, low=mean - half, high=mean + half)


def _checked(scores: Scores) -> Scores:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"need one score per example, at least one, got shape {values.shape}")
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise ValueError("every score must lie in [0, 1]")
    return values


def _binary(values: Scores) -> bool:
    return bool(((values == 0.0) | (values == 1.0)).all())


def _constant(values: Scores) -> bool:
    return float(np.ptp(values)) < ROUNDING


def _wilson(mean: float, n: int) -> tuple[float, float]:
    z = float(stats.norm.ppf((1 + LEVEL) / 2))
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    # At a mean of 0 or 1 one end equals the mean; rounding must not put the mean outside.
    return min(mean, max(0.0, centre - half)), max(mean, min(1.0, centre + half))


def _hoeffding(mean: float, chance: float, n: int) -> float:
    """Bound on the probability that n scores with expectation `chance` average at least `mean`."""
    if mean <= chance:
        return 1.0
    divergence = special.rel_entr(mean, chance) + special.rel_entr(1 - mean, 1 - chance)
    return math.exp(-n * float(divergence))
