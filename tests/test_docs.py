"""Pages that a script makes are what it makes now."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from attnbench import registry
from attnbench.contracts import Cell

ROOT = Path(__file__).parents[1]
FAMILIES = {"dense", "window", "block-sparse", "hierarchical", "low-rank", "kernel", "selective"}


def test_the_table_of_mechanisms_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("mechanisms_table", ROOT / "scripts" / "mechanisms_table.py")
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    committed = script.PAGE.read_text("utf-8")
    assert committed == script.page(), "run: python scripts/mechanisms_table.py"


@pytest.mark.parametrize("name", registry.names("mechanisms"))
def test_every_mechanism_says_its_family(name: str) -> None:
    thing = registry.load("mechanisms", name).object
    assert isinstance(thing, Cell) or thing.family in FAMILIES
