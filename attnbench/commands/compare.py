"""`attnbench compare`: two mechanisms, or two results folders, task by task."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench import screen
from attnbench.commands.shared import Json, Results, print_json
from attnbench.errors import AttnbenchError

if TYPE_CHECKING:
    from attnbench.comparison import Difference
    from attnbench.report import Report, Table
    from attnbench.standing import Examples

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
        found = list(_of_folders(*folders))
        what = f"{first} and {second} share no protocol, task and mechanism with a score"
    else:
        found = list(_of_mechanisms(results, first, second))
        what = f"{results}: no task on which {first} and {second} have scores of the same seed under one protocol"
    if not found:
        raise AttnbenchError(f"{what}; attnbench report shows what there is")
    if as_json_:
        print_json([{**place, **asdict(one)} for place, one in found])
    else:
        screen.put(screen.listing([_line(place, one) for place, one in found], _HEADER))


_HEADER = ["protocol", "task", "A - B", "95 % interval", "p", "adjusted", "seeds", "examples", "what shows"]


def _line(place: dict[str, Any], one: Difference) -> list[str]:
    ahead = one.first if one.mean > 0 else one.second
    shows = f"{ahead} ahead" if one.differs else "no difference shows"
    return [
        place["protocol"], place["task"], f"{one.mean:+.4f}", f"{one.low:+.4f} to {one.high:+.4f}", f"{one.p:.2g}",
        "-" if one.adjusted is None else f"{one.adjusted:.2g}", str(one.seeds), str(one.examples),
        f"{shows} ({one.scope})",
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


def _of_mechanisms(folder: Path, first: str, second: str) -> Iterator[tuple[dict[str, Any], Difference]]:
    from attnbench.standing import judge

    report, examples = _read(folder)
    for table in judge(report, examples).tables:
        labels = {row.name: row.label for row in table.rows if not row.stale}
        for column, differences in zip(table.columns, table.differences, strict=True):
            for one in differences:
                for way in (one, one.turned):
                    if first in (way.first, labels[way.first]) and second in (way.second, labels[way.second]):
                        yield {"protocol": table.protocol, "task": column.title}, way
                        break
    _tell(examples)


def _of_folders(one: Path, other: Path) -> Iterator[tuple[dict[str, Any], Difference]]:
    from attnbench.standing import across

    (a, examples_a), (b, examples_b) = _read(one), _read(other)
    tables: dict[tuple[Any, ...], Table] = {_key(table): table for table in b.tables}
    for table in a.tables:
        if _key(table) in tables:
            for title, found in across(table, tables[_key(table)], examples_a, examples_b, (str(one), str(other))):
                yield {"protocol": table.protocol, "task": title}, found
    _tell(examples_a)
    _tell(examples_b)


def _key(table: Table) -> tuple[Any, ...]:
    return table.protocol, table.version, table.changes, table.tuning
