"""The topologies at hand. A mechanism joins them with `|`; a new one is a few lines, or a rule of two indices.

Shape letters as in `attnbench.sparse.topology`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnbench.contracts import MixerShape
from attnbench.randomness import key
from attnbench.sparse.topology import Topology

_PAIRS_AT_ONCE = 1 << 24


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

    def block_map(self, length: int) -> Tensor:
        return (_distance(self.blocks(length)).abs() <= self.window // 2)[None]


@dataclass(frozen=True)
class TokenWindow(Topology):
    """A token sees `left` tokens before it, itself, and `right` tokens after it; blocks only serve the computation.

    With a `dilation` of d it sees every d-th of them only, so it reaches d times as far. The grid then holds the
    positions by their remainder modulo d, where the window is dense (Beltagy et al. 2020, Longformer, section 3.1).
    """

    block_size: int
    left: int
    right: int
    dilation: int = 1

    def block_map(self, length: int) -> Tensor:
        distance = _distance(self.blocks(length))
        reach_left, reach_right = -(-self.left // self.block_size), -(-self.right // self.block_size)
        return ((distance >= -reach_left) & (distance <= reach_right))[None]

    def element(self, q: Tensor, k: Tensor) -> Tensor:
        d = self.dilation
        near = (k - q >= -self.left * d) & (k - q <= self.right * d)
        return near if d == 1 else near & ((k - q) % d == 0)

    def order(self, length: int) -> Tensor | None:
        return None if self.dilation == 1 else _by_remainder(length, self.dilation)


@dataclass(frozen=True)
class Strided(Topology):
    """A token sees those at multiples of `stride` from it (Child et al. 2019, Sparse Transformer, section 4.3).

    The grid holds the positions by their remainder modulo the stride: a block sees those that share a remainder.
    """

    block_size: int
    stride: int

    def block_map(self, length: int) -> Tensor:
        remainders = _by_remainder(length, self.stride) % self.stride
        first, last = remainders[:: self.block_size], remainders[self.block_size - 1 :: self.block_size]
        last = torch.cat([last, remainders[-1:]])[: len(first)]
        return ((first[:, None] <= last) & (first <= last[:, None]))[None]

    def element(self, q: Tensor, k: Tensor) -> Tensor:
        return (k - q) % self.stride == 0

    def order(self, length: int) -> Tensor:
        return _by_remainder(length, self.stride)


@dataclass(frozen=True)
class Fixed(Topology):
    """A token sees its own segment of `stride` positions and the last `columns` of every segment (Child et al. 2019,
    section 4.3), with `first_column` the first position of every segment too.
    """

    block_size: int
    stride: int
    columns: int
    first_column: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.columns <= self.stride:
            raise ValueError(f"columns={self.columns} of a segment of stride={self.stride} positions")

    def block_map(self, length: int) -> Tensor:
        first = torch.arange(self.blocks(length)) * self.block_size
        last = (first + self.block_size - 1).clamp(max=length - 1)
        low, high = first // self.stride, last // self.stride
        shared = (low[:, None] <= high) & (low <= high[:, None])
        summary = self.stride - self.columns
        has_column = (last % self.stride >= summary) | (first % self.stride >= summary) | (high > low)
        if self.first_column:
            has_column |= first % self.stride == 0
        return (shared | has_column)[None]

    def element(self, q: Tensor, k: Tensor) -> Tensor:
        seen = (q // self.stride == k // self.stride) | (k % self.stride >= self.stride - self.columns)
        return seen | (k % self.stride == 0) if self.first_column else seen


@dataclass(frozen=True)
class RandomBlocks(Topology):
    """`count` random key blocks for each query block and head, outside a window around it and never one of `avoid`;
    with `within` only blocks that lie in the first so many tokens.

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
    within: int = 0

    def block_map(self, length: int) -> Tensor:
        blocks, whole = self.blocks(length), _drawn(self)
        if blocks > whole.shape[1]:
            raise ValueError(
                f"{blocks} blocks, but the random graph was built for {whole.shape[1]} ({self.length} tokens)"
            )
        return whole[:, :blocks, :blocks]


@functools.lru_cache(maxsize=64)
def _drawn(graph: RandomBlocks) -> Tensor:
    """(H, K, K) bool for the built length."""
    blocks = graph.blocks(graph.length)
    keys = min(blocks, graph.within // graph.block_size) if graph.within else blocks
    found = torch.zeros(graph.heads, blocks, blocks, dtype=torch.bool)
    for query in range(blocks):
        others = np.array(
            [b for b in range(keys) if abs(b - query) > graph.outside_window // 2 and b not in graph.avoid],
            dtype=np.int64,
        )
        for head in range(graph.heads):
            bits = np.random.PCG64(key(graph.seed, "random blocks", graph.layer, head, query))
            found[head, query, torch.from_numpy(np.random.Generator(bits).permutation(others)[: graph.count])] = True
    return found


#: May q see k? Of two index tensors that broadcast, or of FlexAttention's four (batch, head, q, k); the batch is 0.
Rule = Callable[..., Tensor]


@dataclass(frozen=True)
class FromRule(Topology):
    """A pattern of the user's own, as a function of indices. Blocks without a visible pair cost nothing.

    The function is evaluated once per length, in chunks of rows. It must be elementwise and depend on its arguments
    alone; `heads` tells how many heads a rule of four arguments tells apart.
    """

    block_size: int
    rule: Rule
    heads: int = 1

    def block_map(self, length: int) -> Tensor:
        return _evaluated(self, length)

    def element(self, q: Tensor, k: Tensor) -> Tensor:
        if len(inspect.signature(self.rule).parameters) == 2:
            return self.rule(q, k)
        head = torch.arange(self.heads, device=q.device).view(-1, *[1] * (q.ndim - 1))
        return self.rule(torch.zeros_like(head), head, q, k)


@functools.lru_cache(maxsize=64)
def _evaluated(topology: FromRule, length: int) -> Tensor:
    b, blocks = topology.block_size, topology.blocks(length)
    found = []
    rows = b * max(1, _PAIRS_AT_ONCE // (length * b))
    for start in range(0, length, rows):
        q, k = torch.arange(start, min(start + rows, length)), torch.arange(length)
        seen = topology.element(q[None, :, None], k[None, None, :]).expand(topology.heads, len(q), length)
        padded = torch.nn.functional.pad(seen, (0, blocks * b - length, 0, -len(q) % b))
        found.append(padded.unflatten(1, (-1, b)).unflatten(3, (-1, b)).any(4).any(2))
    return torch.cat(found, dim=1)


def window_and_random(
    shape: MixerShape,
    *,
    block_size: int,
    window: int,
    random_blocks: int,
    seed: int,
    heads: int | None = None,
    avoid: tuple[int, ...] = (),
    within: int = 0,
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
        within=within,
    )


def _distance(blocks: int) -> Tensor:
    """(K, K) in blocks, from query to key."""
    i = torch.arange(blocks)
    return i[None, :] - i[:, None]


def _by_remainder(length: int, divisor: int) -> Tensor:
    """Positions 0..length-1 sorted by their remainder, then by themselves."""
    return torch.cat([torch.arange(first, length, divisor) for first in range(min(divisor, length))])
