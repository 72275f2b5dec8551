"""`attnbench check`: what a mechanism promises, checked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench import screen
from attnbench.errors import AttnbenchError
from attnbench.settings import parse_pairs

if TYPE_CHECKING:
    from attnbench.conformance.check import Outcome

EXAMPLES = (
    "Examples:  attnbench check hst --set block_size=16   |   attnbench check ./mine.py   |   "
    "attnbench check package.module:Class --json   |   attnbench check dense --only causal   |   attnbench check --list"
)


def check(
    mechanism: Annotated[str | None, typer.Argument(help="A name, a .py file, or pkg.module:Class.")] = None,
    set_: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="An option of the mechanism; repeat it.")
    ] = [],  # noqa: B006  typer copies it
    only: Annotated[list[str], typer.Option("--only", metavar="CHECK", help="Only this check; repeat it.")] = [],  # noqa: B006
    list_: Annotated[bool, typer.Option("--list", help="Print what each check is, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Check that a mechanism keeps its promises: shapes, masks, causality, gradients, cost and more.

    Exit 0 when nothing failed, 1 when something did.
    """
    from attnbench.conformance.runner import CHECKS, examine

    if list_:
        rows = [[found.name, found.doc] for found in CHECKS.values()]
        if as_json:
            print(json.dumps([{"check": name, "doc": doc} for name, doc in rows], indent=1))
        else:
            screen.put(screen.listing(rows, ["check", "what it holds"]))
        return
    if mechanism is None:
        raise AttnbenchError("name a mechanism: attnbench check NAME, ./file.py or pkg.module:Class; or --list")
    outcomes = examine(mechanism, parse_pairs(set_), only)
    if as_json:
        print(json.dumps({"mechanism": mechanism, "checks": [found.as_json() for found in outcomes]}, indent=1))
    else:
        rows = [[found.check, found.status, f"{found.seconds:.2f}", found.text] for found in outcomes]
        screen.put(screen.listing(rows, ["check", "outcome", "seconds", "what came"]))
        print(summary(mechanism, outcomes))
    raise typer.Exit(1 if any(found.status == "fail" for found in outcomes) else 0)


def summary(mechanism: str, outcomes: list[Outcome]) -> str:
    statuses = [found.status for found in outcomes]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in ("pass", "fail", "not applicable"))
    return f"{mechanism}: {counts}"
