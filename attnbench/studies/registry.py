"""The studies by name."""

from __future__ import annotations

from importlib import import_module

from attnbench.errors import UnknownName
from attnbench.studies.study import Study

NAMES = ("ablation", "bottleneck", "topology")


def load(name: str) -> Study:
    """
    Raises:
        UnknownName: no such study.
    """
    if name not in NAMES:
        raise UnknownName("study", name, NAMES)
    study: Study = import_module(f"attnbench.studies.{name}").STUDY
    return study
