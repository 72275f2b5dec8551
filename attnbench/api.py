"""The Python face: what `import attnbench` offers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench import registry
from attnbench.choice import check_packages, choose_mechanism
from attnbench.contracts import Task
from attnbench.options import parse

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from attnbench.record import Record


def list_mechanisms() -> list[str]:
    """Names of all mechanisms, sorted; loads none."""
    return registry.names("mechanisms")


def list_tasks() -> list[str]:
    """Names of all tasks, sorted; loads none."""
    return registry.names("tasks")


def list_regularizers() -> list[str]:
    """Names of all regularizers, sorted; loads none."""
    return registry.names("regularizers")


def build_mechanism(
    name: str, *, dim: int, heads: int, length: int, init_seed: int = 0, causal: bool = False, **options: Any
) -> nn.Module:
    """A mixer that works alone: `mixer(x, mask=None, keep_special=False)` with x (batch, up to `length` rows, dim).

    Special rows are put in, carried through the call and taken out again, as the encoder does; `keep_special=True`
    returns them too. Parameters are a function of `init_seed` and their names. With `causal` a row sees itself and
    earlier rows only.

    Raises:
        AttnbenchError: unknown name or option, dim that heads does not divide, or a mechanism that cannot be causal.
        Unsupported: a package it needs is missing.
    """
    from attnbench.model import standalone

    chosen = choose_mechanism(name, options)
    return standalone(
        chosen.plugin.object, chosen.options, dim=dim, heads=heads, length=length, init_seed=init_seed, causal=causal
    )


def build_task(name: str, **options: Any) -> Any:
    """The prepared data of a task: `.splits["train"]`, `.card`; prepared first when it is not there yet."""
    from attnbench import data

    plugin = registry.load("tasks", name)
    check_packages(plugin)
    task: Task = plugin.object
    return data.load(plugin, parse(f"task {name}", task.options, options))


def run(mechanism: str, task: str, **arguments: Any) -> Record:
    """Trains and tests one cell and stores its record; see `attnbench.runner.run` for the arguments."""
    from attnbench.runner import run as run_cell

    return run_cell(mechanism, task, **arguments)


def load_records(path: str | Path = "results") -> pd.DataFrame:
    """One row per record of the results folder; a run without a score has missing values there.

    The kind `trial` marks runs that values were chosen by; they have no score.
    Files that are no usable record are named in a warning each.

    Raises:
        AttnbenchError: the results folder does not exist.
    """
    from attnbench.frame import as_frame
    from attnbench.store import Store

    frame, problems = as_frame(Store(Path(path)))
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return frame
