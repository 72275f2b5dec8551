"""The dense path: the whole visibility matrix and masked softmax attention. Slow, readable, the definition of correct.

Shape letters: B batch, H heads (1 = all alike), R rows, N content rows, G global content rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.contracts import Layout
from attnbench.layers import attention
from attnbench.sparse.pattern import Pattern
from attnbench.sparse.topology import blocks_of, visible


def dense(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, mask: Tensor | None, layout: Layout) -> Tensor:
    """See `attnbench.sparse`."""
    memo_key = ("dense", pattern, id(mask), q.device)
    if memo_key not in layout.memo:
        layout.memo[memo_key] = mask, visibility(pattern, mask, layout, len(q), q.device)
    _, seen_BHRR = layout.memo[memo_key]
    return attention(q, k, v, seen_BHRR)


def visibility(pattern: Pattern, mask: Tensor | None, layout: Layout, batch: int, device: torch.device) -> Tensor:
    """(B or 1, H, R, R) bool, row = query: who sees whom, as laid down in `attnbench.sparse`."""
    g, s = layout.globals, layout.specials
    in_grid = _grid(pattern, layout).to(device)  # (H, R - g, R - g)
    seen_HRR = torch.ones(in_grid.shape[0], layout.rows, layout.rows, dtype=torch.bool, device=device)
    seen_HRR[:, g:, g:] = in_grid
    if pattern.broadcast:
        seen_HRR[:, :, g:s] = True
    seen = seen_HRR[None]
    positions, valid = pattern.globals_of(layout, mask, batch, device)
    if positions.shape[1]:
        is_global = torch.zeros(batch, layout.rows, dtype=torch.bool, device=device)
        for column in range(positions.shape[1]):
            where = positions[:, column] + s
            is_global |= valid[:, column, None] & (torch.arange(layout.rows, device=device) == where[:, None])
        seen = seen | is_global[:, None, :, None] | is_global[:, None, None, :]
    if mask is not None:
        seen = seen & mask[:, None, None, :]
    return seen


def _grid(pattern: Pattern, layout: Layout) -> Tensor:
    """(H, R - g, R - g) bool over representatives and content."""
    topology, s = pattern.topology, layout.specials - layout.globals
    pattern.order(layout)  # refuses what no path can do
    content = visible(topology, layout.length)
    heads, n = content.shape[0], layout.length
    block = torch.cat(
        [
            torch.arange(layout.blocks).repeat_interleave(layout.reps_per_block),
            blocks_of(topology, n),
        ]
    )
    seen = topology.block_map(n)[:, block[:, None], block[None, :]].expand(heads, -1, -1).clone()
    seen[:, s:, s:] = content
    return seen
