"""Dense float64 truth for the tests, written from the definitions in the docs; shares no code with the engine.

Rows of a call: [globals | representatives, block by block | content]. Shape letters: B batch, H heads, R rows,
N content rows, K blocks, C width, D width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

GLOBAL, REP, CONTENT = range(3)


@dataclass(frozen=True)
class Window:
    """A block sees `blocks` blocks: itself and half of the rest on each side."""

    blocks: int


@dataclass(frozen=True)
class Band:
    """A token sees `left` tokens before it and `right` after it."""

    left: int
    right: int


@dataclass(frozen=True)
class Drawn:
    """Visible block pairs [head][query][key], given as data."""

    blocks: tuple[tuple[tuple[bool, ...], ...], ...]

    @classmethod
    def of(cls, block_map: Tensor) -> Drawn:
        return cls(tuple(tuple(tuple(row) for row in head) for head in block_map.tolist()))


Part = Window | Band | Drawn


@dataclass(frozen=True)
class Grid:
    """Which rows there are."""

    globals: int
    reps_per_block: int
    block_size: int
    length: int

    @property
    def blocks(self) -> int:
        return math.ceil(self.length / self.block_size)

    def rows(self) -> list[tuple[int, int, int]]:
        """(kind, block, content position) of every row, in order."""
        rows = [(GLOBAL, -1, -1)] * self.globals
        for block in range(self.blocks):
            rows += [(REP, block, -1)] * self.reps_per_block
        rows += [(CONTENT, position // self.block_size, position) for position in range(self.length)]
        return rows

    def places(self) -> list[int]:
        """Position of every row: a global stands at 0, a representative in the middle of its block."""
        middle = self.block_size // 2
        return [
            max(position, 0) if kind != REP else block * self.block_size + middle
            for kind, block, position in self.rows()
        ]

    @property
    def specials(self) -> int:
        return self.globals + self.reps_per_block * self.blocks


@lru_cache(maxsize=64)
def visible(parts: tuple[Part, ...], grid: Grid, heads: int, broadcast: bool = False) -> np.ndarray:
    """(H, R, R) bool, row = query: who may see whom when all rows are real."""
    rows = grid.rows()
    kind, block, position = (np.array(column) for column in zip(*rows, strict=True))
    tokens = _token_pairs(parts, grid.length, grid.block_size, heads)
    # two blocks see each other when any of the tokens they have room for do
    room = _token_pairs(parts, grid.blocks * grid.block_size, grid.block_size, heads)
    blocks = room.reshape(heads, grid.blocks, grid.block_size, grid.blocks, grid.block_size).any((2, 4))
    seen = np.zeros((heads, len(rows), len(rows)), dtype=bool)
    for row, (row_kind, row_block, row_position) in enumerate(rows):
        if row_kind == GLOBAL:
            seen[:, row] = True
            continue
        seen[:, row] = (kind == GLOBAL) | blocks[:, row_block, block]
        if row_kind == CONTENT:
            seen[:, row, kind == CONTENT] = tokens[:, row_position, position[kind == CONTENT]]
        if broadcast:
            seen[:, row, kind == REP] = True
    return seen


def _token_pairs(parts: Sequence[Part], length: int, block_size: int, heads: int) -> np.ndarray:
    """(H, N, N) bool: the union of the parts."""
    seen = np.zeros((heads, length, length), dtype=bool)
    keys = np.arange(length)
    for query in range(length):
        for part in parts:
            if isinstance(part, Window):
                seen[:, query] |= np.abs(keys // block_size - query // block_size) <= (part.blocks - 1) // 2
            elif isinstance(part, Band):
                seen[:, query] |= (query - part.left <= keys) & (keys <= query + part.right)
            else:
                for head in range(heads):
                    drawn = np.array(part.blocks[head if len(part.blocks) > 1 else 0][query // block_size])
                    seen[head, query] |= drawn[keys // block_size]
    return seen


def with_content_globals(seen: np.ndarray, grid: Grid, real_BN: np.ndarray) -> np.ndarray:
    """(B, H, R, R): real tokens of an example's first and last real block see all and are seen by all."""
    found = np.repeat(seen[None], len(real_BN), axis=0)
    for example, real in enumerate(real_BN):
        positions = np.flatnonzero(real)
        if len(positions):
            ends = {positions[0] // grid.block_size, positions[-1] // grid.block_size}
            rows = [grid.specials + p for p in positions if p // grid.block_size in ends]
            found[example][:, rows, :] = True
            found[example][:, :, rows] = True
    return found


def real_rows(grid: Grid, real_BN: np.ndarray) -> np.ndarray:
    """(B, R) bool: global rows always, a representative when its block has a real token."""
    columns = []
    for kind, block, position in grid.rows():
        if kind == GLOBAL:
            columns.append(np.ones(len(real_BN), dtype=bool))
        elif kind == REP:
            columns.append(real_BN[:, block * grid.block_size : (block + 1) * grid.block_size].any(1))
        else:
            columns.append(real_BN[:, position])
    return np.stack(columns, axis=1)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """(B, H, R, D) each, seen (B, H, R, R) bool; a query that sees nothing gives zeros."""
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
    top = scores.detach().max(-1, keepdim=True).values
    weights = (scores - top.masked_fill(top == -math.inf, 0)).exp()
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1) @ v


def leaves(module: torch.nn.Module) -> dict[str, Tensor]:
    """The module's parameters as float64 tensors of their own that collect gradients."""
    return {name: p.detach().double().clone().requires_grad_() for name, p in module.named_parameters()}


def project(weights: Mapping[str, Tensor], prefix: str, x_BRC: Tensor, heads: int) -> list[Tensor]:
    """Queries, keys, values (B, H, R, D): three weight matrices on top of each other, head after head inside."""
    made = []
    for weight, bias in zip(
        weights[f"{prefix}qkv.weight"].chunk(3), weights[f"{prefix}qkv.bias"].chunk(3), strict=True
    ):
        rows = x_BRC @ weight.T + bias
        made.append(torch.stack(rows.chunk(heads, dim=-1), dim=1))
    return made


def join(weights: Mapping[str, Tensor], prefix: str, heads_out: Sequence[Tensor]) -> Tensor:
    """The outputs of all heads side by side, through the output matrix."""
    return torch.cat(list(heads_out), dim=-1) @ weights[f"{prefix}out.weight"].T + weights[f"{prefix}out.bias"]


def attend_heads(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, heads: Sequence[int]) -> list[Tensor]:
    """One (B, R, D) for each head; heads that are not listed give zeros. `seen` (B, len(heads), R, R)."""
    out = list(torch.zeros_like(q).unbind(1))
    for index, head in enumerate(heads):
        one = slice(head, head + 1)
        out[head] = softmax_attention(q[:, one], k[:, one], v[:, one], seen[:, index : index + 1])[:, 0]
    return out


def rotated(x_BHRD: Tensor, positions: Sequence[float]) -> Tensor:
    """RoFormer's rotation: column i and column i + D // 2 turn by position * 10000 ** (-i / (D // 2))."""
    half = x_BHRD.shape[-1] // 2
    columns = list(x_BHRD.unbind(-1))
    place = torch.tensor(positions, dtype=torch.float64)
    for i in range(half):
        angle = place * 10_000.0 ** (-i / half)
        a, b = x_BHRD[..., i], x_BHRD[..., i + half]
        columns[i], columns[i + half] = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    return torch.stack(columns, dim=-1)


def hst_grid(options: Any, length: int) -> Grid:
    inserted = options.reps_per_block if options.representatives == "inserted" else 0
    return Grid(options.global_tokens, inserted, options.block_size, length)


def hst(
    weights: Mapping[str, Tensor],
    x_BNC: Tensor,
    real_BN: np.ndarray,
    options: Any,
    heads: int,
    random: Drawn | None = None,
    rotary: bool = False,
) -> Tensor:
    """Both stages of HST, all rows (B, R, C). `weights` as named in a standalone mixer; `options` is plain data."""
    grid = hst_grid(options, x_BNC.shape[1])
    batch = len(x_BNC)
    x_BNC = torch.where(torch.from_numpy(real_BN)[..., None], x_BNC, 0.0)
    rows = [weights["specials.global_rows"].expand(batch, -1, -1)]
    rows += [weights["specials.rep_rows"].expand(batch, -1, -1)] * (grid.blocks if grid.reps_per_block else 0)
    x = torch.cat([*rows, x_BNC], dim=1)
    second = round(options.head_split * heads)
    first_heads = range(heads - second) if second else range(heads)
    second_heads = range(heads - second, heads) if second else range(heads)

    parts = (Window(options.window_blocks), *([random] if random else []))
    structure = torch.from_numpy(visible(parts, grid, len(first_heads), options.broadcast))
    real = torch.from_numpy(real_rows(grid, real_BN))
    q, k, v = project(weights, "mixer.", x, heads)
    places = grid.places()
    if rotary:
        q, k = rotated(q, places), rotated(k, places)
    h1 = join(weights, "mixer.", attend_heads(q, k, v, structure[None] & real[:, None, None, :], first_heads))
    if not options.reps_per_block:
        return h1

    def stage2(reps: Tensor, real_BP: Tensor, places_P: Sequence[float]) -> Tensor:
        if options.stage2_norm:
            centred = reps - reps.mean(-1, keepdim=True)
            reps = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        prefix = "mixer." if options.share_projections else "mixer.stage2."
        q, k, v = project(weights, prefix, reps, heads)
        if rotary:
            q, k = rotated(q, places_P), rotated(k, places_P)
        all_pairs = real_BP[:, None, None, :].expand(-1, len(second_heads), reps.shape[1], -1)
        return join(weights, prefix, attend_heads(q, k, v, all_pairs, second_heads))

    if options.representatives == "inserted":
        span = slice(grid.globals, grid.specials)
        h2 = stage2((x if options.stage2_input == "parallel" else h1)[:, span], real[:, span], places[span])
        merged = h2 if options.merge == "replace" else h1[:, span] + h2
        return torch.cat([h1[:, : grid.globals], merged, h1[:, grid.specials :]], dim=1)

    means, any_real = [], []
    for block in range(grid.blocks):
        span = slice(grid.globals + block * grid.block_size, grid.globals + (block + 1) * grid.block_size)
        inside = real[:, span]
        kept = torch.where(inside[..., None], h1[:, span], 0.0)
        means.append(kept.sum(1) / inside.sum(1).clamp(min=1)[:, None])
        any_real.append(inside.any(1))
    middles = [block * grid.block_size + grid.block_size // 2 for block in range(grid.blocks)]
    h2 = stage2(torch.stack(means, dim=1), torch.stack(any_real, dim=1), middles)
    content = [h1[:, grid.globals + p] + h2[:, p // grid.block_size] for p in range(grid.length)]
    return torch.cat([h1[:, : grid.globals], torch.stack(content, dim=1)], dim=1)


def mixer(
    weights: Mapping[str, Tensor],
    x_BNC: Tensor,
    real_BN: np.ndarray,
    heads: int,
    seen_BHRR: np.ndarray,
    globals: int = 0,
) -> Tensor:
    """One-stage attention over the given pairs among real rows, all rows (B, R, C)."""
    x_BNC = torch.where(torch.from_numpy(real_BN)[..., None], x_BNC, 0.0)
    x = torch.cat([weights["specials.global_rows"].expand(len(x_BNC), -1, -1), x_BNC], dim=1)
    real = np.concatenate([np.ones((len(real_BN), globals), dtype=bool), real_BN], axis=1)
    q, k, v = project(weights, "mixer.", x, heads)
    seen = torch.from_numpy(
        np.broadcast_to(seen_BHRR & real[:, None, None, :], (len(x), heads, *seen_BHRR.shape[-2:])).copy()
    )
    return join(weights, "mixer.", attend_heads(q, k, v, seen, range(heads)))


def score_entries(grid: Grid, window_blocks: int) -> int:
    """The design's closed form: pairs of stage 1, then of stage 2."""
    b, r, g, n, blocks = grid.block_size, grid.reps_per_block, grid.globals, grid.length, grid.blocks
    sizes = [min(b, n - block * b) for block in range(blocks)]
    half = window_blocks // 2
    stage1 = sum(
        (sizes[block] + r) * (sum(size + r for size in sizes[max(0, block - half) : block + half + 1]) + g)
        for block in range(blocks)
    )
    return stage1 + g * (n + r * blocks + g) + (r * blocks) ** 2
