"""How far the answers of a trained model move when its input moves against the block grid.

The test split again, each batch as it is and then moved right by masked rows, as SAR moves it: real tokens keep their
positions. Shape letters: T predictions, Y classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan

import numpy as np
import torch
from scipy.special import log_softmax

from attnbench.errors import AttnbenchError, blame
from attnbench.passes import Passes
from attnbench.progress import Bar
from attnbench.randomness import generators, rewind
from attnbench.record import ShiftPoint
from attnbench.train import Trainer


@dataclass
class _Sums:
    """Over the batches so far, at one shift."""

    said: list[dict[str, np.ndarray]] = field(default_factory=list)
    flips: int = 0
    divergence: float = 0.0


def readings(shifts: int) -> int:
    """How often a run that measures so many shifts reads its test split."""
    return shifts + 2 if shifts else 1


def measure(trainer: Trainer, shifts: Sequence[int]) -> list[ShiftPoint]:
    """A point for each shift, with the weights that the trainer holds: after the test, those that were tested.

    Raises:
        AttnbenchError: the mechanism fails at a shift, or its logits are not finite there.
    """
    return trainer.in_batches(lambda size: _measure(trainer, shifts, size)) if shifts else []


@torch.no_grad()
def _measure(trainer: Trainer, shifts: Sequence[int], size: int) -> list[ShiftPoint]:
    count, sums = 0, {shift: _Sums() for shift in shifts}
    batches = -(-len(trainer.job.data.splits["test"]) // size)
    with Bar(f"test moved by {shifts[0]} to {shifts[-1]} rows", batches, quiet=trainer.quiet) as bar:
        for run in trainer.read("test", size):
            before = generators()
            still_TY, after = _logits(run, 0), generators()
            count += len(still_TY)
            for shift, found in sums.items():
                rewind(before)  # what a plugin draws itself is the same at every shift
                moved_TY = _logits(run, shift)
                found.said.append(trainer.job.question.say(moved_TY, run.asked))
                found.flips += int(flipped(still_TY, moved_TY).sum())
                found.divergence += float(divergence(still_TY, moved_TY).sum())
            rewind(after)  # the next batch finds them as the test itself did
            bar.advance()
    return [
        ShiftPoint(
            shift=shift,
            test=float(trainer.job.judged("test", found.said, nan).scores.mean()),
            flips=found.flips / count,
            kl=found.divergence / count,
        )
        for shift, found in sums.items()
    ]


def flipped(p_TY: np.ndarray, q_TY: np.ndarray) -> np.ndarray:
    """(T,) bool: the largest of the logits stands at another class. A class is, by head, a class of the task, a
    candidate, or a row that an answer may begin or end at.
    """
    changed: np.ndarray = p_TY.argmax(-1) != q_TY.argmax(-1)
    return changed


def divergence(p_TY: np.ndarray, q_TY: np.ndarray) -> np.ndarray:
    """(T,) float64, in nats: the mean of KL(p || q) and KL(q || p) of the distributions behind these logits."""
    log_p_TY, log_q_TY = (log_softmax(logits.astype(np.float64), axis=-1) for logits in (p_TY, q_TY))
    # the two sums as one, no term of which is below 0
    halves: np.ndarray = ((np.exp(log_p_TY) - np.exp(log_q_TY)) * (log_p_TY - log_q_TY)).sum(-1) / 2
    return halves


def _logits(run: Passes, shift: int) -> np.ndarray:
    where = f"test moved by {shift} rows"
    with blame(where):
        logits_TY: np.ndarray = run.raw(shift=shift).cpu().numpy()
    if not np.isfinite(logits_TY).all():
        raise AttnbenchError(f"{where}: logits that are not finite")
    return logits_TY
