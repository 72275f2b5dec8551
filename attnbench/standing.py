"""How the rows of a finished table stand to each other: differences, ties with the best, ranks, and whether a task
tells mechanisms apart at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from scipy import stats

from attnbench.comparison import Difference, adjust, difference, of_column, tied_with_best
from attnbench.errors import AttnbenchError
from attnbench.record import Record
from attnbench.report import Column, Entry, Report, Row, Table
from attnbench.statistics import ROUNDING, Scores
from attnbench.store import load_predictions

#: The numbers of the examples and their scores, by seed.
_Cell = dict[int, tuple[np.ndarray, Scores]]


@dataclass
class Examples:
    """Scores of test examples, read when they are asked for. `notes` say which cannot be compared, and why."""

    found: Mapping[str, tuple[Path, Record]]
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
        return cls({record.id: (path, record) for path, record in records})

    def of_entry(self, entry: Entry) -> _Cell:
        """For each seed that has them."""
        read = {seed: self.of_record(name) for seed, name in entry.scored}
        return {seed: found for seed, found in read.items() if found is not None}

    def data(self, entry: Entry) -> tuple[str, str]:
        """What it was tested on."""
        task = self.found[entry.ids[0]][1].spec.task
        return task.name, task.data_key

    def of_record(self, name: str) -> tuple[np.ndarray, Scores] | None:
        """The numbers of its examples and their scores, or None."""
        path, record = self.found[name]
        try:
            arrays = load_predictions(path, record) if record.predictions else {}
            units, scores = arrays["unit"], arrays["score"]
        except KeyError:
            self.without[name] = None
        except AttnbenchError as error:
            self.problems[str(error)] = None
        else:
            if units.ndim == 1 and scores.dtype.kind == "f" and _are_scores(scores, len(units)):
                return units.astype(np.int64), scores
            self.problems[f"{path}: its predictions hold no score in [0, 1] for each example; run the cell again"] = (
                None
            )
        return None


def _are_scores(scores: Scores, count: int) -> bool:
    return scores.shape == (count,) and count > 0 and bool(((scores >= 0) & (scores <= 1)).all())


def judge(report: Report, examples: Examples) -> Report:
    """The same report with differences, ties, ranks, and whether each task separates. Stale rows take no part."""
    return Report(tuple(_judged(table, examples) for table in report.tables))


def _judged(table: Table, examples: Examples) -> Table:
    live = {row.name: row for row in table.rows if not row.stale}
    columns, found, tied = [], [], []
    for place, column in enumerate(table.columns):
        entries = {name: entry for name, row in live.items() if (entry := row.entries[place]) and entry.seeds}
        cells = {name: examples.of_entry(entry) for name, entry in entries.items()}
        differences = of_column(_aligned(cells, column.title, examples))
        means = {name: entry.mean for name, entry in entries.items() if entry.mean is not None}
        learned = {name for name, entry in entries.items() if "ok" in dict(entry.statuses)}
        tied.append(tied_with_best(means, differences, learned))
        found.append(tuple(differences))
        columns.append(replace(column, separates=separates(column, live, entries, differences)))
    ranks = mean_ranks({name: row for name, row in live.items() if all(e and e.mean is not None for e in row.entries)})
    rows = tuple(row if row.stale else _marked(row, tied, ranks) for row in table.rows)
    return replace(table, columns=tuple(columns), rows=rows, differences=tuple(found))


def across(
    table: Table, other: Table, examples: Examples, others: Examples, places: tuple[str, str]
) -> list[tuple[str, Difference]]:
    """What two results folders say of the same rows on the same data, with the column's title.

    Adjusted over the rows of a column. Stale rows take no part.
    """
    theirs = {
        (row.name, others.data(entry)): entry for row in other.rows if not row.stale for entry in row.entries if entry
    }
    found = []
    for place, column in enumerate(table.columns):
        differences = []
        for row in table.rows:
            entry = None if row.stale else row.entries[place]
            there = theirs.get((row.name, examples.data(entry))) if entry else None
            if entry and there:
                a, b = (f"{row.name} in {folder}" for folder in places)
                both = {a: examples.of_entry(entry), b: others.of_entry(there)}
                cells = _aligned(both, column.title, examples)
                if cells.get(a, {}).keys() & cells.get(b, {}).keys():
                    differences.append(difference(a, b, cells[a], cells[b]))
        found += [(column.title, one) for one in adjust(differences)]
    return found


def _marked(row: Row, tied: Sequence[Mapping[str, bool]], ranks: Mapping[str, float]) -> Row:
    entries = (
        entry and replace(entry, tied=column.get(row.name)) for entry, column in zip(row.entries, tied, strict=True)
    )
    return replace(row, entries=tuple(entries), rank=ranks.get(row.name))


def _aligned(cells: Mapping[str, _Cell], task: str, examples: Examples) -> dict[str, dict[int, Scores]]:
    """Of the runs that were tested on the same examples, those that most were tested on."""
    runs = [(name, seed, *found) for name, cell in cells.items() for seed, found in cell.items()]
    (usual, _), *_ = Counter(units.tobytes() for _, _, units, _ in runs).most_common(1) or [(b"", 0)]
    aligned: dict[str, dict[int, Scores]] = {}
    for name, seed, units, scores in runs:
        if units.tobytes() == usual:
            aligned.setdefault(name, {})[seed] = scores
        else:
            examples.problems[f"{task}: {name}, seed {seed}, was tested on other examples: no differences with it"] = (
                None
            )
    return aligned


def separates(
    column: Column, live: Mapping[str, Row], entries: Mapping[str, Entry], differences: Iterable[Difference]
) -> str:
    """yes: what must solve the task beats what cannot; no: it does not show; else why nobody can say."""
    if not column.controls:
        return "no controls"
    names = []
    for label in column.controls:
        rows = [name for name in entries if live[name].label == label]
        if not rows:
            return f"not known: no run of {label}"
        plain = [name for name in rows if not live[name].options]
        if not plain and len(rows) > 1:
            return f"not known: {len(rows)} rows of {label}"
        names.append((plain or rows)[0])
    for one in (way for found in differences for way in (found, found.turned)):
        if [one.first, one.second] == names:
            return "yes" if one.differs and one.mean > 0 else "no"
    return "not known: no seed with scores of both"


def mean_ranks(rows: Mapping[str, Row]) -> dict[str, float]:
    """Of rows that have a score on every task; 1 is best, equals share their ranks. None with fewer than two tasks."""
    scores = np.array([[entry.mean for entry in row.entries if entry] for row in rows.values()], dtype=np.float64)
    if len(rows) < 2 or scores.shape[1] < 2:
        return {}
    ranks = stats.rankdata(-np.round(scores / ROUNDING), axis=0).mean(axis=1)
    return dict(zip(rows, map(float, ranks), strict=True))
