"""Linear attention (Katharopoulos et al. 2020, section 3.2): weights phi(q) . phi(k) with phi(x) = elu(x) + 1, eq. 7.

The sums over keys are taken once for all queries (eq. 6), so time and memory are linear in the rows. This is the form
in which every row sees every row; the causal one of section 3.3 is not built. Without a softmax there is no
1 / sqrt(head width).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from attnbench.contracts import Mechanism
from attnbench.layers import QKVMixer, linear_attention


class Linear(QKVMixer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return linear_attention(phi(q), phi(k), v, mask)


def phi(x: Tensor) -> Tensor:
    """elu(x) + 1, written so that a small result is not the difference of two ones."""
    return F.relu(x) + x.clamp(max=0).exp()


MECHANISM = Mechanism(
    summary="Linear attention: a feature map elu + 1 in place of the softmax",
    paper="Katharopoulos et al. 2020, Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention",
    build=lambda shape, options: Linear(shape),
    family="kernel",
    complexity="n",
)
