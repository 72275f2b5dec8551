"""Commands about records that are there: `diff`, `reproduce`, `merge`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench import screen
from attnbench.commands.shared import Json, Results, print_json
from attnbench.errors import AttnbenchError

if TYPE_CHECKING:
    from attnbench.difference import Difference

DIFF = "Examples:  attnbench diff ID ID   |   attnbench diff results/runs/.../A.json other/.../B.json"
REPRODUCE = "Examples:  attnbench reproduce ID   |   attnbench reproduce record.json --results again --json"
MERGE = "Examples:  attnbench merge ../other-machine/results   |   attnbench merge DIR --results all"

Run = Annotated[str, typer.Argument(help="A record's id, the beginning of one, or its JSON file.")]


def diff(first: Run, second: Run, results: Results = Path("results"), as_json_: Json = False) -> None:
    """Compare two runs: first the question, then the answer, then the circumstances."""
    from attnbench.difference import compare
    from attnbench.store import Store

    store = Store(results)
    found = compare(store.find(first)[1], store.find(second)[1])
    if as_json_:
        print_json(asdict(found))
    else:
        _show(found)


def _show(found: Difference) -> None:
    parts = {"question": found.question, "answer": found.answer, "circumstances": found.circumstances}
    for title, rows in parts.items():
        print(title if rows else f"{title}: equal")
        if rows:
            screen.put(screen.listing([[name, str(a), str(b)] for name, a, b in rows], ["", "first", "second"]))


def reproduce(
    record: Run,
    mechanism: Annotated[
        str | None, typer.Option("--mechanism", "-m", help="The user's file it was made with.")
    ] = None,
    task: Annotated[str | None, typer.Option("--task", "-t", help="The user's file it was made with.")] = None,
    results: Results = Path("results"),
    as_json_: Json = False,
) -> None:
    """Run a record's cell again and say equal, or what differs. Exit 0 when equal, 1 when not.

    Curve, score and predictions must be the same to the last bit; that holds for the same versions, machine and number
    of threads. The new run is stored as well.
    """
    from attnbench.reproduction import reproduce as run_again
    from attnbench.runner import Settings
    from attnbench.store import Store

    path, old = Store(results).find(record)
    settings = Settings(results, command=shlex.join(["attnbench", *sys.argv[1:]]))
    found = run_again(old, settings, mechanism, task)
    if as_json_:
        print_json({"equal": found.equal, "record": str(path), "again": str(found.path), **asdict(found.difference)})
    elif found.equal:
        print(f"equal: score {_score(old)}, curve and predictions are the same\nrecord: {found.path}")
    else:
        _show(found.difference)
        print(f"record: {found.path}")
    raise typer.Exit(0 if found.equal else 1)


def _score(record: object) -> str:
    quality = getattr(record, "quality", None)
    return "-" if quality is None else f"{quality.test:.4f}"


def merge(
    folder: Annotated[Path, typer.Argument(help="Another results folder.")],
    results: Results = Path("results"),
    as_json_: Json = False,
) -> None:
    """Take in the records of another results folder. Each is validated first; none that is here is changed.

    The same cell run on two machines stays two runs. Exit 1 when a file could not be taken.
    """
    from attnbench.files import writing
    from attnbench.merging import merge as take_in
    from attnbench.store import Store

    other = Store(folder)
    if not other.folder.is_dir():
        raise AttnbenchError(f"{folder}: no such folder")
    if not other.runs.is_dir():
        raise AttnbenchError(f"{folder}: no results folder, for it holds no runs/; name the folder that does")
    with writing(results):
        results.mkdir(parents=True, exist_ok=True)
    merged = take_in(Store(results), other)
    for problem in merged.problems:
        print(f"not taken: {problem}", file=sys.stderr)
    if as_json_:
        print_json({"taken": [str(path) for path in merged.taken], "known": merged.known, "not taken": merged.problems})
    else:
        print(f"{len(merged.taken)} records taken, {merged.known} here already, {len(merged.problems)} not taken")
    raise typer.Exit(1 if merged.problems else 0)
