"""Hierarchical Sparse Transformer, the attention of ERNIE-Sparse (Liu et al. 2022); interpretation 1.

Stage 1, sparse: rows attend inside a window of blocks, to global tokens and to random blocks; a representative is a
member of its block. Stage 2, hierarchical: representatives attend to each other, with the projections of stage 1.
The paper's body was not to be had: docs/ernie_sparse.md says which choices are sourced and which are ours.
"""

# Shape letters: B batch, R rows, K blocks, P representatives, C width, H heads, D head width

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from attnbench.contracts import Layout, Mechanism, MixerShape, Tokens
from attnbench.errors import AttnbenchError
from attnbench.layers import QKVMixer, attention, clear, positions
from attnbench.sparse import BlockWindow, PathName, Pattern, window_and_random
from attnbench.sparse.mixer import SparseMixer


@dataclass(frozen=True, kw_only=True)
class Options:
    """window_blocks: blocks seen in stage 1, odd (1 = the own block only).
    global_tokens: rows that see and are seen by all, in stage 1.
    random_blocks: random key blocks in stage 1, drawn from seed.
    reps_per_block: representatives of a block; 0 leaves out stage 2.
    representatives: inserted (rows of their own) or pooled (mean of the block after stage 1; the result is added to
        the block's rows).
    merge: stage 2 replaces the representative's row of stage 1, or is added to it.
    stage2_input: sequential (what stage 1 made of the representatives) or parallel (their rows as they came in).
    stage2_norm: a layer norm without weights in front of stage 2.
    share_projections: stage 2 uses the projections of stage 1.
    head_split: share of heads that run stage 2 only, the others stage 1 only; 0 = all heads run both.
    broadcast: every row but the global ones also sees all representatives in stage 1.
    """

    block_size: PositiveInt = 64
    window_blocks: PositiveInt = 3
    global_tokens: NonNegativeInt = 0
    random_blocks: NonNegativeInt = 0
    seed: int = 0
    reps_per_block: NonNegativeInt = 1
    representatives: Literal["inserted", "pooled"] = "inserted"
    merge: Literal["replace", "add"] = "replace"
    stage2_input: Literal["sequential", "parallel"] = "sequential"
    stage2_norm: bool = True
    share_projections: bool = True
    head_split: Annotated[float, Field(ge=0, lt=1)] = 0.0
    broadcast: bool = False
    path: PathName = "gather"

    def __post_init__(self) -> None:
        BlockWindow(self.block_size, self.window_blocks)
        changed = {f.name for f in fields(self) if getattr(self, f.name) != f.default}
        if self.stage2_input == "parallel" and self.merge == "replace":
            raise ValueError("stage2_input=parallel with merge=replace: representatives would never see a token")
        if not self.reps_per_block:
            self._refuse(changed & _STAGE2, "reps_per_block=0 leaves out stage 2")
        if self.representatives == "pooled":
            self._refuse(
                changed & {"reps_per_block", "merge", "stage2_input", "broadcast"},
                "representatives=pooled is the mean of a block after stage 1, added to its rows",
            )
        if self.seed and not self.random_blocks:
            raise ValueError("seed only draws random blocks, and random_blocks=0")

    @staticmethod
    def _refuse(dead: set[str], why: str) -> None:
        if dead:
            raise ValueError(f"{why}, so {' and '.join(sorted(dead))} would have no effect; leave it out")


_STAGE2 = {"representatives", "merge", "stage2_input", "stage2_norm", "share_projections", "head_split", "broadcast"}


class HST(SparseMixer):
    def __init__(self, shape: MixerShape, options: Options):
        stage2_heads = _stage2_heads(shape.heads, options.head_split)
        topology = window_and_random(
            shape,
            block_size=options.block_size,
            window=options.window_blocks,
            random_blocks=options.random_blocks,
            seed=options.seed,
            heads=shape.heads - stage2_heads,
        )
        super().__init__(shape, Pattern(topology, broadcast=options.broadcast), options.path)
        self.options, self.stage2_heads = options, stage2_heads
        self.stage2 = None if options.share_projections else QKVMixer(shape)

    def forward(self, x: Tensor, mask: Tensor | None = None, layout: Layout | None = None) -> Tensor:
        if layout is None:
            raise AttnbenchError("hst needs a layout; use attnbench.build_mechanism for plain (batch, length, dim)")
        x = clear(x, mask)
        q, k, v = self.project(x, positions(layout, x.device))
        near = self.shape.heads - self.stage2_heads
        y = self.run_path(q[:, :near], k[:, :near], v[:, :near], self.pattern, mask, layout)
        h1 = self.join(F.pad(y, (0, 0, 0, 0, 0, self.stage2_heads)))
        if not self.options.reps_per_block:
            return h1
        if self.options.representatives == "pooled":
            return self._add_pooled(h1, mask, layout)
        return self._merge_inserted(x, h1, mask, layout)

    def _merge_inserted(self, x: Tensor, h1: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
        rows = slice(layout.globals, layout.specials)
        front, reps, content = h1.split([layout.globals, layout.reps, layout.length], dim=1)
        source = x[:, rows] if self.options.stage2_input == "parallel" else reps
        h2 = self._stage2(source, positions(layout, x.device)[rows], None if mask is None else mask[:, rows])
        merged = h2 if self.options.merge == "replace" else reps + h2
        return torch.cat([front, merged, content], dim=1)

    def _add_pooled(self, h1: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
        """Representatives are means over the real rows of a block; what stage 2 makes of them goes to all its rows."""
        b, n, first = self.options.block_size, layout.length, layout.specials
        real = torch.ones_like(h1[:, first:, 0], dtype=torch.bool) if mask is None else mask[:, first:]
        blocks = -(-n // b)
        spare = blocks * b - n
        real_BKb1 = F.pad(real, (0, spare)).unflatten(1, (blocks, b))[..., None]
        content = F.pad(clear(h1[:, first:], real), (0, 0, 0, spare)).unflatten(1, (blocks, b))
        mean_BKC = content.sum(2) / real_BKb1.sum(2).clamp(min=1)
        middle = torch.arange(blocks, device=h1.device) * b + b // 2
        h2 = self._stage2(
            mean_BKC, (middle - (0 if layout.moved else layout.shift)).clamp(min=0), real_BKb1.any(2)[..., 0]
        )
        added = h2.repeat_interleave(b, dim=1)[:, :n]
        return torch.cat([h1[:, :first], h1[:, first:] + added], dim=1)

    def _stage2(self, reps_BPC: Tensor, positions_P: Tensor, real_BP: Tensor | None) -> Tensor:
        """Attention among representatives, (B, P, C) -> (B, P, C); all heads, or the ones split off for it."""
        if self.options.stage2_norm:
            reps_BPC = F.layer_norm(reps_BPC, reps_BPC.shape[-1:])
        weights = self.stage2 or self
        first = self.shape.heads - self.stage2_heads if self.stage2_heads else 0
        q, k, v = (p[:, first:] for p in weights.project(clear(reps_BPC, real_BP), positions_P))
        y = attention(q, k, v, None if real_BP is None else real_BP[:, None, None, :])
        return weights.join(F.pad(y, (0, 0, 0, 0, first, 0)))


def _stage2_heads(heads: int, share: float) -> int:
    """Heads taken out of stage 1 and given to stage 2."""
    count = round(share * heads)
    if share and not 0 < count < heads:
        raise AttnbenchError(f"head_split={share} of {heads} heads gives {count} to stage 2; both stages need one")
    return count


MECHANISM = Mechanism(
    summary="Hierarchical Sparse Transformer: block windows, then attention among block representatives",
    paper="Liu et al. 2022, ERNIE-SPARSE: Learning Hierarchical Efficient Transformer "
    "Through Regularized Self-Attention",
    build=lambda shape, options: HST(shape, options),
    family="hierarchical",
    options=Options,
    tokens=lambda options: Tokens(
        globals=options.global_tokens,
        reps_per_block=options.reps_per_block if options.representatives == "inserted" else 0,
        block_size=options.block_size,
    ),
    complexity="n + (n/b)^2",
    presets={
        "literal": {"window_blocks": 1, "merge": "replace", "stage2_norm": False},
        "ours": {},
    },
)
