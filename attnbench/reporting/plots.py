"""The plots of a report, as PNG and SVG. Same records and libraries, same bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from attnbench.report import Table
from attnbench.reporting import figures, frames, style
from attnbench.reporting.book import Book
from attnbench.store import file_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[Book, Table], "Figure | None"]


def _accuracy_throughput(book: Book, table: Table) -> Figure | None:
    label = "training samples per second (log line)"
    return figures.against_cost(frames.runs(book, table), table, "throughput", label, less_is_better=False)


def _accuracy_memory(book: Book, table: Table) -> Figure | None:
    label = "peak memory of the process, MiB"
    return figures.against_cost(frames.runs(book, table), table, "memory", label, less_is_better=True)


def _accuracy_parameters(book: Book, table: Table) -> Figure | None:
    return figures.against_cost(frames.runs(book, table), table, "parameters", "parameters", less_is_better=True)


#: By the name of the file. A figure is drawn where its function finds something to draw; a new one is a line here.
FIGURES: dict[str, Draw] = {
    "accuracy-throughput": _accuracy_throughput,
    "accuracy-memory": _accuracy_memory,
    "accuracy-parameters": _accuracy_parameters,
    "learning-curves": lambda book, table: figures.learning_curves(
        frames.curves(book, table), frames.runs(book, table), table
    ),
    "heat-map": lambda book, table: figures.heat_map(frames.runs(book, table), table),
    "critical-differences": lambda book, table: figures.critical_differences(frames.runs(book, table)),
}


def pictures(book: Book) -> Iterator[tuple[str, bytes]]:
    """File names and contents, table by table."""
    taken: set[str] = set()
    for table in book.report.tables:
        base = name = file_name(f"{table.protocol}-{table.version}")
        number = 1
        while name in taken:  # another table of the same protocol: other changes
            number += 1
            name = f"{base}-{number}"
        taken.add(name)
        for what, draw in FIGURES.items():
            with style.settings():
                if (figure := draw(book, table)) is not None:
                    yield f"{name}-{what}.png", _saved(figure, "png")
                    yield f"{name}-{what}.svg", _saved(figure, "svg")


def _saved(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=150, bbox_inches="tight", metadata=metadata)
    return buffer.getvalue()
