"""Kullback-Leibler divergence between two sets of predictions, and the loss of two passes built on it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from attnbench.contracts import Loss


def divergence(p_logits: Tensor, q_logits: Tensor, symmetric: bool) -> Tensor:
    """KL(p || q), or the mean of both directions, averaged over predictions; logits (predictions, classes)."""
    p, q = F.log_softmax(p_logits, -1), F.log_softmax(q_logits, -1)
    forward = F.kl_div(q, p, reduction="batchmean", log_target=True)
    return (forward + F.kl_div(p, q, reduction="batchmean", log_target=True)) / 2 if symmetric else forward


def two_passes(
    first: Tensor, second: Tensor, labels: Tensor, *, alpha: float, symmetric: bool, detach: bool, both: bool
) -> Loss:
    """Cross-entropy of the first pass or the mean of both, and alpha times the divergence first -> second.

    `detach`: the first pass is a fixed target of the divergence.
    """
    entropy = F.cross_entropy(first, labels)
    if both:
        entropy = (entropy + F.cross_entropy(second, labels)) / 2
    return Loss(entropy, alpha * divergence(first.detach() if detach else first, second, symmetric))
