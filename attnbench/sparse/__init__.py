"""The sparse core: a sparse attention is a topology, and execution paths run it.

Every path has one signature and equals the `dense` path, which defines what is correct.

    path(q, k, v, pattern, mask, layout) -> y       q, k, v, y: (B, H, rows, D); mask: (B, rows) bool or None

Rows are laid out as `attnbench.contracts.Layout` says. Who sees whom, always among real rows only:

    content, representatives   each other as the topology says of their blocks (a representative belongs to its block),
                               every global row, every global content row; with `broadcast` all representatives too
    global rows                every row, and so do global content rows
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from attnbench.contracts import Layout
from attnbench.errors import UnknownName
from attnbench.sparse.dense import dense
from attnbench.sparse.gather import gather
from attnbench.sparse.pattern import Pattern, end_blocks
from attnbench.sparse.topologies import (
    BlockWindow,
    Fixed,
    FromRule,
    RandomBlocks,
    Strided,
    TokenWindow,
    window_and_random,
)
from attnbench.sparse.topology import Causal, Topology, Union, visible

Path = Callable[[Tensor, Tensor, Tensor, Pattern, Tensor | None, Layout], Tensor]

#: path name -> (function, what the record says ran)
PATHS: dict[str, tuple[Path, str]] = {"gather": (gather, "reference"), "dense": (dense, "dense emulation")}


def path(name: str) -> tuple[Path, str]:
    if name not in PATHS:
        raise UnknownName("execution path", name, PATHS)
    return PATHS[name]


__all__ = [
    "PATHS",
    "BlockWindow",
    "Causal",
    "Fixed",
    "FromRule",
    "Path",
    "Pattern",
    "RandomBlocks",
    "Strided",
    "TokenWindow",
    "Topology",
    "Union",
    "dense",
    "end_blocks",
    "gather",
    "path",
    "visible",
    "window_and_random",
]
