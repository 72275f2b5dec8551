"""The gather path: key blocks are gathered by an index table and met by one batched product. Any device, exact.

Rows of the grid: block by block, its representatives first, then its content, so W = reps_per_block + block_size.
Keys beside the grid (global rows, global content, broadcast representatives) form a strip that every row sees.
Shape letters: B batch, H heads, K blocks, M key blocks a query block sees, W rows of a block, S strip, D head width.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.contracts import Layout
from attnbench.layers import attention
from attnbench.sparse.pattern import Pattern
from attnbench.sparse.topology import Topology


@functools.lru_cache(maxsize=64)
def block_table(topology: Topology, length: int) -> Tensor:
    """(H or 1, K, M) int64: the key blocks that each query block sees, -1 where it sees fewer than M."""
    seen = topology.block_map(length)
    blocks, width = seen.shape[-1], int(seen.sum(-1).max())
    order = torch.where(seen, torch.arange(blocks), blocks).sort(-1).values[..., :width]
    return torch.where(order < blocks, order, -1)


@dataclass(frozen=True)
class _Plan:
    """Tables of one call, shared by all layers."""

    table: Tensor  # (H or 1, K, M) int64, -1 = nothing
    order: Tensor | None  # (N,) int64, content positions as the grid holds them; None = as they come
    hidden: Tensor | None  # bool, broadcasts to (B, H, K, W, M * W + S): key not seen; None = all seen
    any_seen: Tensor | None  # bool, broadcasts to (B, H, K, W, 1); None = every row sees something
    positions: Tensor  # (B, G) int64, global content
    valid: Tensor  # (B, G) bool


def gather(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, mask: Tensor | None, layout: Layout) -> Tensor:
    """See `attnbench.sparse`."""
    memo_key = ("gather", pattern, id(mask), q.device)
    if memo_key not in layout.memo:
        layout.memo[memo_key] = mask, _plan(pattern, mask, layout, len(q), q.device)
    plan: _Plan = layout.memo[memo_key][1]
    y_grid = _attend_grid(q, k, v, pattern, layout, plan)
    g, s, n = layout.globals, layout.specials, layout.length
    reps, content = y_grid.split([layout.reps_per_block, pattern.topology.block_size], dim=3)
    content = content.flatten(2, 3)[:, :, :n]
    if plan.order is not None:
        content = torch.empty_like(content).index_copy(2, plan.order, content)
    key_mask = None if mask is None else mask[:, None, None, :]
    if plan.positions.shape[1]:
        where = (plan.positions + s)[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
        rows = attention(q.gather(2, where), k, v, key_mask)
        content = _overwrite(content, plan.positions, plan.valid, rows)
    parts = [reps.flatten(2, 3), content]
    if g:
        parts.insert(0, attention(q[:, :, :g], k, v, key_mask))
    return torch.cat(parts, dim=2)


def _attend_grid(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, layout: Layout, plan: _Plan) -> Tensor:
    """(B, H, K, W, D): every row of the grid over its key blocks and the strip."""
    scale = q.shape[-1] ** -0.5
    q_grid = _grid(q * scale, layout, pattern.topology.block_size, plan.order)
    k_near, v_near = (
        _gather_blocks(_grid(x, layout, pattern.topology.block_size, plan.order), plan.table) for x in (k, v)
    )
    scores = q_grid @ k_near.transpose(-1, -2)
    near = scores.shape[-1]
    k_strip, v_strip = (_strip(x, pattern, layout, plan) for x in (k, v))
    if k_strip.shape[2]:
        scores = torch.cat([scores, q_grid @ k_strip[:, :, None].transpose(-1, -2)], dim=-1)
    if plan.hidden is not None:
        scores = scores.masked_fill(plan.hidden, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    if plan.any_seen is not None:
        weights = weights * plan.any_seen
    y = weights[..., :near] @ v_near
    return y + weights[..., near:] @ v_strip[:, :, None] if k_strip.shape[2] else y


def _grid(x: Tensor, layout: Layout, block_size: int, order: Tensor | None) -> Tensor:
    """(B, H, rows, D) -> (B, H, K, W, D): global rows dropped, content in the grid's order, padded to whole blocks."""
    blocks = -(-layout.length // block_size)
    content = x[:, :, layout.specials :]
    content = content if order is None else content[:, :, order]
    content = F.pad(content, (0, 0, 0, blocks * block_size - layout.length))
    grid: Tensor = content.unflatten(2, (blocks, block_size))
    if not layout.reps_per_block:
        return grid
    reps = x[:, :, layout.globals : layout.specials].unflatten(2, (blocks, layout.reps_per_block))
    return torch.cat([reps, grid], dim=3)


def _gather_blocks(x: Tensor, table: Tensor) -> Tensor:
    """(B, H, K, W, D) -> (B, H, K, M * W, D)."""
    heads, blocks, width = table.shape
    index = table.clamp(min=0)
    if heads == 1:
        found = x.index_select(2, index.flatten())
    else:
        per_head = index + torch.arange(heads, device=x.device)[:, None, None] * blocks
        found = x.flatten(1, 2).index_select(1, per_head.flatten())
    return found.view(*x.shape[:2], blocks, width * x.shape[3], x.shape[4])


def _strip(x: Tensor, pattern: Pattern, layout: Layout, plan: _Plan) -> Tensor:
    """(B, H, S, D): keys or values every row of the grid sees."""
    end = layout.specials if pattern.broadcast else layout.globals
    parts = [x[:, :, :end]]
    if plan.positions.shape[1]:
        where = (plan.positions + layout.specials)[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
        parts.append(x.gather(2, where))
    return torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]


def _overwrite(content: Tensor, positions: Tensor, valid: Tensor, rows: Tensor) -> Tensor:
    """Puts rows (B, H, G, D) at their content positions (B, G) where valid."""
    spare = content.shape[2]  # invalid ones go to a spare row that is cut off again
    where = positions.where(valid, spare)[:, None, :, None].expand_as(rows)
    return F.pad(content, (0, 0, 0, 1)).scatter(2, where, rows)[:, :, :spare]


def _plan(pattern: Pattern, mask: Tensor | None, layout: Layout, batch: int, device: torch.device) -> _Plan:
    topology, b, n, r = pattern.topology, pattern.topology.block_size, layout.length, layout.reps_per_block
    table = block_table(topology, n).to(device)
    order = pattern.order(layout)
    order = None if order is None else order.to(device)
    positions, valid = pattern.globals_of(layout, mask, batch, device)
    seen_BKW = _seen_in_grid(pattern, mask, layout, positions, valid, order)
    near = None
    if not bool(seen_BKW.all()) or bool((table < 0).any()):
        gathered = seen_BKW[:, table.clamp(min=0)] & (table >= 0)[None, ..., None]  # (B, H, K, M, W)
        near = gathered.flatten(-2)[:, :, :, None]  # (B, H, K, 1, M * W)
    rule = _element_rule(topology, table, order, n, r)
    if rule is not None:
        near = rule[None] if near is None else near & rule[None]
    strip = _seen_in_strip(pattern, mask, layout, valid, batch, device)
    if near is None and bool(strip.all()):
        return _Plan(table, order, None, None, positions, valid)
    if near is None:
        near = torch.ones(1, 1, 1, 1, table.shape[-1] * (r + b), dtype=torch.bool, device=device)
    lead = torch.broadcast_shapes(near.shape[:-1], strip.shape[:-1])
    seen = torch.cat([near.expand(*lead, -1), strip.expand(*lead, -1)], dim=-1)
    any_seen = seen.any(-1, keepdim=True)
    return _Plan(table, order, ~seen, None if bool(any_seen.all()) else any_seen, positions, valid)


def _seen_in_grid(
    pattern: Pattern, mask: Tensor | None, layout: Layout, positions: Tensor, valid: Tensor, order: Tensor | None
) -> Tensor:
    """(B or 1, K, W) bool: keys of the grid that may be seen there; what the strip shows is not shown twice."""
    b, n, device = pattern.topology.block_size, layout.length, positions.device
    content = torch.ones(1, n, dtype=torch.bool, device=device) if mask is None else mask[:, layout.specials :]
    if positions.shape[1]:
        in_strip = torch.zeros(len(positions), n + 1, dtype=torch.bool, device=device)
        in_strip = in_strip.scatter(1, positions.where(valid, n), True)[:, :n]
        content = content & ~in_strip
    content = content if order is None else content[:, order]
    blocks = -(-n // b)
    grid: Tensor = F.pad(content, (0, blocks * b - n)).unflatten(1, (blocks, b))
    if not layout.reps_per_block:
        return grid
    real = torch.ones(1, layout.reps, dtype=torch.bool, device=device)
    reps = real if mask is None else mask[:, layout.globals : layout.specials]
    reps = (reps & (not pattern.broadcast)).unflatten(1, (blocks, layout.reps_per_block))
    batch = max(len(reps), len(grid))
    return torch.cat([reps.expand(batch, -1, -1), grid.expand(batch, -1, -1)], dim=2)


def _seen_in_strip(
    pattern: Pattern, mask: Tensor | None, layout: Layout, valid: Tensor, batch: int, device: torch.device
) -> Tensor:
    """(B or 1, 1, 1, 1, S) bool."""
    end = layout.specials if pattern.broadcast else layout.globals
    special = torch.ones(1, end, dtype=torch.bool, device=device) if mask is None else mask[:, :end]
    if valid.shape[1]:
        special = torch.cat([special.expand(batch, -1), valid], dim=1)
    return special[:, None, None, None]


def _element_rule(topology: Topology, table: Tensor, order: Tensor | None, length: int, reps: int) -> Tensor | None:
    """(H or 1, K, W, M * W) bool for topologies that show blocks in part; representatives follow the block."""
    b, blocks = topology.block_size, table.shape[1]
    held = torch.arange(blocks * b, device=table.device)
    if order is not None:
        held = torch.cat([order, held[length:]])
    held_Kb = held.view(blocks, b)
    rule = topology.element(held_Kb[None, :, :, None, None], held_Kb[table.clamp(min=0)][:, :, None])
    if rule is None:
        return None
    return F.pad(rule, (reps, 0, 0, 0, reps, 0), value=True).flatten(-2)
