"""R-Drop (Liang et al. 2021): two passes that differ in their dropout masks must agree.

The form of the authors' README: mean cross-entropy of both passes + alpha * mean of both KL directions, no detach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import NonNegativeFloat

from attnbench.contracts import Loss, Regularizer, Run

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Options:
    alpha: NonNegativeFloat = 1.0


def loss(options: Options) -> Callable[[Run, Tensor, Tensor], Loss]:
    from ._divergence import two_passes

    def compute(run: Run, first: Tensor, labels: Tensor) -> Loss:
        second = run()
        return two_passes(first, second, labels, alpha=options.alpha, symmetric=True, detach=False, both=True)

    return compute


def idle(options: Options, dropout: float) -> str | None:
    return None if dropout else "its two passes differ in their dropout masks only, and model.dropout=0"


REGULARIZER = Regularizer(
    summary="R-Drop: two dropout passes must agree",
    paper="Liang et al. 2021, R-Drop: Regularized Dropout for Neural Networks",
    loss=loss,
    options=Options,
    passes=2,
    idle=idle,
)
