"""BigBird (Zaheer et al. 2020, section 2): window + random + global.

`globals = "tokens"`: `global_tokens` extra rows see and are seen by all (the paper's ETC form).
`globals = "blocks"`: the first and the last real block of each example do (the ITC form).
Random blocks are drawn per head and layer from `seed`, once for the built length, and are the same in every process,
in training and in evaluation. The sizes of block, window and random part are those of the authors' script.

The authors' plans for the lengths of the paper draw random blocks among the first 1024 tokens only, and so does Long
Range Arena (Tay et al. 2020): `random_within`. Left out of its preset: that its first block begins with the CLS row, a
block added where the length fits already, and that the rows it adds are attended to.
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
    """window_blocks is odd; global_tokens counts with globals = "tokens" only.
    random_within: random blocks lie in the first so many tokens; 0 = anywhere.
    """

    block_size: PositiveInt = 64
    window_blocks: PositiveInt = 3
    random_blocks: NonNegativeInt = 3
    random_within: NonNegativeInt = 0
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
        self._check_within()

    def _check_within(self) -> None:
        """A block must be left to draw from; a global one is never drawn."""
        if self.random_within and not self.random_blocks:
            raise ValueError("random_within only limits random blocks, and random_blocks=0")
        least = self.block_size * (2 if self.globals == "blocks" else 1)
        if 0 < self.random_within < least:
            raise ValueError(f"random_within={self.random_within} leaves no block to draw; it takes at least {least}")

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
        within=options.random_within,
    )
    return SparseMixer(shape, Pattern(topology, content_globals=end_blocks if by_blocks else None), options.path)


MECHANISM = Mechanism(
    summary="Window, random blocks and global tokens or blocks",
    paper="Zaheer et al. 2020, Big Bird: Transformers for Longer Sequences",
    build=build,
    family="block-sparse",
    options=Options,
    presets={"lra": {"block_size": 64, "random_blocks": 3, "random_within": 1024, "globals": "blocks"}},
    tokens=lambda options: Tokens(globals=options.extra_rows, block_size=options.block_size),
    complexity="n",
)
