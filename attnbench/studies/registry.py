"""The studies by name: modules beside the suites that define STUDY. They name plugins, which the engine does not."""

from __future__ import annotations

from importlib import import_module, resources

from attnbench.errors import UnknownName
from attnbench.studies.study import Study


def names() -> list[str]:
    found = [file.name for file in resources.files("attnbench.suites").iterdir()]
    return sorted(name.removesuffix(".py") for name in found if name.endswith(".py") and not name.startswith("_"))


def load(name: str) -> Study:
    """
    Raises:
        UnknownName: no such study.
    """
    if name not in names():
        raise UnknownName("study", name, names())
    study: Study = import_module(f"attnbench.suites.{name}").STUDY
    return study
