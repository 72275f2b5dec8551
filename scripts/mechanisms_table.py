"""Writes docs/mechanisms.md from what the mechanisms of this repository declare: python scripts/mechanisms_table.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from attnbench import build_mechanism, registry
from attnbench.contracts import Cell, Mechanism, MixerShape
from attnbench.options import parse
from attnbench.sparse.mixer import SparseMixer

PAGE = Path(__file__).parents[1] / "docs" / "mechanisms.md"
HEADER = ["name", "paper", "family", "complexity", "exact", "causal", "masks", "presets", "paths", "runs on"]
INTRODUCTION = """\
# Mechanisms

Made by `python scripts/mechanisms_table.py` from what every mechanism declares; `attnbench show NAME` has its options,
`attnbench show NAME --plot` draws what a sparse one sees.

- **exact**: equals softmax attention over all pairs.
- **causal**: no; capable (when it is asked for); only.
- **masks**: honoured, padding changes nothing; ignored, also by a preset: padded tasks are refused unless
  `padding.unmasked=true`.
- **presets**: named sets of options, `--set preset=NAME`; [lra](lra.md): what Long Range Arena's code has.
- **paths**: values of the option `path`, or how the one way of computing is known to a record.
- **runs on**: what its default path needs, wherever this is read. What needs a CPU and no package beside PyTorch was
  called when the table was made. Elsewhere, or without the package, a run has the status `unsupported` and the reason.
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
    return [
        shown,
        thing.paper,
        mechanism.family,
        getattr(mechanism, "complexity", ""),
        "yes" if mechanism.exact else "no",
        mechanism.causal,
        masks(mechanism),
        ", ".join(mechanism.presets),
        *computed(name, mechanism),
    ]


def masks(mechanism: Mechanism) -> str:
    if not mechanism.honours_masks:
        return "ignored"
    chosen = {name: parse(name, mechanism.options, values) for name, values in mechanism.presets.items()}
    ignoring = [name for name, options in chosen.items() if not mechanism.honours(options)]
    return "honoured" + (f"; ignored by {', '.join(ignoring)}" if ignoring else "")


def computed(name: str, mechanism: Mechanism) -> tuple[str, str]:
    """By which paths it is computed, and what the default one needs: the same on every machine."""
    hints: dict[str, Any] = get_type_hints(mechanism.options)
    paths = get_args(hints.get("path"))
    mixer = mechanism.build(MixerShape(dim=8, heads=2, length=16), mechanism.options())
    cuda_only = isinstance(mixer, SparseMixer) and mixer.run_path.cuda_only
    needs = ["CUDA" if cuda_only else "CPU, CUDA", *(f"with {package}" for package in mechanism.requires)]
    if not cuda_only and not mechanism.requires:
        build_mechanism(name, dim=8, heads=2, length=16)(torch.zeros(1, 16, 8))
    return ", ".join(paths) or str(getattr(mixer, "implementation", "")), ", ".join(needs)


if __name__ == "__main__":
    main()
