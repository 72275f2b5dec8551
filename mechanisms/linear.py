"""Linear attention (Katharopoulos et al. 2020, section 3.2): weights phi(q) . phi(k) with phi(x) = elu(x) + 1, eq. 7.

The sums over keys are taken once for all queries (eq. 6), so time and memory are linear in the rows. This is the form
in which every row sees every row; the causal one of section 3.3 is not built. Without a softmax there is no
1 / sqrt(head width).

`masks = "ignored"` is what the code of Long Range Arena does (Tay et al. 2020); the 1e-6 that it adds to the
denominator is left out. `normalised = false` is what the Nyströmformer authors' code for that benchmark does (Xiong et
al. 2021): no denominator; phi(q) and phi(k) are each divided by the fourth root of the number of rows, padding and
special rows included, so weights are phi(q) . phi(k) / sqrt(rows). The head width was probably meant. For independent
values the output keeps one scale at every length, far above that of the normalised form, which falls. It depends on how
far an example is padded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.contracts import Mechanism, MixerShape
from attnbench.layers import QKVMixer, linear_attention


@dataclass(frozen=True, kw_only=True)
class Options:
    """masks: honoured, or ignored: padding is content.
    normalised: by the sum of the weights; false divides them by the square root of the number of rows instead.
    """

    masks: Literal["honoured", "ignored"] = "honoured"
    normalised: bool = True


class Linear(QKVMixer):
    def __init__(self, shape: MixerShape, options: Options):
        super().__init__(shape)
        self.ignores_masks, self.normalised = options.masks == "ignored", options.normalised

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        phi_q, phi_k = phi(q), phi(k)
        if self.normalised:
            return linear_attention(phi_q, phi_k, v, mask)
        if mask is not None:
            phi_k = phi_k.masked_fill(~mask[:, None, :, None], 0)
        scale = q.shape[-2] ** -0.25
        y: Tensor = phi_q * scale @ ((phi_k * scale).mT @ v)
        return y


def phi(x: Tensor) -> Tensor:
    """elu(x) + 1, written so that a small result is not the difference of two ones."""
    y: Tensor = _Phi.apply(x)  # type: ignore[no-untyped-call]
    return y


class _Phi(torch.autograd.Function):
    """Its derivative is the smaller of the result and 1, in a third of the time of those of its parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clamp(max=0).exp().add_(F.relu(x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        slope: Tensor = y.clamp(max=1)
        return up * slope


MECHANISM = Mechanism(
    summary="Linear attention: a feature map elu + 1 in place of the softmax",
    paper="Katharopoulos et al. 2020, Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention",
    build=lambda shape, options: Linear(shape, options),
    options=Options,
    presets={"lra": {"masks": "ignored"}},
    counts_length=lambda options: not options.normalised,
    ignores_masks=lambda options: options.masks == "ignored",
    shift_invariant=lambda options: options.normalised and options.masks == "honoured",
    family="kernel",
    complexity="n",
)
