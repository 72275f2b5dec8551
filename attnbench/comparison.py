"""Differences between mechanisms on one task, paired by seed and by test example.

Shape letters: S seeds, N test examples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import optimize, stats

from attnbench.statistics import LEVEL, ROUNDING, Scores

#: What a difference speaks of.
OVER_SEEDS, TWO_MODELS = "mechanisms, over seeds and examples", "these two trained models only"


@dataclass(frozen=True)
class Difference:
    """Mean of the first minus mean of the second, over the seeds and examples that both have.

    Attributes:
        low, high: 95 % interval.
        p: two-sided, of "there is none"; `adjusted` by Holm over all pairs of a column, where it is one of many.
        scope: OVER_SEEDS, or TWO_MODELS where there is one seed.
    """

    first: str
    second: str
    mean: float
    low: float
    high: float
    p: float
    seeds: int
    examples: int
    scope: str
    adjusted: float | None = None

    @property
    def turned(self) -> Difference:
        """The second minus the first."""
        return replace(self, first=self.second, second=self.first, mean=-self.mean, low=-self.high, high=-self.low)

    @property
    def differs(self) -> bool:
        """By the adjusted p-value where there is one."""
        return (self.p if self.adjusted is None else self.adjusted) < 1 - LEVEL


def difference(first: str, second: str, a: Mapping[int, Scores], b: Mapping[int, Scores]) -> Difference:
    """Scores of two mechanisms by seed, (N,) each in [0, 1], of the same examples in the same order.

    Over several seeds the squares of two half-widths are added (Zou and Donner 2008, the MOVER): t over the paired
    differences of seeds, which holds what differs from training to training, and t over the examples' mean differences,
    less the part of their variance that is noise of single trainings, for the examples are shared. In simulations with
    three and five seeds 93 to 98.5 % of such intervals hold the truth (tests/test_coverage.py). With one seed: t over
    examples, and McNemar's exact test where all scores are right or wrong.

    Raises:
        ValueError: no seed in common, or other examples.
    """
    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        raise ValueError(f"{first} and {second} have no seed in common")
    if len({a[seed].shape for seed in seeds} | {b[seed].shape for seed in seeds}) > 1:
        raise ValueError(f"{first} and {second} were tested on different examples")
    d_SN = np.stack([np.asarray(a[seed], np.float64) - np.asarray(b[seed], np.float64) for seed in seeds])
    count, size = d_SN.shape
    common: dict[str, Any] = {"first": first, "second": second, "seeds": count, "examples": size}
    mean = float(d_SN.mean())
    parts = _parts(d_SN)
    half = _half_width(parts, LEVEL)
    if count > 1:
        return Difference(
            mean=mean, low=mean - half, high=mean + half, p=_p(abs(mean), parts), scope=OVER_SEEDS, **common
        )
    exact = all(np.isin(scores[seeds[0]], (0.0, 1.0)).all() for scores in (a, b))
    p = _mcnemar(d_SN[0]) if exact else _p(abs(mean), parts)
    return Difference(mean=mean, low=mean - half, high=mean + half, p=p, scope=TWO_MODELS, **common)


def of_column(cells: Mapping[str, Mapping[int, Scores]]) -> list[Difference]:
    """Of all pairs of a task's cells that share a seed, with Holm's correction (1979) over them."""
    from statsmodels.stats.multitest import multipletests

    pairs = [(x, y) for x, y in itertools.combinations(cells, 2) if cells[x].keys() & cells[y].keys()]
    found = [difference(x, y, cells[x], cells[y]) for x, y in pairs]
    if not found:
        return []
    adjusted = multipletests([one.p for one in found], method="holm")[1]
    return [replace(one, adjusted=float(p)) for one, p in zip(found, adjusted, strict=True)]


def tied_with_best(means: Mapping[str, float], differences: Sequence[Difference]) -> set[str]:
    """The best cell by its mean, and those whose difference from it does not show."""
    if not means:
        return set()
    best = max(means, key=lambda name: means[name])
    alike = {frozenset((one.first, one.second)) for one in differences if not one.differs}
    return {name for name in means if name == best or frozenset((name, best)) in alike}


@dataclass(frozen=True)
class _Part:
    """A share of the variance of a mean, and its degrees of freedom."""

    variance: float
    freedom: int


def _parts(d_SN: np.ndarray) -> list[_Part]:
    count, size = d_SN.shape
    over_examples = float(d_SN.mean(0).var(ddof=1)) if size > 1 else 0.0
    if count == 1:
        return [_Part(over_examples / size, size - 1)]
    by_seed, by_example = d_SN.mean(1, keepdims=True), d_SN.mean(0, keepdims=True)
    rest = d_SN - by_seed - by_example + d_SN.mean()
    noise = float(np.square(rest).sum()) / ((count - 1) * max(1, size - 1))
    shared = max(0.0, over_examples - noise / count)
    return [_Part(float(by_seed.var(ddof=1)) / count, count - 1), _Part(shared / size, size - 1)]


def _half_width(parts: Sequence[_Part], level: float) -> float:
    squares = [
        part.variance * float(stats.t.ppf((1 + level) / 2, part.freedom)) ** 2 for part in parts if part.variance
    ]
    return math.sqrt(sum(squares))


def _p(mean: float, parts: Sequence[_Part]) -> float:
    """One minus the level of the widest interval around the mean that leaves 0 out."""
    if mean < ROUNDING:
        return 1.0
    if _half_width(parts, 1 - 1e-12) < mean:
        return 0.0
    return 1 - float(optimize.brentq(lambda level: _half_width(parts, level) - mean, 0.0, 1 - 1e-12))


def _mcnemar(d_N: np.ndarray) -> float:
    """Exact (McNemar 1947): of the examples that only one of both gets right, half are expected for each."""
    won, lost = int((d_N > 0).sum()), int((d_N < 0).sum())
    return float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0
