"""TriviaQA (Joshi et al. 2017): trivia questions whose answer is looked for in whole documents, read in windows.

Nobody marked where the answers stand: every place that reads like one of an answer's aliases counts as right (distant
supervision). The test answers are withheld, so the published dev set is the test set here, and validation is carved
from train by question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import datasets
from pydantic import PositiveInt

from attnbench.contracts import Preparation, Source, Span, Task
from attnbench.errors import AttnbenchError

from . import _hub
from ._qa import pieces, reports, sources, trivia, windows
from ._qa.aliases import Aliases
from ._qa.official import triviaqa as normalise
from ._qa.options import vocabulary
from ._qa.records import Record
from ._qa.windows import Asked, Evidence

SOURCE = Source(
    citation="Joshi et al. 2017, TriviaQA: A Large Scale Distantly Supervised Challenge Dataset",
    licence="Apache-2.0 for the questions; none stated for the evidence",
    url="https://nlp.cs.washington.edu/triviaqa/",
)
_REPO = "mandarjoshi/trivia_qa"
#: Questions with their documents.
_AT_ONCE = 100
#: Of all documents; so many may be missing, as some are in the release.
_MISSING_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Options(windows.Options):
    __doc__ = f"""{windows.Options.__doc__}
    domain: wikipedia, where a question is asked of all its documents, or web, where it is asked of each by itself.
    max_places: of a window that are taught, the first ones.
    """
    domain: trivia.Domain = "wikipedia"
    max_places: PositiveInt = 64


def home(options: Options) -> sources.Home:
    hub = _hub.Hub(_REPO, f"rc.{options.domain}", ("train", "validation"))
    return sources.Home(
        hub=hub,
        files=(f"{options.domain}-train.json", f"{options.domain}-dev.json"),
        folders=("qa", "triviaqa-rc/qa"),
        key="Data",
        where=f"triviaqa-rc.tar.gz from {SOURCE.url}, unpacked, or {hub.config} of {hub.repo} of the Hugging Face hub",
    )


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    found = sources.find("triviaqa", options, preparation, home(options))
    pieces.claim(preparation.folder, found.identity)
    evidence = found.folder.parent / "evidence" if found.folder else None
    if evidence and not evidence.is_dir():
        raise AttnbenchError(f"{evidence}: no such folder; it holds the documents, beside {found.folder}")
    readers = {name: partial(_read, options, evidence, records) for name, records in found.records.items()}
    _check_documents(preparation, readers)
    parts = sources.parts(options, preparation, readers, _describe, "questions", "documents")
    subwords = vocabulary(options, preparation, _texts(parts[0].of("train")))
    maker = windows.Maker(options, subwords, normalise, options.max_places)
    rows = partial(_rows, maker)
    made, counts = pieces.made(preparation, parts, rows, windows.schema(options), _AT_ONCE)
    reports.tell(preparation, counts, subwords.size)
    return made


def _read(options: Options, evidence: Path | None, records: Callable[[], Iterator[Record]]) -> Iterator[trivia.Trivia]:
    return trivia.read(records(), options.domain, evidence)


def _check_documents(preparation: Preparation, readers: Mapping[str, Callable[[], Iterator[trivia.Trivia]]]) -> None:
    """
    Raises:
        AttnbenchError: too many documents are missing.
    """
    counts: Counter[str] = Counter()
    first = ""
    for read in readers.values():
        for one in read():
            counts["documents"] += len(one.documents)
            counts["documents_without_a_name"] += one.nameless
            for document in one.documents:
                counts["documents_missing"] += document.missing
                first = first or (document.name if document.missing else "")
    if counts["documents_missing"] > _MISSING_SHARE * counts["documents"]:
        raise AttnbenchError(
            f"{preparation.source}: {counts['documents_missing']:,} of {counts['documents']:,} documents are missing, "
            f"such as {first}; complete the evidence"
        )
    for name, count in counts.items():
        preparation.fact(name, count)
    if counts["documents_missing"]:
        preparation.note(f"{counts['documents_missing']:,} documents are missing, such as {first}: left out")


def _describe(one: trivia.Trivia) -> sources.Described:
    names = [document.name for document in one.documents]
    return sources.Described(one.question, "\n".join([one.question, *names]), names)


def _texts(questions: Iterable[trivia.Trivia]) -> Iterator[str]:
    """Each document once."""
    seen: set[str] = set()
    for one in questions:
        yield one.question
        for document in one.documents:
            if document.name not in seen:
                seen.add(document.name)
                yield document.read()


def _rows(maker: windows.Maker, split: str, number: int, one: trivia.Trivia) -> pieces.Made:
    aliases = Aliases(one.answers)
    texts = filter(None, (document.read() for document in one.documents))
    evidence = [Evidence(text, aliases.places(text)) for text in texts]
    return maker.rows(split, number, Asked(one.id, one.question, one.answers, evidence))


TASK = Task(
    summary="Trivia answered from whole documents in windows of up to 4,096 subwords: TriviaQA, exact match and F1",
    source=SOURCE,
    head=lambda options: Span(normalise, options.longest_answer),
    vocab=lambda options: options.vocab,
    max_length=lambda options: options.max_length,
    prepare=prepare,
    options=Options,
    baselines=lambda options, made: reports.guesses(made["test"], normalise),
    padded=True,
    requires=("tokenizers",),
    metric="f1",
)
