"""Token window by the memory-efficient attention of xFormers: CUDA, bfloat16 (`--set numerics.dtype=bf16`), no masks.

It computes what `sliding` does; elsewhere the run is `unsupported` and says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import NonNegativeInt
from torch import nn

from attnbench.contracts import Mechanism, MixerShape
from attnbench.sparse import Pattern, TokenWindow
from attnbench.sparse.mixer import SparseMixer

_GRAIN = 64  # of the topology's tables; the kernel has its own


@dataclass(frozen=True, kw_only=True)
class Options:
    """window counts tokens on each side."""

    window: NonNegativeInt = 64


def build(shape: MixerShape, options: Options) -> nn.Module:
    return SparseMixer(shape, Pattern(TokenWindow(_GRAIN, options.window, options.window)), "fmha")


MECHANISM = Mechanism(
    summary="Sliding window of tokens by xFormers' memory-efficient attention (CUDA)",
    paper="Lefaudeux et al. 2022, xFormers: A modular and hackable Transformer modelling library",
    build=build,
    options=Options,
    family="window",
    complexity="n",
    honours_masks=False,
    requires=("xformers",),
)
