"""Figures from samples whose truth is known."""

from __future__ import annotations

import math

import pytest
from speed.speed_data import cell, grown, result, samples

from attnbench.errors import UnknownName
from attnbench.speed import fit
from attnbench.speed.figures import figures
from attnbench.speed.result import Sample

LENGTHS = [256 * 2**k for k in range(8)]


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 2.0])
def test_an_exponent_is_recovered_from_noisy_samples(power: float) -> None:
    found = figures(result(grown("dense", lambda n: 1e-7 * n**power, LENGTHS))).mechanisms[0].time
    assert found is not None
    assert abs(found.value - power) < 0.01 and abs(found.value - power) <= found.half
    assert (found.points, found.first) == (4, LENGTHS[4])


def test_a_constant_part_at_short_lengths_does_not_bend_the_exponent() -> None:
    """The upper half of the lengths is fitted; a line through all of them would miss it by far."""
    costs = {n: 0.002 + 1e-9 * n**2 for n in LENGTHS}
    upper, every = fit.exponent(costs), math.log(costs[LENGTHS[-1]] / costs[LENGTHS[0]], LENGTHS[-1] / LENGTHS[0])
    assert upper is not None
    assert abs(upper.value - 2) < 0.1 < 2 - every


@pytest.mark.parametrize("lengths", [[], [256], [256, 512]])
def test_two_lengths_are_no_line(lengths: list[int]) -> None:
    assert fit.exponent(dict.fromkeys(lengths, 1.0)) is None


def test_costs_that_do_not_grow_have_the_exponent_zero() -> None:
    """Scipy has no standard error where there is no spread."""
    assert fit.exponent(dict.fromkeys(LENGTHS, 7.0)) == fit.Exponent(0.0, 0.0, 4, LENGTHS[4])


def test_the_crossover_is_where_the_curves_meet() -> None:
    """1e-9 n^2 = 1e-6 n at n = 1000, between two of the lengths."""
    cells = grown("dense", lambda n: 1e-9 * n**2, LENGTHS) + grown("mine", lambda n: 1e-6 * n, LENGTHS)
    found = {one.mechanism: one.crossover for one in figures(result(cells)).mechanisms}
    assert found["dense"] is None
    assert found["mine"] is not None and found["mine"].length == pytest.approx(1000, rel=0.03)


@pytest.mark.parametrize(
    ("ratios", "kind", "length"),
    [
        ({256: 2.0, 512: 1.0, 1024: 0.5}, "at", 512),
        ({256: 0.5, 512: 2.0, 1024: 0.5}, "at", 724),  # for good: not the first time
        ({256: 0.9, 512: 0.5}, "always", None),
        ({256: 0.5, 512: 1.5}, "never", None),
        ({256: 1.0}, "never", None),
    ],
)
def test_a_crossover_holds_from_there_on(ratios: dict[int, float], kind: str, length: float | None) -> None:
    found = fit.crossing(ratios)
    assert found is not None and found.kind == kind
    assert found.length is None if length is None else found.length == pytest.approx(length, abs=1)


def test_lengths_that_one_of_both_lacks_do_not_count_for_the_crossover() -> None:
    cells = [*grown("dense", lambda n: 1e-3, [256, 512]), *grown("mine", lambda n: 2e-3, [256]), cell("mine", 512)]
    found = figures(result(cells)).mechanisms[1].crossover
    assert found is not None and (found.kind, found.last) == ("never", 256)


def test_a_ratio_holds_when_the_machine_drifts() -> None:
    """Both grow threefold slower over the rounds; the medians of all rounds of either would do as well here, but not
    where one of them lacks the slow ones.
    """
    fast, slow = samples(1.0, drift=2.0), samples(1.3, drift=2.0)[:6]
    assert fit.ratio(cell("a", 1, slow), cell("b", 1, fast)) == pytest.approx(1.3)
    assert fit.quantiles(slow).median / fit.quantiles(fast).median < 1.0


def test_samples_that_waited_for_a_core_are_left_out_while_enough_are_left() -> None:
    calm = [Sample(round=i, seconds=1.0, wall=1.0) for i in range(3)]
    delayed = [Sample(round=i + 3, seconds=9.0, wall=9.0, waited=0.5) for i in range(5)]
    assert fit.quantiles([*calm, *delayed]).median == 1.0
    assert fit.quantiles([*calm[:2], *delayed]).median == 9.0


def test_figures_of_a_cell() -> None:
    seconds = [Sample(round=i, seconds=s, wall=s) for i, s in enumerate([1.0, 2.0, 3.0, 4.0, 5.0])]
    yard = [Sample(round=i, seconds=s, wall=s) for i, s in enumerate([0.2, 0.1, 0.4])]
    cells = [cell("dense", 100, seconds, flops=6 * 10**9, peak_bytes=7, complexity="n^2")]
    cells.append(cell("dense", 200, seconds, flops=5, complexity="n^2"))
    found = figures(result(cells, yard))
    one, other = found.cells
    assert (one.seconds.low, one.seconds.median, one.seconds.high) == (2.0, 3.0, 4.0)
    assert one.tokens_per_second == pytest.approx(100 / 3)
    assert found.matmul == pytest.approx(2e10)
    assert one.peak_share == pytest.approx(0.1)  # 2e9 operations a second of 2e10
    assert one.times_baseline == 1.0
    assert other.flops_declared == pytest.approx(4 * 6 * 10**9)


def test_the_baseline_is_the_exact_one_or_the_one_named() -> None:
    cells = grown("mine", lambda n: 1e-3, [256]) + grown("dense", lambda n: 2e-3, [256])
    assert figures(result(cells)).baseline == "dense"
    assert figures(result(cells), "mine").cells[1].times_baseline == pytest.approx(2, rel=0.05)
    with pytest.raises(UnknownName, match="'dens'"):
        figures(result(cells), "dens")


@pytest.mark.parametrize("status", ["emulation", "wrong", "oom", "timeout", "failed"])
def test_what_did_not_end_well_has_no_score_whatever_samples_it_left(status: str) -> None:
    cells = [cell("dense", 256, samples(1.0), status=status)]
    found = figures(result(cells))
    assert found.cells == [] and found.mechanisms[0].time is None
