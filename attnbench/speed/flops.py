"""Floating point operations of a call: those of its products, counted, and in closed form where there is one."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from attnbench.speed.clock import Run
from attnbench.speed.result import Setting


def counted(run: Run) -> int:
    """Multiplications and additions of all products in one call, what a backward pass computes again included.

    Kernels that PyTorch's counter does not know (those of other libraries) count as nothing.
    """
    counter = FlopCounterMode(display=False, custom_mapping=_FUSED_ON_CPU)
    with counter:
        run()
    return int(counter.get_total_flops())


def plain_attention(setting: Setting, length: int) -> int | None:
    """Of softmax attention with its four projections: 8 B N C^2 + 4 B N^2 C, and a backward pass as twice of it."""
    if setting.mode == "step":
        return None
    forward = 8 * setting.batch * length * setting.dim**2 + 4 * setting.batch * length**2 * setting.dim
    return forward * (3 if setting.mode == "fwdbwd" else 1)


def _forward(q: Any, k: Any, v: Any, *rest: Any, **more: Any) -> int:
    return int(sdpa_flop_count(q, k, v))


def _backward(up: Any, q: Any, k: Any, v: Any, *rest: Any, **more: Any) -> int:
    return int(sdpa_backward_flop_count(up, q, k, v))


#: PyTorch's counter knows the fused kernels of GPUs only.
_FUSED_ON_CPU = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _backward,
}
