"""The plots: what they draw, when they are drawn, and that equal records give equal bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from books import book, curve, hostile_record
from factories import make_record

from attnbench.record import Record
from attnbench.reporting import figures, frames, plots, style
from attnbench.reporting.plots import FIGURES, pictures

ALWAYS = ["accuracy-throughput", "accuracy-memory", "accuracy-parameters", "learning-curves", "heat-map"]


def record(label: str, task: str = "a", test: float = 0.5, speed: float = 100.0, **changes: Any) -> Record:
    made = make_record(label=label, mechanism=label, task=task, test=test, **changes)
    assert made.cost is not None
    cost = made.cost.model_copy(update={"samples_per_second": speed, "peak_bytes": int(speed) * 2**20})
    return made.model_copy(update={"cost": cost, "curve": curve(5)})


def ranked(tasks: int, mechanisms: int = 4) -> list[Record]:
    """m0 is best on every task, then m1, and so on."""
    return [record(f"m{m}", f"t{t}", 0.9 - 0.1 * m) for m in range(mechanisms) for t in range(tasks)]


def names(records: list[Record]) -> list[str]:
    return [name for name, _ in files(records)]


def files(records: list[Record]) -> list[tuple[str, bytes]]:
    return [file for picture in pictures(book(records)) for file in picture.files]


def test_every_figure_is_drawn_in_both_forms_and_equal_records_give_equal_bytes() -> None:
    first, second = (files(records) for records in (ranked(1, 2), ranked(1, 2)[::-1]))
    assert [name for name, _ in first] == [f"quick-1-{what}.{kind}" for what in ALWAYS for kind in ("png", "svg")]
    assert first == second
    for name, data in first:
        assert data.startswith(b"\x89PNG") if name.endswith("png") else b"</svg>" in data
        assert b"<dc:date>" not in data and b"matplotlib.org" not in data


def test_the_diagram_of_ranks_is_drawn_only_from_six_tasks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    (last,) = FIGURES.keys() - set(ALWAYS)
    monkeypatch.setattr(plots, "FIGURES", {last: FIGURES[last]})
    assert names(ranked(5)) == []
    assert names(ranked(6)) == [f"quick-1-{last}.png", f"quick-1-{last}.svg"]


def frame_and_table(records: list[Record]) -> tuple[Any, Any]:
    made = book(records)
    return frames.runs(made, made.report.tables[0]), made.report.tables[0]


@pytest.mark.parametrize(
    ("cost", "less_is_better", "front"),
    [
        # more throughput is better: of the two at 300 the higher score, then 200, then 100
        ("throughput", False, [(300, 0.5), (200, 0.7), (100, 0.9)]),
        # less memory is better: the cheapest has the best score
        ("memory", True, [(100, 0.9)]),
    ],
)
def test_the_cost_front_joins_those_that_none_beats_in_both(
    cost: str, less_is_better: bool, front: list[tuple[float, float]]
) -> None:
    points = {"a": (100, 0.9), "b": (200, 0.7), "c": (300, 0.5), "beaten": (150, 0.6), "d": (300, 0.4)}
    runs, table = frame_and_table([record(name, test=y, speed=x) for name, (x, y) in points.items()])
    figure = figures.against_cost(runs, table, cost, "cost", less_is_better=less_is_better)
    assert figure is not None
    (line,) = [one for one in figure.axes[0].lines if one.get_drawstyle() == "steps-post"]
    drawn = [(float(x), float(y)) for x, y in line.get_xydata()]
    assert drawn[:-1] == pytest.approx(np.array(front))
    assert drawn[-1][1] == pytest.approx(0.9)  # and on to the edge


def test_runs_without_a_score_and_stale_ones_are_not_drawn() -> None:
    old = [record("x", mechanism_sha=sha * 64, started=day, test=test)
           for sha, day, test in (("a", "2026-01-01", 0.1), ("b", "2026-02-01", 0.6))]  # fmt: skip
    runs, _ = frame_and_table([record("dense"), record("bad", status="oom"), *old])
    assert dict(zip(runs["mechanism"], runs["score"], strict=True)) == {"dense": 0.5, "x": 0.6}
    assert names([record("bad", status="oom")]) == []


def test_the_heat_map_shows_means_and_leaves_missing_cells_empty() -> None:
    records = [record("m0", "a", 0.6), record("m0", "a", 0.8, seed=1), record("m0", "b", 0.5), record("m1", "b", 0.4)]
    figure = figures.heat_map(*frame_and_table(records))
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.700", "0.500", "0.400"]


def test_curves_show_the_range_over_seeds() -> None:
    made = book([record("m0"), record("m0", seed=1).model_copy(update={"curve": curve(3)})])
    curves = frames.curves(made, made.report.tables[0])
    figure = figures.learning_curves(curves, frames.runs(made, made.report.tables[0]), made.report.tables[0])
    assert figure is not None
    assert list(figure.axes[0].lines[0].get_xdata()) == [50, 100, 150, 200, 250]
    assert len(figure.axes[0].collections) == 1


def test_ranks_of_the_diagram() -> None:
    """m0 is first everywhere; m1 and m2 are equal, so both are 2.5; who misses a task takes no part."""
    records = [
        record(f"m{m}", f"t{t}", score) for m, score in enumerate((0.9, 0.6, 0.6, 0.2)) for t in range(6)
    ] + [record("part", "t0", 0.99)]  # fmt: skip
    runs, _ = frame_and_table(records)
    figure = figures.critical_differences(runs)
    assert figure is not None
    said = {text.get_text() for text in figure.axes[0].texts}
    assert {"m0 (1.00)", "m1 (2.50)"} <= said or {"m0 (1.00)", "m2 (2.50)"} <= said
    assert not any("part" in text for text in said)
    assert figures.critical_differences(runs[runs["mechanism"].isin(["m0", "m1"])]) is None


def test_mechanisms_are_told_apart_by_more_than_colour() -> None:
    looks = style.looks([f"m{n}" for n in range(40)])
    assert len({(look.colour, look.marker) for look in looks.values()}) == 40
    assert len({(look.colour, look.dash) for look in looks.values()}) >= 35


def test_names_that_differ_stay_different_when_they_are_cut() -> None:
    names = [f"hst+sar (regularizer.0.alpha={alpha})" for alpha in ("0.1", "0.3", "1.0", "3.0")]
    assert style.shortened([*names, "dense"], 32) == [
        *(f"hst+sar (r…ularizer.0.alpha={alpha})" for alpha in ("0.1", "0.3", "1.0", "3.0")), "dense",
    ]  # fmt: skip
    same = [f"hst (mechanism.merge=add, {middle}, mechanism.window_blocks=3)" for middle in ("pooled", "inserted")]
    assert style.shortened(same, 32) == ["hst (mechanism.merge=add, … (1)", "hst (mechanism.merge=add, … (2)"]
    assert style.shortened(["bigbird (random_blocks=2)", "dense", "dense"], 12) == ["bigbird …", "dense", "dense"]
    assert all(len(text) <= 32 for text in style.shortened([*names, *same], 32))


def test_any_text_can_be_drawn_and_no_name_leaves_the_folder(tmp_path: Path) -> None:
    text = r"../../up <b> $\frac{1}{$"
    found = names([hostile_record(text).model_copy(update={"curve": curve(3)})])
    assert len(found) == len(set(found)) == 2 * len(ALWAYS)
    assert {(tmp_path / name).parent for name in found} == {tmp_path}


def test_nothing_global_is_changed() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    next(pictures(book(ranked(1, 2))))
    assert dict(mpl.rcParams) == before
