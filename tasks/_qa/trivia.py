"""TriviaQA's files (Joshi et al. 2017), the original tree or the hub's rows: questions with their documents.

    qa / wikipedia-train.json, wikipedia-dev.json, web-train.json, web-dev.json
    evidence / wikipedia / England.txt, web / 35 / 35_995.txt

The evidence is read when a question is asked for it, never before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attnbench.errors import AttnbenchError

from .._files import utf8
from .records import Record

Domain = Literal["wikipedia", "web"]


@dataclass(frozen=True)
class Document:
    """The evidence `name`: its text, or the file that holds it; neither = it is not there."""

    name: str
    text: str | None = None
    path: Path | None = None

    @property
    def missing(self) -> bool:
        return self.text is None and self.path is None

    def read(self) -> str:
        """
        Raises:
            AttnbenchError: no clean UTF-8 or a NUL; names the byte.
        """
        if self.path is None:
            return self.text or ""
        raw = self.path.read_bytes()
        if (nul := raw.find(b"\0")) >= 0:
            raise AttnbenchError(f"{self.path}: byte {nul} is NUL")
        return utf8(str(self.path), raw)


@dataclass(frozen=True)
class Trivia:
    """A question with all its documents, or, on the web's, with one of them: the official script judges such pairs."""

    id: str
    question: str
    answers: list[str]
    documents: tuple[Document, ...]
    nameless: int = 0


def read(records: Iterator[Record], domain: Domain, evidence: Path | None) -> Iterator[Trivia]:
    """`evidence`: the folder of that name, or None where the records hold the texts.

    Raises:
        AttnbenchError: a record that cannot be, a name that leads out of the folder; with its place.
    """
    for record in records:
        one = _of_hub(record, domain) if evidence is None else _of_tree(record, domain, evidence)
        if domain == "wikipedia":
            yield one
            continue
        for document in one.documents:
            yield Trivia(f"{one.id}--{document.name}", one.question, one.answers, (document,))


def _of_tree(record: Record, domain: Domain, evidence: Path) -> Trivia:
    answer = record.record("Answer") if record.has("Answer") else Record(record.where, {"NormalizedAliases": []})
    human = answer.texts("HumanAnswers", empty=True) if answer.has("HumanAnswers") else []
    answers = _answers(record, answer.texts("NormalizedAliases", empty=True) + human)
    folders = {"EntityPages": "wikipedia"} | ({"SearchResults": "web"} if domain == "web" else {})
    pages = [(one, evidence / folders[name]) for name in folders if record.has(name) for one in record.records(name)]
    named = [(one, home) for one, home in pages if one.has("Filename")]
    documents = [_file(one.where, home, one.text("Filename")) for one, home in named]
    return _trivia(record.text("QuestionId"), record.text("Question"), answers, documents, len(pages) - len(named))


def _file(where: str, home: Path, name: str) -> Document:
    path = home / name
    if not path.resolve().is_relative_to(home.resolve()):
        raise AttnbenchError(f"{where}: the file name {name!r} leads out of {home}")
    try:
        there = path.is_file()
    except OSError:  # such as a name that is too long
        there = False
    return Document(name, path=path if there else None)


def _of_hub(record: Record, domain: Domain) -> Trivia:
    answers = _answers(record, record.record("answer").texts("normalized_aliases", empty=True))
    sources = {"entity_pages": "wiki_context"} | ({"search_results": "search_context"} if domain == "web" else {})
    pages = [(one, text) for name, text in sources.items() for one in _rows(record, name)]
    named = [(one, text) for one, text in pages if one.has("filename")]
    documents = [
        Document(one.text("filename"), one.text(text, empty=True) if one.has(text) else None) for one, text in named
    ]
    return _trivia(record.text("question_id"), record.text("question"), answers, documents, len(pages) - len(named))


def _rows(record: Record, name: str) -> list[Record]:
    """A list of objects, which the hub keeps as an object of lists."""
    if isinstance(record.values.get(name), list):
        return record.records(name)
    columns = record.record(name)
    values: dict[str, list[Any]] = {column: columns.items(column) for column in columns.values}
    if len(lengths := {len(column) for column in values.values()}) > 1:
        raise AttnbenchError(f"{columns.where}: lists of {sorted(lengths)} values")
    return [
        Record(f"{columns.where} {number}", dict(zip(values, row, strict=True)))
        for number, row in enumerate(zip(*values.values(), strict=True), 1)
    ]


def _answers(record: Record, found: list[str]) -> list[str]:
    if not (kept := [answer for answer in found if answer.strip()]):
        raise AttnbenchError(f"{record.where}: no answer; the files of TriviaQA's own test set are published without")
    return kept


def _trivia(id_: str, question: str, answers: list[str], documents: list[Document], nameless: int) -> Trivia:
    """A document that is listed twice is kept once."""
    distinct = {document.name: document for document in documents}
    return Trivia(id_, question, answers, tuple(distinct.values()), nameless)
