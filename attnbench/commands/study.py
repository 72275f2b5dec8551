"""`attnbench study`: a question of the paper, from its runs to its page."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench import screen
from attnbench.commands import sweep as sweeps
from attnbench.commands.shared import Json, Results, print_json, seconds_of

if TYPE_CHECKING:
    from attnbench.studies.page import Answer

EXAMPLES = (
    "Examples:  attnbench study bottleneck --dry-run   |   attnbench study topology --budget 30m   |   "
    "attnbench study ablation --no-run   |   attnbench study bottleneck --protocol attnbench-1 --dry-run"
)


def study(
    name: Annotated[str, typer.Argument(help="bottleneck, topology or ablation.")],
    protocol: Annotated[
        str | None, typer.Option("--protocol", "-p", help="Another that the suite has sizes for, such as attnbench-1.")
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option("--suite", metavar="FILE.toml", help="Cells of your own, such as a mechanism of yours."),
    ] = None,
    results: Results = Path("results"),
    to: Annotated[
        Path | None, typer.Option("--to", help="Where the page goes.", show_default="results/studies")
    ] = None,
    workers: sweeps.Workers = None,
    threads: sweeps.Threads = 1,
    retry: sweeps.Retries = [],  # noqa: B006  typer copies it
    budget: sweeps.Budget = None,
    device: sweeps.Device = "auto",
    numerics: sweeps.Numerics = "fast",
    no_run: Annotated[bool, typer.Option("--no-run", help="Only the page, of the runs that are there.")] = False,
    dry_run: sweeps.DryRun = False,
    no_probe: sweeps.NoProbe = False,
    as_json_: Json = False,
) -> None:
    """Run what a study lacks, and write its page: claims, intervals, what could have been seen, figures, every seed.

    Stop with Ctrl-C: the same command goes on. Exit 0 when no run failed, 1 when one did.
    """
    from attnbench.errors import AttnbenchError
    from attnbench.studies import arms, registry
    from attnbench.studies.page import Answer

    asked = registry.load(name)
    if no_run and dry_run:
        raise AttnbenchError("--no-run and --dry-run: neither runs anything; take one")
    sweeps.check(no_probe, dry_run)
    planned = sweeps.plan(
        suite or asked.name, protocol=protocol, results=results, workers=workers, threads=threads, retry=retry,
        budget=budget, device=device, numerics=numerics, prepare=not (no_probe or no_run),
    )  # fmt: skip
    if dry_run:
        return sweeps.foretell(planned, not no_probe, seconds_of("--budget", budget), as_json_)
    if no_run:
        planned.settle()
    else:
        sweeps.perform(planned)
    words = [*(["--suite", suite] if suite else []), *(["--protocol", protocol] if protocol else [])]
    command = shlex.join(["attnbench", "study", asked.name, *words])
    answer = Answer.of(asked, arms.of_sweep(planned), planned.suite, command)
    page = _write(answer, to or results / "studies")
    _show(answer, page, as_json_)
    raise typer.Exit(sweeps.exit_code(planned))


def _write(answer: Answer, folder: Path) -> Path:
    from attnbench.files import overwrite
    from attnbench.studies import page

    drawn = list(page.pictures(answer))
    for name, content in (file for picture in drawn for file in picture.files):
        overwrite(folder / name, content)
    overwrite(folder / f"{answer.name}.json", page.as_json(answer).encode())
    overwrite(folder / f"{answer.name}.html", page.to_html(answer, drawn).encode())
    return folder / f"{answer.name}.html"


def _show(answer: Answer, page: Path, as_json: bool) -> None:
    from attnbench.studies.page import as_json as text

    if as_json:
        return print_json({"page": str(page), **json.loads(text(answer))})
    screen.put(
        screen.listing(
            [[one.verdict, one.claim, one.sentence] for one in answer.findings], ["our runs", "claim", "estimate"]
        )
    )
    if answer.found < answer.expected:
        print(f"incomplete: {answer.found} of {answer.expected} runs have a score", file=sys.stderr)
    return print(f"page: {page}")
