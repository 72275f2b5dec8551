"""Statistics against printed values, scipy's other implementations, and simulated coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnbench.statistics import ABOVE_CHANCE_LEVEL, p_above, score_interval, summarise


def zeros_and_ones(correct: int, n: int) -> np.ndarray:
    return np.array([1.0] * correct + [0.0] * (n - correct))


def test_wilson_as_printed_by_newcombe_1998() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    printed = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for (correct, n), (low, high) in printed.items():
        mean, found_low, found_high = score_interval(zeros_and_ones(correct, n))
        assert mean == correct / n
        assert (round(found_low, 4), round(found_high, 4)) == (low, high)


@pytest.mark.parametrize(("correct", "n"), [(0, 1), (1, 1), (3, 7), (50, 100), (812, 1000), (10000, 10000)])
def test_wilson_equals_scipys(correct: int, n: int) -> None:
    expected = stats.binomtest(correct, n).proportion_ci(method="wilson")
    _, low, high = score_interval(zeros_and_ones(correct, n))
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_solves_its_defining_equation() -> None:
    # The ends are where |mean - p| = z sqrt(p (1 - p) / n); z = 1.959963985 is the printed normal quantile.
    mean, low, high = score_interval(zeros_and_ones(37, 120))
    for end in (low, high):
        assert abs(mean - end) == pytest.approx(1.959963985 * math.sqrt(end * (1 - end) / 120), rel=1e-8)


def test_graded_scores_get_a_t_interval_over_examples() -> None:
    # mean 0.5, squared deviations sum to 0.1, sd = sqrt(0.1 / 4); printed t quantile for 4 degrees: 2.776445.
    scores = np.array([0.3, 0.4, 0.5, 0.6, 0.7])
    mean, low, high = score_interval(scores)
    half = 2.776445 * math.sqrt(0.1 / 4) / math.sqrt(5)
    assert mean == pytest.approx(0.5)
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)


def test_the_interval_stays_within_0_and_1() -> None:
    assert score_interval(np.array([0.0, 0.0, 0.9]))[1] == 0.0
    assert score_interval(np.array([1.0, 1.0, 0.1]))[2] == 1.0


def test_scores_without_spread_do_not_claim_certainty() -> None:
    mean, low, high = score_interval(np.full(25, 0.5))
    assert mean == 0.5
    # Wilson with 12.5 of 25: half width z / (1 + z²/n) sqrt(1/(4n) + z²/(4n²)) = z / (2 sqrt(n + z²)).
    half = 1.959963985 / (2 * math.sqrt(25 + 1.959963985**2))
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-9)
    _, low, high = score_interval(np.array([0.4]))
    assert low < 0.4 < high


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_interval_of_0_1_scores_covers(share: float) -> None:
    generator = np.random.default_rng(1)
    covered = [low <= share <= high for low, high in _intervals(generator.random((3000, 250)) < share)]
    assert 0.93 <= np.mean(covered) <= 0.97


def test_the_interval_of_clustered_scores_covers_where_one_over_predictions_would_not() -> None:
    """Twenty predictions an example share its difficulty; only examples are independent."""
    generator = np.random.default_rng(2)
    difficulty = generator.beta(2, 2, size=(3000, 60, 1))
    predictions = generator.random((3000, 60, 20)) < difficulty
    by_example = [low <= 0.5 <= high for low, high in _intervals(predictions.mean(axis=2))]
    by_prediction = [low <= 0.5 <= high for low, high in _intervals(predictions.reshape(3000, -1))]
    assert 0.93 <= np.mean(by_example) <= 0.97
    assert np.mean(by_prediction) < 0.75


def _intervals(samples: np.ndarray) -> list[tuple[float, float]]:
    return [score_interval(sample)[1:] for sample in samples]


def test_above_chance_is_the_exact_binomial_tail() -> None:
    expected = sum(math.comb(20, k) * 0.25**k * 0.75 ** (20 - k) for k in range(9, 21))
    assert p_above(zeros_and_ones(9, 20), 0.25) == pytest.approx(expected, rel=1e-12)
    assert p_above(zeros_and_ones(0, 20), 0.25) == 1.0
    assert p_above(zeros_and_ones(10, 10), 0.5) == pytest.approx(2.0**-10)
    # The lady tasting tea with independent cups: 8 of 8 by guessing.
    assert p_above(zeros_and_ones(8, 8), 0.5) == pytest.approx(1 / 256)


def test_above_chance_with_graded_scores_is_one_sided_t() -> None:
    scores = np.random.default_rng(3).beta(3, 2, size=40)
    two_sided = stats.ttest_1samp(scores, 0.5)
    assert p_above(scores, 0.5) == pytest.approx(two_sided.pvalue / 2)
    assert p_above(scores, 0.9) > 0.999
    assert p_above(1 - scores, 1 - 0.5) == pytest.approx(1 - two_sided.pvalue / 2)


def test_scores_without_spread_get_hoeffdings_bound() -> None:
    # (p/m)^(nm) ((1-p)/(1-m))^(n(1-m)) with m = 1/2, p = 1/4, n = 10.
    assert p_above(np.full(10, 0.5), 0.25) == pytest.approx((0.5**0.5 * 1.5**0.5) ** 10)
    assert p_above(np.full(10, 0.5), 0.5) == 1.0
    assert p_above(np.full(10, 0.5), 0.75) == 1.0
    assert p_above(np.full(10, 0.5), 0.0) == 0.0
    assert p_above(np.array([0.5]), 0.4) > ABOVE_CHANCE_LEVEL


def test_rounding_is_no_spread() -> None:
    third = np.array([1 / 3, np.nextafter(1 / 3, 1)] * 50)
    assert p_above(third, 1 / 3 - 1e-12) == pytest.approx(1.0)
    assert score_interval(third) == pytest.approx(score_interval(np.full(100, 1 / 3)))
    assert p_above(np.array([0.0, 7.5e-286]), 0.0) == 0.0
    assert p_above(np.array([1.0, np.nextafter(1.0, 0.0)]), 0.5) == pytest.approx(0.25)


def test_guessing_is_called_above_chance_no_more_often_than_the_level() -> None:
    generator = np.random.default_rng(4)
    guesses = generator.random((20_000, 100)) < 0.5
    false_alarms = sum(p_above(run, 0.5) < 0.05 for run in guesses[:4000])
    assert false_alarms / 4000 <= 0.05
    assert ABOVE_CHANCE_LEVEL == 0.001


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0, 1))
def test_intervals_hold_their_mean_and_p_values_are_probabilities(scores: list[float], chance: float) -> None:
    array = np.array(scores)
    mean, low, high = score_interval(array)
    assert 0.0 <= low <= mean <= high <= 1.0
    assert 0.0 <= p_above(array, chance) <= 1.0


@pytest.mark.parametrize("bad", [[], [[0.5]], [0.5, 1.5], [-0.1], [math.nan, 0.5]])
def test_what_are_no_scores_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="score"):
        score_interval(np.array(bad))
    with pytest.raises(ValueError, match="score"):
        p_above(np.array(bad), 0.5)


@pytest.mark.parametrize("chance", [-0.1, 1.1, math.nan])
def test_a_chance_level_is_a_probability(chance: float) -> None:
    with pytest.raises(ValueError, match="chance"):
        p_above(np.array([0.0, 1.0]), chance)


def test_seeds_are_summarised_with_n_minus_1_and_t() -> None:
    # Deviations -1, 0, 1 hundredths: sd 0.01; printed t quantile for 2 degrees: 4.302653.
    summary = summarise([0.80, 0.81, 0.82])
    half = 4.302653 * 0.01 / math.sqrt(3)
    found = [summary.mean, summary.sd, summary.low, summary.high]
    assert found == pytest.approx([0.81, 0.01, 0.81 - half, 0.81 + half], abs=1e-7)
    assert summary.n == 3


def test_one_seed_has_no_spread() -> None:
    summary = summarise([0.5])
    assert (summary.mean, summary.sd, summary.n, summary.low, summary.high) == (0.5, None, 1, None, None)


def test_the_interval_over_three_seeds_covers() -> None:
    draws = np.random.default_rng(5).normal(0.8, 0.01, size=(4000, 3))
    found = [summarise(list(draw)) for draw in draws]
    covered = np.mean([s.low is not None and s.high is not None and s.low <= 0.8 <= s.high for s in found])
    assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize("bad", [[], [math.nan], [0.5, math.inf]])
def test_a_seed_without_a_score_cannot_be_summarised(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one finite"):
        summarise(bad)
