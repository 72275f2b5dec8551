"""What a small convolutional network reaches on pictures: a level to compare with, and a check that labels fit them.

It sees the picture as a picture, which no mechanism does that reads pixels in a row, so it is no trivial level.
"""

from __future__ import annotations

from itertools import pairwise

import datasets
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_BATCH = 64


class _Network(nn.Module):
    """Three convolutions with batch norm, halved in between, mean over what is left."""

    def __init__(self, classes: int, width: int):
        super().__init__()
        channels = [1, width, 2 * width, 4 * width]
        self.convolutions = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in pairwise(channels))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channel) for channel in channels[1:])
        self.linear = nn.Linear(channels[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.max_pool2d(F.relu(norm(convolution(x))), 2)
        found: Tensor = self.linear(x.mean((2, 3)))
        return found


def score(made: datasets.DatasetDict, *, side: int, classes: int, steps: int, seed: int = 0, width: int = 16) -> float:
    """Test accuracy after `steps` batches of 64 training pictures (tokens: side * side levels 0..255; label)."""
    pictures, labels = _tensors(made["train"], side)
    asked, wanted = _tensors(made["test"], side)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _Network(classes, width)
        optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=steps)
        for _ in range(steps):
            rows = torch.randint(len(labels), (_BATCH,))
            some = pictures[rows]
            if torch.rand(()) < 0.5:
                some = some.flip(3)
            optimizer.zero_grad()
            F.cross_entropy(network(_levels(some)), labels[rows]).backward()
            optimizer.step()
            schedule.step()
    network.eval()
    with torch.no_grad():
        guesses = torch.cat([network(_levels(part)).argmax(1) for part in asked.split(500)])
    return float((guesses == wanted).double().mean())


def _tensors(split: datasets.Dataset, side: int) -> tuple[Tensor, Tensor]:
    """(n, 1, side, side) uint8 and (n,) int64."""
    table = split.data.table
    pixels = np.concatenate([chunk.flatten().to_numpy() for chunk in table.column("tokens").chunks])
    pictures = torch.from_numpy(pixels.astype(np.uint8)).view(-1, 1, side, side)
    return pictures, torch.from_numpy(table.column("label").to_numpy().astype(np.int64))


def _levels(pictures: Tensor) -> Tensor:
    return pictures.float() / 128 - 1
