"""What the author of a mechanism writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from attnbench.contracts.shape import MixerShape, NoOptions, Tokens
from attnbench.errors import AttnbenchError

if TYPE_CHECKING:
    from torch import nn

#: How the cost of a call may be declared to grow with its n content rows, options fixed; b: block size of `Tokens`.
COMPLEXITIES: Mapping[str, Callable[[int, int], float]] = {
    "n": lambda n, b: n,
    "n log n": lambda n, b: n * math.log(n),
    "n sqrt n": lambda n, b: n**1.5,
    "n + (n/b)^2": lambda n, b: n + (n / b) ** 2,
    "n + n^2/b": lambda n, b: n + n**2 / b,
    "n^2": lambda n, b: n**2,
}


def _no_tokens(options: Any) -> Tokens:
    return Tokens()


def _never(options: Any) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """An attention mechanism (or any other token mixer).

    `build(shape, options)` returns an `nn.Module` with `forward(x, mask=None, layout=None) -> y`, where x and y are
    (batch, rows, dim) and mask is (batch, rows) bool, True = a real row. Importing the file has no side effect.

    Attributes:
        summary: one line for lists.
        paper: authors, year, title.
        family: how it saves work: dense (not at all), window, block-sparse, hierarchical, low-rank, kernel, selective.
        options: a frozen dataclass; every field has a default and is recorded.
        tokens: the special rows wanted, from the options.
        presets: named sets of option values (`--set preset=NAME`).
        causal: "no", "capable" (when `shape.causal` asks for it) or "only".
        exact: the output must equal softmax attention up to rounding.
        length_bound: the output depends on the padded length.
        counts_length: options with which it does all the same.
        honours_masks: padding rows change nothing.
        ignores_masks: options with which they do all the same.
        shift_invariant: options with which content moved right behind masked rows comes out the same, its positions
            kept: the pattern has no grid that stands still.
        complexity: how its cost grows, one of COMPLEXITIES; "" = not said.
        requires: packages it needs beyond attnbench's own.
        version: raise it when numbers may change.
    """

    summary: str
    paper: str
    build: Callable[[MixerShape, Any], nn.Module]
    family: str = ""
    options: type = NoOptions
    tokens: Callable[[Any], Tokens] = _no_tokens
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    causal: Literal["no", "capable", "only"] = "no"
    exact: bool = False
    length_bound: bool = False
    counts_length: Callable[[Any], bool] = _never
    honours_masks: bool = True
    ignores_masks: Callable[[Any], bool] = _never
    shift_invariant: Callable[[Any], bool] = _never
    complexity: str = ""
    requires: tuple[str, ...] = ()
    version: int = 1

    def __post_init__(self) -> None:
        if self.causal not in ("no", "capable", "only"):
            raise AttnbenchError(f"causal is no, capable or only, got {self.causal!r}")
        if self.complexity and self.complexity not in COMPLEXITIES:
            raise AttnbenchError(f"complexity is {', '.join(COMPLEXITIES)} or empty, got {self.complexity!r}")
        if not isinstance(self.requires, tuple) or not all(isinstance(name, str) for name in self.requires):
            raise AttnbenchError(f"requires is a tuple of package names, got {self.requires!r}")
        if not isinstance(self.presets, Mapping):
            raise AttnbenchError(f"presets maps names to values of options, got {self.presets!r}")
        for name in ("counts_length", "ignores_masks", "shift_invariant"):
            if not callable(getattr(self, name)):
                raise AttnbenchError(f"{name} is a function of the options, got {getattr(self, name)!r}")

    def honours(self, options: Any) -> bool:
        """Padding rows change nothing with these options."""
        return self.honours_masks and not self.ignores_masks(options)

    def is_bound(self, options: Any) -> bool:
        """With these options the output depends on the padded length."""
        return self.length_bound or bool(self.counts_length(options))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A mechanism trained with a regularizer, under a name of its own; both by name."""

    summary: str
    paper: str
    mechanism: str
    regularizer: str
