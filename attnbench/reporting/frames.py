"""What the plots draw, as tidy DataFrames: of live rows only, with a score."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnbench.record import Record
from attnbench.report import Row, Table
from attnbench.reporting.book import Book
from attnbench.tables import visible

if TYPE_CHECKING:
    import pandas as pd

_RUNS = ["mechanism", "task", "seed", "score", "throughput", "memory", "parameters"]
_CURVES = ["mechanism", "task", "seed", "step", "validation"]


def _scored(book: Book, table: Table) -> Iterator[tuple[Row, str, Record]]:
    for row in table.rows:
        for place, column in enumerate(table.columns):
            for record in book.runs(row, place):
                if not row.stale and record.quality is not None:
                    yield row, visible(column.title), record


def runs(book: Book, table: Table) -> pd.DataFrame:
    """A row per run: test score, training samples per second, peak memory in MiB, parameters in all."""
    import pandas as pd

    rows = [
        (visible(row.name), task, record.seed, record.quality.test, *_costs(record))
        for row, task, record in _scored(book, table)
        if record.quality is not None
    ]
    return pd.DataFrame(rows, columns=_RUNS)


def _costs(record: Record) -> tuple[float, float, float]:
    cost = record.cost
    if cost is None:
        return (float("nan"),) * 3
    return cost.samples_per_second, cost.peak_bytes / 2**20, float(cost.params_total)


def curves(book: Book, table: Table) -> pd.DataFrame:
    """A row per run and validation."""
    import pandas as pd

    rows = [
        (visible(row.name), task, record.seed, point.step, point.validation)
        for row, task, record in _scored(book, table)
        for point in record.curve
    ]
    return pd.DataFrame(rows, columns=_CURVES)
