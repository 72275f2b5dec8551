"""Averages in the form of papers: against hand-made sums, and shown only when complete."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from books import book
from factories import make_record

from attnbench import registry
from attnbench.record import Record
from attnbench.reporting.views import Average, definitions

LRA = ("listops", "text", "retrieval", "image", "pathfinder")
#: Percent by task, of two seeds.
SCORES = {"listops": (37, 39), "text": (64, 65), "retrieval": (60, 64), "image": (45, 44), "pathfinder": (78, 80)}


def records(label: str = "dense", skip: str = "", seeds: int = 2, **changes: Any) -> list[Record]:
    return [
        make_record(label=label, mechanism=label, task=task, seed=seed, test=percent / 100, **changes)
        for task, percents in SCORES.items()
        for seed, percent in enumerate(percents[:seeds])
        if task != skip
    ]


def averages(found: list[Record]) -> list[Average]:
    made = book(found)
    return [average for table in made.report.tables for average in made.averages(table)]


def test_an_average_is_that_of_the_tasks_and_its_spread_that_of_the_seeds() -> None:
    (average,) = averages(records())
    (line,) = average.lines
    assert line.scores == pytest.approx((38, 64.5, 62, 44.5, 79))
    assert line.average == pytest.approx((38 + 64.5 + 62 + 44.5 + 79) / 5)
    by_seed = [sum(SCORES[task][seed] for task in LRA) / 5 for seed in (0, 1)]
    assert line.sd == pytest.approx(statistics.stdev(by_seed))
    assert line.text == "57.60 ± 1.13 (2 seeds)"
    assert average.stamp.startswith("our interpretation: percent")


def test_one_seed_has_no_spread_and_unlike_seeds_are_named() -> None:
    assert averages(records(seeds=1))[0].lines[0].text == "56.80 (1 seed)"
    more = make_record(task="text", seed=5, test=0.9)
    assert averages([*records(), more])[0].lines[0].text == "59.30 (not the same seeds on every task)"


@pytest.mark.parametrize("task", LRA)
def test_no_average_without_every_task(task: str) -> None:
    assert averages(records(skip=task)) == []
    failed = make_record(task=task, status="oom")
    assert averages([*records(skip=task), failed]) == []


def test_rows_that_miss_a_task_and_stale_ones_are_left_out() -> None:
    stale = [*records("old", mechanism_sha="a" * 64, started="2025-01-01"),
             make_record(label="old", mechanism="old", task="x", mechanism_sha="b" * 64)]  # fmt: skip
    (average,) = averages([*records(), *records("hst", skip="text"), *stale])
    assert [line.name for line in average.lines] == ["dense"]


def test_the_best_average_comes_first() -> None:
    better = [record.model_copy(update={"label": "zz"}) for record in records(seeds=1)]
    better[0] = make_record(label="zz", task="listops", test=0.99)
    (average,) = averages([*records(seeds=1), *better])
    assert [line.name for line in average.lines] == ["zz", "dense"]


def test_a_task_in_two_forms_has_no_average() -> None:
    """Nobody could say which of them it is of."""
    other = make_record(task="pathfinder", task_options={"pairs": 9}, data_key="9", test=0.5)
    assert averages([*records(), other]) == []


def test_protocols_do_not_complete_each_other() -> None:
    assert averages([*records(skip="text"), make_record(task="text", protocol="other")]) == []


def test_definitions_name_tasks_that_exist() -> None:
    views = definitions()
    assert [view.name for view in views] == ["LRA average", "Classification average", "Question-answering average"]
    assert {task for view in views for task in view.tasks} <= set(registry.names("tasks"))
    assert views[0].tasks == LRA
