"""`attnbench sweep`: the cells of a suite, as many at a time as fit."""

from __future__ import annotations

import signal
import sys
from dataclasses import asdict
from enum import StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attnbench import screen
from attnbench.commands.shared import Json, Results, print_json, seconds_of

if TYPE_CHECKING:
    from attnbench.sweep import Sweep

EXAMPLES = (
    "Examples:  attnbench sweep quick --dry-run   |   attnbench sweep suites/quick.toml --budget 30m   |   "
    "attnbench sweep mine.toml --retry failed --retry timeout --max-time 2h"
)


class Where(StrEnum):
    local = auto()


class Retry(StrEnum):
    diverged = auto()
    oom = auto()
    timeout = auto()
    unsupported = auto()
    failed = auto()


def sweep(
    suite: Annotated[str, typer.Argument(help="A .toml file, or the name of a suite that comes with attnbench.")],
    results: Results = Path("results"),
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time.", show_default="the GPUs, or the cores / threads")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Of each run. Another number rounds sums otherwise.")] = 1,
    retry: Annotated[
        list[Retry], typer.Option("--retry", metavar="STATUS", help="Run again what ended so; repeat it.")
    ] = [],  # noqa: B006  typer copies it
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="TIME", help="Begin only whole seeds that fit, e.g. 30m, 8h.")
    ] = None,
    max_time: Annotated[
        str | None, typer.Option("--max-time", metavar="TIME", help="Training time of each run, e.g. 90s, 10m, 2h.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    numerics: Annotated[
        Literal["fast", "stock"], typer.Option(help="CPU settings: fast (as exact, checked at the start) or stock.")
    ] = "fast",
    executor: Annotated[Where, typer.Option(help="Where the runs take place.")] = Where.local,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan with estimates and stop.")] = False,
    no_probe: Annotated[bool, typer.Option("--no-probe", help="With --dry-run: no estimates by short probes.")] = False,
    as_json_: Json = False,
) -> None:
    """Run all cells of a suite: mechanisms x regularizers x tasks x options x seeds.

    What is finished is left alone; what failed is kept and listed. Stop with Ctrl-C: the same command goes on.
    Exit 0 when no run failed, 1 when one did.
    """
    from attnbench import suite as suites
    from attnbench import survey as surveys
    from attnbench.errors import AttnbenchError
    from attnbench.executor import LocalExecutor, workers_for
    from attnbench.sweep import Settings, Sweep

    if no_probe and not dry_run:
        raise AttnbenchError("--no-probe goes with --dry-run")
    limit, per_run = seconds_of("--budget", budget), seconds_of("--max-time", max_time)
    wanted = suites.load(suite)
    survey = surveys.take_apart(suite, device, prepare=not no_probe)
    words = ["--device", device, "--numerics", numerics, *(["--max-time", f"{per_run:g}s"] if per_run else [])]
    planned = Sweep(
        suite=wanted,
        survey=survey,
        executor=LocalExecutor(workers or workers_for(threads, survey.gpus), threads, survey.gpus),
        settings=Settings(results, frozenset(status.value for status in retry), limit, tuple(words)),
    )
    if dry_run:
        return _foretell(planned, not no_probe, limit, as_json_)
    return _run(planned, as_json_)


def _foretell(planned: Sweep, probe: bool, budget: float | None, as_json: bool) -> None:
    from attnbench import forecast

    found = forecast.take(planned, probe=probe)
    if as_json:
        seconds = forecast.total(planned, found)
        whole: dict[str, Any] = {"workers": planned.executor.workers, "runs_left": len(planned.pending)}
        return print_json({"cells": [asdict(one) for one in found], **whole, "seconds": seconds})
    screen.put(forecast.table(found))
    print("\n".join(forecast.closing(planned, found, budget)))
    return None


def _run(planned: Sweep, as_json: bool) -> None:
    from attnbench import board
    from attnbench.files import writing

    with writing(planned.settings.results):
        planned.settings.results.mkdir(parents=True, exist_ok=True)
    with board.Board() as shown:
        planned.watch = shown
        planned()
    if as_json:
        print_json(board.as_json(planned))
    else:
        screen.put(board.summary(planned))
        print("\n".join(board.closing(planned)))
    if planned.stopped_by is not None:
        print(f"stopped by {signal.Signals(planned.stopped_by).name}; the same command goes on", file=sys.stderr)
        raise typer.Exit(128 + planned.stopped_by)
    raise typer.Exit(1 if planned.failed else 0)
