"""How the rows of a finished table stand to each other: differences, ties with the best, ranks, and whether a task
tells mechanisms apart at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from scipy import stats

from attnbench.comparison import Difference, difference, of_column, tied_with_best
from attnbench.errors import AttnbenchError
from attnbench.record import Record
from attnbench.report import Column, Entry, Report, Row, Table
from attnbench.statistics import Scores
from attnbench.store import load_predictions


@dataclass
class Examples:
    """Scores of test examples, read when they are asked for. `notes` say of which runs there are none."""

    paths: Mapping[str, Path]
    problems: dict[str, None] = field(default_factory=dict)
    without: dict[str, None] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        some = next(iter(self.without), None)
        count = f"{len(self.without)} runs, {some} the first," if len(self.without) > 1 else f"the run {some}"
        what = "without scores of single examples (of an older attnbench): no differences with them; run them again"
        return [*self.problems, *([f"{count} {what}"] if some else [])]

    @classmethod
    def of(cls, records: Iterable[tuple[Path, Record]]) -> Examples:
        return cls({record.id: path for path, record in records})

    def by_seed(self, entry: Entry) -> dict[int, tuple[np.ndarray, Scores]]:
        """The numbers of the examples and their scores, for each seed that has them."""
        read = {seed: self._read(name) for seed, name in entry.scored}
        return {seed: found for seed, found in read.items() if found is not None}

    def _read(self, name: str) -> tuple[np.ndarray, Scores] | None:
        try:
            arrays = load_predictions(self.paths[name])
            return arrays["unit"], arrays["score"]
        except KeyError:
            self.without[name] = None
        except AttnbenchError as error:
            self.problems[str(error)] = None
        return None


def judge(report: Report, examples: Examples) -> Report:
    """The same report with differences, ties, ranks, and whether each task separates. Stale rows take no part."""
    return Report(tuple(_judged(table, examples) for table in report.tables))


def _judged(table: Table, examples: Examples) -> Table:
    live = {row.name: row for row in table.rows if not row.stale}
    columns, found, tied = [], [], {}
    for place, column in enumerate(table.columns):
        entries = {name: entry for name, row in live.items() if (entry := row.entries[place]) and entry.seeds}
        differences = of_column(_aligned(entries, examples))
        means = {name: entry.mean for name, entry in entries.items() if entry.mean is not None}
        tied[place] = tied_with_best(means, differences)
        found.append(tuple(differences))
        columns.append(replace(column, separates=separates(column, live, entries, differences)))
    ranks = mean_ranks({name: row for name, row in live.items() if all(e and e.mean is not None for e in row.entries)})
    rows = tuple(row if row.stale else _marked(row, tied, ranks) for row in table.rows)
    return replace(table, columns=tuple(columns), rows=rows, differences=tuple(found))


def across(
    table: Table, other: Table, examples: Examples, others: Examples, places: tuple[str, str]
) -> Iterator[tuple[str, Difference]]:
    """What two results folders say of the same rows and columns of two tables of one protocol."""
    rows = {row.name: row for row in other.rows if not row.stale}
    where = {column.title: place for place, column in enumerate(other.columns)}
    for row in table.rows:
        for column, entry in zip(table.columns, row.entries, strict=True):
            if row.stale or not entry or row.name not in rows or column.title not in where:
                continue
            if there := rows[row.name].entries[where[column.title]]:
                a, b = (f"{row.name} in {place}" for place in places)
                cells = _aligned({a: entry}, examples) | _aligned({b: there}, others)
                if len(cells) == 2 and cells[a].keys() & cells[b].keys():
                    yield column.title, difference(a, b, cells[a], cells[b])


def _marked(row: Row, tied: Mapping[int, set[str]], ranks: Mapping[str, float]) -> Row:
    entries = (entry and replace(entry, tied=row.name in tied[place]) for place, entry in enumerate(row.entries))
    return replace(row, entries=tuple(entries), rank=ranks.get(row.name))


def _aligned(entries: Mapping[str, Entry], examples: Examples) -> dict[str, dict[int, Scores]]:
    """Of the runs that were tested on the same examples as the first."""
    cells: dict[str, dict[int, Scores]] = {}
    wanted: np.ndarray | None = None
    for name, entry in entries.items():
        for seed, (units, scores) in examples.by_seed(entry).items():
            wanted = units if wanted is None else wanted
            if np.array_equal(units, wanted):
                cells.setdefault(name, {})[seed] = scores
            else:
                examples.problems[f"{name}, seed {seed}: tested on other examples than the rows above it"] = None
    return cells


def separates(
    column: Column, live: Mapping[str, Row], entries: Mapping[str, Entry], differences: Iterable[Difference]
) -> str:
    """yes: what must solve the task beats what cannot; no: it does not show; else why nobody can say."""
    if not column.controls:
        return "no controls"
    names = []
    for label in column.controls:
        found = [name for name in entries if live[name].label == label and not live[name].options]
        if not found:
            return f"not known: no run of {label}"
        names.append(found[0])
    for one in differences:
        if {one.first, one.second} == set(names):
            ahead = one.mean if one.first == names[0] else -one.mean
            return "yes" if one.differs and ahead > 0 else "no"
    return "not known: no seed in common"


def mean_ranks(rows: Mapping[str, Row]) -> dict[str, float]:
    """Of rows that have a score on every task; 1 is best, equals share their ranks. None with fewer than two tasks."""
    scores = np.array([[entry.mean for entry in row.entries if entry] for row in rows.values()], dtype=np.float64)
    if len(rows) < 2 or scores.shape[1] < 2:
        return {}
    ranks = stats.rankdata(-scores, axis=0).mean(axis=1)
    return dict(zip(rows, map(float, ranks), strict=True))
