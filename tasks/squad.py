"""SQuAD 1.1 (Rajpurkar et al. 2016): where in a paragraph does the answer to a question stand?

The small check of questions whose answer is a span. The test answers are withheld, so the published dev set is the test
set here, and validation is carved from train.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import datasets
from pydantic import PositiveInt

from attnbench.contracts import Preparation, Source, Span, Task
from attnbench.errors import AttnbenchError

from . import _hub
from ._qa import pieces, reports, sources, windows
from ._qa.official import squad as normalise
from ._qa.options import vocabulary
from ._qa.records import Record
from ._qa.windows import Asked, Evidence

SOURCE = Source(
    citation="Rajpurkar et al. 2016, SQuAD: 100,000+ Questions for Machine Comprehension of Text",
    licence="CC BY-SA 4.0",
    url="https://rajpurkar.github.io/SQuAD-explorer/",
)
_HUB = _hub.Hub("rajpurkar/squad", "plain_text", ("train", "validation"))
HOME = sources.Home(
    hub=_HUB,
    files=("train-v1.1.json", "dev-v1.1.json"),
    folders=("squad", "SQuAD"),
    key="data",
    where=f"train-v1.1.json and dev-v1.1.json ({SOURCE.url}) or the data set {_HUB.repo} of the Hugging Face hub",
)
_AT_ONCE = 1000
#: Of all answers; so many may stand elsewhere than the file says, and are not taught then.
_MISPLACED_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class Options(windows.Options):
    __doc__ = f"""{windows.Options.__doc__}
    held_out: whole articles for validation, or, from files with few of them, whole paragraphs.
    """
    max_length: PositiveInt = 384
    held_out: Literal["articles", "paragraphs"] = "articles"


@dataclass(frozen=True)
class Paragraph(Asked):
    """A question about a paragraph. misplaced: answers that do not stand where the file says."""

    title: str = ""
    misplaced: int = 0

    @property
    def context(self) -> str:
        return self.evidence[0].text


def read(records: Iterator[Record]) -> Iterator[Paragraph]:
    """The questions of the original's articles, or of the hub's rows, in order.

    Raises:
        AttnbenchError: a record that cannot be, with its place.
    """
    for record in records:
        if not record.has("paragraphs"):
            yield _paragraph(
                record, record.text("title"), record.text("context"), _of_columns(record.record("answers"))
            )
            continue
        title = record.text("title")
        for paragraph in record.records("paragraphs"):
            context = paragraph.text("context")
            for question in paragraph.records("qas"):
                answers = [(one.number("answer_start"), one.text("text")) for one in question.records("answers")]
                yield _paragraph(question, title, context, answers)


def _of_columns(answers: Record) -> list[tuple[int, str]]:
    starts, texts = answers.items("answer_start"), answers.texts("text")
    if len(starts) != len(texts):
        raise AttnbenchError(f"{answers.where}: {len(texts)} answers and {len(starts)} places")
    return [(Record(answers.where, {"answer_start": start}).number("answer_start"), text)
            for start, text in zip(starts, texts, strict=True)]  # fmt: skip


def _paragraph(record: Record, title: str, context: str, answers: list[tuple[int, str]]) -> Paragraph:
    if not answers:
        raise AttnbenchError(f"{record.where}: no answer; in SQuAD 1.1 every question has one (2.0 is another task)")
    right = [(start, text) for start, text in answers if start >= 0 and context.startswith(text, start)]
    return Paragraph(
        id=record.text("id"),
        question=record.text("question"),
        answers=[text for _, text in answers],
        evidence=[Evidence(context, [(start, start + len(text)) for start, text in right])],
        title=title,
        misplaced=len(answers) - len(right),
    )


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    found = sources.find("squad", options, preparation, HOME)
    pieces.claim(preparation.folder, found.identity)
    readers = {name: partial(_read, records) for name, records in found.records.items()}
    _refuse_misplaced(preparation, readers)
    parts = sources.parts(options, preparation, readers, partial(_describe, options), options.held_out, "paragraphs")
    subwords = vocabulary(options, preparation, _texts(parts[0].of("train")))
    maker = windows.Maker(options, subwords, normalise)
    made, counts = pieces.made(preparation, parts, maker.rows, windows.schema(options), _AT_ONCE)
    reports.tell(preparation, counts, subwords.size)
    return made


def _read(records: Callable[[], Iterator[Record]]) -> Iterator[Paragraph]:
    return read(records())


def _refuse_misplaced(preparation: Preparation, readers: Mapping[str, Callable[[], Iterator[Paragraph]]]) -> None:
    """
    Raises:
        AttnbenchError: more than a few answers do not stand where the file says.
    """
    answers, lost = 0, []
    for read_ in readers.values():
        for one in read_():
            answers += len(one.answers)
            lost += [one.id] * one.misplaced
    if len(lost) > _MISPLACED_SHARE * answers:
        raise AttnbenchError(
            f"question {lost[0]}: an answer does not stand at its answer_start (in characters), and so it is with "
            f"{len(lost) - 1:,} more of {answers:,}; get the file again"
        )
    if lost:
        preparation.note(f"{len(lost)} of {answers:,} answers do not stand where the file says: not taught")


def _describe(options: Options, one: Paragraph) -> sources.Described:
    unit = one.title if options.held_out == "articles" else one.context
    return sources.Described(unit, f"{one.question}\n{one.context}", [one.context])


def _texts(questions: Iterable[Paragraph]) -> Iterator[str]:
    """Each paragraph once, for its questions follow each other."""
    before = None
    for one in questions:
        if one.context != before:
            yield one.context
        yield one.question
        before = one.context


TASK = Task(
    summary="Where in a paragraph stands the answer? SQuAD 1.1, subwords, exact match and F1",
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
