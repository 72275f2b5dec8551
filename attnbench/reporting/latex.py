"""The report as LaTeX tables (booktabs), to be put into a document with \\input. Text is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from attnbench.report import ONE_MODEL, Entry, Table
from attnbench.reporting.book import Book
from attnbench.reporting.literature import WARNING, Published
from attnbench.reporting.speeds import Measured
from attnbench.reporting.views import Average
from attnbench.speed.fit import Exponent
from attnbench.speed.table import crossing, mebibytes, milliseconds
from attnbench.tables import params, visible

_PREAMBLE = "% Made by attnbench report --format latex. The document needs \\usepackage{booktabs,graphicx}.\n"
_LEGEND = (
    "Test score, mean $\\pm$ standard deviation over seeds (number of seeds); one seed: 95\\,\\% interval over test "
    f"examples, {ONE_MODEL}. $^{{\\ast}}$: best of its column, or its difference from the best does not "
    "show; not where the best beats the trivial predictors and no run of the cell does."
)
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "{''}",
    "-": "-{}",
    "'": "'{}",
    "±": r"$\pm$",
    "`": r"\textasciigrave{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    # behind the end of a row these two would belong to it
    **{letter: f"{{{letter}}}" for letter in "[*"},
}


def escape(text: str) -> str:
    """Text that LaTeX prints as it is, on one line."""
    return re.sub(r"-(?=-)|'(?=')|[\\~^<>|\"±`&%$#_{}\[*]", lambda found: _SPECIAL[found.group()], visible(text))


def to_latex(book: Book) -> str:
    """One table per protocol, the views of papers that it can show, results of speed, and values of the literature."""
    if not book.report.tables and not book.speed:
        return _PREAMBLE + "% No records.\n"
    found = [_PREAMBLE]
    for table in book.report.tables:
        found += [_board(table), *map(_average, book.averages(table))]
    return "\n".join([*found, *map(_speed, book.speed), *map(_published, book.literature)])


def _float(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], last: Iterable[Sequence[str]] = ()
) -> str:
    """A table environment; caption and cells are LaTeX already. It shrinks to the width of the text, if wider."""
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        r"\toprule",
        _row(heads),
        r"\midrule",
        *map(_row, rows),
    ]
    if below := [*map(_row, last)]:
        lines += [r"\midrule", *below]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}", r"\end{table}", ""])


def _row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _board(table: Table) -> str:
    ranked = any(row.rank is not None for row in table.rows)
    heads = ["mechanism", "mixer parameters", *(["mean rank"] if ranked else [])]
    heads += [escape(f"{column.title}, {column.metric}" if column.metric else column.title) for column in table.columns]
    rows = []
    for row in table.rows:
        name = escape(row.name) + (r" \emph{stale}" if row.stale else "")
        rank = [("--" if row.rank is None else f"{row.rank:.1f}")] if ranked else []
        rows.append([name, escape(params(row)), *rank, *map(_cell, row.entries)])
    spare = [""] * (2 if ranked else 1)
    last = [
        [r"\emph{chance}", *spare, *("--" if c.chance is None else f"{c.chance:.3f}" for c in table.columns)],
        [r"\emph{best trivial}", *spare, *("--" if c.trivial is None else f"{c.trivial:.3f}" for c in table.columns)],
    ]
    if any(column.separates for column in table.columns):
        last.append([r"\emph{separates}", *spare, *(escape(column.separates) for column in table.columns)])
    said = [f"Protocol {table.protocol}, version {table.version}."]
    said += [f"Changed: {table.changes}."] if table.changes else []
    said += [f"Tuned: {table.tuning}."] if table.tuning else []
    notes = "".join(f"% note: {visible(note)}\n" for note in table.notes)
    return _float(f"{escape(' '.join(said))} {_LEGEND}", heads, rows, last) + notes


def _cell(entry: Entry | None) -> str:
    if entry is None:
        return "--"
    return escape(entry.text) + (r"$^{\ast}$" if entry.tied else "")


def _average(average: Average) -> str:
    heads = ["mechanism", *(escape(column.title) for column in average.columns), escape(average.view.name)]
    rows = [[escape(line.name), *(f"{s:.2f}" for s in line.scores), escape(line.text)] for line in average.lines]
    return _float(f"{escape(average.view.name)}: {escape(average.stamp)}", heads, rows)


def _speed(measured: Measured) -> str:
    """Medians of time and peaks of memory by length, with their exponents; all else in notes."""
    lengths = sorted({cell.length for cell in measured.figures.cells})
    by_place = {(cell.mechanism, cell.length): cell for cell in measured.figures.cells}
    heads = ["mechanism", "", *map(str, lengths), "grows as", "faster than the baseline"]
    rows = []
    for one in measured.figures.mechanisms:
        cells = [by_place.get((one.mechanism, length)) for length in lengths]
        times = [r"\textendash{}" if cell is None else milliseconds(cell.seconds.median) for cell in cells]
        peaks = [
            r"\textendash{}" if cell is None or cell.peak_bytes is None else mebibytes(cell.peak_bytes)
            for cell in cells
        ]
        crossed = escape(crossing(one.crossover)) if one.crossover else r"\textendash{}"
        rows += [
            [escape(one.mechanism), "ms", *times, _power(one.time), crossed],
            ["", "MiB", *peaks, _power(one.memory), ""],
        ]
    said = (
        f"Time of a call (median) and the memory it adds, by length: {measured.title}; {measured.machine}; "
        f"baseline {measured.figures.baseline or 'none'}. Not the runs of the tables of scores."
    )
    lines = [*(f"{name}: {value}" for name, value in measured.facts), *measured.notes, *measured.untimed]
    return _float(escape(said), heads, rows) + "".join(f"% note: {visible(line)}\n" for line in lines)


def _power(found: Exponent | None) -> str:
    return r"\textendash{}" if found is None else rf"$n^{{{found.value:.2f}}}\pm{found.half:.2f}$"


def _published(published: Published) -> str:
    heads = ["model", *(escape(f"{task}, {metric}") for task, metric in published.columns)]
    rows = [
        [escape(model), *(r"\textendash{}" if value is None else escape(value.text) for value in values)]
        for model, values in published.rows
    ]
    said = f"{published.title} (values of the literature; {'; '.join(published.sources)}). {WARNING}"
    notes = "".join(f"% note: {visible(note)}\n" for note in published.notes)
    return _float(escape(said), heads, rows) + notes
