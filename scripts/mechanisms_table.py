"""Writes docs/mechanisms.md from what the mechanisms of this repository declare: python scripts/mechanisms_table.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from attnbench import build_mechanism, registry
from attnbench.contracts import Cell, Mechanism
from attnbench.errors import AttnbenchError

PAGE = Path(__file__).parents[1] / "docs" / "mechanisms.md"
HEADER = ["name", "paper", "family", "complexity", "exact", "causal", "masks", "paths", "status here"]
INTRODUCTION = """\
# Mechanisms

Made by `python scripts/mechanisms_table.py` from what every mechanism declares; `attnbench show NAME` has its options,
`attnbench show NAME --plot` draws what a sparse one sees.

- **exact**: equals softmax attention over all pairs.
- **causal**: no; capable (when it is asked for); only.
- **masks**: padding changes nothing; otherwise padded tasks are refused.
- **paths**: values of the option `path`, or how the one way of computing is known to a record.
- **status here**: on a CPU with the packages of this repository.
"""


def main() -> None:
    PAGE.write_text(page(), "utf-8")
    print(PAGE.relative_to(PAGE.parents[1]))


def page() -> str:
    names = registry.names("mechanisms")
    rows = [row(name) for name in names if registry.home("mechanisms", name).how == "built-in"]
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    return INTRODUCTION + "\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def row(name: str) -> list[str]:
    """A cell shows its own name and paper, and what the mechanism it trains declares."""
    thing = registry.load("mechanisms", name).object
    mechanism: Mechanism = thing
    shown = f"`{name}`"
    if isinstance(thing, Cell):
        mechanism = registry.load("mechanisms", thing.mechanism).object
        shown += f" = `{thing.mechanism}` + `{thing.regularizer}`"
    paths, status = computed(name, mechanism)
    return [
        shown,
        thing.paper,
        mechanism.family,
        getattr(mechanism, "complexity", ""),
        "yes" if mechanism.exact else "no",
        mechanism.causal,
        "honoured" if mechanism.honours_masks else "ignored",
        paths,
        status,
    ]


def computed(name: str, mechanism: Mechanism) -> tuple[str, str]:
    """By which paths it is computed, and whether its default one runs on a CPU."""
    hints: dict[str, Any] = get_type_hints(mechanism.options)
    paths = ", ".join(get_args(hints.get("path")))
    if mechanism.requires:
        return paths, f"needs {', '.join(mechanism.requires)}"
    try:
        mixer = build_mechanism(name, dim=8, heads=2, length=16)
        mixer(torch.zeros(1, 16, 8))
    except AttnbenchError as why:
        return paths, str(why)
    return paths or str(getattr(mixer.mixer, "implementation", "")), "runs"


if __name__ == "__main__":
    main()
