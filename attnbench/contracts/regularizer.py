"""What the author of a regularizer writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from attnbench.contracts.shape import NoOptions

if TYPE_CHECKING:
    import torch


class Run(Protocol):
    """How a regularizer runs the model again on the batch at hand; every call is one more pass, numbered from 1."""

    def __call__(self, *, shift: int = 0, move_positions: bool = False, dropout: str = "independent") -> torch.Tensor:
        """Logits (predictions, classes) of the input moved right by `shift` masked rows.

        `dropout` is independent (new masks), shared (those of the first pass) or off.
        """

    def draw(self, name: str, low: int, high: int) -> int:
        """A whole number in low..high (both included), a function of (seed, step, name)."""


class Loss(NamedTuple):
    """The terms of a training loss, both scalars: mean cross-entropy, and what is added to it."""

    entropy: torch.Tensor
    penalty: torch.Tensor | float


def _never_idle(options: Any, dropout: float) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Regularizer:
    """A training loss that may run the model more than once.

    `loss(options)` returns a callable `(run, first, labels) -> Loss`: `first` are the logits (predictions, classes) of
    the first pass and labels is (predictions,), whatever the head; rows without a target are left out already.

    Attributes:
        passes: forward passes a step costs, the first included.
        max_shift: the largest shift it asks for, from the options (0 = none).
        idle: why these options, or some of them, change nothing at this dropout of the model, or None; such a cell is
            refused.
        idle_unmoved: the same for a mechanism in which a shift of the input changes nothing (`shift_invariant`).
    """

    summary: str
    paper: str
    loss: Callable[[Any], Callable[[Run, torch.Tensor, torch.Tensor], Loss]]
    options: type = NoOptions
    passes: int = 1
    max_shift: Callable[[Any], int] = lambda options: 0
    idle: Callable[[Any, float], str | None] = _never_idle
    idle_unmoved: Callable[[Any, float], str | None] = _never_idle
    version: int = 1
