"""Pages that a script makes are what it makes now, and tests that a page names are there."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from attnbench import registry
from attnbench.contracts import Cell

ROOT = Path(__file__).parents[1]
FAMILIES = {"dense", "window", "block-sparse", "hierarchical", "low-rank", "kernel", "selective"}


@pytest.mark.parametrize("name", ["mechanisms_table", "tasks_table"])
def test_a_generated_table_is_up_to_date(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    committed = script.PAGE.read_text("utf-8")
    assert committed == script.page(), f"run: python scripts/{name}.py"


def test_the_table_is_the_same_without_xformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mechanism needs does not depend on what is installed where the table is made."""
    from attnbench import choice
    from attnbench.sparse import xformers

    monkeypatch.setattr(xformers, "find_spec", lambda package: None)
    monkeypatch.setattr(choice, "missing_packages", lambda mechanism: list(mechanism.requires))
    test_a_generated_table_is_up_to_date("mechanisms_table")


@pytest.mark.parametrize("name", registry.names("mechanisms"))
def test_every_mechanism_says_its_family(name: str) -> None:
    thing = registry.load("mechanisms", name).object
    assert isinstance(thing, Cell) or thing.family in FAMILIES


def test_every_trap_names_tests_that_exist() -> None:
    rows = [line for line in (ROOT / "docs" / "traps.md").read_text("utf-8").splitlines() if line.startswith("| **")]
    assert len(rows) > 30
    for row in rows:
        trap, seen, done, tests = row.strip("| ").split(" | ")
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
        assert trap and seen and done and named and len(named) == tests.count("::"), row
        for path, function in named:
            tree = ast.parse((ROOT / path).read_text("utf-8"))
            assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (path, function)


def test_every_column_of_the_report_is_explained() -> None:
    from attnbench.tables import CSV_HEAD

    page = (ROOT / "docs" / "reading-results.md").read_text("utf-8")
    explained = set(re.findall(r"`(\w+)`", page.split("CSV and JSON have further columns")[1].split("##")[0]))
    assert set(CSV_HEAD) <= explained
    assert {"mechanism", "mixer parameters", "mean rank", "chance", "best trivial", "separates"} <= set(
        re.findall(r"^\| \*([\w ]+)\*", page, re.MULTILINE)
    )
