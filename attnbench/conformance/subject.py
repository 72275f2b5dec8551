"""The mechanism under examination, and inputs for it.

Shape letters: B batch, N content rows, R all rows, C width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnbench.choice import Choice, choose_mechanism, honours, is_bound
from attnbench.conformance.check import Case
from attnbench.contracts import Mechanism
from attnbench.model import StandaloneMixer, standalone


@dataclass(frozen=True)
class Subject:
    """A mechanism with its options, as `reference` (a name, a file, `pkg.module:Class`) found it."""

    reference: str
    choice: Choice

    @classmethod
    def of(cls, reference: str, values: Mapping[str, Any]) -> Subject:
        """
        Raises:
            AttnbenchError: unknown name, option or value.
            Unsupported: a package it needs is missing.
        """
        return cls(reference, choose_mechanism(reference, values))

    @property
    def name(self) -> str:
        return self.choice.plugin.name

    @property
    def mechanism(self) -> Mechanism:
        found: Mechanism = self.choice.plugin.object
        return found

    @property
    def honours(self) -> bool:
        """Padding changes nothing, with the options chosen."""
        return honours(self.choice)

    @property
    def is_bound(self) -> bool:
        """The padded length counts, with the options chosen."""
        return is_bound(self.choice)

    @property
    def block(self) -> int:
        """Rows of a block; 1 where the mechanism has none."""
        return max(1, self.mechanism.tokens(self.choice.options).block_size)

    @property
    def length(self) -> int:
        """Content rows of a full input: more blocks than a usual window holds, the last one in part, and odd."""
        return max(151, 4 * self.block + self.block // 2 | 1)

    def build(
        self,
        case: Case,
        *,
        length: int | None = None,
        init_seed: int = 0,
        causal: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> StandaloneMixer:
        """In evaluation mode, with room for a full input unless `length` says otherwise."""
        mixer = standalone(
            self.mechanism,
            self.choice.options,
            dim=case.dim,
            heads=case.heads,
            length=length or max(self.length, case.length),
            init_seed=init_seed,
            causal=causal,
        )
        return mixer.to(dtype).eval()


def rows(case: Case, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """(B, N, C), unit normal."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(case.batch, case.length, case.dim, generator=generator, dtype=torch.float64).to(dtype)


def weighted(y: Tensor) -> Tensor:
    """A scalar to which every number of y counts, each with a weight of its own."""
    return (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(y)).sum()


def mask_of(case: Case) -> Tensor | None:
    """(B, N) bool, True = a real row; None for `none`."""
    return None if case.mask == "none" else MASKS[case.mask](case.batch, case.length)


def _behind(batch: int, length: int) -> Tensor:
    kept = length - torch.arange(1, batch + 1) * max(1, length // (batch + 2))
    return torch.arange(length) < kept.clamp(min=1)[:, None]


def _holes(batch: int, length: int) -> Tensor:
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[:, length // 4 : length // 2] = mask[:, 2::3] = False
    mask[:, 0] = True
    return mask


MASKS: dict[str, Callable[[int, int], Tensor]] = {
    "behind": _behind,
    "front": lambda batch, length: _behind(batch, length).flip(1),
    "holes": _holes,
    "one row": lambda batch, length: (torch.arange(length) == length // 2).expand(batch, -1),
}


def real_rows(mixer: StandaloneMixer, x_BNC: Tensor, mask_BN: Tensor | None = None) -> Tensor:
    """Output at all rows that are real, special ones included: (real rows, C)."""
    y_BRC: Tensor = mixer(x_BNC, mask_BN, keep_special=True)
    if mask_BN is None:
        return y_BRC.flatten(0, 1)
    _, real_BR, _ = mixer.specials.insert(x_BNC, mask_BN)
    assert real_BR is not None
    return y_BRC[real_BR]


def full(subject: Subject) -> list[Case]:
    return [Case(length=subject.length)]


def lengths(subject: Subject) -> list[Case]:
    """Full, odd and short inputs, and those that just fill a block."""
    wanted = {subject.length, subject.length - 1, 2 * subject.block + 1, subject.block + 1, subject.block, 7, 2, 1}
    return [Case(length=length, batch=2) for length in sorted(wanted, reverse=True)]


def masked(subject: Subject) -> list[Case]:
    return [Case(length=subject.length, mask=mask) for mask in MASKS]
