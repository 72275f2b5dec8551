"""Ties, ranks and separation in the tables, of records whose scores of examples are made up."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import make_quality, make_record

from attnbench.comparison import difference
from attnbench.record import Record
from attnbench.report import Entry, Report, Table, build
from attnbench.standing import Examples, judge
from attnbench.store import Store
from attnbench.tables import to_csv, to_json, to_markdown

SIZE = 200
CONTROLS = ["dense", "local"]


def scores_of(label: str, share: float, seed: int = 0) -> np.ndarray:
    """That share right, in another order for each label and seed."""
    right = np.arange(SIZE) < round(share * SIZE)
    return np.random.default_rng([seed, *label.encode()]).permutation(right).astype(np.float64)


class Results:
    """A results folder that is filled run by run."""

    def __init__(self, folder: Path):
        self.store = Store(folder)

    def add(
        self, label: str, share: float | np.ndarray, seed: int = 0, *, units: np.ndarray | None = None,
        arrays: Mapping[str, np.ndarray] | None = None, controls: list[str] | None = None, **changes: Any,
    ) -> Record:  # fmt: skip
        """`arrays` {} stores the run without scores of examples."""
        scores = scores_of(label, share, seed) if isinstance(share, float) else share
        kept = (
            {"unit": np.arange(len(scores)) if units is None else units, "score": scores} if arrays is None else arrays
        )
        quality = make_quality(float(scores.mean()), controls=CONTROLS if controls is None else controls)
        record = make_record(label=label, mechanism=label, seed=seed, **{"quality": quality, **changes})
        self.store.write(record, kept or None)
        return record

    def seeds(self, label: str, share: float, count: int = 3, **changes: Any) -> None:
        for seed in range(count):
            self.add(label, share, seed, **changes)

    def judged(self) -> tuple[Report, list[str]]:
        found, problems = self.store.read_all()
        assert not problems
        examples = Examples.of(found)
        return judge(build(record for _, record in found), examples), examples.notes

    @property
    def table(self) -> Table:
        (table,) = self.judged()[0].tables
        return table

    @property
    def notes(self) -> list[str]:
        return self.judged()[1]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def entries(table: Table) -> dict[tuple[str, str], Entry]:
    return {
        (row.name, column.title): entry
        for row in table.rows
        for column, entry in zip(table.columns, row.entries, strict=True)
        if entry and not row.stale
    }


def ties(table: Table) -> dict[str, bool | None]:
    return {name: entry.tied for (name, _), entry in entries(table).items()}


# --- differences and ties ---------------------------------------------------------------------------------------


def test_the_differences_are_those_of_the_stored_scores(results: Results) -> None:
    results.seeds("dense", 0.9)
    results.seeds("local", 0.5, 2)
    ((one,),) = results.table.differences
    dense, local = (
        {seed: scores_of(label, share, seed) for seed in range(count)}
        for label, share, count in (("dense", 0.9, 3), ("local", 0.5, 2))
    )
    expected = difference("dense", "local", dense, local)
    assert (one.mean, one.low, one.high, one.p) == (expected.mean, expected.low, expected.high, expected.p)
    assert one.adjusted == one.p and (one.seeds, one.examples) == (2, SIZE)


def test_the_best_and_what_does_not_differ_from_it_are_tied(results: Results) -> None:
    for label, shares in {"best": (0.9, 0.9, 0.9), "near": (0.85, 0.9, 0.88), "far": (0.3, 0.4, 0.3)}.items():
        for seed, share in enumerate(shares):
            results.add(label, share, seed)
    assert ties(results.table) == {"best": True, "near": True, "far": False}
    report = results.judged()[0]
    marks = [line.rsplit("|", 2)[1].strip().endswith(r"\*") for line in to_markdown(report).splitlines()[4:7]]
    assert marks == [True, False, True]
    rows = csv.DictReader(io.StringIO(to_csv(report)))
    assert [row["tied"] for row in rows] == ["true", "false", "true"]
    rows = json.loads(to_json(report))["tables"][0]["rows"]
    assert [row["entries"][0]["tied"] for row in rows] == [True, False, True]


def test_what_no_run_learned_is_not_tied_however_few_the_seeds(results: Results) -> None:
    results.seeds("best", 0.9)
    for seed, share in enumerate((0.1, 0.5, 0.9)):
        results.add("lucky", share, seed, status="ok" if seed == 2 else "trivial")
        results.add("spread", share, seed, status="trivial" if seed else "not_above_chance")
    assert ties(results.table) == {"best": True, "lucky": True, "spread": False}
    shows = {one.second: one.differs for column in results.table.differences for one in column if one.first == "best"}
    assert shows == {"lucky": False, "spread": False}


def test_whether_runs_without_scores_of_examples_tie_is_not_known(results: Results) -> None:
    results.add("best", 0.9)
    results.add("near", 0.9, 1)
    results.add("old", 0.85, arrays={})
    assert ties(results.table) == {"best": True, "near": None, "old": None}
    assert [row["tied"] for row in csv.DictReader(io.StringIO(to_csv(results.judged()[0])))] == ["true", "", ""]


@pytest.mark.parametrize("kept", [{}, {"predicted": np.zeros(5)}, {"unit": np.arange(5)}])
def test_runs_without_scores_are_noted_once(results: Results, kept: dict[str, np.ndarray]) -> None:
    record = results.add("dense", 0.5, arrays=kept)
    assert results.notes == [
        f"the run {record.id} without scores of single examples (of an older attnbench): no differences with them; "
        "run them again"
    ]
    results.seeds("local", 0.5, arrays=kept)
    (note,) = results.notes
    assert note.startswith(f"4 runs, {record.id} the first, without scores") and results.table.differences == ((),)


@pytest.mark.parametrize(
    ("unit", "score"),
    [
        (np.arange(5), np.full(5, np.nan)),
        (np.arange(5), np.full(5, 1.5)),
        (np.arange(5), np.full(4, 0.5)),
        (np.arange(5), np.full((5, 1), 0.5)),
        (np.arange(4).reshape(2, 2), np.full(2, 0.5)),
        (np.arange(0), np.full(0, 0.5)),
        (np.array(5), np.array(0.5)),
        (np.arange(2), np.array(["a", "b"])),
    ],
)
def test_scores_that_are_none_are_one_line(results: Results, unit: np.ndarray, score: np.ndarray) -> None:
    results.add("dense", 0.9)
    results.add("odd", 0.5, arrays={"unit": unit, "score": score})
    (note,) = results.notes
    assert "odd" in note and note.endswith("hold no score in [0, 1] for each example; run the cell again")
    assert results.table.differences == ((),)


def test_lost_predictions_are_one_line_and_the_others_are_compared(results: Results) -> None:
    for label in ("a", "b", "c"):
        results.add(label, 0.5)
    (lost,) = results.store.runs.rglob("b/*.npz")
    lost.unlink()
    (note,) = results.notes
    assert str(lost) in note and "cannot be read" in note
    assert [(one.first, one.second) for one in results.table.differences[0]] == [("a", "c")]


@pytest.mark.parametrize("odd", ["a", "c"])
def test_a_run_on_other_examples_is_noted_and_left_out(results: Results, odd: str) -> None:
    for label in ("a", "b", "c"):
        results.add(label, 0.5, units=np.arange(SIZE) + (label == odd))
    assert results.notes == [f"recall: {odd}, seed 0, was tested on other examples: no differences with it"]
    (differences,) = results.table.differences
    assert len(differences) == 1 and odd not in (differences[0].first, differences[0].second)


def test_stale_rows_take_no_part(results: Results) -> None:
    results.seeds("dense", 0.99, mechanism_sha="00" * 32, started="2025-01-01T00:00:00Z")
    results.seeds("dense", 0.7)
    results.seeds("local", 0.6)
    table = results.table
    assert [(row.label, row.stale) for row in table.rows] == [("dense", False), ("dense", True), ("local", False)]
    stale = table.rows[1].entries[0]
    assert stale and stale.tied is None and table.rows[1].rank is None
    assert ties(table)["dense"] is True and len(table.differences[0]) == 1


def test_runs_without_a_score_take_no_part(results: Results) -> None:
    results.seeds("dense", 0.9)
    results.store.write(make_record(label="local", mechanism="local", status="oom"))
    assert ties(results.table) == {"dense": True, "local": None} and results.notes == []


# --- ranks ------------------------------------------------------------------------------------------------------


def test_mean_ranks_by_hand(results: Results) -> None:
    # Task one: .9 .8 .8 .3, ranks 1 2.5 2.5 4; task two: .5 .9 .7 .3, ranks 3 1 2 4. `half` has no score on two.
    shares = {"a": (0.9, 0.5), "b": (0.8, 0.9), "c": (0.8, 0.7), "d": (0.3, 0.3)}
    for label, of_tasks in shares.items():
        for task, share in zip(("one", "two"), of_tasks, strict=True):
            results.add(label, share, task=task)
    results.add("half", 0.99, task="one")
    ranks = {row.label: row.rank for row in results.table.rows}
    assert ranks == {"a": 2.0, "b": 1.75, "c": 2.25, "d": 4.0, "half": None}
    report = results.judged()[0]
    lines = [line.split("|")[1:-1] for line in to_markdown(report).splitlines() if line.startswith("|")]
    assert lines[0][2].strip() == "mean rank"
    assert [cells[2].strip() for cells in lines[2:7]] == ["2.0", "1.8", "2.2", "4.0", "-"]
    assert all(len(cells) == len(lines[0]) for cells in lines)
    of_csv = {row["label"]: row["rank"] for row in csv.DictReader(io.StringIO(to_csv(report)))}
    assert of_csv == {"a": "2.0", "b": "1.75", "c": "2.25", "d": "4.0", "half": ""}


def test_rounding_makes_no_rank(results: Results) -> None:
    for task in ("one", "two"):
        results.add("a", np.full(SIZE, 0.1 + 0.2), task=task)
        results.add("b", np.full(SIZE, 0.3), task=task)
    assert [row.rank for row in results.table.rows] == [1.5, 1.5]


@pytest.mark.parametrize(("labels", "tasks"), [(["a"], ["one", "two"]), (["a", "b"], ["one"])])
def test_one_task_or_one_row_has_no_ranks(results: Results, labels: list[str], tasks: list[str]) -> None:
    for label in labels:
        for task in tasks:
            results.add(label, 0.5, task=task)
    assert all(row.rank is None for row in results.table.rows)
    assert "mean rank" not in to_markdown(results.judged()[0])


# --- separation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "controls", "said"),
    [
        ({"dense": 0.9, "local": 0.4}, CONTROLS, "yes"),
        ({"dense": 0.9, "local": 0.4}, ["local", "dense"], "no"),  # who must solve it is behind
        ({"dense": 0.5, "local": 0.5}, CONTROLS, "no"),
        ({"dense": 0.9, "local": 0.4}, [], "no controls"),
        ({"dense": 0.9, "hst": 0.4}, CONTROLS, "not known: no run of local"),
        ({"local": 0.9, "hst": 0.4}, CONTROLS, "not known: no run of dense"),
    ],
)
def test_a_task_separates_where_its_controls_differ(
    results: Results, shares: dict[str, float], controls: list[str], said: str
) -> None:
    for label, share in shares.items():
        results.seeds(label, share, controls=controls)
    assert results.table.columns[0].separates == said
    report = results.judged()[0]
    last = [line for line in to_markdown(report).splitlines() if line.startswith("|")][-1]
    assert last == f"| *separates* |  | {said} |"
    assert {row["separates"] for row in csv.DictReader(io.StringIO(to_csv(report)))} == {said}
    assert json.loads(to_json(report))["tables"][0]["columns"][0]["separates"] == said


def test_separation_needs_scores_of_both_controls(results: Results) -> None:
    results.add("dense", 0.9)
    results.add("local", 0.4, arrays={})
    assert results.table.columns[0].separates == "not known: no seed with scores of both"


def test_separation_takes_the_row_of_a_control_and_says_when_there_are_several(results: Results) -> None:
    results.seeds("local", 0.3)
    results.seeds("dense", 0.9, options={"dim": 1, "heads": 1})
    assert results.table.columns[0].separates == "yes"
    results.seeds("dense", 0.2, options={"dim": 1, "heads": 2})
    assert results.table.columns[0].separates == "not known: 2 rows of dense"
    results.seeds("dense", 0.9, options={"dim": 1})  # what the others do not say does not set it apart
    assert results.table.columns[0].separates == "yes"


# --- the pages --------------------------------------------------------------------------------------------------


def test_same_records_same_bytes(tmp_path: Path) -> None:
    written = []
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 4, 2, 0]):
        results = Results(tmp_path / str(order[0]))
        for number in order:
            results.add("abc"[number % 3], 0.4 + number % 3 / 10, number // 3, task="one")
            results.add("abc"[number % 3], 0.5, number // 3, task="two")
        report = results.judged()[0]
        written.append([to_markdown(report), to_csv(report), to_json(report)])
    assert written[0] == written[1]


def test_names_break_no_table(results: Results) -> None:
    odd = "<b>*|`a`|*</b>"
    for task in ("one", "two"):
        results.seeds(odd, 0.9, task=task, controls=[odd, "un|known"])
        results.seeds("dense", 0.2, task=task, controls=[odd, "un|known"])
    report = results.judged()[0]
    text = to_markdown(report)
    assert "<b>" not in text and r"not known: no run of un\|known" in text
    lines = [line.replace(r"\|", "") for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {6}
    assert json.loads(to_json(report))["tables"][0]["differences"][0][0]["first"] == odd
