"""A window of blocks and random blocks on the block-sparse tensor of xFormers: BigBird without global tokens.

It computes what `bigbird` does with `global_tokens=0`, on another path with limits of its own: no masks, whole blocks
of at least 16, float32, and logits whose rows lie at most 55 apart (`attnbench.sparse.xformers`).
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import NonNegativeInt, PositiveInt
from torch import nn

from attnbench.contracts import Mechanism, MixerShape, Tokens
from attnbench.sparse import BlockWindow, Pattern, window_and_random
from attnbench.sparse.mixer import SparseMixer


@dataclass(frozen=True, kw_only=True)
class Options:
    """window_blocks is odd; random_blocks are drawn from seed, per head and layer."""

    block_size: PositiveInt = 64
    window_blocks: PositiveInt = 3
    random_blocks: NonNegativeInt = 3
    seed: int = 0

    def __post_init__(self) -> None:
        BlockWindow(self.block_size, self.window_blocks)
        if self.seed and not self.random_blocks:
            raise ValueError("seed only draws random blocks, and random_blocks=0")


def build(shape: MixerShape, options: Options) -> nn.Module:
    topology = window_and_random(
        shape,
        block_size=options.block_size,
        window=options.window_blocks,
        random_blocks=options.random_blocks,
        seed=options.seed,
    )
    return SparseMixer(shape, Pattern(topology), "xformers")


MECHANISM = Mechanism(
    summary="Window and random blocks on xFormers' block-sparse tensor",
    paper="Lefaudeux et al. 2022, xFormers: A modular and hackable Transformer modelling library",
    build=build,
    options=Options,
    tokens=lambda options: Tokens(block_size=options.block_size),
    family="block-sparse",
    complexity="n",
    honours_masks=False,
    requires=("xformers",),
)
