"""`attnbench data`: prepare, verify and export the data of a task."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench import protocol as protocols
from attnbench import registry, screen
from attnbench.choice import check_packages
from attnbench.errors import AttnbenchError
from attnbench.options import field_names, parse
from attnbench.settings import divide, parse_pairs

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Prepare, verify or export the data of a task.")

Task = Annotated[str, typer.Argument(help="A name or a .py file.")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="An option of the task; repeat it.")]
Seed = Annotated[int | None, typer.Option("--seed", help="The same as --set data_seed=SEED.")]
Protocol = Annotated[
    str | None, typer.Option("--protocol", "-p", help="Start from the options this protocol sets for the task.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Threads; the result is the same with any number.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def _task(task: str, set_: list[str], seed: int | None, protocol: str | None, files: bool = False) -> tuple[Any, Any]:
    """The plugin and its options."""
    plugin = registry.load("tasks", task)
    check_packages(plugin)
    names = field_names(plugin.object.options)
    given: dict[str, Any] = divide(parse_pairs(set_), {"task": names}, {plugin.name: "task"})["task"]
    if seed is not None:
        if "data_seed" not in names:
            raise AttnbenchError(f"--seed: the data of {plugin.name} does not depend on one")
        if "data_seed" in given:
            raise AttnbenchError("--seed and --set data_seed=... are the same; give one of them")
        given["data_seed"] = seed
    if files and "origin" in names:
        given.setdefault("origin", "files")
    base = protocols.load(protocol).rules(plugin.name).task if protocol else {}
    return plugin, parse(f"task {plugin.name}", plugin.object.options, {**base, **given})


def _show(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts, indent=1))
    else:
        screen.put(screen.pairs(screen.flat(facts)))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@app.command(
    epilog="Examples:  attnbench data prepare pathfinder   |   "
    "attnbench data prepare pathfinder --set examples=2000 --seed 7   |   "
    "attnbench data prepare pathfinder --from lra_release   |   "
    "attnbench run -m dense -t pathfinder --set origin=files"
)
def prepare(
    task: Task,
    set_: Set = [],  # noqa: B006  typer copies it
    seed: Seed = None,
    from_: Annotated[Path | None, typer.Option("--from", help="A folder with the files to read.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch what is missing from its public home.")] = False,
    protocol: Protocol = None,
    workers: Workers = None,
    as_json_: Json = False,
) -> None:
    """Download, read or generate a task's data, once, and print its card. Goes on where it was interrupted."""
    from attnbench import data

    plugin, options = _task(task, set_, seed, protocol, files=from_ is not None)
    source = None if from_ is None else from_.expanduser()
    prepared = data.load(plugin, options, source, workers or _cores(), download)
    _show({**prepared.card, "folder": str(prepared.folder)}, as_json_)


@app.command(epilog="Examples:  attnbench data verify pathfinder --set examples=10000")
def verify(
    task: Task,
    set_: Set = [],  # noqa: B006
    seed: Seed = None,
    protocol: Protocol = None,
    workers: Workers = None,
    as_json_: Json = False,
) -> None:
    """Compare prepared data with its hash and the one on record; tell duplicates, balance, lengths, trivial levels."""
    from attnbench import data
    from attnbench.verification import verify as check

    plugin, options = _task(task, set_, seed, protocol)
    report = check(data.load(plugin, options, workers=workers or _cores()), plugin, options)
    if as_json_:
        _show(report, True)
    else:
        splits, findings = report.pop("splits"), report.pop("findings")
        screen.put(screen.listing([_row(name, split) for name, split in splits.items()], _HEADER))
        screen.put(screen.pairs([*screen.flat(report), *(("finding", finding) for finding in findings)]))


_HEADER = ["split", "examples", "predictions", "classes", "largest", "smallest", "order", "duplicates", "tokens"]


def _row(name: str, split: dict[str, Any]) -> list[str]:
    shares = [count / split["predictions"] for count in split["labels"].values()]
    edges = [edge for bounds in split["lengths"] for edge in bounds.split("..")]
    return [
        name, f"{split['examples']:,}", f"{split['predictions']:,}", str(len(shares)), f"{max(shares):.1%}",
        f"{min(shares):.1%}", split["order"], str(split["duplicates"]), f"{edges[0]}..{edges[-1]}",
    ]  # fmt: skip


@app.command(
    epilog="Examples:  attnbench data export pathfinder --set level=hard --set resolution=32 --set examples=2000 "
    "--seed 7 --to DIR"
)
def export(
    task: Task,
    to: Annotated[Path, typer.Option("--to", help="The folder to write into.")],
    set_: Set = [],  # noqa: B006
    seed: Seed = None,
    protocol: Protocol = None,
    workers: Workers = None,
    as_json_: Json = False,
) -> None:
    """Write a task's data in the form in which others publish it, so that other code can read it."""
    from attnbench import data

    plugin, options = _task(task, set_, seed, protocol)
    data.export(plugin, options, to.expanduser(), workers or _cores())
    _show({"written to": str(to)}, as_json_)
