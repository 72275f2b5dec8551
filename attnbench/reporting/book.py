"""What a report is made from: judged tables, the records behind them, and values of papers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnbench.record import Record
from attnbench.report import Report, Row, Table
from attnbench.reporting.literature import Published
from attnbench.reporting.views import Average, averages


@dataclass(frozen=True)
class Book:
    """`records` are by label and id, as the store tells them apart."""

    report: Report
    records: Mapping[tuple[str, str], Record]
    literature: Sequence[Published] = ()

    @classmethod
    def of(cls, report: Report, records: Iterable[Record], literature: Sequence[Published] = ()) -> Book:
        return cls(report, {(record.label, record.id): record for record in records}, literature)

    def runs(self, row: Row, place: int) -> list[Record]:
        """The runs counted in one cell, by seed."""
        entry = row.entries[place]
        return [self.records[row.label, name] for name in entry.ids] if entry else []

    def averages(self, table: Table) -> list[Average]:
        return averages(table, self.records)
