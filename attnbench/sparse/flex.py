"""The FlexAttention path: a compiled kernel for CUDA that skips tiles of rows in which nothing is seen.

A pattern becomes data alone: which tiles show something, which show everything, and the bits of the others, equal ones
once. The kernel's mask reads those tensors and knows no topology, so one compiled kernel serves all patterns, unions,
rules of the user's own and lengths.

Trouble that would be silent is loud here. The compiled function refuses to run as plain Python (`_attend`), which is
what PyTorch does for good after one failed compilation and, without `fullgraph`, past its limit of recompilations. So
that a failed one is not provoked, the domain refuses a backward pass on the CPU, which has none, beforehand. Kernels
are compiled with symbolic sizes; new ones come for another head width, number of heads, dtype, with or without mask or
gradient, and now and then for a size: one, less than a tile, a multiple of it, or no longer equal to another size.

Shape letters: B batch (1 = all alike), H heads, R rows, T tiles of rows, C pairs of tiles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from attnbench.contracts import Layout, Tokens
from attnbench.sparse.paths import Call
from attnbench.sparse.pattern import Pattern
from attnbench.sparse.topology import blocks_of

#: Rows of a tile; the kernels' own tiles divide it.
TILE = 128
_PAIRS_AT_ONCE = 1 << 24
_KERNELS_AT_MOST = 256


def domain(pattern: Pattern, call: Call) -> str | None:
    """See `attnbench.sparse.paths.Domain`."""
    if call.device.type == "cpu":
        return "FlexAttention has no backward pass on a CPU; use path=gather" if call.grad else None
    if call.device.type != "cuda":
        return f"runs on CUDA, got {call.device.type}"
    if call.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"takes float32, bfloat16 and float16, got {call.dtype}"
    if not 16 <= call.width <= 256:
        return f"takes heads of 16 to 256 columns, got {call.width}"
    return None


def flex(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, mask: Tensor | None, layout: Layout) -> Tensor:
    """See `attnbench.sparse`."""
    memo_key = ("flex", pattern, id(mask), q.shape[1], q.device)
    if memo_key not in layout.memo:
        tiles = _tiles(pattern, layout.tokens, layout.length, q.shape[1], q.device)
        layout.memo[memo_key] = mask, tiles, _of_batch(tiles, pattern, mask, layout, len(q))
    _, tiles, shown = layout.memo[memo_key]
    if tiles.rows is not None:
        q, k, v = q[:, :, tiles.rows], k[:, :, tiles.rows], v[:, :, tiles.rows]
    y = _compiled(q, k, v, shown) if q.is_cuda else flex_attention(q, k, v, block_mask=shown)
    return y if tiles.rows is None else torch.empty_like(y).index_copy(2, tiles.rows, y)


def _compiled(q: Tensor, k: Tensor, v: Tensor, shown: BlockMask) -> Tensor:
    with torch._dynamo.config.patch(recompile_limit=_KERNELS_AT_MOST):
        return _kernel()(q, k, v, shown)


@functools.cache
def _kernel() -> Callable[[Tensor, Tensor, Tensor, BlockMask], Tensor]:
    return torch.compile(_attend, dynamic=True, fullgraph=True)


def _attend(q: Tensor, k: Tensor, v: Tensor, shown: BlockMask) -> Tensor:
    if not torch.compiler.is_compiling():
        raise RuntimeError("PyTorch gave up compiling FlexAttention in this process; start a new one")
    y: Tensor = flex_attention(q, k, v, block_mask=shown)
    return y


# eq=False: compared by identity, as it holds tensors
@dataclass(frozen=True, eq=False)
class _Tiles:
    """A pattern among the rows of a layout when all are real. `slot` says where in `bits` the bits of a tile stand."""

    rows: Tensor | None  # (R,) int64, the order in which the kernel has the rows; None = as they come
    some: Tensor  # (1, H or 1, T, T) bool, a pair of rows is seen
    every: Tensor  # (1, H or 1, T, T) bool, all are
    slot: Tensor  # (H, T, T) int32
    bits: Tensor  # (slots, TILE, TILE) bool
    shown: BlockMask


@functools.lru_cache(maxsize=64)
def _tiles(pattern: Pattern, tokens: Tokens, length: int, heads: int, device: torch.device) -> _Tiles:
    layout = Layout(tokens, length)
    table = _rows(pattern, layout, device)
    blocks = pattern.topology.block_map(length).to(device)
    pairs = _candidates(pattern, table, blocks)
    nothing = torch.zeros(1, TILE * TILE, dtype=torch.bool, device=device)
    kept, slots, count = [nothing], list[Tensor](), 1  # equal ones go as they come: all at once may not fit into memory
    for some in pairs.split(max(1, _PAIRS_AT_ONCE // (len(blocks) * TILE * TILE))):
        seen = _seen(pattern, table, blocks, some)
        new, place = seen.flatten(0, 1).flatten(1).unique(dim=0, return_inverse=True)
        kept, slots, count = [*kept, new], [*slots, place.view(seen.shape[:2]) + count], count + len(new)
    bits, place = torch.cat(kept).unique(dim=0, return_inverse=True)
    found = torch.cat(slots, dim=1)  # (H or 1, C)
    t = -(-layout.rows // TILE)
    slot = place[0].expand(len(found), t, t).clone()
    slot[:, pairs[:, 0], pairs[:, 1]] = place[found]
    some, every = bits.any(-1)[slot][None], bits.all(-1)[slot][None]
    slot, bits = slot.to(torch.int32).expand(heads, -1, -1).contiguous(), bits.unflatten(1, (TILE, TILE))
    shown = _block_mask(some, every, layout.rows, _in_pattern(slot, bits))
    return _Tiles(table.order, some, every, slot, bits, shown)


def _in_pattern(slot: Tensor, bits: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The kernel's mask. The tile's size stands here as a number: a name would become an argument of the kernel."""

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return bits[slot[h, q // 128, k // 128], q % 128, k % 128]

    return seen


def _in_batch(
    slot: Tensor, bits: Tensor, common: Tensor, real: Tensor
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The same for rows that differ by example: `common` ones see and are seen by all, `real` ones may be seen."""

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        near = bits[slot[h, q // 128, k // 128], q % 128, k % 128]
        return (near | common[b, q] | common[b, k]) & real[b, k]

    return seen


def _of_batch(tiles: _Tiles, pattern: Pattern, mask: Tensor | None, layout: Layout, batch: int) -> BlockMask:
    if mask is None and pattern.content_globals is None:
        return tiles.shown
    device = tiles.slot.device
    real = torch.ones(batch, layout.rows, dtype=torch.bool, device=device) if mask is None else mask
    positions, valid = pattern.globals_of(layout, mask, batch, device)
    spare = layout.rows  # invalid positions go to a column that is cut off again
    common = torch.zeros(batch, spare + 1, dtype=torch.bool, device=device)
    common = common.scatter(1, (positions + layout.specials).where(valid, spare), True)[:, :spare]
    if tiles.rows is not None:
        real, common = real[:, tiles.rows], common[:, tiles.rows]
    has_common, has_real = (_by_tile(x).any(-1) for x in (common, real))
    some = tiles.some | has_common[:, None, :, None] | has_common[:, None, None, :]
    some = some & has_real[:, None, None, :]
    every = tiles.every & _by_tile(real).all(-1)[:, None, None, :]
    return _block_mask(some, every, layout.rows, _in_batch(tiles.slot, tiles.bits, common, real))


def _block_mask(some: Tensor, every: Tensor, rows: int, seen: Callable[..., Tensor]) -> BlockMask:
    def listed(tiles: Tensor) -> tuple[Tensor, Tensor]:
        """How many tiles of each row of tiles, and which, in front."""
        order = tiles.int().argsort(dim=-1, descending=True, stable=True)
        return tiles.sum(-1, dtype=torch.int32), order.to(torch.int32)

    in_part, whole = listed(some & ~every), listed(every.expand_as(some))
    return BlockMask.from_kv_blocks(*in_part, *whole, BLOCK_SIZE=TILE, mask_mod=seen, seq_lengths=(rows, rows))


@dataclass(frozen=True)
class _Rows:
    """What each row is, in the kernel's order."""

    order: Tensor | None  # (R,) int64
    block: Tensor  # (R,) int64, the block of the grid; 0 for global rows
    position: Tensor  # (R,) int64, in the content; 0 for special rows
    is_global: Tensor  # (R,) bool
    is_rep: Tensor  # (R,) bool


def _rows(pattern: Pattern, layout: Layout, device: torch.device) -> _Rows:
    g, s, n = layout.globals, layout.specials, layout.length
    content, held_in = torch.arange(n), blocks_of(pattern.topology, n)
    order = pattern.order(layout)
    if order is not None:
        content, held_in = order, held_in[order]
        order = torch.cat([torch.arange(s), order + s]).to(device)
    reps = torch.arange(layout.blocks).repeat_interleave(layout.reps_per_block)
    row = torch.arange(layout.rows)
    return _Rows(
        order,
        torch.cat([torch.zeros(g, dtype=torch.int64), reps, held_in]).to(device),
        F.pad(content, (s, 0)).to(device),
        (row < g).to(device),
        ((row >= g) & (row < s)).to(device),
    )


def _candidates(pattern: Pattern, table: _Rows, blocks_HKK: Tensor) -> Tensor:
    """(C, 2) int64: all pairs of tiles that may show something, whatever the rule inside their blocks."""
    held = F.one_hot(table.block, blocks_HKK.shape[-1]).bool() & ~table.is_global[:, None]
    holds = _by_tile(held.T).any(-1).T.float()  # (T, K)
    has_global, has_rep = _by_tile(table.is_global).any(-1), _by_tile(table.is_rep).any(-1)
    found = (holds @ blocks_HKK.any(0).float() @ holds.T > 0) | has_global[:, None] | has_global
    if pattern.broadcast:
        found |= has_rep
    return found.nonzero()


def _seen(pattern: Pattern, table: _Rows, blocks_HKK: Tensor, pairs: Tensor) -> Tensor:
    """(H or 1, C, TILE, TILE) bool: who sees whom in each pair of tiles."""
    rows = len(table.position)
    q, k = (pairs[:, i, None] * TILE + torch.arange(TILE, device=pairs.device) for i in range(2))
    there = (q < rows)[:, :, None] & (k < rows)[:, None, :]
    q, k = q.clamp(max=rows - 1)[:, :, None], k.clamp(max=rows - 1)[:, None, :]
    seen = blocks_HKK[:, table.block[q], table.block[k]]
    rule = pattern.topology.element(table.position[q][None], table.position[k][None])
    if rule is not None:
        special = table.is_global | table.is_rep
        seen = seen & (rule | special[q] | special[k])
    seen = seen | table.is_global[q] | table.is_global[k]
    if pattern.broadcast:
        seen = seen | table.is_rep[k]
    return seen & there


def _by_tile(x: Tensor) -> Tensor:
    """(..., R) -> (..., T, TILE), False behind the last row."""
    tiles: Tensor = F.pad(x, (0, -x.shape[-1] % TILE)).unflatten(-1, (-1, TILE))
    return tiles
