"""`attnbench report`: the tables of a results folder, as text, LaTeX, a page, or pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench.commands.shared import Json, Results
from attnbench.errors import AttnbenchError

if TYPE_CHECKING:
    from attnbench.reporting.book import Book
    from attnbench.reporting.picture import Picture

EXAMPLES = "Examples:  attnbench report --json   |   attnbench report --format html --to reports --plots"


class Format(StrEnum):
    md = "md"
    csv = "csv"
    html = "html"
    latex = "latex"


_SUFFIX = {Format.latex: "tex"}


def report(
    results: Results = Path("results"),
    format_: Annotated[Format, typer.Option("--format", help="html is one page that needs no network.")] = Format.md,
    to: Annotated[Path | None, typer.Option("--to", help="A folder to write into, instead of stdout.")] = None,
    plots: Annotated[
        bool, typer.Option("--plots", help="Draw the plots too, as PNG and SVG, and into the page; needs --to.")
    ] = False,
    as_json_: Json = False,
) -> None:
    """Print the comparison table of a results folder, or write it with its plots. Reads records, runs nothing."""
    from attnbench.files import overwrite

    if plots and to is None:
        raise AttnbenchError("--plots needs a folder to draw into: add --to DIR")
    if not results.is_dir():
        raise AttnbenchError(f"{results}: no such folder; run something first, or name it with --results")
    book = _read(results)
    drawn = list(_drawn(book)) if plots else []
    text = _text(book, format_, as_json_, drawn)
    if to is None:
        sys.stdout.write(text)
        return
    path = to / f"report.{'json' if as_json_ else _SUFFIX.get(format_, format_.value)}"
    for target, content in [(path, text.encode()), *((to / name, data) for one in drawn for name, data in one.files)]:
        overwrite(target, content)
        print(target)


def _drawn(book: Book) -> Iterator[Picture]:
    from attnbench.reporting.plots import pictures

    return pictures(book)


def _read(results: Path) -> Book:
    from attnbench.report import build
    from attnbench.reporting import literature
    from attnbench.reporting.book import Book
    from attnbench.speed.result import read_all
    from attnbench.standing import Examples, judge
    from attnbench.store import Store

    store = Store(results)
    found, problems = store.read_all()
    speed, more = read_all(store.folder)
    for problem in problems + more:
        print(f"warning: {problem}", file=sys.stderr)
    examples = Examples.of(found)
    records = [record for _, record in found]
    built = judge(build(records), examples)
    for note in examples.notes:
        print(f"note: {note}", file=sys.stderr)
    return Book.of(built, records, literature.read(store.folder / "literature"), [one for _, one in speed])


def _text(book: Book, format_: Format, as_json: bool, drawn: Sequence[Picture]) -> str:
    from attnbench import tables

    if as_json:
        return tables.to_json(book.report)
    if format_ is Format.html:
        from attnbench.reporting.html import to_html

        return to_html(book, drawn)
    if format_ is Format.csv:
        return tables.to_csv(book.report)
    if format_ is Format.latex:
        from attnbench.reporting.latex import to_latex

        return to_latex(book)
    from attnbench.reporting.markdown import to_markdown

    return to_markdown(book)
