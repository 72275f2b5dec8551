"""The plots of a report, as PNG and SVG. Same records and libraries, same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.report import Table
from attnbench.reporting import figures, frames, style
from attnbench.reporting.book import Book
from attnbench.reporting.picture import Picture
from attnbench.reporting.scaling import scaling
from attnbench.reporting.speeds import Measured
from attnbench.store import file_name
from attnbench.tables import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: More names than this are counted in the text for who does not see the picture.
_NAMED = 12


@dataclass(frozen=True)
class Plot:
    """`shows` is for who does not see it."""

    title: str
    shows: str
    draw: Callable[[Book, Table], Figure | None]


def _accuracy_throughput(book: Book, table: Table) -> Figure | None:
    label = "training samples per second (log line)"
    return figures.against_cost(frames.runs(book, table), table, "throughput", label, less_is_better=False)


def _accuracy_memory(book: Book, table: Table) -> Figure | None:
    label = "peak memory of the process, MiB"
    return figures.against_cost(frames.runs(book, table), table, "memory", label, less_is_better=True)


def _accuracy_parameters(book: Book, table: Table) -> Figure | None:
    return figures.against_cost(frames.runs(book, table), table, "parameters", "parameters", less_is_better=True)


_FRONT = "a point a mechanism, its standard deviation over seeds, and the front of those that none beats in both"
#: By the name of the file. A figure is drawn where its function finds something to draw; a new one is a line here.
FIGURES: dict[str, Plot] = {
    "accuracy-throughput": Plot(
        "Score and training throughput", f"Mean test score over samples per second: {_FRONT}.", _accuracy_throughput
    ),
    "accuracy-memory": Plot("Score and memory", f"Mean test score over peak memory: {_FRONT}.", _accuracy_memory),
    "accuracy-parameters": Plot(
        "Score and parameters", f"Mean test score over parameters: {_FRONT}.", _accuracy_parameters
    ),
    "learning-curves": Plot(
        "Learning curves",
        "Validation score by step, mean and range over seeds; the cells of the table open the curve of each run.",
        lambda book, table: figures.learning_curves(frames.curves(book, table), frames.runs(book, table), table),
    ),
    "heat-map": Plot(
        "Mechanisms and tasks",
        "The mean test scores of the table, coloured by their share of the way from chance to 1.",
        lambda book, table: figures.heat_map(frames.runs(book, table), table),
    ),
    "critical-differences": Plot(
        "Critical differences",
        "Mean ranks over tasks; bars join mechanisms whose ranks do not differ.",
        lambda book, table: figures.critical_differences(frames.runs(book, table)),
    ),
}


def pictures(book: Book) -> Iterator[Picture]:
    """Table by table, then of each result of speed."""
    taken: set[str] = set()
    for of, table in book.tables:
        base = name = file_name(f"{table.protocol}-{table.version}")
        number = 1
        while name in taken:  # another table of the same protocol: other changes
            number += 1
            name = f"{base}-{number}"
        taken.add(name)
        for what, plot in FIGURES.items():
            with style.settings():
                if (figure := plot.draw(book, table)) is not None:
                    alt = f"{plot.shows} {_drawn(table)}"
                    yield Picture.of_figure(figure, of, f"{name}-{what}", plot.title, alt)
    for of, measured in book.speeds:
        yield from speed_pictures(measured, of)


def speed_pictures(measured: Measured, of: str = "") -> Iterator[Picture]:
    """The scaling curves; none where nothing was timed."""
    with style.settings():
        if (figure := scaling(measured)) is not None:
            names = list(dict.fromkeys(cell.mechanism for cell in measured.figures.cells))
            alt = (
                "Time of a call, median and quartiles, and the memory that it adds, over length, all logarithmic. The "
                f"values and their exponents stand in the tables. {_listed('Mechanisms', names)}"
            )
            name = f"{measured.stem}-scaling"
            yield Picture.of_figure(figure, of, name, "Scaling", alt)


def _drawn(table: Table) -> str:
    live = [row.name for row in table.rows if not row.stale and any(entry and entry.seeds for entry in row.entries)]
    return f"{_listed('Mechanisms', live)} {_listed('Tasks', [column.title for column in table.columns])}"


def _listed(what: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return visible(f"{what}: {', '.join(names[:_NAMED])}{more}.")
