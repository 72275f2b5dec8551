"""What each kind of head asks: which columns it reads, which answers of a batch are right, what answers score.

One class a head, found by its type in QUESTIONS; numpy only. The modules that answer are in `attnbench.heads`.
Shape letters: B batch, N content rows, M candidates, T predictions, Y classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa

from attnbench.columns import Ragged, Split, fault, filled
from attnbench.contracts import NO_TARGET, Choose, Classify, Head, Match, Span, TagTokens
from attnbench.metrics import best_match

Indices = Sequence[int] | np.ndarray
#: What stands for the logit of a class that cannot be chosen: its share underflows to 0, and differences stay finite.
IMPOSSIBLE = -1e4


@dataclass(frozen=True)
class Asked:
    """What is asked of a batch.

    Attributes:
        places: where the head looks: (B, N) bool (TagTokens, Span), (B, M) int64 with -1 = none (Choose), or None.
        labels: (T,) int64, a right class of each prediction.
        right: (T, Y) bool, all right classes, where there may be several; else None.
        example: (T,) int64, the row of the split that a prediction belongs to.
    """

    places: np.ndarray | None
    labels: np.ndarray
    example: np.ndarray
    right: np.ndarray | None = None


@dataclass(frozen=True)
class Predictions:
    """What a model says about a split.

    Attributes:
        stored: what was said, arrays of equal length.
        units: (examples,) int64, ascending: what each score belongs to, a row of the split or the number of a question.
        scores: (examples,) float64 in [0, 1], by the task's metric.
        loss: mean over predictions.
        more: further metrics.
    """

    stored: dict[str, np.ndarray]
    units: np.ndarray
    scores: np.ndarray
    loss: float
    more: dict[str, float] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(next(iter(self.stored.values())))

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """What is kept beside the record."""
        return {**self.stored, "unit": self.units.astype(np.int64), "score": self.scores}


class Question:
    """Of one class per prediction; what differs is which rows are asked and what may be said."""

    def __init__(self, head: Head):
        self.head = head

    @property
    def columns(self) -> dict[str, bool]:
        """Columns of numbers and whether each holds a row of them an example."""
        return dict.fromkeys(self.head.documents, True) | {self.head.target: False}

    @property
    def texts(self) -> dict[str, bool]:
        """Columns of text and whether each holds a list of them an example."""
        return {}

    def column_fault(self, table: pa.Table) -> str | None:
        """What is wrong with the columns of a split, or None."""
        for name in (*self.columns, *self.texts):
            if name not in table.column_names:
                return f"no column {name!r}, found {table.column_names}"
        faults = (fault(table, name, rows) for name, rows in self.columns.items())
        return next(
            filter(None, (*faults, *(self._text_fault(table, n, many) for n, many in self.texts.items()))), None
        )

    @staticmethod
    def _text_fault(table: pa.Table, name: str, many: bool) -> str | None:
        kind = table.column(name).type
        inner = kind.value_type if many and pa.types.is_nested(kind) else kind
        wanted = "lists of texts" if many else "texts"
        if not (pa.types.is_string(inner) or pa.types.is_large_string(inner)) or many != pa.types.is_nested(kind):
            return f"column {name!r} holds {kind}, not {wanted}"
        missing = [
            chunk.null_count + (chunk.flatten().null_count if many else 0) for chunk in table.column(name).chunks
        ]
        return f"column {name!r} has rows without {wanted}" if any(missing) else None

    def row_fault(self, split: Split) -> tuple[int, str] | None:
        """The first row whose target cannot be, and why; or None."""
        for index, row in enumerate(self.answers(split)):
            if not len(row):
                return index, "no target"
            if not 0 <= row.min() <= row.max() < self.classes_of(split, index):
                return index, f"target outside 0..{self.classes_of(split, index) - 1}"
        return None

    def classes_of(self, split: Split, index: int) -> int:
        return int(cast("Classify", self.head).classes)

    def answers(self, split: Split) -> list[np.ndarray]:
        """The right class of each prediction of each example, (predictions,) int64 each."""
        return list(np.asarray(split.targets, dtype=np.int64)[:, None])

    def chance(self, split: Split) -> float:
        """Score of a blind guess."""
        return 1 / self.classes_of(split, 0)

    def ask(self, split: Split, indices: Indices, length: int) -> Asked:
        """What is asked of these examples when their documents have `length` rows."""
        indices = np.asarray(indices, dtype=np.int64)
        return Asked(None, np.asarray(split.targets)[indices].astype(np.int64), indices)

    def say(self, logits_TY: np.ndarray, asked: Asked) -> dict[str, np.ndarray]:
        """The answers to a batch, arrays of equal length."""
        return {"predicted": logits_TY.argmax(-1), "target": asked.labels, "example": asked.example}

    def judge(self, split: Split, said: dict[str, np.ndarray], loss: float) -> Predictions:
        """Scores of the answers to a whole split: the share of right ones of each example."""
        right = (said["predicted"] == said["target"]).astype(np.float64)
        examples, position = np.unique(said["example"], return_inverse=True)
        scores = np.bincount(position, right, len(examples)) / np.bincount(position, minlength=len(examples))
        return Predictions(said, examples, scores, loss)


class TagTokensQuestion(Question):
    @property
    def columns(self) -> dict[str, bool]:
        return super().columns | {self.head.target: True}

    def row_fault(self, split: Split) -> tuple[int, str] | None:
        targets = cast("Ragged", split.targets)
        differ = targets.lengths() != split.documents[0].lengths()
        return (int(differ.argmax()), "not as many targets as tokens") if differ.any() else super().row_fault(split)

    def answers(self, split: Split) -> list[np.ndarray]:
        rows = (np.asarray(row, dtype=np.int64) for row in cast("Ragged", split.targets))
        return [row[row != NO_TARGET] for row in rows]

    def ask(self, split: Split, indices: Indices, length: int) -> Asked:
        targets, _ = filled([cast("Ragged", split.targets)[int(i)] for i in indices], length, NO_TARGET)
        places = targets != NO_TARGET
        return Asked(places, targets[places], np.repeat(np.asarray(indices, dtype=np.int64), places.sum(1)))


class ChooseQuestion(Question):
    @property
    def columns(self) -> dict[str, bool]:
        return super().columns | {cast("Choose", self.head).marks: True}

    def row_fault(self, split: Split) -> tuple[int, str] | None:
        for index, (marks, rows) in enumerate(zip(self._marks(split), split.documents[0].lengths(), strict=True)):
            if len(marks) < 2:
                return index, f"{len(marks)} candidates; a choice needs two"
            if marks.min() < 0 or marks.max() >= rows or len(np.unique(marks)) < len(marks):
                return index, f"the marks of candidates are different rows in 0..{rows - 1}"
        return super().row_fault(split)

    def _marks(self, split: Split) -> Ragged:
        return cast("Ragged", split.extras[cast("Choose", self.head).marks])

    def classes_of(self, split: Split, index: int) -> int:
        return len(self._marks(split)[index])

    def chance(self, split: Split) -> float:
        return float((1 / self._marks(split).lengths()).mean())

    def ask(self, split: Split, indices: Indices, length: int) -> Asked:
        rows = [self._marks(split)[int(i)].astype(np.int64) for i in indices]
        places, _ = filled(rows, max(map(len, rows)), -1)
        asked = super().ask(split, indices, length)
        return Asked(places, asked.labels, asked.example)


class SpanQuestion(Question):
    """Two predictions a window: the first row of the answer, and the last. Row 0 stands for "not here"."""

    @property
    def columns(self) -> dict[str, bool]:
        return super().columns | {self.head.target: True, "offsets": True, "question": False}

    @property
    def texts(self) -> dict[str, bool]:
        return {"context": False, "answers": True}

    def row_fault(self, split: Split) -> tuple[int, str] | None:
        offsets, spans, before = split.extras["offsets"], cast("Ragged", split.targets), -1
        for index, rows in enumerate(split.documents[0].lengths()):
            if len(offsets[index]) != 2 * rows:
                return index, f"{len(offsets[index])} offsets for {rows} tokens, expected two each"
            asked, places = spans[index].astype(np.int64), offsets[index].astype(np.int64).reshape(-1, 2)
            backward = places.min() < 0 or (places[:, 0] > places[:, 1]).any()
            if backward or places.max() > len(split.extras["context"][index]):
                return index, "offsets that are no part of the context"
            if len(asked) % 2 or (asked[::2] > asked[1::2]).any():
                return index, "spans are pairs of a first and a last row"
            if len(asked) and (asked.min() < 1 or asked.max() >= rows or not (places[asked, 1] > 0).all()):
                return index, "a span outside the tokens of the context"
            if (question := int(split.extras["question"][index])) < before:
                return index, "questions are not in ascending order"
            before = question
        return None

    def answers(self, split: Split) -> list[np.ndarray]:
        return [np.ones(1, dtype=np.int64)] * len(split)

    def chance(self, split: Split) -> float:
        return 0.0

    def ask(self, split: Split, indices: Indices, length: int) -> Asked:
        """Labels are those of the first place; a window that holds no answer asks for row 0."""
        indices = np.asarray(indices, dtype=np.int64)
        places = np.zeros((len(indices), length), dtype=bool)
        right = np.zeros((len(indices), 2, length), dtype=bool)
        for row, index in enumerate(indices):
            places[row, _of_context(split, int(index))] = places[row, 0] = True
            spans = cast("Ragged", split.targets)[int(index)].astype(np.int64)
            right[row, 0, spans[::2] if len(spans) else 0] = True
            right[row, 1, spans[1::2] if len(spans) else 0] = True
        right_TN = right.reshape(-1, length)
        return Asked(places, right_TN.argmax(-1), np.repeat(indices, 2), right_TN)

    def say(self, logits_TY: np.ndarray, asked: Asked) -> dict[str, np.ndarray]:
        """For each window the best span within the context and by how much it exceeds "not here"."""
        begin_BN, end_BN = logits_TY.reshape(-1, 2, logits_TY.shape[-1]).swapaxes(0, 1).astype(np.float64)
        nothing = begin_BN[:, 0] + end_BN[:, 0]
        allowed = cast("np.ndarray", asked.places).copy()
        allowed[:, 0] = False
        begin_BN, end_BN = (np.where(allowed, side, -np.inf) for side in (begin_BN, end_BN))
        best = np.full(len(nothing), -np.inf)
        first, last = np.zeros((2, len(nothing)), dtype=np.int64)
        for size in range(min(cast("Span", self.head).longest, begin_BN.shape[1])):
            sums = begin_BN[:, : begin_BN.shape[1] - size] + end_BN[:, size:]
            at = sums.argmax(1)
            found = sums[np.arange(len(sums)), at]
            better = found > best
            best, first, last = (
                np.where(better, new, old) for new, old in ((found, best), (at, first), (at + size, last))
            )
        return {"example": asked.example[::2], "first": first, "last": last, "margin": best - nothing}

    def judge(self, split: Split, said: dict[str, np.ndarray], loss: float) -> Predictions:
        """F1 and exact match of each question: the answer of the window that is surest that it holds one."""
        order = np.argsort(said["example"])
        said = {name: values[order] for name, values in said.items()}
        question = np.asarray(split.extras["question"])[said["example"]]
        starts = np.flatnonzero(np.r_[True, question[1:] != question[:-1]])
        chosen = np.array(
            [s + int(part.argmax()) for s, part in zip(starts, np.split(said["margin"], starts[1:]), strict=True)]
        )
        exact, f1 = np.array([self._compare(split, said, int(at)) for at in chosen], dtype=np.float64).T
        stored = {name: values[chosen] for name, values in said.items()}
        stored |= {"question": question[chosen], "exact_match": exact, "f1": f1}
        return Predictions(stored, question[chosen], f1, loss, {"exact_match": float(exact.mean())})

    def _compare(self, split: Split, said: dict[str, np.ndarray], at: int) -> tuple[float, float]:
        window = int(said["example"][at])
        if not np.isfinite(said["margin"][at]):  # nothing to choose from, which is no empty answer
            return 0.0, 0.0
        offsets = split.extras["offsets"][window].reshape(-1, 2)
        text = split.extras["context"][window][offsets[said["first"][at], 0] : offsets[said["last"][at], 1]]
        return best_match(text, split.extras["answers"][window], cast("Span", self.head).normalise)


def _of_context(split: Split, index: int) -> np.ndarray:
    """The rows that are tokens of the context."""
    found: np.ndarray = np.flatnonzero(split.extras["offsets"][index].reshape(-1, 2)[:, 1] > 0)
    return found


QUESTIONS: dict[type, Callable[[Any], Question]] = {
    Classify: Question,
    Match: Question,
    TagTokens: TagTokensQuestion,
    Choose: ChooseQuestion,
    Span: SpanQuestion,
}


def question_of(head: Head) -> Question:
    return QUESTIONS[type(head)](head)
