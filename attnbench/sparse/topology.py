"""What a topology is: which query block sees which key blocks, with an element rule inside. Data, not computation.

Blocks and positions are those of the content; special rows stand beside the grid (see `attnbench.sparse`).
Shape letters: H heads (1 = the same for all), K number of blocks, N content length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class Topology:
    """Base of all patterns: `block_size`, a map of visible block pairs and, where blocks are seen in part, a rule.

    A topology is hashable data, so tables built from it can be cached. Who sees whom does not depend on the length, so
    that padding behind the content changes nothing.
    """

    block_size: int

    def block_map(self, length: int) -> Tensor:
        """(H, K, K) bool for `length` content rows: query block sees (part of) key block."""
        raise NotImplementedError

    def blocks(self, length: int) -> int:
        """K; the last block may be short."""
        return -(-length // self.block_size)

    def element(self, q: Tensor, k: Tensor) -> Tensor | None:
        """For content positions q and k, which broadcast and have the heads (1 or H) in front: may q see k, given that
        their blocks do? None = always.
        """
        return None

    def order(self, length: int) -> Tensor | None:
        """(N,) content positions in the order in which the grid's blocks hold them; None = as they come."""
        return None

    def __or__(self, other: Topology) -> Topology:
        return Union((self, other))


@dataclass(frozen=True)
class Union(Topology):
    """A pair is visible when any part shows it. The parts share one grid."""

    parts: tuple[Topology, ...]

    def __post_init__(self) -> None:
        sizes = {part.block_size for part in self.parts}
        if len(sizes) != 1:
            raise ValueError(f"a union needs one block size, got {sorted(sizes)}")
        if any(part.order(1) is not None for part in self.parts):
            raise ValueError("a topology that reorders the content has a grid of its own and cannot be part of a union")

    @property
    def block_size(self) -> int:  # type: ignore[override]
        return self.parts[0].block_size

    def block_map(self, length: int) -> Tensor:
        maps = [part.block_map(length) for part in self.parts]
        heads = max(m.shape[0] for m in maps)
        return torch.stack([m.expand(heads, -1, -1) for m in maps]).any(0)

    def element(self, q: Tensor, k: Tensor) -> Tensor | None:
        rules = [part.element(q, k) for part in self.parts]
        if all(rule is None for rule in rules):
            return None
        q_block, k_block = q // self.block_size, k // self.block_size
        length = self.block_size * (int(max(q_block.max(), k_block.max())) + 1)
        maps = [part.block_map(length).to(q.device) for part in self.parts]
        heads = torch.arange(max(m.shape[0] for m in maps), device=q.device).view(-1, *[1] * (q.ndim - 1))
        shown = [m.expand(len(heads), -1, -1)[heads, q_block, k_block] for m in maps]
        return torch.stack([p if r is None else p & r for p, r in zip(shown, rules, strict=True)]).any(0)


@dataclass(frozen=True)
class Causal(Topology):
    """Of another topology, what does not lie behind the query."""

    of: Topology

    @property
    def block_size(self) -> int:  # type: ignore[override]
        return self.of.block_size

    def block_map(self, length: int) -> Tensor:
        found = self.of.block_map(length)
        return found if self.of.order(1) is not None else found.tril()  # blocks of a reordered grid have no before

    def element(self, q: Tensor, k: Tensor) -> Tensor:
        rule, past = self.of.element(q, k), k <= q
        return past if rule is None else past & rule

    def order(self, length: int) -> Tensor | None:
        return self.of.order(length)


def blocks_of(topology: Topology, length: int) -> Tensor:
    """(N,) the grid's block of every content position."""
    place = torch.arange(length)
    order = topology.order(length)
    if order is not None:
        place = torch.empty_like(order).scatter_(0, order, place)
    return place // topology.block_size


def visible(topology: Topology, length: int) -> Tensor:
    """The whole pattern as (H, N, N) bool, row = query; for reading, plots and the dense path only."""
    i, block = torch.arange(length), blocks_of(topology, length)
    seen = topology.block_map(length)[:, block[:, None], block[None, :]]
    rule = topology.element(i[None, :, None], i[None, None, :])
    return seen if rule is None else seen & rule
