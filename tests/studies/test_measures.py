"""Estimates of studies against scipy, and their power against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from attnbench.comparison import difference
from attnbench.studies.measures import POWER, of_scores, over_seeds, paired, slopes, smallest
from attnbench.studies.study import Finding, adjusted

VALUES = {0: 0.31, 1: 0.42, 3: 0.28, 4: 0.55, 9: 0.37}
OTHERS = {0: 0.25, 1: 0.44, 3: 0.21, 4: 0.35, 7: 0.9}


def test_the_mean_over_seeds_is_that_of_a_t_test() -> None:
    found, true = over_seeds(VALUES), stats.ttest_1samp(list(VALUES.values()), 0)
    low, high = true.confidence_interval(0.95)
    assert (found.mean, found.low, found.high, found.p) == pytest.approx((0.386, low, high, true.pvalue))
    assert found.seeds == 5


def test_a_difference_is_that_of_a_paired_t_test_over_the_common_seeds() -> None:
    common = [0, 1, 3, 4]
    true = stats.ttest_rel([VALUES[seed] for seed in common], [OTHERS[seed] for seed in common])
    found = paired(VALUES, OTHERS)
    assert (found.p, found.low) == pytest.approx((true.pvalue, true.confidence_interval().low)) and found.seeds == 4


def test_scores_are_compared_by_seed_and_example() -> None:
    generator = np.random.default_rng(0)
    a, b = ({seed: generator.random(50) for seed in range(4)} for _ in range(2))
    found, true = of_scores(a, b), difference("a", "b", a, b)
    assert (found.mean, found.low, found.high, found.p) == (true.mean, true.low, true.high, true.p)


@pytest.mark.parametrize("values", [{}, {3: 0.5}])
def test_one_seed_is_too_few(values: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="two"):
        over_seeds(values)
    with pytest.raises(ValueError, match="two"):
        of_scores({seed: np.ones(3) for seed in values}, {seed: np.zeros(3) for seed in values})


def test_seeds_without_spread_are_no_certainty() -> None:
    assert over_seeds({0: 0.5, 1: 0.5, 2: 0.5}).p == 1.0


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_the_smallest_effect_shows_with_the_power_that_is_said(seeds: int) -> None:
    half = stats.t.ppf(0.975, seeds - 1) / np.sqrt(seeds)  # of values with standard deviation 1
    draws = np.random.default_rng(seeds).normal(smallest(half, seeds), 1, (20_000, seeds))
    shown = float(np.mean(stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05))
    assert shown == pytest.approx(POWER, abs=0.01)  # 3.5 standard errors of the simulation


def test_a_slope_is_per_doubling_and_of_seeds_with_every_count() -> None:
    scores = {0: {0: 0.2, 1: 0.5}, 1: {0: 0.3, 1: 0.5, 2: 0.9}, 7: {0: 0.5, 1: 0.5}}
    assert slopes(scores) == pytest.approx({0: 0.1, 1: 0.0})  # 0, 1 and 3 doublings of 1
    assert slopes({}) == {}


def finding(mean: float, p: float, expected: int = 1, void: str | None = None) -> Finding:
    from attnbench.studies.measures import Estimate

    return Finding("c", "m", 1 if expected > 0 else -1, Estimate(mean, mean - 1, mean + 1, p, 5, 0.1), void)


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        (finding(0.2, 0.01), "supports"),
        (finding(-0.2, 0.01), "contradicts"),
        (finding(-0.2, 0.01, -1), "supports"),
        (finding(0.2, 0.2), "cannot tell"),
        (finding(0.2, 0.01, void="at the floor"), "cannot tell"),
        (Finding("c", "m", 1, None, "no runs"), "cannot tell"),
    ],
)
def test_a_verdict_follows_from_the_sign_the_p_value_and_what_makes_it_void(one: Finding, verdict: str) -> None:
    assert one.verdict == verdict


def test_holm_counts_the_claims_that_have_an_estimate_and_are_not_void() -> None:
    found = adjusted(
        [finding(1, 0.02), finding(1, 0.01), finding(1, 0.04, void="floor"), Finding("c", "m", 1, None, "")]
    )
    assert [one.estimate and one.estimate.adjusted for one in found] == [0.02, 0.02, None, None]
    assert found[0].verdict == "supports" and "0.02 by Holm" in found[0].sentence and "void: floor" in found[2].sentence
    third = adjusted([finding(1, 0.02), finding(1, 0.03), finding(1, 0.04)])
    assert [one.verdict for one in third] == ["cannot tell"] * 3, "three times .02 is above .05"
