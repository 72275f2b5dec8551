"""Reads what pytest-benchmark wrote of `tests/benchmarks/test_speed_cells.py`, as a result like any other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic_core
from pydantic import ValidationError

from attnbench.errors import AttnbenchError
from attnbench.options import first_fault
from attnbench.speed.result import CellResult, Sample, Setting, SpeedResult, from_json, read_bytes

#: Where a benchmark keeps what its clock does not know: `{"setting": ..., "cell": ..., "machine": ...}`.
KEY = "attnbench"


def read_any(path: Path) -> SpeedResult:
    """A result of `attnbench speed`, or a JSON file of pytest-benchmark.

    Raises:
        AttnbenchError: unreadable, neither, or cells of different settings.
    """
    text = read_bytes(path)
    try:
        data = pydantic_core.from_json(text)
    except (ValueError, RecursionError) as error:
        raise AttnbenchError(f"{path}: cut off, or not valid JSON ({error})") from None
    if isinstance(data, dict) and isinstance(data.get("benchmarks"), list):
        return _of_benchmarks(data, text, path)
    return from_json(text, str(path))


def _of_benchmarks(data: Mapping[str, Any], text: bytes, path: Path) -> SpeedResult:
    try:
        ours = [one for one in data["benchmarks"] if KEY in one.get("extra_info", {})]
        if not ours:
            raise AttnbenchError(
                f"{path}: holds no cell of attnbench speed; it is written by pytest "
                "tests/benchmarks/test_speed_cells.py --benchmark-only --benchmark-json=FILE"
            )
        facts = [one["extra_info"][KEY] for one in ours]
        settings = [Setting.model_validate(one["setting"]) for one in facts]
        if any(one != settings[0] for one in settings):
            raise AttnbenchError(f"{path}: cells of different settings; write a file for each")
        cells = [_cell(one, fact["cell"]) for one, fact in zip(ours, facts, strict=True)]
        when = str(data.get("datetime", "unknown"))
        return SpeedResult(
            id=f"benchmark-{hashlib.sha256(text).hexdigest()[:12]}",
            setting=settings[0], interleaved=False, clock="wall time, by pytest-benchmark", cells=cells,
            peak_how=facts[0].get("peak_how", ""), machine=facts[0]["machine"], software=facts[0]["software"],
            code=facts[0].get("code", {}), started=when, finished=when,
            command="pytest --benchmark-json",
        )  # fmt: skip
    except ValidationError as error:
        raise AttnbenchError(f"{path}: not of this attnbench's benchmarks: {first_fault(error)}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise AttnbenchError(f"{path}: not a JSON file of pytest-benchmark ({error!r})") from None


def _cell(one: Mapping[str, Any], known: Mapping[str, Any]) -> CellResult:
    """It was timed, or it would not be there; its samples are pytest-benchmark's rounds."""
    seconds = one["stats"]["data"]
    samples = [Sample(round=number, seconds=each, wall=each) for number, each in enumerate(seconds)]
    found = {"status": "ok", "reason": None, "samples": samples, "calls": one["stats"]["iterations"]}
    return CellResult.model_validate({**known, **found})
