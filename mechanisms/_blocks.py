"""Attention in which every row chooses its own blocks of keys: what `moba` and `nsa` share.

Blocks stand on content positions, so padding moves none of them. Rows in front of the content (a CLS row, where the
encoder puts one) see all rows and are seen by all, as everywhere in attnbench.
Shape letters: B batch, H heads, R all rows, N content rows, K blocks, M chosen blocks of a row, W rows of a block,
D width of a head, G = B * H * K blocks of a call, P = B * H * N * M pairs of a row and a block it chose, T tiles.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.contracts import Layout
from attnbench.layers import attention


def real_rows(like_BHRD: Tensor, mask_BR: Tensor | None, layout: Layout) -> Tensor:
    """(B, N) bool: which content rows are no padding."""
    if mask_BR is None:
        return like_BHRD.new_ones(like_BHRD.shape[0], layout.length, dtype=torch.bool)
    return mask_BR[:, layout.specials :]


def in_blocks(rows: Tensor, block_size: int, dim: int) -> Tensor:
    """Splits dimension `dim` into (blocks, rows of a block); a short last block is filled with zeros (False)."""
    spare = -rows.shape[dim] % block_size
    filled = F.pad(rows, (0, 0) * (rows.ndim - 1 - dim) + (0, spare))
    blocks: Tensor = filled.unflatten(dim, (-1, block_size))
    return blocks


def choose(scores_BHNK: Tensor, allowed: Tensor, always: Tensor, count: int) -> Tensor:
    """(B, H, N, M) int64: the `count` best blocks of each row among those allowed, -1 where there are fewer.

    Those in `always`, if allowed, go before all others. The choice has no gradient. Of equal scores the earlier block
    wins, however many blocks of padding follow; `topk` would promise no order.
    """
    ranked = scores_BHNK.detach().masked_fill(always, math.inf).masked_fill(~allowed, -math.inf)
    best, block = ranked.sort(dim=-1, descending=True, stable=True)
    return torch.where(best > -math.inf, block, -1)[..., :count]


def softmax(scores: Tensor, hidden: Tensor) -> Tensor:
    """Over the last dimension, with nothing where hidden; zeros for a row that sees nothing."""
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(hidden, 0)


def attend_chosen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen_BHNM: Tensor,
    mask: Tensor | None,
    layout: Layout,
    block_size: int,
    causal: bool,
) -> Tensor:
    """Softmax attention of content rows over the real keys of the blocks they chose, (B, H, R, D).

    Pairs of a row and a block are sorted by block and cut into tiles that share one block, so that every product is
    one of matrices and memory grows with the pairs: neither all pairs of rows nor a copy of its keys for each row.
    """
    front = layout.specials
    q_BHND, k_BHND, v_BHND = (x[:, :, front:] for x in (q * q.shape[-1] ** -0.5, k, v))
    k_GWD, v_GWD = (in_blocks(x, block_size, dim=2).flatten(0, 2) for x in (k_BHND, v_BHND))
    block_T, slot_P = _tiles(chosen_BHNM, -(-layout.length // block_size), block_size)

    def to_tiles(pairs: Tensor) -> Tensor:
        slots = pairs.new_zeros(len(block_T) * block_size, pairs.shape[-1])
        tiles: Tensor = slots.index_copy(0, slot_P, pairs.flatten(0, -2)).unflatten(0, (-1, block_size))
        return tiles

    def to_pairs(tiles: Tensor) -> Tensor:
        return tiles.flatten(0, 1).index_select(0, slot_P).view(*chosen_BHNM.shape, -1)

    q_tiles = to_tiles(q_BHND.unsqueeze(3).expand(*chosen_BHNM.shape, -1))
    near = to_pairs(q_tiles @ k_GWD.index_select(0, block_T).transpose(1, 2)).flatten(3)  # (B, H, N, M * W)
    ahead = q_BHND @ k[:, :, :front].transpose(2, 3)
    hidden = ~_seen(chosen_BHNM, real_rows(q, mask, layout), block_size, causal).flatten(3)
    weights = softmax(torch.cat([near, ahead], dim=-1), F.pad(hidden, (0, front)))
    near, ahead = weights.split([near.shape[-1], front], dim=-1)
    near_tiles = to_tiles(near.unflatten(3, (-1, block_size)))
    y = to_pairs(near_tiles @ v_GWD.index_select(0, block_T)).sum(3) + ahead @ v[:, :, :front]
    y_front = attention(q[:, :, :front], k, v, None if mask is None else mask[:, None, None, :])
    return torch.cat([y_front, y], dim=2)


def _tiles(chosen_BHNM: Tensor, blocks: int, tile: int) -> tuple[Tensor, Tensor]:
    """(T,) the block in 0..G of each tile, and (P,) the place of each pair when tiles stand one behind the other."""
    heads = chosen_BHNM.shape[:2].numel()
    first = torch.arange(heads, device=chosen_BHNM.device) * blocks
    # a choice of nothing (-1) goes with block 0: it is hidden later
    block_P = (chosen_BHNM.clamp(min=0).flatten(0, 1).flatten(1) + first[:, None]).flatten()
    pairs_G = block_P.bincount(minlength=heads * blocks)
    tiles_G = (pairs_G + tile - 1) // tile
    block_T = torch.arange(heads * blocks, device=block_P.device).repeat_interleave(tiles_G)
    order_P = block_P.argsort(stable=True)
    gap_G = (tiles_G.cumsum(0) - tiles_G) * tile - (pairs_G.cumsum(0) - pairs_G)  # unfilled places before a block's
    place_P = torch.arange(len(order_P), device=block_P.device) + gap_G[block_P[order_P]]
    return block_T, torch.empty_like(order_P).scatter(0, order_P, place_P)


def _seen(chosen_BHNM: Tensor, real_BN: Tensor, block_size: int, causal: bool) -> Tensor:
    """(B, H, N, M, W) bool: real keys of chosen blocks, and none later than the row where causal."""
    real_BKW = in_blocks(real_BN, block_size, dim=1)
    example = torch.arange(len(real_BN), device=real_BN.device)[:, None, None, None]
    seen: Tensor = real_BKW[example, chosen_BHNM.clamp(min=0)] & (chosen_BHNM >= 0)[..., None]
    if causal:
        place = torch.arange(real_BN.shape[1], device=real_BN.device)
        offset = torch.arange(block_size, device=real_BN.device)
        seen = seen & (chosen_BHNM[..., None] * block_size + offset <= place[:, None, None])
    return seen
