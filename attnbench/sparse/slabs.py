"""Block-sparse attention in slabs: some query blocks at a time, in buffers that are reused, forward and backward.

Nothing of the size rows x keys is kept: the backward pass computes the probabilities anew. Heads are taken in groups;
their rows are laid out block by block in a pool, where the keys that a block sees are found in one of two ways:

    window   the same number of neighbours on each side of every block: overlapping views of the pool, no copy.
             Heads stand a gap of hidden blocks apart.
    table    any other pattern: blocks picked by an index table; an entry that shows nothing picks a hidden block.

Whether a key may be seen at all is a bias in an additional column of the key, met by a column of ones in the queries:
the product adds it for nothing, where a mask would cost a pass over the scores.
Shape letters: B batch, H heads, G heads of a group (over the batch too), K blocks of a head, Q blocks of it that ask,
M key blocks each of them sees, W rows of a block, S strip, D head width, T query blocks of a slab.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnbench.sparse.plan import Plan, hide

#: Bytes of the scores of one slab. On a CPU they shall stay in its caches; elsewhere launches shall be few.
CPU_SCORES = 1 << 22
SCORES = 1 << 27

Part = tuple[slice, slice]  # of the batch and of the heads


class Run:
    """The buffers of one call, for one group of heads at a time, and the products between them."""

    def __init__(self, plan: Plan, like: Tensor):
        self.plan, self.like, width = plan, like, like.shape[-1]
        self.scale = width**-0.5
        left, right = plan.window or (1, 0)  # the hidden block of a table stands in front
        self.asking, self.seen = plan.table.shape[1:]
        self.gap = max(plan.window) if plan.window else 0
        self.q_stride, self.stride = self.asking + self.gap, -(-plan.length // plan.block_size) + self.gap
        self.near, strip = self.seen * plan.width, plan.strip.shape[1]
        self._divide((CPU_SCORES if like.device.type == "cpu" else SCORES) // like.element_size())
        self.home = slice(left, left + self.group * self.stride)  # of the group's blocks in a pool of keys
        self.pool = left + self.group * self.stride + right, plan.width
        column = int(plan.keys is not None or plan.strip_keys is not None)
        self.q, self.k = self.queries(width + column), like.new_zeros(*self.pool, width + column)
        self.v = like.new_zeros(*self.pool, width)
        self.k_strip = like.new_zeros(self.group, strip, width + column)
        self.v_strip = like.new_zeros(self.group, strip, width)
        if column:
            self.q[..., width] = 1
            self.k[..., width] = hide(like.dtype)
            self._show(self.k[self.home], plan.keys, slice(0, 1))
        self.scores = like.new_empty(self.at_once, plan.width, self.near + strip)
        found = 0 if plan.window else self.at_once * self.seen
        self.k_found, self.v_found = (x.new_empty(found, x[0].numel()) for x in (self.k, self.v))

    def _divide(self, scores: int) -> None:
        """Whole heads in groups of equal size, so that a buffer's hidden parts stay where they are; or parts of one."""
        batch, heads = self.like.shape[:2]
        per_block = self.plan.width * (self.near + self.plan.strip.shape[1])
        fit = scores // (self.q_stride * per_block)
        self.heads = _divisor(heads, fit)
        self.batch = _divisor(batch, fit // heads) if self.heads == heads else 1
        self.group = self.heads * self.batch
        parts = -(-self.asking * per_block // scores)
        self.at_once = -(-self.asking // parts) if self.group == 1 else self.group * self.q_stride

    def queries(self, width: int) -> Tensor:
        """A pool of rows without neighbours."""
        return self.like.new_zeros(self.group * self.q_stride, self.plan.width, width)

    def parts(self) -> Iterator[Part]:
        batch, heads = self.like.shape[:2]
        for b in range(0, batch, self.batch):
            for h in range(0, heads, self.heads):
                yield slice(b, b + self.batch), slice(h, h + self.heads)

    def slabs(self) -> Iterator[slice]:
        last = self.asking if self.group == 1 else self.group * self.q_stride
        for start in range(0, last, self.at_once):
            yield slice(start, min(start + self.at_once, last))

    def load(self, part: Part, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Lays out a group."""
        plan, width = self.plan, q.shape[-1]
        self.read(q[part][:, :, plan.first :][:, :, plan.asking], self.q[..., :width], self.scale)
        for x, pool in ((k, self.k[self.home]), (v, self.v[self.home])):
            self.read(x[part][:, :, plan.first :], pool[..., :width])
        if plan.keys is not None and len(plan.keys) > 1:
            self._show(self.k[self.home], plan.keys, part[0])
        if plan.strip.shape[1]:
            rows = self.strip_rows(part)
            for x, strip in ((k, self.k_strip), (v, self.v_strip)):
                self.by_head(strip)[:, :, 0, :, :width] = x[part].gather(2, rows)
            if plan.strip_keys is not None:
                self.by_head(self.k_strip)[:, :, 0, :, width] = _of(plan.strip_keys, part[0])[:, None]
        self.rule = None if plan.rule is None else _of(plan.rule, part[1])
        if plan.window is None:
            behind = torch.arange(self.group, device=q.device).view(self.batch, self.heads, 1, 1) * self.stride + 1
            table = _of(plan.table, part[1])
            self.index = torch.where(table < 0, 0, table + behind).view(-1, self.seen)

    def _show(self, pool: Tensor, bias: Tensor | None, batch: slice) -> None:
        column = self.grid(pool)[..., self.like.shape[-1]]
        if bias is None:
            column.zero_()
        else:
            column.copy_(_of(bias, batch)[:, None])

    def by_head(self, x: Tensor) -> Tensor:
        """(G * T, ...) -> (b, h, T, ...)."""
        return x.view(self.batch, self.heads, len(x) // self.group, *x.shape[1:])

    def grid(self, pool: Tensor) -> Tensor:
        """(G * stride, W, ...) -> (b, h, K or Q, W, ...): without what stands between the heads."""
        return self.by_head(pool)[:, :, : len(pool) // self.group - self.gap]

    def strip_rows(self, part: Part) -> Tensor:
        rows = self.plan.strip[part[0], None, :, None]
        return rows.expand(-1, self.heads, -1, self.like.shape[-1])

    def found_keys(self, slab: slice) -> Tensor:
        return self._find(self.k, slab, self.k_found)

    def found_values(self, slab: slice) -> Tensor:
        return self._find(self.v, slab, self.v_found)

    def _find(self, pool: Tensor, slab: slice, out: Tensor) -> Tensor:
        """(T, M * W, ...): what each block of the slab sees in the pool."""
        blocks, width = slab.stop - slab.start, pool.shape[-1]
        if self.plan.window:
            step = pool.stride(0)
            return pool.as_strided((blocks, self.near, width), (step, width, 1), slab.start * step)
        out = out[: blocks * self.seen]
        torch.index_select(pool.flatten(1), 0, self.index[slab].flatten(), out=out)
        return out.view(blocks, self.near, width)

    def weigh(self, slab: slice, keys: Tensor) -> Tensor:
        """(T, W, M * W + S): probabilities."""
        scores = self.compare(slab, self.q, keys, self.k_strip, out=self.scores, bias=self.rule)
        return torch.softmax(scores, -1, out=scores)

    def compare(
        self, slab: slice, rows: Tensor, found: Tensor, strip: Tensor, *, out: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Products of the rows with those they see: (T, W, M * W + S)."""
        out = out[: slab.stop - slab.start]
        near = out[..., : self.near]
        if bias is None:
            torch.bmm(rows[slab], found.mT, out=near)
        else:
            per_head = self.by_head(near)
            per_head.copy_(bias if bias.shape[1] == 1 else bias[:, slab] if self.group == 1 else bias)
            near.baddbmm_(rows[slab], found.mT)
        if strip.shape[1]:
            torch.bmm(self.merge(rows[slab]), strip.mT, out=self.merge(out)[..., self.near :])
        return out

    def mix(self, slab: slice, weights: Tensor, found: Tensor, strip: Tensor, *, out: Tensor) -> None:
        """Sums of those that the rows see."""
        out = torch.bmm(weights[..., : self.near], found, out=out[slab])
        if strip.shape[1]:
            self.merge(out).baddbmm_(self.merge(weights)[..., self.near :], strip)

    def merge(self, x: Tensor) -> Tensor:
        """(T, W, ...) -> (G, T / G * W, ...): the rows of a head together."""
        return x.view(self.group, -1, x.shape[-1])

    def read(self, rows: Tensor, pool: Tensor, scale: float = 1) -> None:
        rows = rows if self.plan.order is None else rows.index_select(2, self.plan.order)
        for piece, cells in self._pieces(rows, pool):
            _scaled(piece, scale, out=cells)

    def write(self, pool: Tensor, rows: Tensor, scale: float = 1) -> None:
        found = rows if self.plan.order is None else torch.empty_like(rows)
        for piece, cells in self._pieces(found, pool):
            _scaled(cells, scale, out=piece)
        if self.plan.order is not None:
            rows.index_copy_(2, self.plan.order, found)

    def _pieces(self, rows: Tensor, pool: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows (b, h, rows, D) [representatives | content] and where they lie in a pool (G * stride, W, D)."""
        plan, grid = self.plan, self.grid(pool)
        reps, content = rows.split([plan.reps * grid.shape[2], rows.shape[2] - plan.reps * grid.shape[2]], dim=2)
        whole, rest = divmod(content.shape[2], plan.block_size)
        end = whole * plan.block_size
        yield content[:, :, :end].unflatten(2, (whole, plan.block_size)), grid[:, :, :whole, plan.reps :]
        if rest:
            yield content[:, :, end:], grid[:, :, whole, plan.reps : plan.reps + rest]
        if plan.reps:
            yield reps.unflatten(2, (-1, plan.reps)), grid[:, :, :, : plan.reps]


class Sum:
    """Gradients of the keys or of the values of a group: what the slabs add to it, in float32 at least."""

    def __init__(self, run: Run):
        width, like = run.like.shape[-1], run.like
        exact = torch.promote_types(like.dtype, torch.float32)
        self.run = run
        self.pool = like.new_zeros(*run.pool, width, dtype=exact)
        self.strip = like.new_zeros(*run.v_strip.shape, dtype=exact)
        self.in_place = run.plan.window is not None and exact == like.dtype
        self.spare = like.new_empty(0 if self.in_place else run.at_once, run.near, width)

    def add(self, slab: slice, weights: Tensor, rows: Tensor) -> None:
        run, rows = self.run, rows[slab]
        if len(self.strip[0]):
            self.strip += torch.bmm(run.merge(weights)[..., run.near :].mT, run.merge(rows))
        near = weights[..., : run.near].mT
        if self.in_place:
            for m, part in enumerate(near.split(run.plan.width, dim=1)):
                self.pool[slab.start + m : slab.stop + m].baddbmm_(part, rows)
            return
        found = torch.bmm(near, rows, out=self.spare[: len(rows)])
        if run.plan.window:
            for m, part in enumerate(found.split(run.plan.width, dim=1)):
                self.pool[slab.start + m : slab.stop + m] += part
            return
        index, found, sums = run.index[slab].flatten(), found.view(-1, self.pool[0].numel()), self.pool.flatten(1)
        found = found.to(sums.dtype)
        if sums.device.type == "cpu":  # adds on all cores; index_add_ takes one
            sums.scatter_add_(0, index[:, None].expand_as(found), found)
        else:
            sums.index_add_(0, index, found)

    def write(self, part: Part, grad: Tensor) -> None:
        """Puts the sums where the rows came from and starts anew."""
        run = self.run
        run.write(self.pool[run.home], grad[part][:, :, run.plan.first :])
        if len(self.strip[0]):
            grad[part].scatter_add_(2, run.strip_rows(part), run.by_head(self.strip)[:, :, 0].to(grad.dtype))
        self.pool.zero_()
        self.strip.zero_()


def _scaled(x: Tensor, scale: float, *, out: Tensor) -> None:
    if scale == 1:  # a copy takes half the time of a product
        out.copy_(x)
    else:
        torch.mul(x, scale, out=out)


def _divisor(of: int, most: int) -> int:
    """The largest one up to `most`, and 1 at least."""
    return next((d for d in range(min(of, most), 1, -1) if of % d == 0), 1)


def _of(x: Tensor, part: slice) -> Tensor:
    """Of a dimension that may be 1, standing for all."""
    return x if len(x) == 1 else x[part]
