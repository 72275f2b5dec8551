"""Topologies: which query block sees which key blocks, with an element rule inside. Data, not computation.

Blocks and positions are those of the content; special rows stand beside the grid (see `attnbench.sparse`).
Shape letters: H heads (1 = the same for all), K number of blocks, N content length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnbench.contracts import MixerShape
from attnbench.randomness import key


class Topology:
    """Base of all patterns: `block_size`, a map of visible block pairs and, where blocks are seen in part, a rule.

    A topology is hashable data, so tables built from it can be cached.
    """

    block_size: int

    def block_map(self, blocks: int) -> Tensor:
        """(H, K, K) bool: query block sees (part of) key block."""
        raise NotImplementedError

    def element(self, q: Tensor, k: Tensor) -> Tensor | None:
        """For content positions q and k, which broadcast and have the heads (1 or H) in front: may q see k, given that
        their blocks do? None = always.
        """
        return None

    def __or__(self, other: Topology) -> Topology:
        return Union((self, other))


@dataclass(frozen=True)
class BlockWindow(Topology):
    """A block sees itself and (window - 1) / 2 neighbours on each side; window = 1 is block-diagonal."""

    block_size: int
    window: int = 3

    def __post_init__(self) -> None:
        if self.window < 1 or self.window % 2 == 0:
            raise ValueError(
                f"a window of blocks is odd (1 = the own block, 3 = one neighbour a side), got {self.window}"
            )

    def block_map(self, blocks: int) -> Tensor:
        i = torch.arange(blocks)
        return ((i[:, None] - i).abs() <= self.window // 2)[None]


@dataclass(frozen=True)
class TokenWindow(Topology):
    """A token sees `left` tokens before it, itself, and `right` tokens after it; blocks only serve the computation."""

    block_size: int
    left: int
    right: int

    def block_map(self, blocks: int) -> Tensor:
        i = torch.arange(blocks)
        distance = i[None, :] - i[:, None]  # in blocks, from query to key
        reach_left, reach_right = -(-self.left // self.block_size), -(-self.right // self.block_size)
        return ((distance >= -reach_left) & (distance <= reach_right))[None]

    def element(self, q: Tensor, k: Tensor) -> Tensor:
        return (k - q >= -self.left) & (k - q <= self.right)


@dataclass(frozen=True)
class RandomBlocks(Topology):
    """`count` random key blocks for each query block and head, outside a window around it and never one of `avoid`.

    Drawn once for `length` tokens and cut to the blocks at hand, so a shorter input sees a part of the same graph and
    padding behind it changes nothing. A function of (seed, layer, head, query block): the same in every process.
    """

    block_size: int
    count: int
    length: int
    heads: int
    seed: int
    layer: int = 0
    outside_window: int = 3
    avoid: tuple[int, ...] = ()

    def block_map(self, blocks: int) -> Tensor:
        built = -(-self.length // self.block_size)
        if blocks > built:
            raise ValueError(f"{blocks} blocks, but the random graph was built for {built} ({self.length} tokens)")
        found = torch.zeros(self.heads, blocks, blocks, dtype=torch.bool)
        for head in range(self.heads):
            for query in range(blocks):
                chosen = self._row(head, query, built)
                found[head, query, chosen[chosen < blocks]] = True
        return found

    def _row(self, head: int, query: int, built: int) -> Tensor:
        others = np.array(
            [b for b in range(built) if abs(b - query) > self.outside_window // 2 and b not in self.avoid],
            dtype=np.int64,
        )
        generator = np.random.Generator(np.random.PCG64(key(self.seed, "random blocks", self.layer, head, query)))
        return torch.from_numpy(generator.permutation(others)[: self.count])


@dataclass(frozen=True)
class Union(Topology):
    """A pair is visible when any part shows it."""

    parts: tuple[Topology, ...]

    def __post_init__(self) -> None:
        sizes = {part.block_size for part in self.parts}
        if len(sizes) != 1:
            raise ValueError(f"a union needs one block size, got {sorted(sizes)}")

    @property
    def block_size(self) -> int:  # type: ignore[override]
        return self.parts[0].block_size

    def block_map(self, blocks: int) -> Tensor:
        maps = [part.block_map(blocks) for part in self.parts]
        heads = max(m.shape[0] for m in maps)
        return torch.stack([m.expand(heads, -1, -1) for m in maps]).any(0)

    def element(self, q: Tensor, k: Tensor) -> Tensor | None:
        rules = [part.element(q, k) for part in self.parts]
        if all(rule is None for rule in rules):
            return None
        q_block, k_block = q // self.block_size, k // self.block_size
        blocks = int(max(q_block.max(), k_block.max())) + 1
        maps = [part.block_map(blocks).to(q.device) for part in self.parts]
        heads = torch.arange(max(m.shape[0] for m in maps), device=q.device).view(-1, *[1] * (q.ndim - 1))
        shown = [m.expand(len(heads), -1, -1)[heads, q_block, k_block] for m in maps]
        return torch.stack([p if r is None else p & r for p, r in zip(shown, rules, strict=True)]).any(0)


def window_and_random(
    shape: MixerShape,
    *,
    block_size: int,
    window: int,
    random_blocks: int,
    seed: int,
    heads: int | None = None,
    avoid: tuple[int, ...] = (),
) -> Topology:
    """A window of blocks and, outside it, random blocks that differ by layer and head; `heads` = all of the shape's."""
    near = BlockWindow(block_size, window)
    if not random_blocks:
        return near
    return near | RandomBlocks(
        block_size,
        count=random_blocks,
        length=shape.length,
        heads=heads or shape.heads,
        seed=seed,
        layer=shape.layer,
        outside_window=window,
        avoid=avoid,
    )


def visible(topology: Topology, length: int) -> Tensor:
    """The whole pattern as (H, N, N) bool, row = query; for reading, plots and the dense path only."""
    i = torch.arange(length)
    blocks = -(-length // topology.block_size)
    block = i // topology.block_size
    seen = topology.block_map(blocks)[:, block[:, None], block[None, :]]
    rule = topology.element(i[None, :, None], i[None, None, :])
    return seen if rule is None else seen & rule
