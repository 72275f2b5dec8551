"""What a plugin author writes: mechanisms, tasks, regularizers as data plus one callable. Nothing here loads torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from attnbench.errors import AttnbenchError

if TYPE_CHECKING:
    import datasets
    import torch
    from torch import nn


@dataclass(frozen=True)
class NoOptions:
    """For plugins that have nothing to choose."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The special rows a mechanism asks the encoder for, and the grid of content blocks they refer to.

    Attributes:
        globals: rows in front that stand for the whole input (CLS is one of them).
        reps_per_block: representatives of each block of content.
        block_size: content rows per block; 0 = the mechanism has no grid.
    """

    globals: int = 0
    reps_per_block: int = 0
    block_size: int = 0

    def __post_init__(self) -> None:
        if min(self.globals, self.reps_per_block, self.block_size) < 0:
            raise ValueError(f"Tokens takes no negative number: {self}")
        if self.reps_per_block and not self.block_size:
            raise ValueError("Tokens with reps_per_block needs a block_size")


@dataclass(frozen=True, kw_only=True)
class MixerShape:
    """What the encoder asks of every mechanism.

    Attributes:
        dim: width of a row.
        heads: number of heads; divides dim.
        length: the most content rows one call may have.
        tokens: the special rows in front of the content, as the mechanism declared them.
        causal: a row may see itself and earlier rows only.
        layer: index of the layer, for patterns that differ by layer.
        rotary: positions enter as a rotation of queries and keys (Su et al. 2021, RoFormer).
    """

    dim: int
    heads: int
    length: int
    tokens: Tokens = Tokens()
    layer: int = 0
    causal: bool = False
    rotary: bool = False

    def __post_init__(self) -> None:
        if min(self.dim, self.heads, self.length) < 1:
            raise AttnbenchError(
                "dim, heads and length must be at least 1, "
                f"got dim={self.dim}, heads={self.heads}, length={self.length}"
            )
        if self.dim % self.heads:
            raise AttnbenchError(f"heads={self.heads} does not divide dim={self.dim}; choose a divisor")

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


@dataclass(frozen=True)
class Layout:
    """How the rows of one call are arranged: [globals | representatives, block by block | content].

    Attributes:
        tokens: the special rows, as the mechanism declared them.
        length: content rows of this call, the leading shift included.
        shift: masked content rows in front (SAR moves the content right by this many).
        moved: positions count the shifted rows too, so a real token's position moves with it.
        memo: masks and tables built for this call, shared by all layers.
    """

    tokens: Tokens
    length: int
    shift: int = 0
    moved: bool = False
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def globals(self) -> int:
        return self.tokens.globals

    @property
    def reps_per_block(self) -> int:
        return self.tokens.reps_per_block

    @property
    def block_size(self) -> int:
        return self.tokens.block_size

    @property
    def blocks(self) -> int:
        """Blocks of content; the last one may be short."""
        return -(-self.length // self.block_size) if self.block_size else 0

    @property
    def reps(self) -> int:
        """Rows that stand for a block; row j of them stands for block j // reps_per_block."""
        return self.reps_per_block * self.blocks

    @property
    def specials(self) -> int:
        return self.globals + self.reps

    @property
    def rows(self) -> int:
        return self.specials + self.length


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


def _never_idle(options: Any, dropout: float) -> str | None:
    return None


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
        honours_masks: padding rows change nothing.
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
    honours_masks: bool = True
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


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A mechanism trained with a regularizer, under a name of its own; both by name."""

    summary: str
    paper: str
    mechanism: str
    regularizer: str


@dataclass(frozen=True)
class Classify:
    """One of `classes` for the whole input. Columns: tokens, label."""

    classes: int
    documents: tuple[str, ...] = ("tokens",)
    target: str = "label"


@dataclass(frozen=True)
class Match:
    """One of `classes` for two inputs read by one encoder. Columns: tokens, tokens_b, label."""

    classes: int
    documents: tuple[str, ...] = ("tokens", "tokens_b")
    target: str = "label"


@dataclass(frozen=True)
class TagTokens:
    """One of `classes` at every content row whose target is not -100. Columns: tokens, targets."""

    classes: int
    documents: tuple[str, ...] = ("tokens",)
    target: str = "targets"


Head = Classify | Match | TagTokens
NO_TARGET = -100


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a task comes from."""

    citation: str
    licence: str
    url: str = ""


@dataclass(frozen=True, kw_only=True)
class Controls:
    """Who must solve the task and who cannot, so that a table shows whether the task tells mechanisms apart."""

    positive: str
    negative: str


@dataclass(frozen=True)
class Preparation:
    """What the engine hands to `Task.prepare` and `Task.export`.

    Attributes:
        folder: for `prepare` a folder to work in: files written there outlive an interruption, so that the next time
            can go on from them, and go when the set is whole. For `export` the folder to fill.
        source: where the user says the raw data lies, or None.
        progress: wraps an iterable of known length in a progress bar.
        note: tells the user something about the data and keeps it with the set.
        workers: how many threads or processes may help; the result must not depend on it.
    """

    folder: Path
    source: Path | None
    progress: Callable[[Sequence[Any], str], Iterator[Any]]
    note: Callable[[str], None]
    workers: int = 1


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set with a question.

    `prepare(options, preparation)` reads, downloads or generates, and returns a `datasets.DatasetDict` with the splits
    train, validation and test; it is the only place that may use the network. The engine stores it as Arrow.

    Attributes:
        summary: one line for lists.
        source: citation and licence.
        head: what is asked, from the options.
        vocab: number of token ids, from the options.
        max_length: the most content rows of one document, from the options.
        options: a frozen dataclass; difficulty and length are part of a task's identity.
        chance: score of a blind guess, from the options; None = 1 / classes.
        baselines: trivial scores on the test split beside the engine's own (`{name: score}`).
        padded: examples differ in length, so mechanisms see masks.
        controls: who must solve it and who cannot.
        export: writes the data in the form in which others publish it, or None.
        pinned: content hash that the set of these options must have, or None where none is on record.
        version: raise it when data may change.
    """

    summary: str
    source: Source
    head: Callable[[Any], Head]
    vocab: Callable[[Any], int]
    max_length: Callable[[Any], int]
    prepare: Callable[[Any, Preparation], datasets.DatasetDict]
    options: type = NoOptions
    chance: Callable[[Any], float] | None = None
    baselines: Callable[[Any, datasets.DatasetDict], dict[str, float]] | None = None
    padded: bool = False
    controls: Controls | None = None
    export: Callable[[Any, Preparation], None] | None = None
    pinned: Callable[[Any], str | None] | None = None
    metric: str = "accuracy"
    version: int = 1


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
    """

    summary: str
    paper: str
    loss: Callable[[Any], Callable[[Run, torch.Tensor, torch.Tensor], Loss]]
    options: type = NoOptions
    passes: int = 1
    max_shift: Callable[[Any], int] = lambda options: 0
    idle: Callable[[Any, float], str | None] = _never_idle
    version: int = 1
