"""`attnbench compare`: two mechanisms, or two results folders, task by task."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench import screen
from attnbench.commands.shared import Json, Results, print_json
from attnbench.errors import AttnbenchError, UnknownName

if TYPE_CHECKING:
    from attnbench.comparison import Difference
    from attnbench.report import Report, Row, Table
    from attnbench.standing import Examples

    _Found = tuple[Table, str, Difference]

EXAMPLES = "Examples:  attnbench compare hst bigbird   |   attnbench compare before/results after/results --json"


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A mechanism as in the report, or a results folder.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    results: Results = Path("results"),
    as_json_: Json = False,
) -> None:
    """Compare two mechanisms, or two results folders: differences with intervals, paired by seed and test example."""
    folders = [Path(name).expanduser() for name in (first, second)]
    if all((folder / "runs").is_dir() for folder in folders):
        found = _of_folders(*folders)
        what = f"{first} and {second} share no protocol, mechanism and data with scores of the same seed"
    else:
        found = _of_mechanisms(results, first, second)
        what = f"{results}: no task on which {first} and {second} have scores of the same seed under one protocol"
    if not found:
        raise AttnbenchError(f"{what}; attnbench report shows what there is")
    if as_json_:
        print_json([{**_place(table, task), **asdict(one)} for table, task, one in found])
    else:
        screen.put(screen.listing([_line(*one) for one in found], _HEADER))


_HEADER = ["protocol", "task", "A", "B", "A - B", "95 % interval", "p", "adjusted", "seeds", "examples", "what shows"]


def _place(table: Table, task: str) -> dict[str, Any]:
    rules = {"protocol": table.protocol, "version": table.version, "changes": table.changes, "tuning": table.tuning}
    return {**rules, "task": task}


def _line(table: Table, task: str, one: Difference) -> list[str]:
    shows = ("A ahead" if one.mean > 0 else "B ahead") if one.differs else "no difference shows"
    changes = f" ({table.changes})" if table.changes else ""
    return [
        f"{table.protocol}@{table.version}{changes}", task, one.first, one.second, f"{one.mean:+.4f}",
        f"{one.low:+.4f} to {one.high:+.4f}", f"{one.p:.2g}", "-" if one.adjusted is None else f"{one.adjusted:.2g}",
        str(one.seeds), str(one.examples), f"{shows} ({one.scope})",
    ]  # fmt: skip


def _tell(examples: Examples) -> None:
    for note in examples.notes:
        print(f"note: {note}", file=sys.stderr)


def _read(folder: Path) -> tuple[Report, Examples]:
    from attnbench.report import build
    from attnbench.standing import Examples
    from attnbench.store import Store

    records, problems = Store(folder).read_all()
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    return build(record for _, record in records), Examples.of(records)


def _of_mechanisms(folder: Path, first: str, second: str) -> list[_Found]:
    from attnbench.standing import judge

    if not folder.is_dir():
        raise AttnbenchError(f"{folder}: no such folder; run something first, or name it with --results")
    report, examples = _read(folder)
    rows = [row for table in report.tables for row in table.rows]
    for name in (first, second):
        _must_be_known(name, rows, folder)
    if first == second and len({row.name for row in rows if not row.stale and first in (row.name, row.label)}) == 1:
        raise AttnbenchError(f"{first} is one row; name two mechanisms, two rows of the report, or two results folders")
    found = []
    for table in judge(report, examples).tables:
        labels = {row.name: row.label for row in table.rows}
        for column, differences in zip(table.columns, table.differences, strict=True):
            for one in differences:
                for way in (one, one.turned):
                    if first in (way.first, labels[way.first]) and second in (way.second, labels[way.second]):
                        found.append((table, column.title, way))
                        break
    _tell(examples)
    return found


def _must_be_known(name: str, rows: Iterable[Row], folder: Path) -> None:
    named = [row for row in rows if name in (row.name, row.label)]
    if any(not row.stale for row in named):
        return
    if named:
        raise AttnbenchError(f"{name} in {folder} is stale: of older code or data than the newest run; run it again")
    if Path(name).expanduser().is_dir():
        raise AttnbenchError(f"{name} is a folder; name two results folders, each with runs/ in it, or two mechanisms")
    raise UnknownName(f"mechanism in {folder}:", name, {row.label for row in rows if not row.stale})


def _of_folders(one: Path, other: Path) -> list[_Found]:
    from attnbench.standing import across

    if one.resolve() == other.resolve():
        raise AttnbenchError(f"{one} and {other} are the same folder")
    (a, examples_a), (b, examples_b) = _read(one), _read(other)
    tables = {_key(table): table for table in b.tables}
    found = []
    for table in a.tables:
        if there := tables.get(_key(table)):
            differences = across(table, there, examples_a, examples_b, (str(one), str(other)))
            found += [(table, *difference) for difference in differences]
    _tell(examples_a)
    _tell(examples_b)
    return found


def _key(table: Table) -> tuple[Any, ...]:
    return table.protocol, table.version, table.changes, table.tuning
