"""Fair comparison of attention mechanisms: same encoder, data, budget and statistics, only the mechanism differs."""

from importlib.metadata import version as _version

from attnbench.api import (
    build_mechanism,
    build_task,
    list_mechanisms,
    list_regularizers,
    list_tasks,
    load_records,
    run,
)
from attnbench.contracts import Cell, Mechanism, MixerShape, Regularizer, Task, Tokens
from attnbench.errors import AttnbenchError, UnknownName, Unsupported

__version__ = _version("attnbench")

__all__ = [
    "AttnbenchError",
    "Cell",
    "Mechanism",
    "MixerShape",
    "Regularizer",
    "Task",
    "Tokens",
    "UnknownName",
    "Unsupported",
    "build_mechanism",
    "build_task",
    "list_mechanisms",
    "list_regularizers",
    "list_tasks",
    "load_records",
    "run",
]
