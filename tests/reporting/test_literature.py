"""Values of papers: what the repository ships, and files with faults."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from attnbench.errors import AttnbenchError
from attnbench.reporting.literature import COLUMNS, Published, read

SHIPPED = Path(__file__).parents[2] / "results" / "literature"
LINE = ["a paper", "a table", "a model", "a task", "accuracy", "12.5", "S", ""]


def file(folder: Path, *lines: list[str], head: list[str] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "values.csv"
    with open(path, "w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([list(head or COLUMNS), *lines])
    return path


def values(published: Published) -> dict[tuple[str, str], str]:
    return {
        (model, task): value.text
        for model, row in published.rows
        for (task, _), value in zip(published.columns, row, strict=True)
        if value
    }


def test_the_shipped_averages_are_those_of_their_tasks() -> None:
    """All but one: the README of Long Range Arena prints 51.29 for Sinkhorn, whose tasks average 51.48."""
    table = next(one for one in read(SHIPPED) if one.title == "Long Range Arena, Tay et al. 2020")
    found, tasks = values(table), ("listops", "text", "retrieval", "image", "pathfinder")
    differing = {
        model
        for model, _ in table.rows
        if abs(sum(float(found[model, task]) for task in tasks) / 5 - float(found[model, "average"])) > 0.0051
    }
    assert differing == {"Sinkhorn"}
    assert len(table.rows) == 13


def test_shipped_values_have_sources_and_none_is_recalled() -> None:
    tables = read(SHIPPED)
    assert len(tables) == 5
    assert all(value.source and value.mark in "SI" for one in tables for _, row in one.rows for value in row if value)
    ernie = values(next(one for one in tables if one.title == "ERNIE-Sparse on Long Range Arena"))
    assert {task for model, task in ernie if model == "ERNIE-Sparse"} == {"pathfinder", "average"}


def test_recalled_values_are_left_out(tmp_path: Path) -> None:
    recalled = [*LINE[:3], "another task", *LINE[4:6], "R", ""]
    file(tmp_path, LINE, recalled, [*LINE[:2], "another model", *recalled[3:]])
    (table,) = read(tmp_path)
    assert table.columns == (("a task", "accuracy"),)
    assert [model for model, _ in table.rows] == ["a model"]
    file(tmp_path, recalled)
    assert read(tmp_path) == []


def test_notes_name_the_models_of_which_the_same_is_said(tmp_path: Path) -> None:
    inferred = [*LINE[:2], "c", *LINE[3:6], "I", "by hand"]
    file(tmp_path, *([*LINE[:2], model, *LINE[3:7], "noted"] for model in "ab"), inferred)
    assert read(tmp_path)[0].notes == [
        "a task of a, b: noted",
        "a task of c: computed or inferred from what was read; by hand",
    ]


def test_no_folder_no_values(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ([*LINE[:5], "twelve", "S", ""], "line 2: value 'twelve' is neither a number nor FAIL"),
        ([*LINE[:5], "nan", "S", ""], "line 2: value 'nan' is neither"),
        ([*LINE[:6], "X", ""], "line 2: mark 'X' is none of S (read in the source)"),
        (["", *LINE[1:]], "line 2: no source"),
        (LINE[:7], "line 2: not 8 values"),
        ([*LINE, "more"], "line 2: not 8 values"),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, line: list[str], fault: str) -> None:
    path = file(tmp_path, line)
    with pytest.raises(AttnbenchError) as caught:
        read(tmp_path)
    assert str(caught.value).startswith(f"{path}, {fault}")
    assert "\n" not in str(caught.value)


def test_a_faulty_file_is_named(tmp_path: Path) -> None:
    path = file(tmp_path, LINE, LINE)
    with pytest.raises(AttnbenchError, match=r"line 3: a model, a task, accuracy stands in a table already"):
        read(tmp_path)
    file(tmp_path, LINE, head=["source"])
    with pytest.raises(AttnbenchError, match=r"columns are \['source'\], not source,table"):
        read(tmp_path)
    for content, fault in ((b"\xff", "not UTF-8 at byte 0"), (b"", "columns are None"), (b'"', "no CSV file")):
        path.write_bytes(content)
        with pytest.raises(AttnbenchError, match=fault):
            read(tmp_path)
