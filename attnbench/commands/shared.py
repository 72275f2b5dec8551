"""What several commands have in common: options, JSON, times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.errors import AttnbenchError

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Results = Annotated[
    Path,
    typer.Option(
        "--results",
        envvar="ATTNBENCH_RESULTS",
        help="The results folder.",
        show_default="./results",
        callback=lambda folder: folder.expanduser(),
    ),
]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))


def seconds_of(option: str, text: str | None) -> float | None:
    """
    Raises:
        AttnbenchError: `text` is no time such as 90s, 10m or 2h.
    """
    if text is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise AttnbenchError(f"{option} takes a time such as 90s, 10m or 2h, got {text!r}")
    return seconds
