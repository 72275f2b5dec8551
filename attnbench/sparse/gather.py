"""The gather path: attention in blocks, over the key blocks that each query block sees. Any device, exact, bounded
memory. `plan` decides what is seen and where it is found, `slabs` holds the buffers and the products.

Shape letters: B batch, H heads, G global content rows, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.contracts import Layout
from attnbench.errors import AttnbenchError
from attnbench.layers import attention
from attnbench.sparse.pattern import Pattern
from attnbench.sparse.plan import Plan, make_plan
from attnbench.sparse.slabs import Run, Sum


def gather(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, mask: Tensor | None, layout: Layout) -> Tensor:
    """See `attnbench.sparse`."""
    memo_key = ("gather", pattern, id(mask), q.device, q.dtype)
    if memo_key not in layout.memo:
        layout.memo[memo_key] = mask, *make_plan(pattern, mask, layout, len(q), q)
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


class Slabs(torch.autograd.Function):
    """(q, k, v: (B, H, rows, D), plan) -> (B, H, rows - plan.first, D), the rows of the grid. No second derivative."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.plan = plan
        batch, heads, rows, width = q.shape
        y = q.new_empty(batch, rows - plan.first, heads, width).transpose(1, 2)  # as the output projection reads it
        run = Run(plan, q)
        y_pool = run.queries(width)
        for part in run.parts():
            run.load(part, q, k, v)
            for slab in run.slabs():
                weights = run.weigh(slab, run.found_keys(slab))
                run.mix(slab, weights, run.found_values(slab), run.v_strip, out=y_pool)
            run.write(y_pool, y[part][:, :, plan.asking])
        y[:, :, : plan.asking.start] = y[:, :, plan.asking.stop :] = 0
        return y if plan.blank is None else y.masked_fill_(plan.blank, 0)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        if (
            torch.is_grad_enabled()
        ):  # create_graph=True; `once_differentiable` would let most such calls pass in silence
            raise AttnbenchError("the gather path has no second derivative; use path=dense, or no create_graph=True")
        q, k, v = ctx.saved_tensors
        plan: Plan = ctx.plan
        up = up if plan.blank is None else up.masked_fill(plan.blank, 0)
        dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        for x in (dq, dk, dv):
            x[:, :, : plan.first] = 0
        dq_asking = dq[:, :, plan.first :][:, :, plan.asking]
        if dq_asking.shape != up.shape:
            dq.zero_()
        run, width = Run(plan, q), q.shape[-1]
        up_pool, dq_pool = run.queries(width), run.queries(width)
        d_scores, dk_sum, dv_sum = torch.empty_like(run.scores), Sum(run), Sum(run)
        for part in run.parts():
            run.load(part, q, k, v)
            run.read(up[part][:, :, plan.asking], up_pool)
            for slab in run.slabs():
                keys = run.found_keys(slab)
                weights = run.weigh(slab, keys)
                dv_sum.add(slab, weights, up_pool)
                d = run.compare(slab, up_pool, run.found_values(slab), run.v_strip, out=d_scores)
                torch._softmax_backward_data(d, weights, -1, d.dtype, grad_input=d)
                run.mix(slab, d, keys[..., :width], run.k_strip[..., :width], out=dq_pool)
                dk_sum.add(slab, d, run.q[..., :width])
            run.write(dq_pool, dq_asking[part], run.scale)
            dk_sum.write(part, dk)
            dv_sum.write(part, dv)
        return dq, dk, dv, None
