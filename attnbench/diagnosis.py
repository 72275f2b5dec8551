"""Where a run went wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def first_non_finite(model: nn.Module, forward: Callable[[], Tensor]) -> str:
    """The first module, in the order of the forward pass, whose output is not finite; else the first such gradient."""
    found: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and not all(torch.isfinite(t).all() for t in _floats(output)):
                found.append(name)

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return f"first module with a non-finite output: {found[0]}"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"the forward pass is finite; first parameter with a non-finite gradient: {name}"
    return "every module's output is finite, so the loss itself is not"


def _floats(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _floats(item)]
    return []
