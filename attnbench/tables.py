"""A report as markdown, CSV or JSON. Same report, same bytes; text from plugins and options is escaped."""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import json
import re
from collections.abc import Iterable

from attnbench.report import ONE_MODEL, Column, Entry, Report, Row, Table

_TIED = "\\*"
_LEGEND = (
    "Cells: test score, mean ± standard deviation over seeds (number of seeds). "
    f"`(1 seed)`: 95 % interval over test examples, {ONE_MODEL}. `k of n`: runs with that status, of all seeds run. "
    "**stale**: older source code or data than the newest run; not comparable with the other rows. "
    f"{_TIED}: the best of its column, or its difference from the best does not show (paired by seed and example; Holm "
    "over all pairs of the column, level 0.05); not where the best beats the trivial predictors and no run of the cell "
    "does. *separates*: whether the task's own controls, who must solve it and "
    "who cannot, differ."
)


def to_markdown(report: Report) -> str:
    """One table per protocol, with chance and the best trivial level of every task, and notes below."""
    if not report.tables:
        return "No records.\n"
    return "\n".join(_markdown_table(table) for table in report.tables) + f"\n{_LEGEND}\n"


def _markdown_table(table: Table) -> str:
    heads = [f"{column.title}, {column.metric}" if column.metric else column.title for column in table.columns]
    ranked = ["mean rank"] if any(row.rank is not None for row in table.rows) else []
    tuned = ["trials a task, and what they chose"] if table.tuning else []
    lines = [
        f"## {markdown_text(table.protocol)}, version {table.version}",
        "",
        *([f"Changed: {markdown_text(table.changes)}", ""] if table.changes else []),
        *([f"Tuned: {markdown_text(table.tuning)}", ""] if table.tuning else []),
        markdown_line(["mechanism", "mixer parameters", *ranked, *tuned, *map(markdown_text, heads)]),
        markdown_line(["---", "---:", *("---" for _ in (*ranked, *tuned, *heads))]),
    ]
    for row in table.rows:
        name = markdown_text(row.name)
        cells = ["-" if not entry else f"{entry.text} {_TIED}" if entry.tied else entry.text for entry in row.entries]
        rank = ["-" if row.rank is None else f"{row.rank:.1f}"] if ranked else []
        chosen = [markdown_text(tuning(row, table))] if tuned else []
        lines.append(markdown_line([f"{name} **stale**" if row.stale else name, params(row), *rank, *chosen, *cells]))
    chance = ["-" if column.chance is None else f"{column.chance:.3f}" for column in table.columns]
    trivial = [
        "-" if column.trivial is None else f"{column.trivial:.3f} ({markdown_text(column.trivial_name)})"
        for column in table.columns
    ]
    spare = ["", *("" for _ in (*ranked, *tuned))]
    lines += [markdown_line(["*chance*", *spare, *chance]), markdown_line(["*best trivial*", *spare, *trivial])]
    if any(column.separates for column in table.columns):
        lines.append(
            markdown_line(["*separates*", *spare, *(markdown_text(column.separates) for column in table.columns)])
        )
    if table.notes:
        lines += ["", *(f"- {markdown_text(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def markdown_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def params(row: Row) -> str:
    counts = sorted({entry.mixer_params for entry in row.entries if entry and entry.mixer_params is not None})
    return "-" if not counts else " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))


def tuning(row: Row, table: Table) -> str:
    """How many trials each cell of the row had, and what was chosen for which task."""
    tuned = [(column.title, entry) for column, entry in zip(table.columns, row.entries, strict=True) if entry]
    counts = " or ".join(map(str, sorted({entry.trials for _, entry in tuned})))
    return f"{counts}: " + "; ".join(f"{title} {entry.chosen}" for title, entry in tuned)


def markdown_text(text: str) -> str:
    """Names come from third parties: nothing in them may end a cell, start a link or become HTML."""
    return html.escape(re.sub(r"([\\|`*~\[\]])", r"\\\1", visible(text)), quote=False)


def visible(text: str) -> str:
    """On one line, without characters that show nothing or turn the direction of what follows."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


#: What a line of the CSV holds; docs/reading-results.md explains each.
CSV_HEAD = [
    *("protocol", "protocol_version", "task", "task_options", "metric"),
    *("label", "options", "stale", "seeds", "n"),
    *("runs", "mean", "sd", "low", "high", "scope", "status"),
    *("chance", "trivial", "mixer_params", "spec_hash", "trials", "chosen", "tied", "rank", "separates"),
]


def to_csv(report: Report) -> str:
    """Long form: one line per entry, numbers in full precision, missing values empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for table in report.tables:
        for row in table.rows:
            for column, entry in zip(table.columns, row.entries, strict=True):
                if entry is not None:
                    writer.writerow(map(_csv_value, _csv_row(table, row, column, entry)))
    return out.getvalue()


def _csv_row(table: Table, row: Row, column: Column, entry: Entry) -> list[object]:
    return [
        *(table.protocol, table.version, column.task, column.options, column.metric),
        *(row.label, row.options, str(row.stale).lower(), " ".join(map(str, entry.seeds)), len(entry.seeds)),
        *(entry.runs, entry.mean, entry.sd, entry.low, entry.high, entry.scope, entry.status),
        *(column.chance, column.trivial, entry.mixer_params, entry.spec_hash, entry.trials, entry.chosen),
        *("" if entry.tied is None else str(entry.tied).lower(), row.rank, column.separates),
    ]


def _csv_value(value: object) -> object:
    """A spreadsheet runs text that looks like a formula; a quote in front keeps it text."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def to_json(report: Report) -> str:
    """The whole report, every number in full precision."""
    return json.dumps(dataclasses.asdict(report), indent=1, sort_keys=True, allow_nan=False) + "\n"
