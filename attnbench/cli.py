"""The command line. Data to stdout, progress to stderr; exit 0 for a finished run, 1 when a run failed, 2 for usage."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from attnbench import protocol as protocols
from attnbench import registry, scaffold, screen
from attnbench import suite as suites
from attnbench.commands import check, compare, data, records, report, run, show, speed, study, sweep
from attnbench.commands.shared import Json, Results, print_json
from attnbench.errors import AttnbenchError, Terminated, describe
from attnbench.record import Record

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compare attention mechanisms fairly: same encoder, data, budget and statistics, only the mechanism differs.",
    epilog="Start with: [bold]attnbench run --mechanism ernie_sparse --task recall[/bold], "
    "then [bold]attnbench report[/bold]",
)

app.command(epilog=run.EXAMPLES)(run.run)
app.command(epilog=sweep.EXAMPLES)(sweep.sweep)
app.command(epilog=study.EXAMPLES)(study.study)
app.command(epilog=show.EXAMPLES)(show.show)
app.add_typer(data.app, name="data")
app.command(epilog=check.EXAMPLES)(check.check)
app.command(epilog=speed.EXAMPLES)(speed.speed)
app.command(epilog=report.EXAMPLES)(report.report)
app.command(epilog=compare.EXAMPLES)(compare.compare)
app.command(epilog=records.DIFF)(records.diff)
app.command(epilog=records.REPRODUCE)(records.reproduce)
app.command(epilog=records.MERGE)(records.merge)


class What(StrEnum):
    mechanisms = "mechanisms"
    tasks = "tasks"
    regularizers = "regularizers"
    protocols = "protocols"
    suites = "suites"
    runs = "runs"


def _version(wanted: bool) -> None:
    if wanted:
        from attnbench import __version__

        print(f"attnbench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command("list", epilog="Examples:  attnbench list   |   attnbench list tasks --json   |   attnbench list runs")
def list_(
    what: Annotated[What, typer.Argument(help="What to list.")] = What.mechanisms,
    results: Results = Path("results"),
    as_json_: Json = False,
) -> None:
    """List mechanisms, tasks, regularizers, protocols, suites, or the runs of a results folder."""
    rows, header = _runs(results) if what is What.runs else _named(what)
    if as_json_:
        print_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        screen.put(screen.listing(rows, header))


def _named(what: What) -> tuple[list[list[str]], list[str]]:
    if what is What.protocols:
        loaded = [protocols.load(name) for name in protocols.names()]
        return [[p.name, str(p.version), p.summary] for p in loaded], ["name", "version", "summary"]
    if what is What.suites:
        found = [suites.load(name) for name in suites.packaged()]
        return [[one.name, one.protocol, one.summary] for one in found], ["name", "protocol", "summary"]
    rows = []
    for name in registry.names(what.value):
        try:
            rows.append([name, registry.home(what.value, name).how, registry.summary(what.value, name)])
        except AttnbenchError as fault:  # one bad plugin must not hide the others
            rows.append([name, "broken", str(fault)])
    return rows, ["name", "home", "summary"]


def _runs(results: Path) -> tuple[list[list[str]], list[str]]:
    from attnbench.store import Store

    found, problems = Store(results).read_all()
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    rows = [[r.id, r.spec.protocol.name, r.spec.task.name, r.label, r.status, _score(r)] for _, r in found]
    return rows, ["id", "protocol", "task", "mechanism", "status", "test"]


def _score(record: Record) -> str:
    return f"{record.quality.test:.4f}" if record.quality else "-" if record.kind == "train" else record.kind


@app.command(epilog="Examples:  attnbench new mechanism mine   |   attnbench run -m ./mine.py -t recall")
def new(
    kind: Annotated[str, typer.Argument(help="mechanism or task.")],
    name: Annotated[str, typer.Argument(help="Its name; the file becomes NAME.py.")],
    to: Annotated[Path, typer.Option("--to", help="The folder.")] = Path("."),
    as_json_: Json = False,
) -> None:
    """Write the first file of a plugin; it runs as it is."""
    path = scaffold.create(kind, name, to)
    option = "-m" if kind == "mechanism" else "-m dense -t"
    then = f"attnbench run {option} {path if path.is_absolute() else './' + str(path)}" + (
        " -t recall" if kind == "mechanism" else ""
    )
    if as_json_:
        print_json({"path": str(path), "try": then})
    else:
        print(f"wrote {path}\ntry it: {then}")


def _terminate(number: int, frame: object) -> None:
    raise Terminated  # unwinds, so that nothing half made is left


def main() -> None:
    """The console script."""
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except AttnbenchError as fault:
        print(f"error: {fault}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as fault:
        where = f": {fault.filename}" if fault.filename else ""
        print(f"error: {fault.strerror or fault}{where}", file=sys.stderr)
        raise SystemExit(2) from None
    except Terminated:
        print("stopped by SIGTERM", file=sys.stderr)
        raise SystemExit(128 + signal.SIGTERM) from None
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as fault:
        if os.environ.get("ATTNBENCH_DEBUG"):
            raise
        print(f"error: {describe(fault)}; this is a fault of attnbench or of a plugin: ATTNBENCH_DEBUG=1 shows where",
              file=sys.stderr)  # fmt: skip
        raise SystemExit(2) from None
