"""One batch and the passes of the model over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnbench.batches import Batch
from attnbench.heads import join_right
from attnbench.randomness import draw

if TYPE_CHECKING:
    from attnbench.train import Trainer


class Passes:
    """One batch and the passes over it; what a regularizer sees."""

    def __init__(self, trainer: Trainer, batch: Batch, micro: int):
        self.trainer, self.micro, self.passes = trainer, micro, 0
        device = trainer.accelerator.device
        self.documents = [
            (torch.from_numpy(tokens).to(device), None if mask is None else torch.from_numpy(mask).to(device))
            for tokens, mask in batch.documents
        ]
        self.asked = batch.asked
        self.places, self.right = (
            None if x is None else torch.from_numpy(x).to(device) for x in (self.asked.places, self.asked.right)
        )
        self.labels = torch.from_numpy(self.asked.labels).to(device)

    def __call__(self, *, shift: int = 0, move_positions: bool = False, dropout: str = "independent") -> Tensor:
        return self.join(self.raw(shift=shift, move_positions=move_positions, dropout=dropout))

    def join(self, logits: Tensor) -> Tensor:
        """Where several answers are right, their shares are taken together."""
        return logits if self.right is None else join_right(logits, self.right, self.labels)

    def raw(self, *, shift: int = 0, move_positions: bool = False, dropout: str = "independent") -> Tensor:
        stream = self.trainer.model.stream
        stream.seed, stream.step, stream.micro = self.trainer.job.seed, self.trainer.step, self.micro
        stream.repeat = 0 if dropout == "shared" else self.passes
        stream.enabled = dropout != "off"
        self.passes += 1
        logits: Tensor = self.trainer.run_model(self.documents, self.places, shift, move_positions)
        return logits

    def forward(self) -> Tensor:
        """The first pass again, with the same masks."""
        self.passes = 0
        return self()

    def draw(self, name: str, low: int, high: int) -> int:
        return draw(low, high, self.trainer.job.seed, name, self.trainer.step)

    def loss(self) -> Tensor:
        """The mean of the regularizers' cross-entropies plus the sum of their penalties."""
        first = self()
        terms = [loss(self, first, self.labels) for loss in self.trainer.losses]
        entropy = torch.stack([term.entropy for term in terms]).mean()
        return entropy + sum(term.penalty for term in terms)
