"""Hyperpartisan news, yes or no: SemEval-2019 task 4, the 645 articles labelled one by one (Kiesel et al. 2019).

There is no official split, and 65 test articles alone would leave an interval of ten points on each side. So there are
five folds of a seed: `fold` names the one to test on, and over the five of them every article is tested once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import datasets
import numpy as np
from pydantic import Field

from attnbench.contracts import Classify, Preparation, Source, Task
from attnbench.errors import AttnbenchError

from . import _carving, _hub
from ._documents import Options as Shared
from ._documents import Part, tokenized
from ._hyperpartisan import ARTICLES, TRUTH, Article, read

FOLDS = 5
#: Of the articles that are not tested, one in so many is for validation.
_VALIDATION_ONE_IN = 8
SOURCE = Source(
    citation="Kiesel et al. 2019, SemEval-2019 Task 4: Hyperpartisan News Detection",
    licence="CC BY 4.0",
    url="https://doi.org/10.5281/zenodo.5776081",
)
_WHERE = f"{ARTICLES}-20181122.zip and {TRUTH}-20181122.zip from {SOURCE.url}"


@dataclass(frozen=True, kw_only=True)
class Options(Shared):
    __doc__ = f"""{Shared.__doc__}
    fold: 0 to 4, the fifth of the articles that is tested; which articles it holds depends on data_seed.
    title: put the headline in front of the text.
    """
    fold: Annotated[int, Field(ge=0, lt=FOLDS)] = 0
    title: bool = False


def split(options: Options, articles: list[Article]) -> dict[str, np.ndarray]:
    """Numbers of the articles of each split, shuffled; each fold and each validation part has both classes in their
    proportion. Equal texts stay together.
    """
    labels = np.array([article.label for article in articles])
    drawn = _carving.digests(options.data_seed, [article.text.encode() for article in articles])
    order = _carving.shuffled("the set", drawn, labels, None)
    _, firsts, group_of = np.unique(drawn[order], axis=0, return_index=True, return_inverse=True)
    group_of = group_of.reshape(-1)
    by_class = np.argsort(labels[order][firsts], kind="stable")
    rank = np.empty(len(firsts), np.int64)
    rank[by_class] = np.arange(len(firsts))
    tested = rank % FOLDS == options.fold
    held_out = np.zeros(len(firsts), bool)
    held_out[by_class[~tested[by_class]][::_VALIDATION_ONE_IN]] = True
    return {
        "train": order[~(tested | held_out)[group_of]],
        "validation": order[held_out[group_of]],
        "test": order[tested[group_of]],
    }


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    if preparation.source is None:
        raise _hub.missing("hyperpartisan", options, _WHERE, downloads=False)
    articles = read(preparation.source)
    found = split(options, articles)
    for name, rows in found.items():
        if len({articles[row].label for row in rows}) < 2:
            raise AttnbenchError(f"{preparation.source}: {len(articles)} articles are too few: one class in {name}")
    texts = [f"{article.title}\n{article.text}" if options.title else article.text for article in articles]
    preparation.fact("articles", len(articles))
    drawn = {name: _carving.digests(0, [articles[row].text.encode() for row in rows]) for name, rows in found.items()}
    _carving.tell_duplicates(preparation, "articles", drawn)
    return tokenized(options, preparation, {name: _part(articles, texts, rows) for name, rows in found.items()})


def _part(articles: list[Article], texts: list[str], rows: np.ndarray) -> Part:
    return Part(
        lambda: (texts[row] for row in rows),
        np.array([articles[row].label for row in rows]),
        where=lambda number: f"article {articles[rows[number]].id}",
    )


TASK = Task(
    summary="Is a news article hyperpartisan? 645 articles in five folds, subwords up to 4,096",
    source=SOURCE,
    head=lambda options: Classify(2),
    vocab=lambda options: options.vocab,
    max_length=lambda options: options.max_length,
    prepare=prepare,
    options=Options,
    padded=True,
    requires=("tokenizers",),
)
