"""Token window: a token sees `window` tokens before it and as many after it (Beltagy et al. 2020, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import NonNegativeInt, PositiveInt
from torch import nn

from attnbench.contracts import Mechanism, MixerShape, Tokens
from attnbench.sparse import PathName, Pattern, TokenWindow
from attnbench.sparse.mixer import SparseMixer


@dataclass(frozen=True, kw_only=True)
class Options:
    """window counts tokens on each side; block_size is the grain of the computation and changes no value."""

    window: NonNegativeInt = 64
    block_size: PositiveInt = 64
    path: PathName = "gather"


def build(shape: MixerShape, options: Options) -> nn.Module:
    return SparseMixer(shape, Pattern(TokenWindow(options.block_size, options.window, options.window)), options.path)


MECHANISM = Mechanism(
    summary="Sliding window of tokens on each side",
    paper="Beltagy et al. 2020, Longformer: The Long-Document Transformer",
    build=build,
    family="window",
    options=Options,
    tokens=lambda options: Tokens(block_size=options.block_size),
    causal="capable",
    shift_invariant=lambda options: True,
    complexity="n",
)
