"""What one call of the gather path sees, as tables that all layers share, and in which form its keys are found.

Rows of the grid: block by block, its representatives first, then its content, so W = reps_per_block + block_size.
Rows beside the grid (global rows, global content, broadcast representatives) form a strip that every row sees.
Shape letters: B batch, H heads, K blocks, Q blocks that ask, M key blocks each of them sees, W rows of a block,
S strip, G global content rows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.contracts import Layout
from attnbench.sparse.pattern import Pattern
from attnbench.sparse.topology import Topology


@dataclass(frozen=True)
class Plan:
    """Tables of one call, shared by all layers with one pattern. A bias is 0 or `hide(dtype)`."""

    first: int  # rows in front of the grid
    reps: int  # representatives of a block; they lead its rows
    block_size: int
    length: int
    order: Tensor | None  # (N,) int64, content positions as the grid holds them; None = as they come
    skip: int  # blocks in front that do not ask, for all their rows are global
    table: Tensor  # (H or 1, Q, M) int64, key blocks of the blocks that ask, -1 = nothing
    window: tuple[int, int] | None  # neighbours (left, right) of every block, where that is the pattern
    keys: Tensor | None  # (B or 1, K, W), bias of the grid's keys; None = all seen
    rule: Tensor | None  # (H or 1, Q or 1, W, M * W), bias of pairs; None = all seen
    strip: Tensor  # (B, S) int64, rows that every row of the grid sees besides
    strip_keys: Tensor | None  # (B or 1, S), bias of the strip's keys; None = all seen
    blank: Tensor | None  # (B or 1, H or 1, rows - first, 1) bool, rows that see nothing; None = there are none

    @property
    def width(self) -> int:
        return self.reps + self.block_size

    @property
    def asking(self) -> slice:
        """Which rows of the result are computed; the others are zeros."""
        end = (self.skip + self.table.shape[1]) * self.block_size
        return slice(self.skip * self.block_size, min(end, self.length) + self.reps * self.table.shape[1])


def hide(dtype: torch.dtype) -> float:
    """The bias of what is not seen: a quarter of the lowest number, so that two of them and a score are finite."""
    return torch.finfo(dtype).min / 4


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


def make_plan(
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
