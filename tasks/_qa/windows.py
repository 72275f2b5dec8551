"""Windows over the evidence of a question: the rows of a task whose answer is a span.

    [NONE] question [SEP] evidence      row 0 stands for "not in this window"

Windows go over each document by itself, so a span never runs from one into another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import NonNegativeInt, PositiveInt

from .._subwords import NONE, SEPARATOR, Piece, Subwords
from .options import Shared
from .pieces import Made


@dataclass(frozen=True, kw_only=True)
class Options(Shared):
    __doc__ = f"""{Shared.__doc__}
    overlap: subwords that neighbouring windows over a document share.
    max_windows: of a question; the beginnings of all its documents come first, what lies behind is cut.
    empty_windows: windows without the answer that are kept of a question for training; all are kept otherwise.
    longest_answer: subwords of an answer; a longer one is neither taught nor given.
    """
    overlap: NonNegativeInt = 128
    max_windows: PositiveInt = 8
    empty_windows: NonNegativeInt = 1
    longest_answer: PositiveInt = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        least = self.max_question + _MARKS + 1
        if self.max_length < least + self.overlap:
            raise ValueError(
                f"max_length={self.max_length} leaves no evidence that is new behind max_question={self.max_question} "
                f"and overlap={self.overlap}; it is at least {least + self.overlap}"
            )


_MARKS = 2


@dataclass(frozen=True)
class Evidence:
    """A document and the places of acceptable answers in it: first character, and the one behind the last."""

    text: str
    places: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Asked:
    """A question, what may be answered, and where it may be found."""

    id: str
    question: str
    answers: Sequence[str]
    evidence: Sequence[Evidence] = ()


def schema(options: Options) -> pa.Schema:
    return pa.schema(
        {
            "tokens": pa.list_(options.id_type),
            "spans": pa.list_(pa.int32()),
            "context": pa.string(),
            "offsets": pa.list_(pa.uint32()),
            "answers": pa.list_(pa.string()),
            "question": pa.int64(),
            "asked": pa.string(),
            "id": pa.string(),
        }
    )


@dataclass(frozen=True)
class _Document:
    """A document as subwords. begins, ends: (N,) characters; spans: (places, 2) first and last subword of each."""

    text: str
    ids: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    spans: np.ndarray
    too_long: int = 0


class _Window(NamedTuple):
    """The subwords start:stop of a document; spans: (places, 2), counted from `start`."""

    document: _Document
    start: int
    stop: int
    spans: np.ndarray


@dataclass(frozen=True)
class Maker:
    """Makes rows. normalise: of the official script; max_places: of a window, the first ones are kept; None: all."""

    options: Options
    subwords: Subwords
    normalise: Callable[[str], str]
    max_places: int | None = None

    def rows(self, split: str, number: int, asked: Asked) -> Made:
        """The windows of one question, with the number it is known by. For training a question none of whose windows
        holds an answer has none, and few of those without one are kept; else it has one at least, be it without text.
        """
        options = self.options
        encoded = self.subwords.encode([asked.question, *(one.text for one in asked.evidence)])
        question = encoded[0].ids[: options.max_question]
        pairs = zip(asked.evidence, encoded[1:], strict=True)
        documents = [_document(one, piece, options.longest_answer) for one, piece in pairs]
        windows = self._windows(documents, options.max_length - _MARKS - len(question))
        counts = self._counts(asked, len(encoded[0].ids), documents, windows)
        if split == "train":
            windows = self._for_training(number, windows)
        elif not windows:
            nothing = np.zeros(0, np.int64)
            windows = [_Window(_Document("", nothing, nothing, nothing, _NO_SPANS), 0, 0, _NO_SPANS)]
        counts["windows"] = len(windows)
        return Made([_row(asked, question, window, number) for window in windows], counts)

    def _windows(self, documents: Sequence[_Document], room: int) -> list[_Window]:
        """Those of a document begin `room - overlap` subwords apart, the last one reaches its end."""
        overlap = self.options.overlap
        starts = [
            range(0, max(len(one.ids) - overlap, 1), room - overlap) if len(one.ids) else range(0) for one in documents
        ]
        order = sorted((turn, number) for number, found in enumerate(starts) for turn in range(len(found)))
        return [
            self._window(documents[number], starts[number][turn], room)
            for turn, number in order[: self.options.max_windows]
        ]

    def _window(self, document: _Document, start: int, room: int) -> _Window:
        stop = min(start + room, len(document.ids))
        spans = document.spans - start
        spans = spans[(spans[:, 0] >= 0) & (spans[:, 1] < stop - start)]
        return _Window(document, start, stop, spans[: self.max_places])

    def _for_training(self, number: int, windows: list[_Window]) -> list[_Window]:
        empty = [index for index, window in enumerate(windows) if not len(window.spans)]
        if len(empty) == len(windows):
            return []
        generator = np.random.Generator(np.random.PCG64([self.options.data_seed, number]))
        drawn = set(generator.permutation(empty)[: self.options.empty_windows].tolist())
        return [window for index, window in enumerate(windows) if len(window.spans) or index in drawn]

    def _counts(
        self, asked: Asked, length: int, documents: Sequence[_Document], windows: Sequence[_Window]
    ) -> Counter[str]:
        reached = {id(document): 0 for document in documents}
        for window in windows:
            reached[id(window.document)] = max(window.stop, reached[id(window.document)])
        return Counter(
            questions=1,
            questions_cut=int(length > self.options.max_question),
            without_evidence=int(not windows),
            without_answer=int(not any(len(window.spans) for window in windows)),
            exactly_answerable=int(self._can_be_exact(asked, windows)),
            subwords=sum(len(document.ids) for document in documents),
            subwords_kept=sum(reached.values()),
            places=sum(len(one.places) for one in asked.evidence),
            places_too_long=sum(document.too_long for document in documents),
        )

    def _can_be_exact(self, asked: Asked, windows: Iterable[_Window]) -> bool:
        """Whether some acceptable span of subwords is an answer to the letter, as the script sees it."""
        answers = {self.normalise(answer) for answer in asked.answers}
        return any(
            self.normalise(document.text[document.begins[start + first] : document.ends[start + last]]) in answers
            for document, start, _, spans in windows
            for first, last in spans
        )


_NO_SPANS = np.zeros((0, 2), np.int64)
_BLANKS = np.array([ord(letter) for letter in " \t\r\n\f\v\u00a0"], dtype=np.uint32)


def _document(evidence: Evidence, piece: Piece, longest: int) -> _Document:
    spans = piece.spans[wide := piece.spans[:, 0] < piece.spans[:, 1]]
    begins, ends = spans.T
    letters = np.frombuffer(evidence.text.encode("utf-32-le"), dtype="<u4")
    begins = begins + (np.isin(letters[begins], _BLANKS) & (begins + 1 < ends))  # a subword brings its blank along
    places = np.array(evidence.places, np.int64).reshape(-1, 2)
    firsts = np.searchsorted(ends, places[:, 0], side="right")
    lasts = np.searchsorted(begins, places[:, 1], side="left") - 1
    short = lasts - firsts < longest
    found = np.stack([firsts, lasts], axis=1)[short & (firsts <= lasts)]
    return _Document(
        evidence.text, piece.ids[wide], begins, ends, np.unique(found, axis=0), int(len(short) - short.sum())
    )


def _row(asked: Asked, question: np.ndarray, window: _Window, number: int) -> dict[str, Any]:
    document, start, stop, spans = window
    front = _MARKS + len(question)
    begins, ends = document.begins[start:stop], document.ends[start:stop]
    first, last = (int(begins[0]), int(ends[-1])) if stop > start else (0, 0)
    places = np.stack([begins, ends], axis=1) - first
    return {
        "tokens": np.concatenate([[NONE], question, [SEPARATOR], document.ids[start:stop]]),
        "spans": (spans + front).reshape(-1),
        "context": document.text[first:last],
        "offsets": np.concatenate([np.zeros(2 * front, np.int64), places.reshape(-1)]),
        "answers": list(asked.answers),
        "question": number,
        "asked": asked.question,
        "id": asked.id,
    }
