"""What an execution path is: a function that runs patterns, its domain, and what the record says ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attnbench.contracts import Layout
from attnbench.errors import Unsupported
from attnbench.sparse.pattern import Pattern

Run = Callable[[Tensor, Tensor, Tensor, Pattern, Tensor | None, Layout], Tensor]


@dataclass(frozen=True)
class Call:
    """What is known of a call without its tensors. `width` is that of a head; `grad`: a backward pass will follow."""

    layout: Layout
    masked: bool
    width: int
    dtype: torch.dtype
    device: torch.device
    grad: bool


#: Why a path cannot run the pattern in this call, or None.
Domain = Callable[[Pattern, Call], str | None]


def everywhere(pattern: Pattern, call: Call) -> str | None:
    return None


@dataclass(frozen=True)
class Path:
    """Called as `path(q, k, v, pattern, mask, layout)`; `attnbench.sparse` says what of. `cuda_only`: it is a kernel
    that other devices do not have.

    Raises:
        Unsupported: outside its domain; never another path in silence.
    """

    name: str
    run: Run
    implementation: Literal["kernel", "reference", "dense emulation"]
    domain: Domain = everywhere
    cuda_only: bool = False

    def refusal(self, pattern: Pattern, call: Call) -> str | None:
        if self.cuda_only and call.device.type != "cuda":
            return f"path {self.name}: runs on CUDA, got {call.device.type}"
        reason = self.domain(pattern, call)
        return None if reason is None else f"path {self.name}: {reason}"

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, mask: Tensor | None, layout: Layout
    ) -> Tensor:
        grad = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        call = Call(layout, mask is not None, q.shape[-1], q.dtype, q.device, grad)
        if reason := self.refusal(pattern, call):
            raise Unsupported(reason)
        return self.run(q, k, v, pattern, mask, layout)


def needs_plain_content(pattern: Pattern, call: Call) -> str | None:
    """The limits of paths that know nothing but a square of content rows."""
    if call.masked:
        return "takes no mask, so the examples must be of one length and unshifted"
    if call.layout.specials or pattern.content_globals or pattern.broadcast:
        return "takes no global rows, representatives or global content"
    if pattern.order(call.layout) is not None:
        return "takes no pattern that reorders the content"
    return None
