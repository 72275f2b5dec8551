"""Cross-entropy alone: one forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnbench.contracts import Loss, Regularizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from attnbench.contracts import Run


def loss(options: Any) -> Callable[[Run, Tensor, Tensor], Loss]:
    from torch.nn.functional import cross_entropy

    return lambda run, first, labels: Loss(cross_entropy(first, labels), 0.0)


REGULARIZER = Regularizer(summary="Cross-entropy alone", paper="", loss=loss)
