"""Self-Attention Regularization of ERNIE-Sparse (Liu et al. 2022): the prediction must not depend on where the block
grid of the sparse attention happens to lie.

The second pass sees the input moved right by `shift` masked rows, so other tokens share a block. Which choices are
sourced and which are ours: docs/ernie_sparse.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import NonNegativeFloat

from attnbench.contracts import Loss, Regularizer, Run
from attnbench.options import Span

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Options:
    """alpha: weight of the divergence.
    shift: rows the input moves right, a number or a range drawn from anew at each step.
    mode: input (real tokens keep their positions) or positions (they move too).
    symmetric: the mean of both KL directions, else first -> shifted only.
    detach: no gradient through the unshifted pass of the divergence.
    ce_passes: cross-entropy on both passes (their mean) or on the first.
    dropout: masks of the extra pass: independent, shared with the first, or off.
    """

    alpha: NonNegativeFloat = 1.0
    shift: Span = (1, 1)
    mode: Literal["input", "positions"] = "input"
    symmetric: bool = True
    detach: bool = False
    ce_passes: Literal["both", "first"] = "both"
    dropout: Literal["independent", "shared", "off"] = "independent"

    def __post_init__(self) -> None:
        low, high = self.shift
        if not 0 <= low <= high:
            raise ValueError(f"shift is a number or a range of numbers from 0 on, got {low}..{high}")
        if not self.alpha and (self.detach or not self.symmetric):
            raise ValueError("detach and symmetric shape the divergence, and alpha=0 leaves it out")


def loss(options: Options) -> Callable[[Run, Tensor, Tensor], Loss]:
    from ._divergence import two_passes

    def compute(run: Run, first: Tensor, labels: Tensor) -> Loss:
        shift = run.draw("shift", *options.shift)
        second = run(shift=shift, move_positions=options.mode == "positions", dropout=options.dropout)
        return two_passes(
            first,
            second,
            labels,
            alpha=options.alpha,
            symmetric=options.symmetric,
            detach=options.detach,
            both=options.ce_passes == "both",
        )

    return compute


def idle(options: Options, dropout: float) -> str | None:
    if not options.alpha and options.ce_passes == "first":
        return "with alpha=0 and ce_passes=first the second pass counts for nothing"
    if not dropout and options.dropout != "independent":
        return f"dropout={options.dropout} speaks of the second pass's masks, and model.dropout=0 has none"
    if options.shift == (0, 0) and (not dropout or options.dropout == "shared"):
        return "with shift=0 its passes differ in their dropout masks only, and these are none or shared"
    return None


def idle_unmoved(options: Options, dropout: float) -> str | None:
    if options.mode == "input" and (not dropout or options.dropout == "shared"):
        return "its passes differ in dropout masks only, and these are none or shared"
    return None


REGULARIZER = Regularizer(
    summary="SAR: predictions must agree when the input moves against the block grid",
    paper="Liu et al. 2022, ERNIE-SPARSE: Learning Hierarchical Efficient Transformer "
    "Through Regularized Self-Attention",
    loss=loss,
    options=Options,
    passes=2,
    idle=idle,
    idle_unmoved=idle_unmoved,
    max_shift=lambda options: options.shift[1],
)
