"""Block window: a block sees itself and its neighbours (the local part of BigBird, Zaheer et al. 2020, section 2)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import PositiveInt
from torch import nn

from attnbench.contracts import Mechanism, MixerShape, Tokens
from attnbench.sparse import BlockWindow, PathName, Pattern
from attnbench.sparse.mixer import SparseMixer


@dataclass(frozen=True, kw_only=True)
class Options:
    """window_blocks counts the own block and both neighbours and is odd; 1 is block-diagonal."""

    block_size: PositiveInt = 64
    window_blocks: PositiveInt = 3
    path: PathName = "gather"

    def __post_init__(self) -> None:
        BlockWindow(self.block_size, self.window_blocks)


def build(shape: MixerShape, options: Options) -> nn.Module:
    return SparseMixer(shape, Pattern(BlockWindow(options.block_size, options.window_blocks)), options.path)


MECHANISM = Mechanism(
    summary="Block window: own block and neighbours",
    paper="Zaheer et al. 2020, Big Bird: Transformers for Longer Sequences",
    build=build,
    family="window",
    options=Options,
    tokens=lambda options: Tokens(block_size=options.block_size),
    causal="capable",
    complexity="n",
)
