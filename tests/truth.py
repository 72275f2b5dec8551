"""Compares a standalone mixer with its definition: values and gradients, under masks, with NaN in the padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import reference
import torch
from torch import Tensor, nn

LENGTHS = [1, 2, 63, 64, 65, 127, 300]

#: May head h see the pair (q, k)?
Rule = Callable[[int, int, int], bool]
#: (weights, content (B, N, C), real (B, N)) -> all rows (B, R, C)
Definition = Callable[[Mapping[str, Tensor], Tensor, np.ndarray], Tensor]


def real_tokens(length: int) -> np.ndarray:
    """(3, length) bool: padding in the middle and behind, one token alone, all real."""
    real = np.ones((3, length), dtype=bool)
    real[0, length // 3 : length // 2] = False
    real[0, length - length // 5 :] = False
    real[1, 1:] = False
    return real


def content(length: int, dim: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, length, dim, generator=generator, dtype=torch.float64)


def pairs(rule: Rule, heads: int, length: int, globals: int = 0) -> np.ndarray:
    """(1, heads, R, R) bool, pair by pair; global rows in front see and are seen by all."""
    seen = np.ones((1, heads, globals + length, globals + length), dtype=bool)
    for head in range(heads):
        for q in range(length):
            seen[0, head, globals + q, globals:] = [rule(head, q, k) for k in range(length)]
    return seen


def check(mixer: nn.Module, wanted: Definition, length: int, globals: int = 0) -> None:
    """Every real row and every gradient."""
    real = real_tokens(length)
    mask = torch.from_numpy(real)
    theirs = content(length, mixer.dim).requires_grad_()
    ours = theirs.detach().masked_fill(~mask[..., None], float("nan")).requires_grad_()
    weights = reference.leaves(mixer)
    rows = torch.cat([mask.new_ones(3, globals), mask], dim=1)
    found = mixer(ours, mask, keep_special=True)[rows]
    truth = wanted(weights, theirs, real)[rows]
    torch.testing.assert_close(found, truth, atol=1e-10, rtol=1e-9)
    up = torch.randn(found.shape, generator=torch.Generator().manual_seed(2), dtype=found.dtype)
    used = [key for key, value in weights.items() if value.numel()]
    gradients = torch.autograd.grad((found * up).sum(), [ours, *(mixer.get_parameter(key) for key in used)])
    expected = torch.autograd.grad((truth * up).sum(), [theirs, *(weights[key] for key in used)])
    for gradient, right in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, right, atol=1e-9, rtol=1e-9)
