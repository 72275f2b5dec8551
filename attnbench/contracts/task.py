"""What the author of a task writes: the question, where the data come from, how they are prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.contracts.shape import NoOptions

if TYPE_CHECKING:
    import datasets


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


@dataclass(frozen=True)
class Choose:
    """Which of the candidates that stand in the input. Columns: tokens, marks (the content row that stands for each
    candidate), label (the number of the right one).
    """

    documents: tuple[str, ...] = ("tokens",)
    target: str = "label"
    marks: str = "marks"


def _as_it_is(text: str) -> str:
    return text


@dataclass(frozen=True)
class Span:
    """Where the answer to a question stands, in windows over its evidence; one example is one window.

    Columns: tokens (row 0 means "not in this window"); spans (first and last row of every acceptable place:
    s, e, s, e, ...; empty = not here); context (the evidence as text); offsets (two numbers a token, where in the
    context it begins and ends; 0, 0 = it is not of the context); answers (acceptable texts); question (a number,
    ascending: the windows of a question follow each other).

    Attributes:
        normalise: what is done to texts before they are compared; the task's official script says what.
        longest: most tokens of an answer.
    """

    normalise: Callable[[str], str] = _as_it_is
    longest: int = 30
    documents: tuple[str, ...] = ("tokens",)
    target: str = "spans"


Head = Classify | Match | TagTokens | Choose | Span
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
            can go on from them, and go when the set is whole; but what lies below `kept` stays beside it. For `export`
            the folder to fill.
        source: where the user says the raw data lies, or None.
        progress: wraps an iterable of known length in a progress bar.
        note: tells the user something about the data and keeps it with the set.
        workers: how many threads or processes may help; the result must not depend on it.
        download: the user allows the network; without it a task that has no source says where the data can be had.
        fact: keeps a figure with the set, such as the share of examples that were cut, under a name.
    """

    folder: Path
    source: Path | None
    progress: Callable[[Sequence[Any], str], Iterator[Any]]
    note: Callable[[str], None]
    workers: int = 1
    download: bool = False
    fact: Callable[[str, Any], None] = lambda name, value: None


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
        chance: score of a blind guess, from the options; None = 1 / classes (1 / candidates; 0 for spans).
        baselines: trivial scores on the test split beside the engine's own (`{name: score}`).
        levels: further scores on the test split that take their time and that only `data verify` computes, such as that
            of a small convolutional network.
        padded: examples differ in length, so mechanisms see masks.
        controls: who must solve it and who cannot.
        export: writes the data in the form in which others publish it, or None.
        pinned: content hash that the set of these options must have, or None where none is on record.
        requires: packages it needs beyond attnbench's own.
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
    levels: Callable[[Any, datasets.DatasetDict], dict[str, float]] | None = None
    padded: bool = False
    controls: Controls | None = None
    export: Callable[[Any, Preparation], None] | None = None
    pinned: Callable[[Any], str | None] | None = None
    requires: tuple[str, ...] = ()
    metric: str = "accuracy"
    version: int = 1
