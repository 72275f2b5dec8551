"""`attnbench run`: one cell of a table and a seed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from attnbench import screen
from attnbench.commands.shared import Json, Results, print_json, seconds_of
from attnbench.errors import AttnbenchError
from attnbench.record import FINISHED, Tuning

EXAMPLES = (
    "Examples:  attnbench run --mechanism ernie_sparse --task pathfinder   |   "
    "attnbench run -m hst -t recall --set block_size=8 --set sar.alpha=0.5 --regularizer sar --seed 1   |   "
    "attnbench run -m ./mine.py -t digits --dry-run"
)


def run(
    mechanism: Annotated[str, typer.Option("--mechanism", "-m", help="A name, a .py file, or pkg.module:Class.")],
    task: Annotated[str, typer.Option("--task", "-t", help="A name or a .py file.")],
    seed: Annotated[int, typer.Option(help="Decides initialisation, data order, dropout and shifts.")] = 0,
    set_: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="An option; task.KEY, model.KEY, budget.KEY, sar.KEY, ..."),
    ] = [],  # noqa: B006  typer copies it
    regularizer: Annotated[
        str | None, typer.Option("--regularizer", "-r", help="none, sar, rdrop, or a sum: sar+rdrop.")
    ] = None,
    protocol: Annotated[str, typer.Option("--protocol", "-p", help="A name or a .toml file.")] = "quick",
    results: Results = Path("results"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the same run was stopped.")] = False,
    resume_older: Annotated[
        bool, typer.Option("--resume-older", help="Go on from the checkpoint before the last one.")
    ] = False,
    max_time: Annotated[
        str | None, typer.Option("--max-time", metavar="TIME", help="Training time, e.g. 90s, 10m, 2h.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    numerics: Annotated[
        Literal["fast", "stock"], typer.Option(help="CPU settings: fast (as exact, checked at the start) or stock.")
    ] = "fast",
    test_shifts: Annotated[
        int, typer.Option("--test-shifts", min=0, metavar="N", help="Test also on inputs moved by 1 to N rows.")
    ] = 0,
    tuning: Annotated[
        str | None,
        typer.Option("--tuning", metavar="JSON", help="The grid that --set values were chosen from; for sweeps."),
    ] = None,
    trial: Annotated[
        bool, typer.Option("--trial", help="With --tuning: only train and validate; counts in no table.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print every value of the run and stop.")] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="With --dry-run: take a few steps and say what the run will take.")
    ] = False,
    as_json_: Json = False,
) -> None:
    """Train and test one mechanism on one task, and store a record."""
    from attnbench import plan as plans
    from attnbench.settings import parse_pairs

    limit = seconds_of("--max-time", max_time)
    plan = plans.make(
        mechanism,
        task,
        seed=seed,
        regularizer=regularizer,
        protocol=protocol,
        settings=parse_pairs(set_),
        tuning=_tuning(tuning),
    )
    if probe and not dry_run:
        raise AttnbenchError("--probe goes with --dry-run")
    from attnbench.runner import Settings, execute, rehearse
    from attnbench.runner import probe as take_probe
    from attnbench.train import Interrupted

    if dry_run:
        values = plan.as_json() | {"built": rehearse(plan, device, test_shifts)}
        values |= {"test_shifts": test_shifts} if test_shifts else {}
        values |= {"probe": take_probe(plan, device, numerics, test_shifts).model_dump()} if probe else {}
        return print_json(values) if as_json_ else screen.put(screen.pairs(screen.flat(values)))
    command = shlex.join(["attnbench", *sys.argv[1:]])
    settings = Settings(
        results, resume, limit, device, quiet=False, command=command, numerics=numerics, resume_older=resume_older,
        trial=trial, test_shifts=test_shifts,
    )  # fmt: skip
    try:
        record, path = execute(plan, settings)
    except Interrupted as stopped:
        again = command if resume else f"{command} --resume"
        print(f"{stopped}; what was done is kept\ngo on with: {again}", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json_:
        print_json({"path": str(path), **record.plain()})
    else:
        screen.put(screen.outcome(record))
        print(f"record: {path}")  # outside the table, so that no terminal breaks the path
    raise typer.Exit(0 if record.status in FINISHED else 1)


def _tuning(text: str | None) -> Tuning | None:
    if text is None:
        return None
    try:
        return Tuning.model_validate_json(text, strict=True)
    except ValueError as error:
        what = " ".join(str(error).splitlines()[1:3])
        raise AttnbenchError(
            f'--tuning takes JSON such as {{"grid": {{"budget.lr": [0.001, 0.003]}}, "seeds": [0]}}: {what}'
        ) from None
