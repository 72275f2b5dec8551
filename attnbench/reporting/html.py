"""The report as one HTML page that needs nothing else: no request leaves it, and its policy would let none out.

Its text goes through jinja2's autoescape, what cells open lies in JSON that the script writes as text. DataTables (by
itables 2.9) was left out: 0.7 MB of script and styles for sorting and filtering, while cells that open need a script of
their own anyway, and a policy can only allow what is known to the byte.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.report import Entry, Row, Table
from attnbench.reporting import details
from attnbench.reporting.book import Book
from attnbench.reporting.literature import WARNING
from attnbench.reporting.speeds import LEGEND, Measured
from attnbench.reporting.template import plain, render
from attnbench.reporting.views import Average
from attnbench.speed.figures import CellFigures
from attnbench.speed.table import CELLS, GROWTH
from attnbench.tables import params, tuning

if TYPE_CHECKING:
    from attnbench.reporting.picture import Picture


@dataclass(frozen=True)
class Cell:
    """A cell of the leaderboard. `kind` is score, none (runs without a score) or missing; `number` is its place in the
    page's data, None where there is no run; `sort` is what the column is ordered by, empty for nothing.
    """

    kind: str
    main: str
    more: str = ""
    tied: bool = False
    number: int | None = None
    sort: str = ""


@dataclass(frozen=True)
class Line:
    label: str
    options: str
    stale: bool
    params: str
    params_sort: str
    rank: float | None
    tuning: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Board:
    """One table, ready for the template."""

    anchor: str
    table: Table
    lines: tuple[Line, ...]
    averages: tuple[Average, ...]
    pictures: Sequence[Picture]

    @property
    def ranked(self) -> bool:
        return any(line.rank is not None for line in self.lines)

    @property
    def any_stale(self) -> bool:
        return any(line.stale for line in self.lines)


@dataclass(frozen=True)
class Speed:
    """One result of `attnbench speed`: texts of its cells with what their columns are ordered by, empty for nothing."""

    anchor: str
    measured: Measured
    lines: tuple[tuple[tuple[str, str], ...], ...]
    pictures: Sequence[Picture]


def to_html(book: Book, pictures: Iterable[Picture] = ()) -> str:
    """The page, with these pictures in it. Same records and pictures, same bytes."""
    drawn: dict[str, list[Picture]] = defaultdict(list)
    for picture in pictures:
        drawn[picture.of].append(picture)
    parts = details.Parts()
    cells: list[dict[str, Any]] = []
    boards = [_board(anchor, table, book, parts, cells, drawn[anchor]) for anchor, table in book.tables]
    speeds = [_speed(anchor, measured, drawn[anchor]) for anchor, measured in book.speeds]
    return _render(book, boards, speeds, {"cells": cells, "parts": parts.lists})


def _board(
    anchor: str, table: Table, book: Book, parts: details.Parts, cells: list[dict[str, Any]], drawn: list[Picture]
) -> Board:
    lines = []
    for row in table.rows:
        shown = []
        for place, entry in enumerate(row.entries):
            shown.append(_cell(entry, len(cells)))
            if entry is not None:
                cells.append(details.cell(table, row, place, book.runs(row, place), parts))
        lines.append(_line(row, table, tuple(shown)))
    return Board(anchor, table, tuple(lines), tuple(book.averages(table)), drawn)


def _speed(anchor: str, measured: Measured, drawn: list[Picture]) -> Speed:
    lines = [
        tuple(zip(texts, _orders(cell), strict=True))
        for texts, cell in zip(measured.cells, measured.figures.cells, strict=True)
    ]
    return Speed(anchor, measured, tuple(lines), drawn)


def _orders(one: CellFigures) -> list[str]:
    """What the columns of `CELLS` are ordered by."""
    numbers = [
        one.length, one.seconds.median, one.seconds.low, one.tokens_per_second, one.peak_bytes, one.flops or None,
        one.peak_share, one.times_baseline,
    ]  # fmt: skip
    return ["", *("" if number is None else repr(number) for number in numbers)]


def _line(row: Row, table: Table, cells: tuple[Cell, ...]) -> Line:
    counts = [entry.mixer_params for entry in row.entries if entry and entry.mixer_params is not None]
    return Line(
        label=row.label,
        options=row.options,
        stale=row.stale,
        params=params(row),
        params_sort=str(min(counts)) if counts else "",
        rank=row.rank,
        tuning=tuning(row, table) if table.tuning else "",
        cells=cells,
    )


def _cell(entry: Entry | None, number: int) -> Cell:
    if entry is None:
        return Cell("missing", "no run")
    if entry.mean is None:
        return Cell("none", entry.status, number=number)
    spread = f"[{entry.low:.2f}, {entry.high:.2f}]" if entry.sd is None else f"± {entry.sd:.3f}"
    count = f"{entry.count} seeds" if entry.count.isdigit() else entry.count
    more = ", ".join([spread, count, *([] if entry.status == "ok" else [entry.status])])
    return Cell("score", f"{entry.mean:.3f}", more, bool(entry.tied), number, repr(entry.mean))


def _render(book: Book, boards: list[Board], speeds: list[Speed], data: dict[str, Any]) -> str:
    return render(
        "page.html.j2",
        "page.js",
        boards=boards,
        literature=list(book.literature),
        warning=WARNING,
        speeds=speeds,
        speed_legend=LEGEND,
        speed_heads={"cells": CELLS, "growth": GROWTH},
        data=plain(_json(data)),
    )


def _json(data: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
