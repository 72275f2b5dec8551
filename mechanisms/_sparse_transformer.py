"""The Sparse Transformer's attention (Child et al. 2019), for the causal mechanism and the one without direction.

Full attention is split into two sparse ones whose two steps reach everything (sections 4.2 and 4.3), stride l:

    strided   A1 = {j : |i - j| <= l}                     A2 = {j : (i - j) mod l = 0}
    fixed     A1 = {j : floor(j / l) = floor(i / l)}      A2 = {j : j mod l >= l - columns}

and, as published, j <= i. Section 5.2 gives three ways to use them: one attention over A1 and A2 together (merged),
some heads over A1 and the others over A2 (split), or A1 and A2 in turn from layer to layer (interleaved). Without
direction (ours) the same sets hold without j <= i. A row whose set is empty, before the first column, gives 0 (ours).

Long Range Arena (Tay et al. 2020) has fixed, merged and causal with l = 50 and 10 columns, and lets j mod l = 0 into A2
besides: `first_column`. It leaves the row and the column of its CLS unmasked, which no causal mechanism here has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveInt
from torch import Tensor, nn

from attnbench.contracts import MixerShape
from attnbench.errors import AttnbenchError
from attnbench.sparse import BlockWindow, Fixed, FromRule, PathName, Pattern, Strided, TokenWindow, Topology
from attnbench.sparse.mixer import HeadGroup, SparseMixer


@dataclass(frozen=True, kw_only=True)
class Options:
    """pattern: strided (suits grids and periods) or fixed (suits text).
    stride: l, in the paper 128 or 256.
    columns: how many tokens at the end of a segment are seen from everywhere, with pattern = fixed only; 8 unless said.
    first_column: the first token of a segment is too, with pattern = fixed only.
    factors: merged, split (half of the heads each) or interleaved (A1 in even layers, A2 in odd ones).
    block_size: the grain of the computation; it changes no value.
    """

    pattern: Literal["strided", "fixed"] = "fixed"
    stride: PositiveInt = 128
    columns: PositiveInt | None = None
    first_column: bool = False
    factors: Literal["merged", "split", "interleaved"] = "merged"
    block_size: PositiveInt = 64
    path: PathName = "gather"

    def __post_init__(self) -> None:
        if self.pattern == "strided" and self.columns is not None:
            raise ValueError("columns counts with pattern=fixed only; with pattern=strided leave it out")
        if self.first_column and (self.pattern == "strided" or self.summary == self.stride):
            raise ValueError("first_column adds a column to pattern=fixed with fewer columns than stride; leave it out")
        if self.pattern == "fixed":
            Fixed(self.block_size, self.stride, self.summary)

    @property
    def summary(self) -> int:
        """Columns of a segment: 8 unless said, or all of a shorter segment."""
        return min(8, self.stride) if self.columns is None else self.columns


@dataclass(frozen=True)
class NearOrStrided:
    """A1 or A2 of the strided pattern, as a rule for `FromRule`."""

    stride: int

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        return ((q - k).abs() <= self.stride) | ((q - k) % self.stride == 0)


@dataclass(frozen=True)
class Columns:
    """A2 of the fixed pattern, as a rule for `FromRule`."""

    stride: int
    columns: int
    first_column: bool

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        place = k % self.stride
        seen = place >= self.stride - self.columns
        return seen | (place == 0) if self.first_column else seen


def factors(options: Options) -> tuple[Topology, Topology]:
    """A1 and A2."""
    b, stride = options.block_size, options.stride
    if options.pattern == "strided":
        return TokenWindow(b, stride, stride), Strided(b, stride)
    return BlockWindow(stride, window=1), FromRule(b, Columns(stride, options.summary, options.first_column))


def merged(options: Options) -> Topology:
    """A1 and A2 together."""
    b, stride = options.block_size, options.stride
    if options.pattern == "strided":
        return FromRule(b, NearOrStrided(stride))
    return Fixed(b, stride, options.summary, options.first_column)


def build(shape: MixerShape, options: Options) -> nn.Module:
    if options.factors == "merged":
        return SparseMixer(shape, Pattern(merged(options)), options.path)
    first, second = (Pattern(topology) for topology in factors(options))
    if options.factors == "interleaved":
        return SparseMixer(shape, second if shape.layer % 2 else first, options.path)
    if shape.heads < 2:
        raise AttnbenchError("factors=split needs two heads at least; take merged or interleaved")
    half = shape.heads // 2
    return SparseMixer(shape, [HeadGroup(half, first), HeadGroup(shape.heads - half, second)], options.path)
