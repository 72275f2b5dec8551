"""Stateless randomness: every draw is a function of (seed, purpose, step or name), never of what was drawn before.

So all mechanisms of one seed share the order of the data and the start of every parameter of equal name, and a
resumed run needs no random state.
"""

# B batch, R rows (specials S, then content), D width

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


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


def generators() -> list[Tensor]:
    """The states of torch's own generators: of the CPU, and of each GPU."""
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def rewind(states: Sequence[Tensor]) -> None:
    """Takes them back to states that `generators` gave."""
    torch.set_rng_state(states[0])
    torch.cuda.set_rng_state_all(states[1:])


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

    A token meets the same mask whatever stands in front of it, so a shifted second pass can share its mask.
    """

    def __init__(self, p: float, site: str, stream: Stream):
        super().__init__()
        self.p, self.site, self.stream = p, site, stream

    def forward(self, x_BRD: Tensor) -> Tensor:
        if not self.active:
            return x_BRD
        specials, first = self.stream.specials, self.stream.specials + self.stream.shift
        # in the type of x and with the factor in it: a product of two types takes longer than all the rest
        factors_BRD = torch.empty_like(x_BRD)
        for part, name in ((factors_BRD[:, :specials], "specials"), (factors_BRD[:, first:], "content")):
            part.copy_(self._keep(part, name))
        factors_BRD[:, specials:first] = 1
        return x_BRD * factors_BRD.mul_(1 / (1 - self.p))

    @property
    def active(self) -> bool:
        return self.training and self.p > 0 and self.stream.enabled

    def _keep(self, like: Tensor, part: str) -> Tensor:
        """1 where a value is kept, 0 where it is dropped; another mask on each type of device."""
        s = self.stream
        seed = key(s.seed, "dropout", s.step, s.micro, s.repeat, self.site, part)
        if like.device.type == "cpu":
            return torch.from_numpy(_keep(like.numel(), self.p, seed)).view(like.shape)
        generator = torch.Generator(like.device).manual_seed(seed)
        return torch.rand(like.shape, generator=generator, device=like.device) >= self.p

    def extra_repr(self) -> str:
        return f"p={self.p}, site={self.site!r}"


class WeightDropout(Dropout):
    """The same for attention weights, (B, H, R, R) or (B, H, R, rank): one mask for special rows and content, whatever
    shift stands between them.
    """

    def forward(self, weights_BHRR: Tensor) -> Tensor:
        if not self.active:
            return weights_BHRR
        specials, shift = self.stream.specials, self.stream.shift
        square = weights_BHRR.shape[-1] == weights_BHRR.shape[-2]  # else columns are no rows, and none is of a shift
        keep = self._keep(weights_BHRR[..., shift:, shift if square else 0 :], "weights")
        for dim, beside in ((-2, (0, 0, shift, 0)), *(((-1, (shift, 0)),) if square else ())):
            front, content = keep.tensor_split((specials,), dim)
            keep = torch.cat([front, F.pad(content, beside, value=1)], dim) if shift else keep
        return weights_BHRR * keep * (1 / (1 - self.p))


def _keep(count: int, p: float, seed: int) -> np.ndarray:
    """(count,) uint8, 1 with probability 1 - p: a byte decides, and where it just does not, another draw."""
    bits = np.random.PCG64(seed)
    drawn = bits.random_raw(-(-count // 8)).view(np.uint8)[:count]
    edge = int(p * 256)
    keep = (drawn > edge).view(np.uint8)
    undecided = np.flatnonzero(drawn == edge)
    keep[undecided] = np.random.Generator(bits).random(len(undecided)) >= p * 256 - edge
    return keep
