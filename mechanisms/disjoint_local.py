"""Disjoint blocks: a token sees its own block and nothing else, so depth adds no reach (local attention of Tay et al.
2020, Long Range Arena, the floor among its baselines).

Blocks are contiguous. The code released with that paper groups tokens a whole block count apart instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import PositiveInt
from torch import nn

from attnbench.contracts import Mechanism, MixerShape, Tokens
from attnbench.sparse import BlockWindow, PathName, Pattern
from attnbench.sparse.mixer import SparseMixer


@dataclass(frozen=True, kw_only=True)
class Options:
    """block_size: tokens of a block; the last block may be short."""

    block_size: PositiveInt = 64
    path: PathName = "gather"


def build(shape: MixerShape, options: Options) -> nn.Module:
    return SparseMixer(shape, Pattern(BlockWindow(options.block_size, window=1)), options.path)


MECHANISM = Mechanism(
    summary="Disjoint blocks: a token sees its own block only",
    paper="Tay et al. 2020, Long Range Arena: A Benchmark for Efficient Transformers",
    build=build,
    family="window",
    options=Options,
    tokens=lambda options: Tokens(block_size=options.block_size),
    causal="capable",
    complexity="n",
)
