"""The figure of a result: what is drawn where, from samples whose truth is known."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from speed.speed_data import cell, grown, result, samples

from attnbench.reporting import style
from attnbench.reporting.plots import speed_pictures
from attnbench.reporting.scaling import scaling
from attnbench.reporting.speeds import newest
from attnbench.speed.result import CellResult

LENGTHS = [256 * 2**k for k in range(6)]


def figure(cells: list[CellResult]) -> Any:
    (measured,) = newest([result(cells)])
    with style.settings():
        return scaling(measured)


def legend(drawn: Any) -> list[str]:
    return [text.get_text() for text in drawn.legends[0].get_texts()]


def peaks(of: list[CellResult], cost: float) -> list[CellResult]:
    return [one.model_copy(update={"peak_bytes": round(cost * one.length)}) for one in of]


def two() -> list[CellResult]:
    """1e-9 n^2 = 1e-6 n at n = 1000, where both take 1 ms."""
    return grown("dense", lambda n: 1e-9 * n**2, LENGTHS) + grown("mine", lambda n: 1e-6 * n, LENGTHS)


def test_exponents_and_crossover_are_those_that_the_samples_were_made_with() -> None:
    drawn = figure(peaks(two(), 4096))
    found = {line.split(":")[0]: [float(x) for x in re.findall(r"n\^([\d.]+)", line)] for line in legend(drawn)}
    assert found["dense"] == pytest.approx([2, 1], abs=0.02)
    assert found["mine"] == pytest.approx([1, 1], abs=0.02)
    assert int(re.findall(r"mine: .* faster from (\d+)", "\n".join(legend(drawn)))[0]) == pytest.approx(1000, rel=0.03)
    dense, mine, ring = drawn.axes[0].lines
    assert ring.get_xydata()[0] == pytest.approx([1000, 1e-3], rel=0.03)
    assert list(dense.get_xdata()) == LENGTHS
    assert np.array(mine.get_ydata()) == pytest.approx(1e-6 * np.array(LENGTHS), rel=0.02)
    assert drawn.axes[1].lines[0].get_ydata()[-1] == pytest.approx(4096 * LENGTHS[-1] / 2**20)
    assert {axes.get_xscale() + axes.get_yscale() for axes in drawn.axes} == {"loglog"}


def test_the_band_is_that_between_the_quartiles() -> None:
    drawn = figure([cell("dense", n, samples(1.0, drift=1.0, rounds=5)) for n in LENGTHS])  # 1, 1.25, 1.5, 1.75, 2 s
    (band,) = drawn.axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((1.25, 1.75))


@pytest.mark.parametrize("status", ["emulation", "wrong", "oom"])
def test_cells_without_a_score_are_not_drawn_whatever_samples_they_left(status: str) -> None:
    left = [cell("other", n, samples(1.0), status=status, peak_bytes=5) for n in LENGTHS]
    drawn = figure(two() + left)
    assert len(drawn.axes) == 1 and "other" not in "\n".join(legend(drawn))  # nor is there memory to draw
    assert figure(left) is None
    assert list(speed_pictures(newest([result(left)])[0])) == []


def test_no_memory_added_has_no_place_on_a_logarithmic_axis() -> None:
    cells = [cell("dense", n, samples(1.0), peak_bytes=0 if n < 1024 else n) for n in LENGTHS]
    assert list(figure(cells).axes[1].lines[0].get_xdata()) == LENGTHS[2:]


def test_pictures_have_the_same_bytes_twice_and_a_name_that_stays_in_the_folder() -> None:
    made = [result(two(), machine={"id": "../../up", "cpu": r"$\frac{"}) for _ in range(2)]
    (first,), (second,) = ([*speed_pictures(newest([one])[0])] for one in made)
    assert first == second
    assert "/" not in first.name and first.name.endswith("-scaling")
