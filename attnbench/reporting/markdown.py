"""The report as markdown: the tables of scores, then results of speed. Text is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench import tables
from attnbench.reporting.book import Book
from attnbench.reporting.speeds import LEGEND, Measured
from attnbench.speed import table
from attnbench.tables import markdown_line, markdown_text


def to_markdown(book: Book) -> str:
    """Same records and results, same bytes."""
    scores = tables.to_markdown(book.report)
    if not book.speed:
        return scores
    return "\n".join([scores, f"## Speed\n\n{LEGEND}\n", *map(_measured, book.speed)])


def _measured(measured: Measured) -> str:
    lines = [f"### {markdown_text(measured.title)}", ""]
    lines += [f"- {name}: {markdown_text(value)}" for name, value in measured.facts]
    lines += [f"- **note**: {markdown_text(note)}" for note in measured.notes]
    lines += [f"- {markdown_text(line)}" for line in measured.untimed]
    for header, rows in ((table.CELLS, measured.cells), (table.GROWTH, measured.growth)):
        if rows:
            lines += ["", *_table(header, rows)]
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column is a name, the others are figures."""
    return [
        markdown_line(header),
        markdown_line(["---", *("---:" for _ in header[1:])]),
        *(markdown_line(map(markdown_text, row)) for row in rows),
    ]
