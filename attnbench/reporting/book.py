"""What a report is made from: judged tables, the records behind them, results of speed, and values of papers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnbench.record import Record
from attnbench.report import Report, Row, Table
from attnbench.reporting.literature import Published
from attnbench.reporting.speeds import Measured, newest
from attnbench.reporting.views import Average, averages
from attnbench.speed.result import SpeedResult


@dataclass(frozen=True)
class Book:
    """`records` are by label and id, as the store tells them apart."""

    report: Report
    records: Mapping[tuple[str, str], Record]
    literature: Sequence[Published] = ()
    speed: Sequence[Measured] = ()

    @classmethod
    def of(
        cls,
        report: Report,
        records: Iterable[Record],
        literature: Sequence[Published] = (),
        speed: Iterable[SpeedResult] = (),
    ) -> Book:
        by_name = {(record.label, record.id): record for record in records}
        return cls(report, by_name, literature, newest(speed, by_name.values()))

    @property
    def tables(self) -> list[tuple[str, Table]]:
        """Each with a name that no other part of the report has."""
        return [(f"protocol-{number}", table) for number, table in enumerate(self.report.tables, 1)]

    @property
    def speeds(self) -> list[tuple[str, Measured]]:
        """As `tables`."""
        return [(f"speed-{number}", measured) for number, measured in enumerate(self.speed, 1)]

    def runs(self, row: Row, place: int) -> list[Record]:
        """The runs counted in one cell, by seed."""
        entry = row.entries[place]
        return [self.records[row.label, name] for name in entry.ids] if entry else []

    def averages(self, table: Table) -> list[Average]:
        return averages(table, self.records)
