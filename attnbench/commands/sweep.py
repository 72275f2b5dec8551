"""`attnbench sweep`: the cells of a suite, as many at a time as fit."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attnbench import screen
from attnbench.commands.shared import Json, Results, print_json, seconds_of
from attnbench.errors import AttnbenchError

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


Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Runs at a time.", show_default="the GPUs, or the cores / threads"),
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Of each run. Another number rounds sums otherwise.")]
Retries = Annotated[list[Retry], typer.Option("--retry", metavar="STATUS", help="Run again what ended so; repeat it.")]
Budget = Annotated[
    str | None, typer.Option("--budget", metavar="TIME", help="Begin only whole seeds that fit, e.g. 30m, 8h.")
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Numerics = Annotated[
    Literal["fast", "stock"],
    typer.Option("--numerics", help="CPU settings: fast (as exact, checked at the start) or stock."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan with estimates and stop.")]
NoProbe = Annotated[bool, typer.Option("--no-probe", help="With --dry-run: no estimates by short probes.")]


def sweep(
    suite: Annotated[str, typer.Argument(help="A .toml file, or the name of a suite that comes with attnbench.")],
    protocol: Annotated[
        str | None, typer.Option("--protocol", "-p", help="One that the suite has other sizes for, under `under`.")
    ] = None,
    results: Results = Path("results"),
    workers: Workers = None,
    threads: Threads = 1,
    retry: Retries = [],  # noqa: B006  typer copies it
    budget: Budget = None,
    max_time: Annotated[
        str | None, typer.Option("--max-time", metavar="TIME", help="Training time of each run, e.g. 90s, 10m, 2h.")
    ] = None,
    device: Device = "auto",
    numerics: Numerics = "fast",
    executor: Annotated[Where, typer.Option(help="Where the runs take place.")] = Where.local,
    dry_run: DryRun = False,
    no_probe: NoProbe = False,
    as_json_: Json = False,
) -> None:
    """Run all cells of a suite: mechanisms x regularizers x tasks x options x seeds.

    What is finished is left alone; what failed is kept and listed. Stop with Ctrl-C: the same command goes on.
    Exit 0 when no run failed, 1 when one did.
    """
    check(no_probe, dry_run)
    planned = plan(
        suite, protocol=protocol, results=results, workers=workers, threads=threads, retry=retry, budget=budget,
        max_time=max_time, device=device, numerics=numerics, prepare=not no_probe,
    )  # fmt: skip
    if dry_run:
        return foretell(planned, not no_probe, seconds_of("--budget", budget), as_json_)
    perform(planned)
    _show(planned, as_json_)
    raise typer.Exit(exit_code(planned))


def check(no_probe: bool, dry_run: bool) -> None:
    if no_probe and not dry_run:
        raise AttnbenchError("--no-probe goes with --dry-run")


def plan(
    suite: str, *, protocol: str | None = None, results: Path, workers: int | None = None, threads: int = 1,
    retry: Sequence[Retry] = (), budget: str | None = None, max_time: str | None = None, device: str = "auto",
    numerics: str = "fast", prepare: bool = True,
) -> Sweep:  # fmt: skip
    """The sweep that these options ask for; nothing of it has run.

    Raises:
        AttnbenchError: a fault of the suite or of an option.
    """
    from attnbench import suite as suites
    from attnbench import survey as surveys
    from attnbench.executor import LocalExecutor, workers_for
    from attnbench.sweep import Settings, Sweep

    limit, per_run = seconds_of("--budget", budget), seconds_of("--max-time", max_time)
    wanted = suites.load(suite, protocol)
    survey = surveys.take_apart(suite, device, prepare=prepare, protocol=protocol)
    words = ["--device", device, "--numerics", numerics, *(["--max-time", f"{per_run:g}s"] if per_run else [])]
    return Sweep(
        suite=wanted,
        survey=survey,
        executor=LocalExecutor(workers or workers_for(threads, survey.gpus), threads, survey.gpus),
        settings=Settings(results, frozenset(status.value for status in retry), limit, tuple(words)),
    )


def foretell(planned: Sweep, probe: bool, budget: float | None, as_json: bool) -> None:
    from attnbench import forecast

    found = forecast.take(planned, probe=probe)
    if as_json:
        seconds = forecast.total(planned, found)
        whole: dict[str, Any] = {"workers": planned.executor.workers, "runs_left": len(planned.pending)}
        return print_json({"cells": [asdict(one) for one in found], **whole, "seconds": seconds})
    screen.put(forecast.table(found))
    print("\n".join(forecast.closing(planned, found, budget)))
    return None


def perform(planned: Sweep) -> None:
    """Runs what is left, and shows how it goes."""
    from attnbench import board
    from attnbench.files import writing

    with writing(planned.settings.results):
        planned.settings.results.mkdir(parents=True, exist_ok=True)
    with board.Board() as shown:
        planned.watch = shown
        planned()


def _show(planned: Sweep, as_json: bool) -> None:
    from attnbench import board

    if as_json:
        return print_json(board.as_json(planned))
    screen.put(board.summary(planned))
    return print("\n".join(board.closing(planned)))


def exit_code(planned: Sweep) -> int:
    if planned.stopped_by is not None:
        print(f"stopped by {signal.Signals(planned.stopped_by).name}; the same command goes on", file=sys.stderr)
        return 128 + planned.stopped_by
    stopped = any(outcome.how == "stopped" for outcome in planned.outcomes.values())
    return 1 if planned.failed or stopped else 0
