"""What the tasks on long documents share: their options, and the way from labelled texts to subwords."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import datasets
import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from attnbench.contracts import Preparation
from attnbench.errors import AttnbenchError

from . import _arrow
from ._subwords import FILE, FIRST, LEAST, Subwords, TokenizerPath, in_batches

USUAL_SIZE = 8192


@dataclass(frozen=True, kw_only=True)
class Options:
    """max_length: subwords of a document that are kept; what lies behind is cut.
    vocab_size: of the vocabulary that is trained on the training documents, bytes included; those below it are counted.
    tokenizer: a tokenizer.json to use instead; what is recorded of it is a hash of its content.
    data_seed: of the order, the subsets and the validation documents.
    """

    max_length: PositiveInt = 4096
    vocab_size: Annotated[int, Field(ge=LEAST)] = USUAL_SIZE
    tokenizer: TokenizerPath | None = None
    data_seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.tokenizer and self.vocab_size != USUAL_SIZE:
            raise ValueError("vocab_size shapes a vocabulary that is trained; leave it out with a tokenizer")

    @property
    def vocab(self) -> int:
        """Ids that may occur: those below FIRST and the subwords."""
        return FIRST + (self.tokenizer.size if self.tokenizer else self.vocab_size)


@dataclass(frozen=True)
class Part:
    """Documents of a split.

    Attributes:
        texts: gives them anew at each call, in the order of `labels`; so they need not fit into memory.
        labels: (documents,) whole numbers.
        order: (documents,) the order to keep them in, or None for that of `labels`.
        where: names the one of a number in messages.
    """

    texts: Callable[[], Iterable[str]]
    labels: np.ndarray
    order: np.ndarray | None = None
    where: Callable[[int], str] = "document {}".format


def tokenized(options: Options, preparation: Preparation, parts: Mapping[str, Part]) -> datasets.DatasetDict:
    """The splits with the columns tokens and label; tells lengths and what was cut; keeps the vocabulary.

    Raises:
        AttnbenchError: a document without subwords, which a vocabulary of the user's may give.
    """
    pieces, kept = preparation.folder / "pieces", preparation.folder / "kept"
    for folder in (pieces, kept):  # those of an interrupted preparation may be of other files
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    with threads(preparation.workers):
        subwords = _vocabulary(options, preparation, parts["train"])
        made, lengths = {}, {}
        for name, part in parts.items():
            made[name], lengths[name] = _write(options, preparation, subwords, name, part)
    subwords.save(kept / FILE)
    _tell(options, preparation, subwords, lengths)
    return datasets.DatasetDict(made)


@contextmanager
def threads(workers: int) -> Iterator[None]:
    """The library `tokenizers` uses all cores or one; the result is the same."""
    name, before = "TOKENIZERS_PARALLELISM", os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ[name] = "false" if workers == 1 else "true"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _watched(preparation: Preparation, part: Part, title: str) -> Iterator[str]:
    texts = iter(part.texts())
    for _ in preparation.progress(range(len(part.labels)), title):
        yield next(texts)


def _vocabulary(options: Options, preparation: Preparation, train: Part) -> Subwords:
    if options.tokenizer:
        return Subwords.load(options.tokenizer)
    return Subwords.train(_watched(preparation, train, "vocabulary, documents"), options.vocab_size)


def _write(
    options: Options, preparation: Preparation, subwords: Subwords, name: str, part: Part
) -> tuple[datasets.Dataset, np.ndarray]:
    """The split, mapped from its files, and the lengths of its documents before they were cut."""
    paths: list[Path] = []
    lengths: list[int] = []
    narrow = np.uint16 if options.vocab <= 1 << 16 else np.uint32
    done = 0
    for batch in in_batches(_watched(preparation, part, f"subwords of {name}, documents")):
        found = subwords.ids(batch)
        lengths += [len(ids) for ids in found]
        if 0 in lengths[done:]:
            raise AttnbenchError(f"{part.where(lengths.index(0))}: no subword of it is in the vocabulary")
        cut = [ids[: options.max_length].astype(narrow) for ids in found]
        paths.append(preparation.folder / "pieces" / f"{name}-{len(paths):06d}.arrow")
        tokens = _arrow.rows(np.concatenate(cut), np.array([len(ids) for ids in cut]))
        _arrow.write(paths[-1], {"tokens": tokens, "label": part.labels[done : done + len(batch)].astype(np.int64)})
        done = len(lengths)
    made = _arrow.joined(paths)
    return (made if part.order is None else made.select(part.order)), np.array(lengths)


def _tell(options: Options, preparation: Preparation, subwords: Subwords, lengths: Mapping[str, np.ndarray]) -> None:
    cut = {name: round(float(np.mean(found > options.max_length)), 4) for name, found in lengths.items()}
    preparation.fact("share_cut", cut)
    preparation.fact(
        "subwords_before_the_cut",
        {
            name: {"median": int(np.median(found)), "p95": int(np.percentile(found, 95)), "max": int(found.max())}
            for name, found in lengths.items()
        },
    )
    preparation.fact("vocabulary", {"subwords": subwords.size, "from": str(options.tokenizer or "the training texts")})
    if any(cut.values()):
        shares = ", ".join(f"{100 * share:.1f} % of {name}" for name, share in cut.items())
        preparation.note(f"longer than {options.max_length:,} subwords and cut there: {shares}")
