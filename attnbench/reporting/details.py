"""What the page shows when a cell is opened: plain text in lists and objects, for JSON.

Configurations and environments are the same for many runs: each part of them is stored once, and runs hold numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from attnbench.apart import flatten
from attnbench.comparison import Difference
from attnbench.record import Quality, Record, canonical
from attnbench.report import Column, Entry, Row, Table
from attnbench.tables import visible

#: A longer curve is thinned to so many points.
CURVE_POINTS = 40

Facts = list[list[str]]


class Parts:
    """Lists of names and values, each kept once."""

    def __init__(self) -> None:
        self.lists: list[Facts] = []
        self._places: dict[str, int] = {}

    def add(self, title: str, values: Any) -> int:
        """The place of this list."""
        key = canonical([title, values])
        if key not in self._places:
            self._places[key] = len(self.lists)
            facts = ([visible(_dotted(path)), visible(text)] for path, text in flatten(values).items())
            self.lists.append([[title, ""], *facts])
        return self._places[key]


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path)) or "-"


def cell(table: Table, row: Row, place: int, runs: Iterable[Record], parts: Parts) -> dict[str, Any]:
    """One cell with its runs. The row has an entry there."""
    column, entry = table.columns[place], row.entries[place]
    assert entry is not None
    return {
        "title": visible(f"{row.name} on {column.title}"),
        "facts": _shown(_cell_facts(table, row, column, entry, place)),
        "runs": [_run(record, parts) for record in runs],
    }


def _shown(facts: Iterable[tuple[str, str | None]]) -> Facts:
    """Those that have a value."""
    return [[visible(name), visible(value)] for name, value in facts if value]


def _cell_facts(table: Table, row: Row, column: Column, entry: Entry, place: int) -> list[tuple[str, str | None]]:
    interval = f"{entry.low:.4f} to {entry.high:.4f}, {entry.scope}" if entry.low is not None else None
    score = None if entry.mean is None else f"{entry.mean:.4f}" + (f" ± {entry.sd:.4f}" if entry.sd is not None else "")
    trivial = None if column.trivial is None else f"{column.trivial:.4f} ({column.trivial_name})"
    return [
        ("protocol", f"{table.protocol}, version {table.version}"),
        ("stale", "older source code or data than the newest run; not comparable" if row.stale else None),
        ("status", entry.status),
        (column.metric or "score", score),
        ("95 % interval", interval),
        ("seeds with a score", f"{', '.join(map(str, entry.seeds)) or 'none'}; the protocol asks for {entry.asked}"),
        ("standing", _standing(table, row, place)),
        ("chance", None if column.chance is None else f"{column.chance:.4f}"),
        ("best trivial predictor", trivial),
        ("task separates", column.separates),
        ("trials before", f"{entry.trials}, which chose {entry.chosen}" if entry.trials else None),
        ("parameters", None if entry.size is None else f"{entry.size:.3f} times those of plain attention"),
        ("cell", entry.spec_hash),
    ]


def _standing(table: Table, row: Row, place: int) -> str | None:
    """The row's difference from the best of the column."""
    means = {
        other.name: entry.mean
        for other in table.rows
        if not other.stale and (entry := other.entries[place]) and entry.mean is not None
    }
    if row.stale or row.name not in means:
        return None
    best = max(means, key=lambda name: means[name])
    if row.name == best:
        return "the best score of its column"
    differences = table.differences[place] if place < len(table.differences) else ()
    for one in differences:
        if {one.first, one.second} == {row.name, best}:
            return _difference(one if one.first == row.name else one.turned)
    return f"no difference from {best} can be judged: no scores of the same examples and seeds"


def _difference(one: Difference) -> str:
    shows = "the difference shows" if one.differs else "no difference shows"
    adjusted = "" if one.adjusted is None else f", p = {one.adjusted:.2g} by Holm"
    size = f"{one.mean:+.4f} [{one.low:+.4f}, {one.high:+.4f}]"
    return f"{size} from the best, {one.second}{adjusted}; {shows} ({one.scope})"


def _run(record: Record, parts: Parts) -> dict[str, Any]:
    spec, machine = record.spec, dict(record.machine)
    load = machine.pop("load_before", None)  # the only fact of a machine that changes from run to run
    rest = {"model": spec.model, "budget": spec.budget, "numerics": spec.numerics, "padding": spec.padding}
    protocol = {**spec.protocol.model_dump(mode="json"), "engine": spec.engine}
    regularizers = [part.model_dump(mode="json") for part in spec.regularizer]
    details: dict[str, Any] = {
        "seed": record.seed,
        "status": record.status,
        "score": "" if record.quality is None else f"{record.quality.test:.4f}",
        "facts": _shown(_run_facts(record, load)),
        "command": visible(record.command),
        "configuration": [
            parts.add("mechanism", spec.mechanism.model_dump(mode="json")),
            *([parts.add("regularizer", regularizers)] if regularizers else []),
            parts.add("task", spec.task.model_dump(mode="json")),
            parts.add("training", rest),
            parts.add("protocol", protocol),
        ],
        "environment": [
            parts.add("machine", machine),
            parts.add("software", record.software),
            parts.add("code", record.code),
        ],
    }
    return details | ({"curve": _curve(record)} if record.curve else {})


def _run_facts(record: Record, load: Any) -> list[tuple[str, str | None]]:
    facts: list[tuple[str, str | None]] = [("status", record.status), ("reason", record.reason)]
    if record.quality is not None:
        facts += _quality_facts(record.quality)
    facts += [(f"test moved by {point.shift}", point.text) for point in record.shifts]
    if cost := record.cost:
        facts += [
            ("parameters", f"{cost.params_total:,}, of them {cost.params_mixer:,} in the mixers"),
            ("peak memory", f"{cost.peak_bytes / 2**20:,.0f} MiB ({cost.peak_how})"),
            (
                "training",
                f"{cost.train_seconds:,.0f} s, {cost.samples_per_second:,.1f} samples/s (as logged)",
            ),
        ]
    return [
        *facts,
        ("load before", None if load is None else str(load)),
        ("started", record.started),
        ("finished", record.finished),
        ("record", record.id),
    ]


def _quality_facts(quality: Quality) -> list[tuple[str, str | None]]:
    low, high = quality.interval
    return [
        (f"test {quality.metric}", f"{quality.test:.4f} [{low:.4f}, {high:.4f}] over {quality.examples:,} examples"),
        (
            "validation",
            f"{quality.validation:.4f}; step {quality.best_step} was tested, by {quality.selected_on}",
        ),
        *((name, f"{value:.4f}") for name, value in quality.more.items()),
        ("p, not above chance", f"{quality.p_above_chance:.2g}"),
    ]


def _curve(record: Record) -> Mapping[str, Any]:
    """Steps, validation scores and training losses; of a long curve its ends and points between at even distance."""
    points = record.curve
    if len(points) > CURVE_POINTS:
        gap = (len(points) - 1) / (CURVE_POINTS - 1)
        points = [points[round(number * gap)] for number in range(CURVE_POINTS)]
    return {
        "step": [point.step for point in points],
        "validation": [_rounded(point.validation) for point in points],
        "loss": [_rounded(point.loss) for point in points],
        "best": record.quality.best_step if record.quality else None,
        "of": len(record.curve),
    }


def _rounded(number: float) -> float:
    """To four digits."""
    return number if number == 0 else round(number, 3 - math.floor(math.log10(abs(number))))
