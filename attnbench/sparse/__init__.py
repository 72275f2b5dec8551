"""The sparse core: a sparse attention is a topology, and execution paths run it.

Every path has one signature and equals the `dense` path, which defines what is correct.

    path(q, k, v, pattern, mask, layout) -> y       q, k, v, y: (B, H, rows, D); mask: (B, rows) bool or None

Outside its domain a path raises `Unsupported` with the limit; none gives way to another in silence.

Rows are laid out as `attnbench.contracts.Layout` says. Who sees whom, always among real rows only:

    content, representatives   each other as the topology says of their blocks (a representative belongs to its block),
                               every global row, every global content row; with `broadcast` all representatives too
    global rows                every row, and so do global content rows
"""

from __future__ import annotations

from typing import Literal

from attnbench.errors import UnknownName
from attnbench.sparse import flex, xformers
from attnbench.sparse.dense import dense
from attnbench.sparse.gather import gather
from attnbench.sparse.paths import Call, Path
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

#: For the options of mechanisms; the names of PATHS.
PathName = Literal["gather", "dense", "flex", "xformers", "fmha"]

PATHS: dict[str, Path] = {
    path.name: path
    for path in (
        Path("gather", gather, "reference"),
        Path("dense", dense, "dense emulation"),
        Path("flex", flex.flex, "kernel", flex.domain),
        Path("xformers", xformers.blocksparse, "reference", xformers.blocksparse_domain),
        Path("fmha", xformers.fmha, "kernel", xformers.fmha_domain, cuda_only=True),
    )
}


def path(name: str) -> Path:
    if name not in PATHS:
        raise UnknownName("execution path", name, PATHS)
    return PATHS[name]


__all__ = [
    "PATHS",
    "BlockWindow",
    "Call",
    "Causal",
    "Fixed",
    "FromRule",
    "Path",
    "PathName",
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
