"""Stateless randomness: every draw is a function of (seed, purpose, step or name), never of what was drawn before.

So all mechanisms of one seed share the order of the data and the start of every parameter of equal name, and a
resumed run needs no random state.
"""

# B batch, R rows (specials S, then content), D width

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

_INT16_VALUES = 1 << 16


def key(*parts: int | str) -> int:
    """A 63-bit number that depends on all parts and on nothing else."""
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def draw(low: int, high: int, *parts: int | str) -> int:
    """A whole number in low..high, both included, as a function of the parts."""
    return low + int(np.random.Generator(np.random.PCG64(key(*parts))).integers(high - low + 1))


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Torch's own generators start from the parts inside, and are as they were after."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(key(*parts))
        yield


def initialise(model: nn.Module, seed: int) -> None:
    """Draws every parameter anew, as a function of (seed, name of its module), by the modules' `reset_parameters`."""
    for name, module in model.named_modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            with seeded(seed, "init", name):
                reset()


def batch_indices(seed: int, examples: int, batch: int, step: int) -> np.ndarray:
    """Indices of the batch of one step: consecutive pieces of one permutation per epoch, without end."""
    positions = np.arange(step * batch, (step + 1) * batch)
    epochs, offsets = np.divmod(positions, examples)
    indices = np.empty(batch, dtype=np.int64)
    for epoch in np.unique(epochs):
        order = _epoch_order(seed, examples, int(epoch))
        indices[epochs == epoch] = order[offsets[epochs == epoch]]
    return indices


_ORDERS: dict[tuple[int, int, int], np.ndarray] = {}


def _epoch_order(seed: int, examples: int, epoch: int) -> np.ndarray:
    """The permutation of one epoch; the last two are kept, for a batch may span both."""
    wanted = (seed, examples, epoch)
    if wanted not in _ORDERS:
        while len(_ORDERS) > 1:
            del _ORDERS[next(iter(_ORDERS))]
        generator = np.random.Generator(np.random.PCG64(key(seed, "order", epoch)))
        _ORDERS[wanted] = generator.permutation(examples)
    return _ORDERS[wanted]


@dataclass
class Stream:
    """What the dropout masks of the present forward pass depend on; shared by all `Dropout` modules of a model."""

    seed: int = 0
    step: int = 0
    micro: int = 0
    repeat: int = 0
    enabled: bool = True
    specials: int = 0
    shift: int = 0


class Dropout(nn.Module):
    """Dropout whose mask is a function of (seed, step, micro-batch, repeat, site).

    It is drawn for special rows and for content apart.

    A token meets the same mask whatever stands in front of it, so a shifted second pass can share its mask. The share
    dropped is p rounded to 1/65536.
    """

    def __init__(self, p: float, site: str, stream: Stream):
        super().__init__()
        self.p, self.site, self.stream = p, site, stream

    def forward(self, x_BRD: Tensor) -> Tensor:
        if not self.active:
            return x_BRD
        first = self.stream.specials + self.stream.shift
        parts = [self._keep(x_BRD[:, : self.stream.specials], "specials")] if self.stream.specials else []
        if self.stream.shift:
            parts.append(torch.ones_like(x_BRD[:, : self.stream.shift], dtype=torch.bool))
        parts.append(self._keep(x_BRD[:, first:], "content"))
        keep_BRD = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return x_BRD * keep_BRD * (1 / (1 - self.p))

    @property
    def active(self) -> bool:
        return self.training and self.p > 0 and self.stream.enabled

    def _keep(self, like: Tensor, part: str) -> Tensor:
        s = self.stream
        generator = torch.Generator(like.device).manual_seed(
            key(s.seed, "dropout", s.step, s.micro, s.repeat, self.site, part)
        )
        words = torch.empty(-(-like.numel() // 4), dtype=torch.int64, device=like.device)
        bits = words.random_(-(2**63), None, generator=generator).view(torch.int16)[: like.numel()]
        threshold = round(self.p * _INT16_VALUES) - _INT16_VALUES // 2
        return (bits >= threshold).view(like.shape)

    def extra_repr(self) -> str:
        return f"p={self.p}, site={self.site!r}"


class WeightDropout(Dropout):
    """The same for attention weights (B, H, R, R), whose rows are no tokens: one mask for all of them."""

    def forward(self, weights_BHRR: Tensor) -> Tensor:
        if not self.active:
            return weights_BHRR
        return weights_BHRR * self._keep(weights_BHRR, "weights") * (1 / (1 - self.p))
