"""Differences against scipy's and statsmodels' tests, an analysis of variance, and what can be done by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm
from statsmodels.stats.contingency_tables import mcnemar

from attnbench.comparison import (
    OVER_SEEDS,
    TWO_MODELS,
    Difference,
    adjust,
    difference,
    of_column,
    tied_with_best,
)

Cell = dict[int, np.ndarray]


def cell(rows: object) -> Cell:
    """Scores by seed 0, 1, ..., (S, N)."""
    return dict(enumerate(np.asarray(rows, np.float64)))


def compared(a: object, b: object) -> Difference:
    return difference("a", "b", cell(a), cell(b))


def pair(first: str, second: str, *, mean: float = 0.1, p: float = 0.5, adjusted: float | None = None) -> Difference:
    return Difference(first, second, mean, -1.0, 1.0, p, 3, 10, OVER_SEEDS, adjusted)


def right(share: float, seeds: int, examples: int = 100, *, entropy: int = 0, preference: float = 0.0) -> np.ndarray:
    """Right or wrong by chance; `preference` lets the same examples be right in every seed."""
    generator = np.random.default_rng([entropy, seeds, examples])
    shares = np.clip(share + preference * generator.standard_normal(examples), 0, 1)
    return (generator.random((seeds, examples)) < shares).astype(np.float64)


# --- several seeds ----------------------------------------------------------------------------------------------


def test_two_seeds_and_two_examples_by_hand() -> None:
    # d = [[.5, .3], [.3, .1]]: seeds .4 and .2, examples .4 and .2, nothing is left over. Both variances are .02, so
    # each part of that of the mean is .01 and both have one degree of freedom: t = 12.706205, se = sqrt(.02).
    found = compared([[0.9, 0.8], [0.7, 0.6]], [[0.4, 0.5], [0.4, 0.5]])
    half = 12.706205 * math.sqrt(0.02)
    assert found.mean == pytest.approx(0.3)
    assert (found.low, found.high) == (-1.0, 1.0) and half > 1.3  # no difference of scores lies outside
    # The tail of t with one degree of freedom (Cauchy) beyond .3 / sqrt(.02).
    assert found.p == pytest.approx(1 - 2 / math.pi * math.atan(0.3 / math.sqrt(0.02)))
    assert (found.seeds, found.examples, found.scope) == (2, 2, OVER_SEEDS)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_without_shared_preferences_it_is_the_paired_t_over_seeds(seeds: int) -> None:
    """Every example differs by the same in each seed, so examples tell nothing that seeds do not."""
    generator = np.random.default_rng(seeds)
    b = generator.random((seeds, 40)) * 0.5
    a = b + generator.uniform(0, 0.3, (seeds, 1))
    truth = stats.ttest_rel(a.mean(1), b.mean(1))
    low, high = truth.confidence_interval(0.95)
    found = compared(a, b)
    assert found.p == pytest.approx(truth.pvalue, rel=1e-6)
    assert (found.low, found.high) == pytest.approx((max(low, -1), min(high, 1)))


def test_where_seeds_agree_it_is_the_paired_t_over_examples() -> None:
    """No training differs from another: what is left is which examples there are."""
    a, b = right(0.8, 1, 60, entropy=1)[0] * 0.7, right(0.6, 1, 60, entropy=2)[0] * 0.9
    truth = stats.ttest_rel(a, b)
    found = compared(np.tile(a, (3, 1)), np.tile(b, (3, 1)))
    assert found.p == pytest.approx(truth.pvalue, rel=1e-6)
    assert (found.low, found.high) == pytest.approx(tuple(truth.confidence_interval(0.95)))


@pytest.mark.parametrize("preference", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_variances_are_those_of_a_two_way_analysis(seeds: int, preference: float) -> None:
    """statsmodels' mean squares of seeds, examples and the rest, in the expectations of a model of random effects."""
    size = 60
    a = right(0.6, seeds, size, entropy=3, preference=preference) * 0.9
    b = right(0.5, seeds, size, entropy=4, preference=preference)
    seed, example = np.indices(a.shape)
    long = pd.DataFrame({"d": (a - b).ravel(), "seed": seed.ravel(), "example": example.ravel()})
    squares = anova_lm(ols("d ~ C(seed) + C(example)", long).fit())["mean_sq"]
    by_seed = squares["C(seed)"] / (seeds * size)
    shared = max(0.0, squares["C(example)"] - squares["Residual"]) / (seeds * size)
    quantiles = [stats.t.ppf(0.975, freedom) for freedom in (seeds - 1, size - 1)]
    half = np.average(quantiles, weights=[by_seed, shared]) * math.sqrt(by_seed + shared)
    found = compared(a, b)
    mean = (a - b).mean()
    assert (found.mean, found.low, found.high) == pytest.approx((mean, max(-1, mean - half), min(1, mean + half)))


def test_only_seeds_of_both_count_in_any_order() -> None:
    a, b = right(0.8, 4, entropy=5), right(0.5, 4, entropy=6)
    found = difference("a", "b", {3: a[3], 1: a[1], 0: a[0]}, {2: b[2], 1: b[1], 3: b[3]})
    assert found == compared(a[[1, 3]], b[[1, 3]]) and found.seeds == 2


def test_one_seed_in_common_speaks_of_two_models() -> None:
    a, b = right(0.8, 2, entropy=5), right(0.5, 2, entropy=6)
    assert difference("a", "b", {0: a[0], 1: a[1]}, {1: b[1], 2: b[0]}).scope == TWO_MODELS


# --- one seed ---------------------------------------------------------------------------------------------------


def test_scores_between_right_and_wrong_get_the_paired_t_over_examples() -> None:
    generator = np.random.default_rng(7)
    a, b = generator.beta(4, 2, 50), generator.beta(3, 2, 50)
    truth = stats.ttest_rel(a, b)
    found = compared([a], [b])
    assert found.p == pytest.approx(truth.pvalue, rel=1e-6)
    assert (found.low, found.high) == pytest.approx(tuple(truth.confidence_interval(0.95)))
    assert (found.seeds, found.examples, found.scope) == (1, 50, TWO_MODELS)


@pytest.mark.parametrize(
    ("both", "won", "lost", "none"), [(59, 6, 16, 80), (10, 0, 0, 3), (0, 5, 0, 0), (30, 12, 12, 9), (500, 90, 40, 70)]
)
def test_right_or_wrong_gets_mcnemars_exact_test(both: int, won: int, lost: int, none: int) -> None:
    a = [[1] * both + [1] * won + [0] * lost + [0] * none]
    b = [[1] * both + [0] * won + [1] * lost + [0] * none]
    truth = mcnemar([[both, won], [lost, none]], exact=True).pvalue
    assert compared(a, b).p == pytest.approx(truth if won + lost else 1.0)


def test_right_or_wrong_gets_the_interval_with_two_examples_added_by_hand() -> None:
    # 20 won and 6 lost of 100: (20 - 6) / 102 = .137255; (28 / 102 - .137255^2) / 102 = .00250659, root .0500659.
    found = compared([[1] * 20 + [0] * 80], [[0] * 20 + [1] * 6 + [0] * 74])
    assert found.mean == pytest.approx(0.14)
    half = 1.959964 * 0.0500659
    assert (found.low, found.high) == pytest.approx((0.137255 - half, 0.137255 + half), abs=1e-6)


# --- no spread --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [1, 3])
def test_equal_scores_do_not_differ_but_more_examples_could_show_that_they_do(seeds: int) -> None:
    scores = right(0.7, seeds, 100)
    found = compared(scores, scores)
    assert (found.mean, found.p) == (0.0, 1.0) and not found.differs
    assert (found.low, found.high) == pytest.approx((-1.959964 * math.sqrt(2) / 102, 1.959964 * math.sqrt(2) / 102))


@pytest.mark.parametrize("seeds", [1, 3])
def test_all_right_against_all_wrong_is_no_certainty(seeds: int) -> None:
    found = compared(np.ones((seeds, 20)), np.zeros((seeds, 20)))
    assert found.mean == 1.0 and 0.7 < found.low < 0.9 and found.high == 1.0
    assert 0 < found.p < 1e-5 and found.differs
    few = compared(np.ones((seeds, 2)), np.zeros((seeds, 2)))
    assert few.low < 0 < few.high and not few.differs


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_one_example_shows_nothing(seeds: int) -> None:
    found = compared(np.linspace(0.8, 1, seeds)[:, None], np.zeros((seeds, 1)))
    assert found.low < 0 < found.high <= 1 and found.p > 0.3 and found.examples == 1


def test_the_same_fraction_everywhere_is_no_certainty() -> None:
    found = compared(np.full((3, 50), 0.75), np.full((3, 50), 0.5))
    assert found.low < 0.25 < found.high and found.high - found.low > 0.05


def test_rounding_is_no_difference() -> None:
    a = np.random.default_rng(8).random((3, 50))
    found = compared(a, a + 1e-14 * np.random.default_rng(9).random((3, 50)))
    assert not found.differs and found.low < 0 < found.high


# --- what always holds ------------------------------------------------------------------------------------------

GRADED = st.floats(0, 1, width=16)
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 12))


@st.composite
def two_cells(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    elements = draw(st.sampled_from([GRADED, st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 0.5])]))
    shape = draw(SHAPES)
    return draw(arrays(np.float64, shape, elements=elements)), draw(arrays(np.float64, shape, elements=elements))


@given(two_cells())
def test_p_and_interval_agree_and_the_order_only_turns_the_sign(cells: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = cells
    found, other = compared(a, b), difference("b", "a", cell(b), cell(a))
    assert -1 <= found.low <= found.mean + 1e-9 and found.mean - 1e-9 <= found.high <= 1
    assert 0 <= found.p <= 1
    assert (found.p < 0.05) == (found.low > 0 or found.high < 0)
    numbers = [(one.mean, one.low, one.high, one.p) for one in (found, other.turned)]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-9)
    assert other.turned.turned == other and (other.turned.first, other.turned.second) == ("a", "b")


@pytest.mark.parametrize("examples", [5, 30, 1000])
def test_mcnemar_and_its_interval_agree_for_all_counts(examples: int) -> None:
    for won in range(min(examples, 31)):
        for lost in range(min(examples - won, 31) + 1):
            a = [[1] * won + [0] * (examples - won)]
            b = [[0] * won + [1] * lost + [0] * (examples - won - lost)]
            found = compared(a, b)
            assert (found.p < 0.05) == (found.low > 0 or found.high < 0), (won, lost)


def test_a_clear_difference_has_the_exact_p_however_small() -> None:
    a = np.random.default_rng(10).normal(0.9, 0.01, (1, 200)).clip(0, 1)
    b = np.random.default_rng(11).normal(0.4, 0.01, (1, 200)).clip(0, 1)
    assert compared(a[:, :30], b[:, :30]).p == pytest.approx(stats.ttest_rel(a[0, :30], b[0, :30]).pvalue, rel=1e-4)
    assert compared(a, b).p == 0.0  # below 1e-100


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ({0: np.ones(3)}, {1: np.ones(3)}, "x and y have no seed in common"),
        ({}, {}, "x and y have no seed in common"),
        ({0: np.ones(3)}, {0: np.ones(4)}, "x and y were tested on different examples"),
        ({0: np.ones(3), 1: np.ones(4)}, {0: np.ones(3), 1: np.ones(4)}, "different examples"),
    ],
)
def test_what_cannot_be_paired_is_refused(a: Cell, b: Cell, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        difference("x", "y", a, b)


# --- a column ---------------------------------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    # Sorted .01, .02, .03, .04 times 4, 3, 2, 1 = .04, .06, .06, .04; none may be less than one before it.
    found = adjust([pair("a", str(index), p=p) for index, p in enumerate([0.04, 0.01, 0.03, 0.02])])
    assert [one.adjusted for one in found] == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert [one.differs for one in found] == [False, True, False, False]
    assert all(pair("a", "b", p=one.p).differs for one in found)
    assert [one.adjusted for one in adjust([pair("a", "b", p=0.9), pair("a", "c", p=0.8)])] == [1.0, 1.0]
    assert adjust([]) == []


def test_a_column_has_all_pairs_that_share_a_seed() -> None:
    cells = {
        "a": cell(right(0.9, 3, entropy=1)), "b": cell(right(0.5, 3, entropy=2)), "c": {7: right(0.5, 1)[0]},
        "d": {2: right(0.5, 1, entropy=3)[0]},
    }  # fmt: skip
    found = of_column(cells)
    assert [(one.first, one.second, one.seeds) for one in found] == [("a", "b", 3), ("a", "d", 1), ("b", "d", 1)]
    plain = [difference(one.first, one.second, cells[one.first], cells[one.second]) for one in found]
    assert found == adjust(plain) and of_column({}) == [] == of_column({"a": cells["a"]})


def test_the_order_of_a_column_changes_no_number() -> None:
    cells = {
        name: cell(right(share, 3, entropy=index))
        for index, (name, share) in enumerate(zip("abc", (0.7, 0.6, 0.5), strict=True))
    }
    one_way = {(d.first, d.second): d for d in of_column(cells)}
    for turned in of_column(dict(reversed(cells.items()))):
        other = one_way[turned.second, turned.first].turned
        assert (turned.mean, turned.low, turned.p) == pytest.approx((other.mean, other.low, other.p), abs=1e-12)
        assert turned.adjusted == pytest.approx(other.adjusted)


MEANS = {"a": 0.7, "b": 0.9, "c": 0.8}


@pytest.mark.parametrize(
    ("means", "differences", "tied"),
    [
        ({}, [], {}),
        ({"a": 0.5}, [], {"a": True}),
        (MEANS, [pair("a", "b", adjusted=0.01), pair("b", "c", adjusted=0.2)], {"a": False, "b": True, "c": True}),
        # What differs from one that ties is not thereby apart from the best, nor the other way round.
        (MEANS, [pair("a", "b", adjusted=0.1), pair("a", "c", adjusted=0.01)], {"a": True, "b": True}),
        (MEANS, [pair("a", "c", adjusted=0.2)], {"b": True}),
        ({"a": 0.5, "b": 0.5}, [pair("a", "b", p=1.0)], {"a": True, "b": True}),
        ({"a": 0.5}, [pair("a", "unscored", p=1.0)], {"a": True}),
    ],
)
def test_tied_with_the_best(means: Mapping[str, float], differences: list[Difference], tied: dict[str, bool]) -> None:
    assert tied_with_best(means, differences, means) == tied


@pytest.mark.parametrize(
    ("learned", "tied"),
    [
        ({"b", "c"}, {"a": False, "b": True, "c": True}),
        ({"a", "b", "c"}, {"a": True, "b": True, "c": True}),
        # Where nobody learned anything, all are as good.
        ((), {"a": True, "b": True, "c": True}),
        ({"a"}, {"a": True, "b": True, "c": True}),
    ],
)
def test_what_learned_nothing_is_not_tied_with_what_did(learned: set[str], tied: dict[str, bool]) -> None:
    differences = [pair("a", "b", adjusted=0.2), pair("b", "c", adjusted=0.2)]
    assert tied_with_best(MEANS, differences, learned) == tied
