"""Sentiment of film reviews in subwords, on IMDB (Maas et al. 2011).

The long-document papers' form of the task; LRA's byte-level form is `text`. Texts are as they were published, `<br />`
included. A tenth of the training reviews is carved off for validation, so that nothing is chosen on the test reviews.
"""

from __future__ import annotations

from dataclasses import dataclass

import datasets
import numpy as np
from pydantic import PositiveInt

from attnbench.contracts import Classify, Preparation, Task

from . import _carving, _imdb
from ._documents import Options as Shared
from ._documents import Part, tokenized


@dataclass(frozen=True, kw_only=True)
class Options(Shared):
    __doc__ = f"""{Shared.__doc__}
    examples, test_examples: that many of train (validation included) and of test; none: all.
    """
    examples: PositiveInt | None = None
    test_examples: PositiveInt | None = None


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    found = _imdb.read("imdb", options, preparation)
    drawn = {name: _carving.digests(options.data_seed, reviews.texts) for name, reviews in found.items()}
    _carving.tell_duplicates(preparation, "reviews", drawn)
    counts = {"train": options.examples, "test": options.test_examples}
    train, test = (_carving.shuffled(f"{n} of IMDB", drawn[n], found[n].labels, counts[n]) for n in counts)
    train, validation = _carving.carved(train, _carving.for_validation(drawn["train"][train]))
    return tokenized(
        options,
        preparation,
        {
            "train": _part(found["train"], train),
            "validation": _part(found["train"], validation),
            "test": _part(found["test"], test),
        },
    )


def _part(reviews: _imdb.Reviews, rows: np.ndarray) -> Part:
    return Part(lambda: (reviews.texts[row].decode() for row in rows), np.array(reviews.labels)[rows])


TASK = Task(
    summary="Sentiment of film reviews in subwords: IMDB up to 4,096",
    source=_imdb.SOURCE,
    head=lambda options: Classify(2),
    vocab=lambda options: options.vocab,
    max_length=lambda options: options.max_length,
    prepare=prepare,
    options=Options,
    padded=True,
    requires=("tokenizers",),
)
