"""Nyströmformer (Xiong et al. 2021, section 3): softmax(Q K~^T) Z softmax(Q~ K^T) V, plus DConv(V).

Landmarks Q~ and K~ are the means of Q and K over segments of rows, and Z is the pseudo-inverse of A = softmax(Q~ K~^T),
all scores over sqrt(d). The paper's third-order iteration leads to Z from A^T / (|A|_1 |A|_inf).

The real content rows of an example, in their order, make up the segments, whose sizes differ by one at most; with fewer
rows than landmarks each row is one. So padding changes nothing, wherever it stands, and every length will do. Special
rows are queries and keys, and no part of a landmark. The norms are those of one head of one example: the authors' code
takes maxima over the batch, which lets examples change each other.

DConv is a depthwise convolution of the values along the content, one kernel a head. It stands in the paper's figure of
the architecture and is therefore on by default, 33 wide as in the authors' configuration for pre-training.
"""

# Shape letters: B batch, R rows, N content rows, H heads, D head width, L landmarks

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from attnbench.contracts import Layout, Mechanism, MixerShape
from attnbench.layers import QKVMixer, attention


@dataclass(frozen=True, kw_only=True)
class Options:
    """landmarks: segments of the content. iterations: towards the pseudo-inverse; 6 unless said.
    exact_inverse: by singular values in float64 instead; slow, to measure what the iteration loses.
    conv_kernel: width of the convolution of values, odd; 0 = none.
    """

    landmarks: PositiveInt = 64
    iterations: PositiveInt | None = None
    exact_inverse: bool = False
    conv_kernel: NonNegativeInt = 33

    def __post_init__(self) -> None:
        if self.exact_inverse and self.iterations is not None:
            raise ValueError("exact_inverse=true iterates nothing; leave iterations out")
        if self.conv_kernel and self.conv_kernel % 2 == 0:
            raise ValueError(f"conv_kernel is odd, or 0 for none, got {self.conv_kernel}")


def segments(real_BN: Tensor, landmarks: int) -> Tensor:
    """(B, L, N) bool: the real rows of each segment."""
    rank_BN = real_BN.cumsum(1) - 1
    segment_BN = rank_BN * landmarks // real_BN.sum(1, keepdim=True).clamp(min=landmarks)
    return (segment_BN[:, None] == torch.arange(landmarks, device=real_BN.device)[:, None]) & real_BN[:, None]


def pseudo_inverse(a_LL: Tensor, iterations: int) -> Tensor:
    """Of any batch of matrices; rows and columns of zeros stay zeros."""
    identity = torch.eye(a_LL.shape[-1], dtype=a_LL.dtype, device=a_LL.device)
    norms = torch.linalg.matrix_norm(a_LL, 1) * torch.linalg.matrix_norm(a_LL, torch.inf)
    z_LL: Tensor = a_LL.mT / norms.masked_fill(norms == 0, 1)[..., None, None]
    for _ in range(iterations):
        az_LL = a_LL @ z_LL
        z_LL = z_LL @ (13 * identity - az_LL @ (15 * identity - az_LL @ (7 * identity - az_LL))) / 4
    return z_LL


class Nystromformer(QKVMixer):
    def __init__(self, shape: MixerShape, options: Options):
        super().__init__(shape)
        self.options = options
        width = options.conv_kernel
        self.conv = (
            nn.Conv2d(shape.heads, shape.heads, (width, 1), padding=(width // 2, 0), groups=shape.heads, bias=False)
            if width
            else None
        )

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
        first = layout.specials
        visible = None if mask is None else mask[:, None, None]
        real_BR = q.new_ones(len(q), layout.rows, dtype=torch.bool) if mask is None else mask
        members_BLN = segments(real_BR[:, first:], self.options.landmarks)
        sizes_BL = members_BLN.sum(-1)
        mean_BHLN = (members_BLN.to(q.dtype) / sizes_BL.clamp(min=1)[..., None])[:, None]
        q_BHLD, k_BHLD = mean_BHLN @ q[:, :, first:], mean_BHLN @ k[:, :, first:]
        real_BH1L = (sizes_BL > 0)[:, None, None]
        values_BHLD = attention(q_BHLD, k, v, visible)
        y = attention(q, k_BHLD, self.inverse(q_BHLD, k_BHLD, real_BH1L) @ values_BHLD, real_BH1L)
        if self.conv is None:
            return y
        content = v[:, :, first:].masked_fill(~real_BR[:, None, first:, None], 0)
        return y + F.pad(self.conv(content), (0, 0, first, 0))

    def inverse(self, q_BHLD: Tensor, k_BHLD: Tensor, real_BH1L: Tensor) -> Tensor:
        """The pseudo-inverse of the attention of real landmarks to each other, 0 for the others; never below float32,
        in which the iteration loses its way.
        """
        with torch.autocast(q_BHLD.device.type, enabled=False):
            dtype = torch.promote_types(q_BHLD.dtype, torch.float32)
            score = q_BHLD.to(dtype) @ k_BHLD.to(dtype).mT * self.shape.head_dim**-0.5
            score = score.masked_fill(~real_BH1L, torch.finfo(dtype).min)
            a_BHLL = score.softmax(-1).masked_fill(~(real_BH1L & real_BH1L.mT), 0)
            z_BHLL: Tensor = (
                torch.linalg.pinv(a_BHLL.double())
                if self.options.exact_inverse
                else pseudo_inverse(a_BHLL, self.options.iterations or 6)
            )
            return z_BHLL.to(q_BHLD.dtype)


MECHANISM = Mechanism(
    summary="Nyströmformer: attention through segment means, with an iterative pseudo-inverse",
    paper="Xiong et al. 2021, Nyströmformer: A Nyström-Based Algorithm for Approximating Self-Attention",
    build=lambda shape, options: Nystromformer(shape, options),
    options=Options,
    shift_invariant=lambda options: True,
    family="low-rank",
    complexity="n",
)
