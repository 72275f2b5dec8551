"""Small sets of ListOps for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnbench import data, registry
from attnbench.contracts import Preparation
from attnbench.options import parse

SHORT = {"min_length": 7, "max_length": 33, "max_depth": 3, "max_args": 5}


def plugin() -> registry.Plugin:
    return registry.load("tasks", "listops")


def options(**values: Any) -> Any:
    return parse("task listops", plugin().object.options, values)


def prepared(source: Path | None = None, workers: int = 1, **values: Any) -> data.TaskData:
    return data.load(plugin(), options(**values), source, workers)


def rows(found: data.TaskData, split: str) -> list[bytes]:
    return [row.tobytes() for row in found.splits[split].documents[0]]


def stub(folder: Path, notes: list[str] | None = None) -> Preparation:
    note = (lambda text: None) if notes is None else notes.append
    return Preparation(folder, None, lambda items, title: iter(items), note)
