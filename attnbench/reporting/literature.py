"""Values of papers, from `literature/*.csv` of the results folder. They stand apart and are compared with nothing."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnbench.errors import AttnbenchError

WARNING = (
    "Not comparable with the tables above. Training, data, model size and tuning differ between papers and from this "
    "harness: the dense Transformer alone moves from 54.39 to 59.24 on Long Range Arena when others train it again."
)
COLUMNS = ("source", "table", "model", "task", "metric", "value", "mark", "note")
#: Where a value comes from. Those of the last kind are never shown.
MARKS = {"S": "read in the source", "I": "computed or inferred from what was read", "R": "recalled"}
#: What a paper prints for a model that learns nothing.
FAIL = "FAIL"


@dataclass(frozen=True)
class Value:
    text: str
    mark: str
    source: str
    note: str


@dataclass(frozen=True)
class Published:
    """A table of papers' values: (task, metric) columns, and per model a value or None for each, as in the file."""

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[Value | None, ...]], ...]

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(value.source for _, values in self.rows for value in values if value))

    @property
    def notes(self) -> list[str]:
        """What has to be known of single values; models of which the same is said stand together."""
        models: dict[tuple[str, str], list[str]] = {}
        for model, values in self.rows:
            for (task, _), value in zip(self.columns, values, strict=True):
                mark = MARKS[value.mark] if value and value.mark != "S" else ""
                if value and (said := "; ".join(filter(None, (mark, value.note)))):
                    models.setdefault((task, said), []).append(model)
        return [f"{task} of {', '.join(names)}: {said}" for (task, said), names in models.items()]


def read(folder: Path) -> list[Published]:
    """The tables of all CSV files of a folder; none where there is no folder.

    Raises:
        AttnbenchError: a file that cannot be read, other columns, or a line with a fault; names file and line.
    """
    tables: dict[str, dict[tuple[str, str, str], Value]] = {}
    for path in sorted(folder.glob("*.csv")):
        for where, line in _lines(path):
            cell = (line["model"], line["task"], line["metric"])
            value = Value(line["value"], line["mark"], line["source"], line["note"])
            known = tables.setdefault(line["table"], {}).setdefault(cell, value)
            if known is not value:
                raise AttnbenchError(f"{where}: {', '.join(cell)} stands in {line['table']} already; leave one of them")
    return [published for title, cells in tables.items() if (published := _published(title, cells)).rows]


def _published(title: str, cells: dict[tuple[str, str, str], Value]) -> Published:
    shown = {cell: value for cell, value in cells.items() if value.mark != "R"}
    columns = tuple(dict.fromkeys((task, metric) for _, task, metric in shown))
    models = dict.fromkeys(model for model, _, _ in shown)
    return Published(title, columns, tuple((m, tuple(shown.get((m, *column)) for column in columns)) for m in models))


def _lines(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise AttnbenchError(f"{path}: columns are {reader.fieldnames}, not {','.join(COLUMNS)}")
            for line in reader:
                where = f"{path}, line {reader.line_num}"
                if fault := _fault(line):
                    raise AttnbenchError(f"{where}: {fault}")
                yield where, line
    except OSError as error:
        raise AttnbenchError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise AttnbenchError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    except csv.Error as error:
        raise AttnbenchError(f"{path}: no CSV file ({error})") from None


def _fault(line: dict[str, str]) -> str | None:
    if None in line or None in line.values():
        return f"not {len(COLUMNS)} values; put those that hold a comma into quotes"
    if missing := [name for name in COLUMNS[:7] if not line[name].strip()]:
        return f"no {missing[0]}"
    if line["mark"] not in MARKS:
        known = ", ".join(f"{mark} ({what})" for mark, what in MARKS.items())
        return f"mark {line['mark']!r} is none of {known}"
    try:
        number = math.isfinite(float(line["value"]))
    except ValueError:
        number = line["value"] == FAIL
    return None if number else f"value {line['value']!r} is neither a number nor {FAIL}"
