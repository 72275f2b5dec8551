"""WikiHop (Welbl et al. 2018, QAngaroo): which candidate answers a question whose evidence lies in several documents?

    [Q] question  [CAND] candidate  [CAND] candidate ...  [SEP] document  [SEP] document ...

The row of a candidate's mark stands for it. The test set was never published, so the published dev set is the test set
here, and validation is carved from train by question.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import datasets
import numpy as np
import pyarrow as pa
from pydantic import PositiveInt

from attnbench.contracts import Choose, Preparation, Source, Task
from attnbench.errors import AttnbenchError

from . import _hub
from ._qa import pieces, sources
from ._qa.options import Shared, vocabulary
from ._qa.records import Record
from ._subwords import CANDIDATE, QUESTION, SEPARATOR, Subwords

SOURCE = Source(
    citation="Welbl et al. 2018, Constructing Datasets for Multi-hop Reading Comprehension Across Documents",
    licence="CC BY-SA 3.0",
    url="https://qangaroo.cs.ucl.ac.uk/",
)
_REPO = "community-datasets/qangaroo"
_AT_ONCE = 500
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, kw_only=True)
class Options(Shared):
    __doc__ = f"""{Shared.__doc__}
    masked: the release in which names of candidates are replaced by numbers, in the documents too.
    cut: how documents that are too long together are cut: even (to an equal share; what one leaves goes to the others)
        or end (what lies behind max_length).
    max_candidate: subwords of a candidate that are kept.
    """
    masked: bool = False
    cut: Literal["even", "end"] = "even"
    max_candidate: PositiveInt = 16


@dataclass(frozen=True)
class Hop:
    """A question; label: the number of the candidate that answers it. blank: documents without text, left out."""

    where: str
    id: str
    query: str
    candidates: list[str]
    supports: list[str]
    label: int
    blank: int


def home(options: Options) -> sources.Home:
    kind = ".masked" if options.masked else ""
    hub = _hub.Hub(_REPO, "masked_wikihop" if options.masked else "wikihop", ("train", "validation"))
    return sources.Home(
        hub=hub,
        files=(f"train{kind}.json", f"dev{kind}.json"),
        folders=("wikihop", "qangaroo_v1.1/wikihop"),
        key=None,
        where=f"qangaroo_v1.1.zip from {SOURCE.url}, unpacked, or {hub.config} of {hub.repo} of the Hugging Face hub",
    )


def read(records: Iterator[Record]) -> Iterator[Hop]:
    """
    Raises:
        AttnbenchError: a record that cannot be, with its place.
    """
    for record in records:
        candidates, answer = record.texts("candidates"), record.text("answer")
        supports = record.texts("supports", empty=True)
        kept = [support for support in supports if support.strip()]
        if len(candidates) < 2:
            raise AttnbenchError(f"{record.where}: {len(candidates)} candidates; a choice needs two")
        if twice := [one for one, count in Counter(candidates).items() if count > 1]:
            raise AttnbenchError(f"{record.where}: the candidate {twice[0]!r} stands there twice")
        if answer not in candidates:
            raise AttnbenchError(f"{record.where}: the answer {answer!r} is none of the {len(candidates)} candidates")
        if not kept:
            raise AttnbenchError(f"{record.where}: no supports")
        yield Hop(
            record.where, record.text("id"), record.text("query"), candidates, kept, candidates.index(answer),
            len(supports) - len(kept),
        )  # fmt: skip


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    found = sources.find("wikihop", options, preparation, home(options))
    pieces.claim(preparation.folder, found.identity)
    readers = {name: partial(_read, records) for name, records in found.records.items()}
    parts = sources.parts(options, preparation, readers, _describe, "questions", "documents")
    subwords = vocabulary(options, preparation, _texts(parts[0].of("train")))
    made, counts = pieces.made(preparation, parts, partial(_row, options, subwords), _schema(options), _AT_ONCE)
    _tell(preparation, counts, subwords.size)
    return made


def _read(records: Callable[[], Iterator[Record]]) -> Iterator[Hop]:
    return read(records())


def _describe(one: Hop) -> sources.Described:
    return sources.Described(one.query, one.query, one.supports)


def _texts(questions: Iterable[Hop]) -> Iterator[str]:
    return (text for one in questions for text in (one.query, *one.candidates, *one.supports))


def _schema(options: Options) -> pa.Schema:
    numbers = pa.list_(pa.int32())
    return pa.schema(
        {"tokens": pa.list_(options.id_type), "marks": numbers, "label": pa.int64(), "mentions": numbers,
         "id": pa.string()}
    )  # fmt: skip


def _row(options: Options, subwords: Subwords, split: str, number: int, one: Hop) -> pieces.Made:
    encoded = subwords.ids([one.query, *one.candidates, *one.supports])
    query, rest = encoded[0], encoded[1:]
    candidates = [[CANDIDATE, *ids[: options.max_candidate]] for ids in rest[: len(one.candidates)]]
    supports = rest[len(one.candidates) :]
    front = [QUESTION, *query[: options.max_question]]
    marks = len(front) + np.cumsum([0, *map(len, candidates[:-1])])
    room = options.max_length - len(front) - sum(map(len, candidates)) - len(supports)
    if room < 0 and (options.cut == "even" or room < -len(supports)):
        raise AttnbenchError(
            f"{one.where}: the question, {len(candidates)} candidates and marks alone are longer than "
            f"max_length={options.max_length}; it is at least {options.max_length - room}"
        )
    lengths = np.array([len(ids) for ids in supports])
    kept = even_shares(lengths, room) if options.cut == "even" else lengths
    documents = [np.concatenate([[SEPARATOR], ids[:count]]) for ids, count in zip(supports, kept, strict=True)]
    tokens = np.concatenate([front, *candidates, *documents])[: options.max_length]
    counts = Counter(
        questions=1,
        questions_cut=int(len(query) > options.max_question),
        candidates=len(candidates),
        documents=len(supports),
        documents_blank=one.blank,
        subwords=int(lengths.sum()),
        subwords_kept=int((tokens[marks[-1] + len(candidates[-1]) :] != SEPARATOR).sum()),
        examples_cut=int(lengths.sum() > room),
    )
    row = {"tokens": tokens, "marks": marks, "label": one.label, "mentions": mentions(one), "id": one.id}
    return pieces.Made([row], counts)


def even_shares(lengths: np.ndarray, room: int) -> np.ndarray:
    """How much is kept of each, (documents,): together as much as fits, none more than another that is cut, up to 1."""
    kept = np.zeros_like(lengths)
    for place, index in enumerate(np.argsort(lengths, kind="stable")):
        kept[index] = min(lengths[index], room // (len(lengths) - place))
        room -= kept[index]
    return kept


def mentions(one: Hop) -> list[int]:
    """How often each candidate stands in the documents, as whole words, whatever the case."""
    read_ = " \n ".join(map(_words, one.supports))
    wanted = [_words(candidate) for candidate in one.candidates]
    return [read_.count(words) if words else 0 for words in wanted]


def _words(text: str) -> str:
    """Each with a blank on both sides, so that neighbours share none."""
    return "".join(f" {word} " for word in _WORD.findall(text.lower()))


def _tell(preparation: Preparation, counts: Mapping[str, Counter[str]], vocabulary_size: int) -> None:
    def mean(what: str, of: str = "questions") -> dict[str, float]:
        return {split: round(found[what] / max(1, found[of]), 4) for split, found in counts.items()}

    cut = {split: round(1 - share, 4) for split, share in mean("subwords_kept", "subwords").items()}
    facts: dict[str, Any] = {
        "questions": {split: found["questions"] for split, found in counts.items()},
        "subwords_in_the_vocabulary": vocabulary_size,
        "candidates_per_question": mean("candidates"),
        "documents_per_question": mean("documents"),
        "documents_without_text": {split: found["documents_blank"] for split, found in counts.items()},
        "share_of_documents_cut": cut,
        "share_of_examples_cut": mean("examples_cut"),
        "share_of_questions_cut": mean("questions_cut"),
    }
    for name, fact in facts.items():
        preparation.fact(name, fact)
    if any(cut.values()):
        listed = ", ".join(f"{100 * share:.1f} % of {split}" for split, share in cut.items())
        preparation.note(f"cut from documents that are too long together: {listed}")


def guesses(options: Options, made: datasets.DatasetDict) -> dict[str, float]:
    """Accuracy on the test split of the candidate mentioned most often (the first of equals), and of the first one."""
    found, labels = made["test"]["mentions"], np.array(made["test"]["label"])
    most = np.array([int(np.argmax(counts)) for counts in found])
    return {"most_mentioned": float((most == labels).mean()), "first_candidate": float((labels == 0).mean())}


TASK = Task(
    summary="Which candidate answers a question over several documents? WikiHop, subwords up to 4,096",
    source=SOURCE,
    head=lambda options: Choose(),
    vocab=lambda options: options.vocab,
    max_length=lambda options: options.max_length,
    prepare=prepare,
    options=Options,
    baselines=guesses,
    padded=True,
    requires=("tokenizers",),
)
