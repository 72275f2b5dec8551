"""BigBird (Zaheer et al. 2020, section 2): window + random + global.

`globals = "tokens"`: `global_tokens` extra rows see and are seen by all (the paper's ETC form).
`globals = "blocks"`: the first and the last real block of each example do (the ITC form).
Random blocks are drawn per head and layer from `seed`, once for the built length, and are the same in every process,
in training and in evaluation. The sizes of block, window and random part are those of the authors' script.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt
from torch import nn

from attnbench.contracts import Mechanism, MixerShape, Tokens
from attnbench.sparse import BlockWindow, PathName, Pattern, end_blocks, window_and_random
from attnbench.sparse.mixer import SparseMixer


@dataclass(frozen=True, kw_only=True)
class Options:
    """window_blocks is odd; global_tokens counts with globals = "tokens" only."""

    block_size: PositiveInt = 64
    window_blocks: PositiveInt = 3
    random_blocks: NonNegativeInt = 3
    globals: Literal["tokens", "blocks"] = "tokens"
    global_tokens: NonNegativeInt | None = None
    seed: int = 0
    path: PathName = "gather"

    def __post_init__(self) -> None:
        BlockWindow(self.block_size, self.window_blocks)
        if self.globals == "blocks" and self.global_tokens is not None:
            raise ValueError("global_tokens counts with globals=tokens only; with globals=blocks leave it out")
        if self.seed and not self.random_blocks:
            raise ValueError("seed only draws random blocks, and random_blocks=0")

    @property
    def extra_rows(self) -> int:
        """Global rows in front: 4 unless said, none in the form with global blocks."""
        return 0 if self.globals == "blocks" else 4 if self.global_tokens is None else self.global_tokens


def build(shape: MixerShape, options: Options) -> nn.Module:
    by_blocks = options.globals == "blocks"
    topology = window_and_random(
        shape,
        block_size=options.block_size,
        window=options.window_blocks,
        random_blocks=options.random_blocks,
        seed=options.seed,
        avoid=(0,) if by_blocks else (),
    )
    return SparseMixer(shape, Pattern(topology, content_globals=end_blocks if by_blocks else None), options.path)


MECHANISM = Mechanism(
    summary="Window, random blocks and global tokens or blocks",
    paper="Zaheer et al. 2020, Big Bird: Transformers for Longer Sequences",
    build=build,
    family="block-sparse",
    options=Options,
    tokens=lambda options: Tokens(globals=options.extra_rows, block_size=options.block_size),
    complexity="n",
)
