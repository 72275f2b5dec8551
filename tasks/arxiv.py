"""Subject of a paper from its full text: eleven classes of arXiv (He et al. 2019).

The data set is ccdv/arxiv-classification; its train, validation and test splits are kept. Texts name their class now
and then (`[cs.CV]` in the stamp on the first page); `config=no_ref` is the form without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import datasets
import numpy as np
from pydantic import PositiveInt

from attnbench.contracts import Classify, Preparation, Source, Task
from attnbench.errors import AttnbenchError

from . import _carving, _hub
from ._documents import Options as Shared
from ._documents import Part, tokenized

CLASSES = (
    "math.AC", "cs.CV", "cs.AI", "cs.SY", "math.GR", "cs.CE", "cs.PL", "cs.IT", "cs.DS", "cs.NE", "math.ST",
)  # fmt: skip
SPLITS = ("train", "validation", "test")
SOURCE = Source(
    citation="He et al. 2019, Long Document Classification From Local Word Glimpses via Recurrent Attention Learning",
    licence="none stated for the set; the papers' own",
    url="https://huggingface.co/datasets/ccdv/arxiv-classification",
)
_COLUMNS = (_hub.Column("text", "text"), _hub.Column("label", "number", CLASSES))
_FOLDERS = {"default": "data", "no_ref": "no_ref"}


@dataclass(frozen=True, kw_only=True)
class Options(Shared):
    __doc__ = f"""{Shared.__doc__}
    config: default, or no_ref, the texts without the names of classes.
    examples, test_examples: that many of train, and of validation and test each; none: all.
    """
    config: Literal["default", "no_ref"] = "default"
    examples: PositiveInt | None = None
    test_examples: PositiveInt | None = None


@dataclass(frozen=True)
class Stream:
    """The documents of a split, read anew from `parts` at each pass; memory holds a part of a file."""

    name: str
    parts: Callable[[], Iterable[_hub.Batches]]

    def rows(self) -> Iterator[tuple[bytes, int]]:
        for where, (text, label) in _hub.rows(self.parts(), _COLUMNS):
            if label not in range(len(CLASSES)):
                raise AttnbenchError(f"{where}: label {label}, expected 0 to {len(CLASSES) - 1}")
            yield text, label

    def part(self, options: Options, drawn: np.ndarray, labels: np.ndarray, count: int | None) -> Part:
        """The first `count` documents in a seeded order, or all."""
        rows = _carving.shuffled(f"{self.name} of arXiv", drawn, labels, count)
        taken = np.sort(rows)
        wanted = set(taken.tolist())
        return Part(
            lambda: (text.decode() for row, (text, _) in enumerate(self.rows()) if row in wanted),
            labels[taken],
            order=np.searchsorted(taken, rows),
            where=lambda number: f"{self.name} of arXiv, document {taken[number] + 1}",
        )


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    streams = _streams(options, preparation)
    drawn, labels = {}, {}
    for name, stream in streams.items():
        drawn[name], labels[name] = _read_through(options, preparation, stream)
    _carving.tell_duplicates(preparation, "documents", drawn)
    counts = {"train": options.examples, "validation": options.test_examples, "test": options.test_examples}
    return tokenized(
        options,
        preparation,
        {name: stream.part(options, drawn[name], labels[name], counts[name]) for name, stream in streams.items()},
    )


def _streams(options: Options, preparation: Preparation) -> dict[str, Stream]:
    hub = _hub.Hub("ccdv/arxiv-classification", options.config, SPLITS, _FOLDERS[options.config])
    where = f"the folder {hub.folder} of the data set {hub.repo} of the Hugging Face hub (about 1 GB)"
    found = _hub.begin("arxiv", options, preparation, hub, where)
    if not isinstance(found, Path):
        return {name: Stream(name, partial(found.__getitem__, name)) for name in SPLITS}
    for config, folder in _FOLDERS.items():
        if found.name == folder and config != options.config:
            raise AttnbenchError(f"{found}: the files of config={config}, but config={options.config} is asked for")
    files = hub.find(found)
    if files is None:
        raise AttnbenchError(f"{found}: no train-*.parquet there; get {where}")
    return {name: Stream(name, partial(_hub.read, files[name])) for name in SPLITS}


def _read_through(options: Options, preparation: Preparation, stream: Stream) -> tuple[np.ndarray, np.ndarray]:
    """Checks every document; returns the draws and the labels."""
    drawn, labels = [], []
    for text, label in stream.rows():
        drawn.append(_carving.digests(options.data_seed, [text]))
        labels.append(label)
    if lost := sorted(set(range(len(CLASSES))) - set(labels)):
        preparation.note(f"{stream.name}: no document of {', '.join(CLASSES[label] for label in lost)}")
    return np.concatenate(drawn), np.array(labels)


TASK = Task(
    summary="Subject of a paper from its full text: 11 classes of arXiv, subwords up to 4,096",
    source=SOURCE,
    head=lambda options: Classify(len(CLASSES)),
    vocab=lambda options: options.vocab,
    max_length=lambda options: options.max_length,
    prepare=prepare,
    options=Options,
    padded=True,
    requires=("tokenizers",),
)
