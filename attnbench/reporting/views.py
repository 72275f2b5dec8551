"""Tables in the form of papers: an average over fixed tasks, in percent. Which tasks: views.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from attnbench.record import Record
from attnbench.report import Column, Entry, Row, Table
from attnbench.statistics import summarise

STAMP = "our interpretation"


@dataclass(frozen=True)
class View:
    name: str
    tasks: tuple[str, ...]
    note: str


@dataclass(frozen=True)
class Line:
    """One mechanism: its score on every task of the view, their average, both in percent.

    `sd` is the standard deviation of the average over `seeds` seeds; None unless two or more have all the tasks.
    """

    name: str
    scores: tuple[float, ...]
    average: float
    sd: float | None
    seeds: int

    @property
    def text(self) -> str:
        spread = "" if self.sd is None else f" ± {self.sd:.2f}"
        many = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{self.average:.2f}{spread} ({many if self.seeds else 'not the same seeds on every task'})"


@dataclass(frozen=True)
class Average:
    """A view of one table, best average first."""

    view: View
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]

    @property
    def stamp(self) -> str:
        """What has to stand beside it."""
        metrics = ", ".join(f"{column.title}: {column.metric}" for column in self.columns)
        return f"{STAMP}: percent, by this harness and protocol ({metrics}); not comparable with a paper's. " + (
            self.view.note
        )


def definitions() -> list[View]:
    text = resources.files("attnbench.reporting").joinpath("views.toml").read_text("utf-8")
    return [View(one["name"], tuple(one["tasks"]), one["note"]) for one in tomllib.loads(text)["view"]]


def averages(table: Table, records: Mapping[tuple[str, str], Record]) -> list[Average]:
    """The views that the table can show; records are by label and id.

    A view needs each of its tasks as exactly one column, and one row with a score on all of them. Rows that miss one
    are left out, stale ones too.
    """
    shown = []
    for view in definitions():
        places = [[n for n, column in enumerate(table.columns) if column.task == task] for task in view.tasks]
        if any(len(found) != 1 for found in places):
            continue
        where = [place for (place,) in places]
        rows = [row for row in table.rows if not row.stale]
        lines = [line for row in rows if (line := _line(row, where, records))]
        if lines:
            lines.sort(key=lambda line: (-line.average, line.name))
            shown.append(Average(view, tuple(table.columns[place] for place in where), tuple(lines)))
    return shown


def _line(row: Row, places: list[int], records: Mapping[tuple[str, str], Record]) -> Line | None:
    entries = [entry for place in places if (entry := row.entries[place]) and entry.mean is not None]
    if len(entries) < len(places):
        return None
    means = tuple(100 * entry.mean for entry in entries if entry.mean is not None)
    by_seed = [_tests(row.label, entry, records) for entry in entries]
    common = sorted(set.intersection(*(set(tests) for tests in by_seed)))
    alike = all(len(tests) == len(common) for tests in by_seed)
    seeds = [sum(100 * tests[seed] for tests in by_seed) / len(by_seed) for seed in common]
    return Line(
        name=row.name,
        scores=means,
        average=sum(means) / len(means),
        sd=summarise(seeds).sd if seeds and alike else None,
        seeds=len(seeds) if alike else 0,
    )


def _tests(label: str, entry: Entry, records: Mapping[tuple[str, str], Record]) -> dict[int, float]:
    found = {seed: records[label, name].quality for seed, name in entry.scored}
    return {seed: quality.test for seed, quality in found.items() if quality is not None}
