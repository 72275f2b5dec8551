"""The gather path: attention in blocks, over the key blocks that each query block sees. Any device, exact.

Rows of the grid: block by block, its representatives first, then its content, so W = reps_per_block + block_size.
Rows beside the grid (global rows, global content, broadcast representatives) form a strip that every row sees. This
file decides what is seen and in which form it is found; `slabs` computes.
Shape letters: B batch, H heads, K blocks, M key blocks a query block sees, W rows of a block, S strip, D head width.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.contracts import Layout
from attnbench.layers import attention
from attnbench.sparse.pattern import Pattern
from attnbench.sparse.slabs import Plan, Slabs, hide
from attnbench.sparse.topology import Topology


def gather(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, mask: Tensor | None, layout: Layout) -> Tensor:
    """See `attnbench.sparse`."""
    memo_key = ("gather", pattern, id(mask), q.device, q.dtype)
    if memo_key not in layout.memo:
        layout.memo[memo_key] = mask, *_plan(pattern, mask, layout, len(q), q)
    _, plan, positions, valid = layout.memo[memo_key]
    y: Tensor = Slabs.apply(q, k, v, plan)  # type: ignore[no-untyped-call]
    key_mask = None if mask is None else mask[:, None, None, :]
    if positions.shape[1]:
        where = (positions + layout.specials)[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
        rows = attention(q.gather(2, where), k, v, key_mask)
        y = _overwrite(y, where - layout.globals, valid, rows)
    if layout.globals:
        y = torch.cat([attention(q[:, :, : layout.globals], k, v, key_mask), y], dim=2)
    return y


def _overwrite(y: Tensor, where: Tensor, valid: Tensor | None, rows: Tensor) -> Tensor:
    """Puts rows (B, H, G, D) at their places in y where valid (None = all are)."""
    if valid is None:
        return y.scatter(2, where, rows)
    spare = y.shape[2]  # the others go to a spare row that is cut off again
    where = where.where(valid[:, None, :, None], spare)
    return F.pad(y, (0, 0, 0, 1)).scatter(2, where, rows)[:, :, :spare]


@functools.lru_cache(maxsize=64)
def block_table(topology: Topology, length: int) -> tuple[Tensor, tuple[int, int] | None]:
    """(H or 1, K, M) int64, the key blocks that each query block sees, -1 = none; and how many neighbours (left,
    right) every block has, if that is all there is to the pattern: then column m of the table is neighbour m - left.
    """
    seen = topology.block_map(length)
    blocks, width = seen.shape[-1], max(1, int(seen.sum(-1).max()))
    at = torch.arange(blocks)
    distance = at - at[:, None]
    left, right = (int((side * distance * seen[0]).max()) for side in (-1, 1))
    if left + right + 1 == width and torch.equal(seen, ((distance >= -left) & (distance <= right)).expand_as(seen)):
        table = at[:, None] + torch.arange(-left, right + 1)
        return torch.where((table >= 0) & (table < blocks), table, -1)[None], (left, right)
    order = torch.where(seen, at, blocks).sort(-1).values[..., :width]
    return torch.where(order < blocks, order, -1), None


def _plan(
    pattern: Pattern, mask: Tensor | None, layout: Layout, batch: int, like: Tensor
) -> tuple[Plan, Tensor, Tensor | None]:
    """The plan; positions (B, G) of the global content and which of them are valid, None = all."""
    topology, device = pattern.topology, like.device
    found, window = block_table(topology, layout.length)
    table, order = found.to(device), pattern.order(layout)
    order = None if order is None else order.to(device)
    positions, valid = pattern.globals_of(layout, mask, batch, device)
    keys = _seen_in_grid(pattern, mask, layout, positions, valid, order)  # (B or 1, K, W)
    strip = torch.arange(layout.specials if pattern.broadcast else layout.globals, device=device).expand(batch, -1)
    strip_keys = torch.ones_like(strip[:1], dtype=torch.bool) if mask is None else mask[:, : strip.shape[1]]
    if positions.shape[1]:
        strip = torch.cat([strip, positions + layout.specials], dim=1)
        strip_keys = torch.cat([strip_keys.expand(batch, -1), valid], dim=1)
    rule = _element_rule(topology, table, order, layout.length, layout.reps_per_block)
    hidden = bool((table < 0).any())
    blank = _blank(keys, strip_keys, rule, table, layout, order)
    if window is None and not layout.reps_per_block and order is None:
        skip, end = _asking(positions, valid, layout.length, topology.block_size)
        table, rule = table[:, skip:end], None if rule is None else rule[:, skip:end]
    else:
        skip = 0
    plan = Plan(
        first=layout.globals,
        reps=layout.reps_per_block,
        block_size=topology.block_size,
        length=layout.length,
        order=order,
        skip=skip,
        table=table,
        window=window,
        keys=_bias(keys, like, needed=hidden),
        rule=None if rule is None else _bias(_once(rule, table, window), like),
        strip=strip,
        strip_keys=_bias(strip_keys, like),
        blank=blank,
    )
    return plan, positions, None if bool(valid.all()) else valid


def _asking(positions: Tensor, valid: Tensor, length: int, block_size: int) -> tuple[int, int]:
    """From and to which block there are rows that are not global, in any example; one block at least."""
    asks = torch.ones(len(positions), length + 1, dtype=torch.bool, device=positions.device)
    asks = asks.scatter(1, positions.where(valid, length), False)[:, :length].any(0)
    found = asks.nonzero()
    blocks = -(-length // block_size)
    return (int(found[0]) // block_size, int(found[-1]) // block_size + 1) if len(found) else (0, blocks)


def _bias(seen: Tensor, like: Tensor, needed: bool = False) -> Tensor | None:
    if not needed and bool(seen.all()):
        return None
    return torch.zeros_like(seen, dtype=like.dtype).masked_fill_(~seen, hide(like.dtype))


def _once(rule: Tensor, table: Tensor, window: tuple[int, int] | None) -> Tensor:
    """(H or 1, K or 1, ...): one block for all where a window shows every block the same part of its neighbours."""
    if window is None:
        return rule
    shown = (table >= 0).repeat_interleave(rule.shape[-1] // table.shape[-1], dim=-1)[:, :, None]
    whole = int((table >= 0).sum(-1).argmax())
    model = rule[:, whole : whole + 1]
    if bool(((rule == model) | ~shown).all()):
        return model
    return F.pad(rule, (0, 0, 0, 0, 0, max(window)))  # as far apart as the heads stand in a pool


def _blank(
    keys: Tensor, strip_keys: Tensor, rule: Tensor | None, table: Tensor, layout: Layout, order: Tensor | None
) -> Tensor | None:
    """(B or 1, H or 1, R - g, 1) bool, rows that see nothing; None = there are none. Example by example: all pairs of
    a batch at once would be more than all that the attention holds.
    """
    if bool(strip_keys.any(1).all()):
        return None
    seen_any = []
    for one in keys:
        near = (one[table.clamp(min=0)] & (table >= 0)[..., None]).flatten(-2)[:, :, None]  # (H, K, 1, M * W)
        seen_any.append((near if rule is None else near & rule).any(-1))
    shown = torch.stack(seen_any) | strip_keys.any(1).view(-1, 1, 1, 1)
    if bool(shown.all()):
        return None
    shown = shown.expand(-1, -1, -1, keys.shape[-1])
    reps, content = shown.split([layout.reps_per_block, shown.shape[-1] - layout.reps_per_block], dim=3)
    content = content.flatten(2)[:, :, : layout.length]
    if order is not None:
        content = torch.empty_like(content).index_copy_(2, order, content)
    return ~torch.cat([reps.flatten(2), content], dim=2)[..., None]


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
    rule = rule.expand(-1, -1, b, table.shape[2], b)
    return F.pad(rule, (reps, 0, 0, 0, reps, 0), value=True).flatten(-2)
