"""Native Sparse Attention, causal or not: `nsa` and `nsa_bidirectional`."""

# Shape letters: B batch, H heads, R all rows, N content rows, U compressed blocks, S keys of one (paper: l), K blocks
# to select (of l' rows), D width of a head, C = H * D

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from attnbench.contracts import Layout, MixerShape
from attnbench.errors import AttnbenchError
from attnbench.layers import NO_TOKENS, QKVMixer, clear, positions, projection, rotate
from attnbench.sparse import Pattern, TokenWindow, path

from ._blocks import attend_chosen, choose, in_blocks, real_rows, softmax


@dataclass(frozen=True, kw_only=True)
class Options:
    """block_size: keys of a block that can be selected (paper: l').
    compress_stride: rows between the starts of compressed blocks (d); left out, block_size / 4.
    compress_block: keys of a compressed block (l); left out, two strides.
    top_n: blocks selected, those that always are included.
    window: rows seen before the own one.
    share_selection: all heads select the same blocks, by their summed importance.
    """

    block_size: PositiveInt = 64
    compress_block: PositiveInt | None = None
    compress_stride: PositiveInt | None = None
    top_n: PositiveInt = 16
    window: NonNegativeInt = 512
    share_selection: bool = False

    def __post_init__(self) -> None:
        if self.block % self.stride or self.block_size % self.stride or self.block > self.block_size:
            raise ValueError(
                f"compress_stride={self.stride} divides compress_block={self.block} and block_size={self.block_size}, "
                "and compress_block is no more than block_size"
            )

    @property
    def stride(self) -> int:
        return self.compress_stride or max(1, self.block_size // 4)

    @property
    def block(self) -> int:
        return self.compress_block or min(2 * self.stride, self.block_size)


class Compress(nn.Module):
    """phi of equation 7: keys (or values) of a block and where they stand in it, through an MLP, to a single one."""

    def __init__(self, block: int, head_dim: int):
        super().__init__()
        self.place = nn.Embedding(block, head_dim)
        self.mlp = nn.Sequential(nn.Linear(block * head_dim, head_dim), nn.GELU(), nn.Linear(head_dim, head_dim))

    def forward(self, x_BHUSD: Tensor, real_BUS: Tensor) -> Tensor:
        placed = (x_BHUSD + self.place.weight).masked_fill(~real_BUS[:, None, ..., None], 0)
        y_BHUD: Tensor = self.mlp(placed.flatten(-2))
        return y_BHUD


class NSA(QKVMixer):
    """Base projections serve queries and the selected branch; `more_kv` the compressed and the window branch."""

    def __init__(self, shape: MixerShape, options: Options):
        super().__init__(shape)
        least = 3 if shape.causal else 4
        if options.top_n < least:
            raise AttnbenchError(f"{least} blocks are always selected, so top_n={options.top_n} is too few")
        self.options = options
        self.more_kv = projection(shape, 4)
        self.compress_k = Compress(options.block, shape.head_dim)
        self.compress_v = Compress(options.block, shape.head_dim)
        self.gate = nn.Sequential(
            nn.Linear(shape.dim, shape.dim), nn.GELU(), nn.Linear(shape.dim, 3 * shape.heads), nn.Sigmoid()
        )
        after = 0 if shape.causal else options.window
        self.near = Pattern(TokenWindow(options.block_size, options.window, after))
        self.attend_near = path("gather")

    def forward(self, x: Tensor, mask: Tensor | None = None, layout: Layout | None = None) -> Tensor:
        layout = layout or Layout(NO_TOKENS, x.shape[1])
        x, where = clear(x, mask), positions(layout, x.device)
        q, k, v = self.project(x, where)
        k_cmp, v_cmp, k_win, v_win = self.more_kv(x).unflatten(-1, (4, self.shape.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.shape.rotary:
            k_win = rotate(k_win, where)
        y_cmp, p_cmp = self.compressed(q, k_cmp, v_cmp, mask, layout)
        chosen = self.select_blocks(p_cmp[:, :, layout.specials :], mask, layout)
        y_slc = attend_chosen(q, k, v, chosen, mask, layout, self.options.block_size, self.shape.causal)
        y_win = self.attend_near(q, k_win, v_win, self.near, mask, layout)
        g_cmp, g_slc, g_win = self.gate(x).unflatten(-1, (3, -1, 1)).permute(2, 0, 3, 1, 4)  # (B, H, R, 1) each
        return self.join(g_cmp * y_cmp + g_slc * y_slc + g_win * y_win)

    def compressed(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layout: Layout) -> tuple[Tensor, Tensor]:
        """What all rows get from the compressed blocks, (B, H, R, D), and the probabilities, (B, H, R, U)."""
        block, stride = self.options.block, self.options.stride
        start_U = torch.arange(0, layout.length, stride, device=q.device)
        rows_US = start_U[:, None] + torch.arange(block, device=q.device)
        real_BUS = F.pad(real_rows(q, mask, layout), (0, block))[:, rows_US]
        k, v = (F.pad(x[:, :, layout.specials :], (0, 0, 0, block))[:, :, rows_US] for x in (k, v))
        k_BHUD, v_BHUD = self.compress_k(k, real_BUS), self.compress_v(v, real_BUS)
        if self.shape.rotary:
            middle = start_U + block // 2 - (0 if layout.moved else layout.shift)
            k_BHUD = rotate(k_BHUD, middle.clamp(min=0))
        hidden = ~real_BUS.any(2)[:, None, None]
        if self.shape.causal:
            hidden = hidden | (start_U + block > torch.arange(layout.length, device=q.device)[:, None] + 1)
        scores = q @ k_BHUD.transpose(2, 3) * q.shape[-1] ** -0.5
        p_BHRU = softmax(scores, hidden)
        return p_BHRU @ v_BHUD, p_BHRU

    def select_blocks(self, p_BHNU: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
        """(B, H, N, up to top_n) int64, -1 = nothing: equations 9 to 11 and the blocks that are always selected."""
        stride, size = self.options.stride, self.options.block_size
        has_key_BK = in_blocks(real_rows(p_BHNU, mask, layout), size, dim=1).any(2)
        blocks = has_key_BK.shape[1]
        # equation 9: a compressed block counts for a block once for each stride of rows they share
        first_U1 = torch.arange(p_BHNU.shape[-1], device=p_BHNU.device)[:, None]
        covered = (first_U1 + torch.arange(self.options.block // stride, device=p_BHNU.device)) // (size // stride)
        shared_UK = F.one_hot(covered, blocks + 1).sum(1)[:, :blocks]
        importance = p_BHNU.detach() @ shared_UK.to(p_BHNU.dtype)
        if self.options.share_selection:
            importance = importance.sum(1, keepdim=True).expand_as(importance)
        block_K = torch.arange(blocks, device=p_BHNU.device)
        ahead_NK = block_K - torch.arange(layout.length, device=p_BHNU.device)[:, None] // size
        first = block_K == has_key_BK.int().argmax(1)[:, None, None, None]
        allowed = has_key_BK[:, None, None]
        if self.shape.causal:
            allowed = allowed & (ahead_NK <= 0)
        return choose(importance, allowed, first | (ahead_NK.abs() <= 1), self.options.top_n)
