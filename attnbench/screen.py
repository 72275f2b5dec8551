"""What the command line shows: tables and the final screen of a run, from plain data."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from attnbench.record import Record

_WIDE = 10_000

_STATUS_HELP = {
    "not_above_chance": "The model learned nothing that shows on the test split within this budget. "
    "That is a result; a larger budget is another protocol (--set budget.steps=...).",
    "trivial": "A predictor without attention does as well.",
    "diverged": "The loss is no longer a number; a smaller --set budget.lr=... may help.",
    "timeout": "Go on with the same command and --resume, and a larger --max-time.",
    "oom": "Not even one example at a time fits: shorter inputs, a smaller model, or a mechanism that needs less.",
    "failed": "The mechanism or the engine raised an error; the reason says where.",
    "unsupported": "This cell cannot run here or with these settings.",
}


def put(table: Table) -> None:
    """Prints to stdout: fitted to a terminal; elsewhere whole lines, so that nothing is cut off what reads them."""
    if sys.stdout.isatty():  # rich would take FORCE_COLOR for a terminal of 80 columns
        Console(highlight=False).print(table)
        return
    wide = io.StringIO()
    Console(highlight=False, width=_WIDE, file=wide).print(table)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in wide.getvalue().splitlines())


def listing(rows: Sequence[Sequence[str]], header: Sequence[str]) -> Table:
    """A borderless table whose last column may wrap."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(header):
        table.add_column(name, overflow="fold", no_wrap=index < len(header) - 1)
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    return table


def pairs(values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items() if isinstance(values, Mapping) else values:
        table.add_row(_plain(str(name)), _plain(f"{value:.6g}" if isinstance(value, float) else str(value)))
    return table


def _plain(text: str) -> str:
    return text.encode(errors="backslashreplace").decode().replace("[", r"\[")


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested mappings as dotted names, in order."""
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for item in value:
                found += flat(item, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", str(value)))
    return found


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def outcome(record: Record) -> Table:
    """The final screen of a run, but for the record's path."""
    spec = record.spec
    rows: list[tuple[str, str]] = [("status", record.status)]
    if record.reason:
        rows.append(("reason", record.reason))
    if record.status in _STATUS_HELP:
        rows.append(("", _STATUS_HELP[record.status]))
    if quality := record.quality:
        low, high = quality.interval
        rows += [
            (
                f"test {quality.metric}",
                f"{quality.test:.4f}   95 % interval {low:.4f} to {high:.4f} over {quality.examples} examples "
                "(this trained model only)",
            ),
            ("validation", f"{quality.validation:.4f} at step {quality.best_step} (the step that was tested)"),
            ("chance", f"{quality.chance:.4f}"),
            *((f"trivial: {name}", f"{score:.4f}") for name, score in quality.trivial.items()),
        ]
    rows += [(f"test moved by {point.shift}", point.text) for point in record.shifts]
    if cost := record.cost:
        rows += [
            (
                "samples/s",
                f"{_rate(cost.samples_per_second)} in {cost.train_seconds:.0f} s (validation included)",
            ),
            ("peak memory", f"{cost.peak_bytes / 2**20:.0f} MiB ({cost.peak_how})"),
            ("parameters", f"{cost.params_total:,} in total, {cost.params_mixer:,} in the mixers"),
        ]
    title = (
        f"{record.label} on {spec.task.name}, protocol {spec.protocol.name}@{spec.protocol.version}, seed {record.seed}"
    )
    table = pairs([*rows, ("attention path", spec.mechanism.implementation)])
    table.title, table.title_justify = _plain(title), "left"
    return table
