"""Byte-level sentiment of film reviews: LRA's Text (Tay et al. 2020), on IMDB (Maas et al. 2011).

Raw UTF-8 bytes of a review, nothing lower-cased, tags kept; id = byte + 1, cut behind `max_length` bytes. No token for
a beginning or an end is added. docs/tasks/text.md says what others do instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import datasets
import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from attnbench.contracts import Classify, Preparation, Task

from . import _arrow, _carving, _imdb


@dataclass(frozen=True, kw_only=True)
class Options:
    """max_length: bytes of a review that are kept; the paper has 4000, LRA's released configuration 1000.
    validation: carved (about a tenth of train, by a hash of data_seed and the text), or test: the test reviews, as in
    LRA, which keeps all of train; what is chosen on them is then chosen on the test set.
    examples, test_examples: that many of train (validation included) and of test, drawn with data_seed; none: all.
    data_seed: of the order, the subsets and the validation rows.
    """

    max_length: PositiveInt = 4000
    validation: Literal["carved", "test"] = "carved"
    examples: PositiveInt | None = None
    test_examples: PositiveInt | None = None
    data_seed: NonNegativeInt = 0


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    found = _imdb.read("text", options, preparation)
    drawn = {name: _carving.digests(options.data_seed, reviews.texts) for name, reviews in found.items()}
    preparation.fact("rows", {name: len(reviews.texts) for name, reviews in found.items()})
    _carving.tell_duplicates(preparation, "reviews", drawn)
    made, cut = {}, {}
    for name, (origin, rows) in _chosen(options, found, drawn).items():
        texts, labels = ([column[row] for row in rows] for column in (found[origin].texts, found[origin].labels))
        cut[name] = round(float(np.mean([len(text) > options.max_length for text in texts])), 4)
        tokens = _arrow.byte_ids([text[: options.max_length] for text in texts])
        made[name] = _arrow.dataset({"tokens": tokens, "label": labels})
    preparation.fact("share_cut", cut)
    if options.validation == "test":
        preparation.note("validation is the test set, as in LRA: the step chosen on it is chosen on test")
    return datasets.DatasetDict(made)


def _chosen(
    options: Options, found: dict[str, _imdb.Reviews], drawn: dict[str, np.ndarray]
) -> dict[str, tuple[str, np.ndarray]]:
    """For each split the published one its rows come from, and their numbers there, shuffled."""
    counts = {"train": options.examples, "test": options.test_examples}
    train, test = (_carving.shuffled(f"{n} of IMDB", drawn[n], found[n].labels, counts[n]) for n in counts)
    if options.validation == "test":
        return {"train": ("train", train), "validation": ("test", test), "test": ("test", test)}
    train, validation = _carving.carved(train, _carving.for_validation(drawn["train"][train]))
    return {"train": ("train", train), "validation": ("train", validation), "test": ("test", test)}


TASK = Task(
    summary="Sentiment of film reviews, byte by byte: LRA's Text, on IMDB",
    source=_imdb.SOURCE,
    head=lambda options: Classify(2),
    vocab=lambda options: _arrow.BYTE_IDS,
    max_length=lambda options: options.max_length,
    prepare=prepare,
    options=Options,
    padded=True,
)
