"""Softmax attention over all pairs (Vaswani et al. 2017, section 3.2.1), by PyTorch's fused kernel."""

from __future__ import annotations

from torch import Tensor

from attnbench.contracts import Mechanism
from attnbench.layers import QKVMixer, attention


class Dense(QKVMixer):
    implementation = "kernel"
    drops_weights = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        visible = None if mask is None else mask[:, None, None, :]
        return attention(q, k, v, visible, causal=self.shape.causal, drop=self.drop)


MECHANISM = Mechanism(
    summary="Full softmax attention; every other mechanism is measured against it",
    paper="Vaswani et al. 2017, Attention Is All You Need",
    build=lambda shape, options: Dense(shape),
    family="dense",
    causal="capable",
    shift_invariant=lambda options: True,
    exact=True,
    complexity="n^2",
)
