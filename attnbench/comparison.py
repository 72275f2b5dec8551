"""Differences between mechanisms on one task, paired by seed and by test example.

Shape letters: S seeds, N test examples.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, special, stats

from attnbench.statistics import LEVEL, ROUNDING, Scores

#: What a difference speaks of.
OVER_SEEDS, TWO_MODELS = "mechanisms, over seeds and examples", "these two trained models only"
#: Smaller p-values are 0.
_LEAST = 1e-100


@dataclass(frozen=True)
class Difference:
    """Mean of the first minus mean of the second, over the seeds and examples that both have.

    Attributes:
        low, high: 95 % interval, within [-1, 1]. It leaves 0 out exactly where p is below 0.05.
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

    Over several seeds two variances are added: of the paired differences of seeds, which holds what differs from
    training to training, and of the examples' mean differences, less what in them is noise of single trainings, for
    the examples are shared. The quantile is the mean of those of t for both parts, weighted by the variances (Cochran
    and Cox 1950, for two samples of unequal variance). In simulations 95 to 97.3 % of such intervals hold the truth
    with three seeds and 94.9 to 96.5 % with five, the most where examples favour one of the two and trainings are
    alike; with two seeds, 93 to 98 % (tests/test_coverage.py).

    With one seed: t over examples; where all scores are right or wrong, McNemar's exact test and the interval of Bonett
    and Price (2012), widened to hold 0 where the test does not reject. A single example, and scores without any spread,
    get that interval too.

    Raises:
        ValueError: no seed in common, or other examples.
    """
    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        raise ValueError(f"{first} and {second} have no seed in common")
    if len({scores[seed].shape for scores in (a, b) for seed in seeds}) > 1:
        raise ValueError(f"{first} and {second} were tested on different examples")
    d_SN = np.stack([np.asarray(a[seed], np.float64) - np.asarray(b[seed], np.float64) for seed in seeds])
    one_of_each = len(seeds) == 1 and all(np.isin(scores[seeds[0]], (0.0, 1.0)).all() for scores in (a, b))
    mean, parts = float(d_SN.mean()), _parts(d_SN)
    if one_of_each or d_SN.shape[1] == 1 or _standard_error(parts) < ROUNDING:
        low, high, p = _of_counts(d_SN.mean(0), exact=one_of_each)
    else:
        half = _half_width(parts, 1 - LEVEL)
        low, high, p = mean - half, mean + half, _p(abs(mean), parts)
    return Difference(
        first, second, mean, max(-1.0, low), min(1.0, high), p, seeds=len(seeds), examples=d_SN.shape[1],
        scope=OVER_SEEDS if len(seeds) > 1 else TWO_MODELS,
    )  # fmt: skip


def of_column(cells: Mapping[str, Mapping[int, Scores]]) -> list[Difference]:
    """Of all pairs of a task's cells that share a seed, with adjusted p-values."""
    pairs = [(x, y) for x, y in itertools.combinations(cells, 2) if cells[x].keys() & cells[y].keys()]
    return adjust([difference(x, y, cells[x], cells[y]) for x, y in pairs])


def adjust(found: Sequence[Difference]) -> list[Difference]:
    """The same with Holm's correction over all of them."""
    p_values = holm([one.p for one in found])
    return [replace(one, adjusted=p) for one, p in zip(found, p_values, strict=True)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted by Holm (1979), in the same order."""
    from statsmodels.stats.multitest import multipletests

    if not p_values:
        return []
    gc.freeze()  # multipletests collects garbage, which with thousands of records takes longer than all differences
    try:
        return [float(p) for p in multipletests(list(p_values), method="holm")[1]]
    finally:
        gc.unfreeze()


def tied_with_best(
    means: Mapping[str, float], differences: Iterable[Difference], learned: Container[str]
) -> dict[str, bool]:
    """Whether a cell is the best by its mean, or its difference from the best does not show.

    A cell that is not among those that `learned` is not tied with one that is: few seeds may hide the difference, yet
    its scores could be had without attention. A cell without a difference from the best, for want of a common seed or
    of scores of examples, is left out.
    """
    if not means:
        return {}
    best = max(means, key=lambda name: means[name])
    pairs = ((pair, one) for one in differences for pair in ((one.first, one.second), (one.second, one.first)))
    found = {other: not one.differs for (other, name), one in pairs if name == best and other in means}
    return {best: True} | {other: tied and (other in learned or best not in learned) for other, tied in found.items()}


@dataclass(frozen=True)
class _Part:
    """A share of the variance of a mean, and its degrees of freedom."""

    variance: float
    freedom: int


def _parts(d_SN: np.ndarray) -> list[_Part]:
    count, size = d_SN.shape
    by_seed, by_example = d_SN.mean(1, keepdims=True), d_SN.mean(0, keepdims=True)
    over_examples = float(by_example.var(ddof=1)) if size > 1 else 0.0
    if count == 1:
        return [_Part(over_examples / size, size - 1)]
    rest = d_SN - by_seed - by_example + d_SN.mean()
    noise = float(np.square(rest).sum()) / ((count - 1) * max(1, size - 1))
    shared = max(0.0, over_examples - noise / count)
    return [_Part(float(by_seed.var(ddof=1)) / count, count - 1), _Part(shared / size, size - 1)]


def _standard_error(parts: Sequence[_Part]) -> float:
    return math.sqrt(sum(part.variance for part in parts))


def _half_width(parts: Sequence[_Part], alpha: float) -> float:
    """Of the interval at level 1 - alpha."""
    weighted = sum(part.variance * -float(special.stdtrit(part.freedom, alpha / 2)) for part in parts)
    return weighted / _standard_error(parts)


def _p(mean: float, parts: Sequence[_Part]) -> float:
    """One minus the level of the widest interval around the mean that leaves 0 out."""
    if mean < ROUNDING:
        return 1.0
    if _half_width(parts, _LEAST) < mean:
        return 0.0
    found = optimize.brentq(lambda log_p: _half_width(parts, math.exp(log_p)) - mean, math.log(_LEAST), 0.0)
    return math.exp(float(found))


def _of_counts(d_N: np.ndarray, *, exact: bool) -> tuple[float, float, float]:
    """Low, high and p of the mean of differences in [-1, 1], from how much each of both wins.

    Two examples are added, one won by each, so that an interval without spread claims no certainty. For differences
    other than -1, 0 and 1 it is cautious: none with these means varies more.
    """
    won, lost, size = float(np.maximum(d_N, 0).sum()), float(np.maximum(-d_N, 0).sum()), len(d_N) + 2
    centre = (won - lost) / size
    error = math.sqrt(((won + lost + 2) / size - centre**2) / size)
    half = -float(special.ndtri((1 - LEVEL) / 2)) * error
    if not exact:
        return centre - half, centre + half, 2 * float(special.ndtr(-abs(centre) / error))
    p = float(stats.binomtest(round(won), round(won + lost)).pvalue) if won + lost else 1.0
    if p < 1 - LEVEL:
        return centre - half, centre + half, p
    return min(0.0, centre - half), max(0.0, centre + half), p
