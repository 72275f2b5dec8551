"""The rows of a call: special rows in front, blocks of content, and what a mixer is built for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attnbench.errors import AttnbenchError


@dataclass(frozen=True)
class NoOptions:
    """For plugins that have nothing to choose."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The special rows a mechanism asks the encoder for, and the grid of content blocks they refer to.

    Attributes:
        globals: rows in front that stand for the whole input (CLS is one of them).
        reps_per_block: representatives of each block of content.
        block_size: content rows per block; 0 = the mechanism has no grid.
    """

    globals: int = 0
    reps_per_block: int = 0
    block_size: int = 0

    def __post_init__(self) -> None:
        if min(self.globals, self.reps_per_block, self.block_size) < 0:
            raise ValueError(f"Tokens takes no negative number: {self}")
        if self.reps_per_block and not self.block_size:
            raise ValueError("Tokens with reps_per_block needs a block_size")


@dataclass(frozen=True, kw_only=True)
class MixerShape:
    """What the encoder asks of every mechanism.

    Attributes:
        dim: width of a row.
        heads: number of heads; divides dim.
        length: the most content rows one call may have.
        tokens: the special rows in front of the content, as the mechanism declared them.
        causal: a row may see itself and earlier rows only.
        layer: index of the layer, for patterns that differ by layer.
        rotary: positions enter as a rotation of queries and keys (Su et al. 2021, RoFormer).
        qkv: width of queries, keys and values, all heads together; None = dim.
        bias: the projections to them and the one that joins the heads have a bias.
    """

    dim: int
    heads: int
    length: int
    tokens: Tokens = Tokens()
    layer: int = 0
    causal: bool = False
    rotary: bool = False
    qkv: int | None = None
    bias: bool = True

    def __post_init__(self) -> None:
        if min(self.dim, self.heads, self.length) < 1:
            raise AttnbenchError(
                "dim, heads and length must be at least 1, "
                f"got dim={self.dim}, heads={self.heads}, length={self.length}"
            )
        if self.inner < 1 or self.inner % self.heads:
            name = "dim" if self.qkv is None else "qkv"
            raise AttnbenchError(f"heads={self.heads} does not divide {name}={self.inner}; choose a divisor")

    @property
    def inner(self) -> int:
        """Width of queries, keys and values, all heads together."""
        return self.dim if self.qkv is None else self.qkv

    @property
    def head_dim(self) -> int:
        return self.inner // self.heads


@dataclass(frozen=True)
class Layout:
    """How the rows of one call are arranged: [globals | representatives, block by block | content].

    Attributes:
        tokens: the special rows, as the mechanism declared them.
        length: content rows of this call, the leading shift included.
        shift: masked content rows in front (SAR moves the content right by this many).
        moved: positions count the shifted rows too, so a real token's position moves with it.
        memo: masks and tables built for this call, shared by all layers.
    """

    tokens: Tokens
    length: int
    shift: int = 0
    moved: bool = False
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def globals(self) -> int:
        return self.tokens.globals

    @property
    def reps_per_block(self) -> int:
        return self.tokens.reps_per_block

    @property
    def block_size(self) -> int:
        return self.tokens.block_size

    @property
    def blocks(self) -> int:
        """Blocks of content; the last one may be short."""
        return -(-self.length // self.block_size) if self.block_size else 0

    @property
    def reps(self) -> int:
        """Rows that stand for a block; row j of them stands for block j // reps_per_block."""
        return self.reps_per_block * self.blocks

    @property
    def specials(self) -> int:
        return self.globals + self.reps

    @property
    def rows(self) -> int:
        return self.specials + self.length
