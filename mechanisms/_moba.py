"""Mixture of Block Attention, causal or not: `moba` and `moba_bidirectional`."""

# Shape letters: B batch, H heads, N content rows, K blocks, W rows of a block, D width of a head

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor

from attnbench.contracts import Layout, MixerShape
from attnbench.layers import QKVMixer

from ._blocks import attend_chosen, choose, in_blocks, real_rows


@dataclass(frozen=True, kw_only=True)
class Options:
    """block_size: keys of a block. top_k: blocks a row sees, its own included."""

    block_size: PositiveInt = 64
    top_k: PositiveInt = 3


class MoBA(QKVMixer):
    def __init__(self, shape: MixerShape, options: Options):
        super().__init__(shape)
        self.options = options

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
        chosen = self.choose_blocks(q, k, mask, layout)
        return attend_chosen(q, k, v, chosen, mask, layout, self.options.block_size, self.shape.causal)

    def choose_blocks(self, q: Tensor, k: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
        """(B, H, N, up to top_k) int64, -1 = nothing: equations 5 and 6 and the two rules behind them."""
        size = self.options.block_size
        real_BKW = in_blocks(real_rows(q, mask, layout), size, dim=1)
        count_BK = real_BKW.sum(2)
        k_BHKWD = in_blocks(k[:, :, layout.specials :], size, dim=2).masked_fill(~real_BKW[:, None, ..., None], 0)
        mean_BHKD = k_BHKWD.sum(3) / count_BK[:, None, :, None].clamp(min=1)
        block_K = torch.arange(count_BK.shape[1], device=q.device)
        own_N1 = torch.arange(layout.length, device=q.device)[:, None] // size
        allowed = (count_BK > 0)[:, None, None]
        if self.shape.causal:
            allowed = allowed & (block_K <= own_N1)
        scores = q[:, :, layout.specials :] @ mean_BHKD.transpose(2, 3)
        return choose(scores, allowed, block_K == own_N1, self.options.top_k)
