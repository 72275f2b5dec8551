"""Disjoint blocks: a token sees its own block and nothing else, so depth adds no reach (local attention of Tay et al.
2020, Long Range Arena, the floor among its baselines).

Blocks are contiguous. The code released with that paper cuts the rows the other way: n rows become `block_size` lines
of K = n // block_size + 1 columns (one block more than needed where the size divides n), and a column attends to
itself. `groups = "comb"` is that: a token sees those at multiples of K from it, and K follows from the padded length.
Left out: that code cuts its padding mask into contiguous blocks, so that mask and groups do not meet, attends to the
rows it adds, and has the CLS row in a comb; here masks are right, and a CLS row sees and is seen by all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveInt
from torch import nn

from attnbench.contracts import Mechanism, MixerShape, Tokens
from attnbench.sparse import BlockWindow, PathName, Pattern, Strided
from attnbench.sparse.mixer import HeadGroup, SparseMixer


@dataclass(frozen=True, kw_only=True)
class Options:
    """block_size: tokens of a block; the last block may be short.
    groups: contiguous, or comb: as many tokens, evenly spread over the whole input.
    """

    block_size: PositiveInt = 64
    groups: Literal["contiguous", "comb"] = "contiguous"
    path: PathName = "gather"


class Combs(SparseMixer):
    def __init__(self, shape: MixerShape, options: Options):
        self.block_size = options.block_size
        super().__init__(shape, self.combs(shape.length), options.path)

    def combs(self, length: int) -> Pattern:
        return Pattern(Strided(self.block_size, length // self.block_size + 1))

    def groups_at(self, length: int) -> tuple[HeadGroup, ...]:
        pattern = self.combs(length)
        return (HeadGroup(self.shape.heads, pattern.causal() if self.shape.causal else pattern),)


def build(shape: MixerShape, options: Options) -> nn.Module:
    if options.groups == "comb":
        return Combs(shape, options)
    return SparseMixer(shape, Pattern(BlockWindow(options.block_size, window=1)), options.path)


MECHANISM = Mechanism(
    summary="Disjoint blocks: a token sees its own block only",
    paper="Tay et al. 2020, Long Range Arena: A Benchmark for Efficient Transformers",
    build=build,
    family="window",
    options=Options,
    tokens=lambda options: Tokens(block_size=options.block_size),
    presets={
        "lra": {"block_size": 50, "groups": "comb"},
        "lra-images": {"block_size": 64, "groups": "comb"},
    },
    counts_length=lambda options: options.groups == "comb",
    causal="capable",
    complexity="n",
)
