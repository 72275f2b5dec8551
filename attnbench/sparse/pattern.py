"""What one call attends to: a topology, and the rows that stand beside its grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnbench.contracts import Layout
from attnbench.sparse.topology import Causal, Topology

#: From (block size, content rows real (B, N) bool) to the global content rows of each example:
#: (positions (B, G) int64 in the content, valid (B, G) bool).
ContentGlobals = Callable[[int, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Pattern:
    """A topology on the content, with representatives shown to all (`broadcast`) and global content rows if wanted."""

    topology: Topology
    broadcast: bool = False
    content_globals: ContentGlobals | None = None

    def causal(self) -> Pattern:
        """Of this pattern, what does not lie behind the query."""
        if self.broadcast or self.content_globals:
            raise ValueError("rows that all others see cannot be causal")
        return replace(self, topology=Causal(self.topology))

    def order(self, layout: Layout) -> Tensor | None:
        """`Topology.order` of this call. Representatives stand for blocks of content in its own order."""
        found = self.topology.order(layout.length)
        if found is not None and layout.reps_per_block:
            raise ValueError("a topology that reorders the content does not go with representatives")
        return found

    def globals_of(
        self, layout: Layout, mask: Tensor | None, batch: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Positions (B, G) and validity (B, G) of the global content rows; G = 0 when there are none."""
        if self.content_globals is None:
            none = torch.zeros(batch, 0, dtype=torch.int64, device=device)
            return none, none.bool()
        real = torch.ones(batch, layout.length, dtype=torch.bool, device=device)
        return self.content_globals(self.topology.block_size, real if mask is None else mask[:, layout.specials :])


def end_blocks(block_size: int, real: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the last *real* block of each example (BigBird-ITC's global blocks), without doubles.

    The first block is the one of the first real row, the last that of the last real row; an example in one block, or
    without a real row, has fewer valid positions.
    """
    n = real.shape[1]
    first = real.int().argmax(1) // block_size
    last = (n - 1 - real.flip(1).int().argmax(1)) // block_size
    offsets = torch.arange(block_size, device=real.device)
    positions = torch.cat([first[:, None] * block_size + offsets, last[:, None] * block_size + offsets], dim=1)
    inside = positions < n
    positions = positions.clamp(max=n - 1)
    valid = inside & real.gather(1, positions)
    valid[:, block_size:] &= (last != first)[:, None]
    return positions, valid
