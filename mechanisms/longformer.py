"""Longformer (Beltagy et al. 2020, section 3.1): a window of tokens on each side, dilated in some heads, and global
tokens that see and are seen by all, with projections of their own for what a global token sees.

Windows grow with the layer and dilation is kept to a few heads in section 4.1; here both are off unless asked for.
The paper starts the global projections as copies of the others, from a pretrained model; here all are drawn.

Long Range Arena (Tay et al. 2020) has 255 tokens before and 256 behind, no global token, not even its CLS, and global
projections that nothing uses; its preset leaves those out, and a CLS row here sees and is seen by all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from attnbench.contracts import Layout, Mechanism, MixerShape, Tokens
from attnbench.errors import AttnbenchError
from attnbench.layers import NO_TOKENS, attention, clear, positions, projection
from attnbench.sparse import PathName, Pattern, TokenWindow
from attnbench.sparse.mixer import HeadGroup, SparseMixer


@dataclass(frozen=True, kw_only=True)
class Options:
    """window: tokens seen on each side.
    window_right: tokens seen behind; unsaid, as many as before.
    window_growth: factor by which the window of a layer exceeds that of the layer below.
    dilation: in the dilated heads, every how many-th token is seen, over as many times the distance.
    dilated_heads: how many heads, the last ones, are dilated.
    global_tokens: rows in front that see and are seen by all.
    global_projections: separate (as published: rows in front, a CLS among them, attend by queries, keys and values
        of their own) or shared.
    block_size: the grain of the computation; it changes no value.
    """

    window: NonNegativeInt = 64
    window_right: NonNegativeInt | None = None
    window_growth: PositiveInt = 1
    dilation: PositiveInt = 1
    dilated_heads: NonNegativeInt = 0
    global_tokens: NonNegativeInt = 1
    global_projections: Literal["separate", "shared"] = "separate"
    block_size: PositiveInt = 64
    path: PathName = "gather"

    def __post_init__(self) -> None:
        if (self.dilation > 1) != (self.dilated_heads > 0):
            raise ValueError(
                f"dilation={self.dilation} in dilated_heads={self.dilated_heads} heads changes nothing; set both"
            )
        if not (self.window or self.window_right) and (self.dilation > 1 or self.window_growth > 1):
            raise ValueError("window=0 can neither grow nor be dilated")

    def sides(self, layer: int, longest: int) -> tuple[int, int]:
        """Tokens seen before and behind in a layer, for inputs of up to `longest`."""
        right = self.window if self.window_right is None else self.window_right
        left, right = (min(side * self.window_growth**layer, longest) for side in (self.window, right))
        return left, right


class Longformer(SparseMixer):
    def __init__(self, shape: MixerShape, options: Options):
        if options.dilated_heads > shape.heads:
            raise AttnbenchError(f"dilated_heads={options.dilated_heads} of {shape.heads} heads")
        left, right = options.sides(shape.layer, shape.length)
        groups = [
            HeadGroup(heads, Pattern(TokenWindow(options.block_size, left, right, dilation)))
            for heads, dilation in (
                (shape.heads - options.dilated_heads, 1),
                (options.dilated_heads, options.dilation),
            )
            if heads
        ]
        super().__init__(shape, groups, options.path)
        separate = options.global_projections == "separate" and shape.tokens.globals
        self.global_qkv = projection(shape, 3) if separate else None

    def forward(self, x: Tensor, mask: Tensor | None = None, layout: Layout | None = None) -> Tensor:
        if self.global_qkv is None:
            return super().forward(x, mask, layout)
        layout = layout or Layout(NO_TOKENS, x.shape[1])
        x, where, g = clear(x, mask), positions(layout, x.device), layout.globals
        y = self.mix(*self.project(x, where), mask, layout)
        q, k, v = self.project(x, where, self.global_qkv)
        global_rows = attention(q[:, :, :g], k, v, None if mask is None else mask[:, None, None, :])
        return self.join(torch.cat([global_rows, y[:, :, g:]], dim=2))


MECHANISM = Mechanism(
    summary="Token window, dilated in some heads if wanted, and global tokens with projections of their own",
    paper="Beltagy et al. 2020, Longformer: The Long-Document Transformer",
    build=lambda shape, options: Longformer(shape, options),
    family="window",
    options=Options,
    presets={"lra": {"window": 255, "window_right": 256, "global_tokens": 0, "global_projections": "shared"}},
    shift_invariant=lambda options: True,
    tokens=lambda options: Tokens(globals=options.global_tokens, block_size=options.block_size),
    complexity="n",
)
