"""Questions about spans and choices: columns, decoding, grouping of windows and loss against independent truth."""

from __future__ import annotations

import math
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from attnbench import data, registry
from attnbench.batches import Batches
from attnbench.cards import content_hash
from attnbench.columns import Split, _view
from attnbench.config import ModelConfig, Padding
from attnbench.contracts import Choose, Head, NoOptions, Source, Span, Task
from attnbench.errors import AttnbenchError
from attnbench.heads import join_right
from attnbench.metrics import best_match
from attnbench.model import Model
from attnbench.questions import IMPOSSIBLE, Asked, SpanQuestion, question_of
from attnbench.randomness import initialise
from attnbench.registry import Home, Plugin

SPAN = Span(normalise=str.lower, longest=3)
NONE, MARK = 1, 2


def window(question: int, context: str, *spans: int, answers: tuple[str, ...] = ("Bo",)) -> dict[str, Any]:
    """A window whose context has one token a character, behind the row for "not here" and one token of the question."""
    offsets = [0, 0, 0, 0] + [place for i in range(len(context)) for place in (i, i + 1)]
    tokens = [NONE, MARK, *(3 + ord(letter) % 5 for letter in context)]
    return {"tokens": tokens, "spans": list(spans), "context": context, "offsets": offsets, "answers": list(answers),
            "question": question}  # fmt: skip


def choice(*marks: int, label: int = 0, rows: int = 6) -> dict[str, Any]:
    return {"tokens": [3] * rows, "marks": list(marks), "label": label}


def dataset(rows: list[dict[str, Any]], head: Head) -> datasets.Dataset:
    numbers, text = datasets.List(datasets.Value("int64")), datasets.Value("string")
    kinds = {"context": text, "answers": datasets.List(text), "question": datasets.Value("int64")}
    kinds |= {"label": datasets.Value("int64")}
    features = datasets.Features({name: kinds.get(name, numbers) for name in rows[0]})
    return datasets.Dataset.from_list(rows, features=features)


def split(rows: list[dict[str, Any]], head: Head = SPAN) -> Split:
    question, table = question_of(head), dataset(rows, head).data.table
    names = [name for name in (*question.columns, *question.texts) if name not in ("tokens", head.target)]
    return Split(
        [_view(table.column("tokens"))], _view(table.column(head.target)), {n: _view(table.column(n)) for n in names}
    )


def plugin(head: Head, rows: list[dict[str, Any]]) -> Plugin:
    task = Task(
        summary="x", source=Source(citation="x", licence="x"), head=lambda options: head, vocab=lambda options: 8,
        max_length=lambda options: 12, padded=True,
        prepare=lambda options, preparation: datasets.DatasetDict(
            {name: dataset(rows, head) for name in ("train", "validation", "test")}
        ),
    )  # fmt: skip
    return Plugin("tasks", "made_up", task, Home("file", "made_up.py"), "sha")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))


SPAN_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "too few offsets": ({"offsets": [0, 0, 0, 1]}, "4 offsets for 5 tokens, expected two each"),
    "an odd number of offsets": ({"offsets": [0, 0, 0]}, "3 offsets for 5 tokens, expected two each"),
    "beyond the context": ({"context": "ab"}, "offsets that are no part of the context"),
    "from right to left": ({"offsets": [0, 0, 0, 0, 1, 0, 1, 2, 2, 3]}, "offsets that are no part of the context"),
    "below 0": ({"offsets": [0, 0, 0, 0, -1, 1, 1, 2, 2, 3]}, "offsets that are no part of the context"),
    "half a span": ({"spans": [2, 3, 2]}, "spans are pairs of a first and a last row"),
    "from last to first": ({"spans": [3, 2]}, "spans are pairs of a first and a last row"),
    "the row of not here": ({"spans": [0, 2]}, "a span outside the tokens of the context"),
    "the question": ({"spans": [1, 2]}, "a span outside the tokens of the context"),
    "behind the last row": ({"spans": [2, 5]}, "a span outside the tokens of the context"),
    "back to an earlier question": ({"question": 6}, "questions are not in ascending order"),
}
CHOICE_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "one candidate": (choice(1), "1 candidates; a choice needs two"),
    "no candidates": (choice(), "0 candidates; a choice needs two"),
    "behind the last row": (choice(1, 6), r"the marks of candidates are different rows in 0\.\.5"),
    "below 0": (choice(-1, 2), r"the marks of candidates are different rows in 0\.\.5"),
    "twice the same": (choice(2, 2), r"the marks of candidates are different rows in 0\.\.5"),
    "none of them": (choice(1, 2, label=2), r"target outside 0\.\.1"),
}
GOOD = {SPAN: window(7, "abc", 2, 3), Choose(): choice(1, 3)}


def refused(head: Head, rows: list[dict[str, Any]]) -> str:
    with pytest.raises(AttnbenchError) as fault:
        data.load(plugin(head, rows), NoOptions())
    assert "\n" not in str(fault.value)
    return str(fault.value)


@pytest.mark.parametrize("case", SPAN_FAULTS)
def test_a_window_that_cannot_be_is_refused_with_its_row(case: str) -> None:
    changes, message = SPAN_FAULTS[case]
    assert message in refused(SPAN, [GOOD[SPAN], {**GOOD[SPAN], **changes}])
    data.load(plugin(SPAN, [GOOD[SPAN]] * 2), NoOptions())


@pytest.mark.parametrize("case", CHOICE_FAULTS)
def test_candidates_that_cannot_be_are_refused_with_their_row(case: str) -> None:
    row, message = CHOICE_FAULTS[case]
    with pytest.raises(AttnbenchError, match=f"made_up, train, row 1: {message}$"):
        data.load(plugin(Choose(), [GOOD[Choose()], row]), NoOptions())
    data.load(plugin(Choose(), [GOOD[Choose()]] * 2), NoOptions())


@pytest.mark.parametrize(
    ("head", "column", "value", "message"),
    [
        (SPAN, "question", "one", "column 'question' holds string, not whole numbers"),
        (SPAN, "question", None, "column 'question' has rows without a number"),
        (SPAN, "question", [1], "column 'question' holds list<item: int64>, not whole numbers"),
        (SPAN, "spans", 3, "column 'spans' holds int64, not rows of whole numbers"),
        (SPAN, "offsets", [0, None], "column 'offsets' has rows with missing numbers"),
        (SPAN, "context", None, "column 'context' has rows without texts"),
        (SPAN, "context", 5, "column 'context' holds int64, not texts"),
        (SPAN, "answers", "a", "column 'answers' holds string, not lists of texts"),
        (SPAN, "answers", [1], "column 'answers' holds list<item: int64>, not lists of texts"),
        (SPAN, "answers", None, "column 'answers' has rows without lists of texts"),
        (SPAN, "answers", ["a", None], "column 'answers' has rows without lists of texts"),
        (Choose(), "label", None, "column 'label' has rows without a number"),
        (Choose(), "marks", 1, "column 'marks' holds int64, not rows of whole numbers"),
    ],
)
def test_a_column_of_another_kind_is_refused(head: Head, column: str, value: Any, message: str) -> None:
    columns: dict[str, Any] = {name: [one, one] for name, one in GOOD[head].items()}
    columns[column] = [value, columns[column][0] if value is None else value]
    made = datasets.Dataset.from_dict(columns)
    task = plugin(head, [])
    object.__setattr__(
        task.object,
        "prepare",
        lambda options, preparation: datasets.DatasetDict(dict.fromkeys(("train", "validation", "test"), made)),
    )
    with pytest.raises(AttnbenchError) as fault:
        data.load(task, NoOptions())
    assert str(fault.value) == f"task made_up, train: {message}"


@pytest.mark.parametrize("head", [SPAN, Choose()], ids=["span", "choose"])
def test_every_column_must_be_there(head: Head) -> None:
    for name in GOOD[head]:
        rest = {key: value for key, value in GOOD[head].items() if key != name}
        assert f"no column {name!r}, found " in refused(head, [rest])


logits = st.integers(-4, 4).map(float)


@given(st.data())
def test_the_best_span_is_that_of_a_double_loop(found: st.DataObject) -> None:
    """Sums, not places, are compared: among equally good spans either may be said."""
    rows, longest = found.draw(st.integers(1, 9)), found.draw(st.integers(1, 5))
    windows = found.draw(st.integers(1, 3))
    begin, end = (np.array(found.draw(st.lists(st.lists(logits, min_size=rows, max_size=rows), min_size=windows,
                                               max_size=windows))) for _ in "be")  # fmt: skip
    places = np.array([[True, *found.draw(st.lists(st.booleans(), min_size=rows - 1, max_size=rows - 1))]] * windows)
    masked = [np.where(places, side, IMPOSSIBLE) for side in (begin, end)]
    asked = Asked(places, np.zeros(2 * windows, np.int64), np.repeat(np.arange(windows), 2))
    said = SpanQuestion(Span(longest=longest)).say(np.stack(masked, 1).reshape(-1, rows), asked)
    for index in range(windows):
        best = -math.inf
        for i in range(1, rows):
            for j in range(i, min(rows, i + longest)):
                if places[index, i] and places[index, j]:
                    best = max(best, begin[index, i] + end[index, j])
        i, j = said["first"][index], said["last"][index]
        assert said["margin"][index] == best - begin[index, 0] - end[index, 0]
        if np.isfinite(best):
            assert begin[index, i] + end[index, j] == best and 1 <= i <= j < i + longest


def judged(rows: list[dict[str, Any]], said: list[tuple[int, int, int, float]], head: Span = SPAN) -> Any:
    """The verdict on (window, first, last, margin), in any order."""
    names = ("example", "first", "last", "margin")
    answers = {name: np.array(values) for name, values in zip(names, zip(*said, strict=True), strict=True)}
    return question_of(head).judge(split(rows, head), answers, 0.5)


def test_the_surest_window_answers_the_question() -> None:
    rows = [window(0, "xbo"), window(0, "boy"), window(3, "no"), window(3, "by"), window(4, "bo")]
    said = [(4, 2, 3, -5.0), (1, 2, 3, 1.0), (3, 2, 3, -1.0), (0, 2, 2, 0.5), (2, 2, 3, -2.0)]
    verdict = judged(rows, said)
    assert verdict.stored["question"].tolist() == [0, 3, 4] and verdict.stored["example"].tolist() == [1, 3, 4]
    assert verdict.stored["exact_match"].tolist() == [1, 0, 1] and verdict.scores.tolist() == [1, 0, 1]
    assert verdict.more == {"exact_match": 2 / 3} and verdict.count == 3 and verdict.loss == 0.5


def test_a_question_without_a_place_or_an_answer_scores_0() -> None:
    """A window without context, an answer that stands nowhere, no answer at all; an empty answer is none either."""
    rows = [window(0, "", answers=("The",)), window(1, "ab", answers=("zz",)), window(2, "ab", answers=())]
    head = Span(normalise=lambda text: text.replace("The", ""))
    verdict = judged(rows, [(0, 0, 0, -math.inf), (1, 2, 3, 0.0), (2, 2, 3, 0.0)], head)
    assert verdict.scores.tolist() == [0, 0, 0] and verdict.more == {"exact_match": 0}


@pytest.mark.parametrize(
    ("said", "answers", "exact", "f1"),
    [
        ("a b", ["b a"], 0, 1), ("a b", ["A B", "c"], 1, 1), ("a b c d", ["a b", "d"], 0, 2 / 3), ("a", [], 0, 0),
        ("a a b", ["a"], 0, 1 / 2), ("", ["a"], 0, 0), ("b c", ["a b c d e f"], 0, 1 / 2),
        ("x", ["y", "x x"], 0, 2 / 3),
    ],
)  # fmt: skip
def test_exact_match_and_f1(said: str, answers: list[str], exact: float, f1: float) -> None:
    assert best_match(said, answers, str.lower) == (exact, pytest.approx(f1))


def test_what_is_asked_of_windows() -> None:
    rows = [window(0, "abcd", 2, 3, 4, 4), window(1, "ab")]
    asked = question_of(SPAN).ask(split(rows), [1, 0], 7)
    assert asked.places is not None and asked.right is not None
    assert asked.places.astype(int).tolist() == [[1, 0, 1, 1, 0, 0, 0], [1, 0, 1, 1, 1, 1, 0]]
    assert [np.flatnonzero(row).tolist() for row in asked.right] == [[0], [0], [2, 4], [3, 4]]
    assert asked.labels.tolist() == [0, 0, 2, 3] and asked.example.tolist() == [1, 1, 0, 0]


def test_what_is_asked_of_choices() -> None:
    asked = question_of(Choose()).ask(split([choice(1, 3), choice(0, 2, 5, label=2)], Choose()), [0, 1], 6)
    assert asked.places is not None and asked.right is None
    assert asked.places.tolist() == [[1, 3, -1], [0, 2, 5]] and asked.labels.tolist() == [0, 2]


def test_chance() -> None:
    assert question_of(Choose()).chance(split([choice(1, 3), choice(0, 2, 4, 5)], Choose())) == (1 / 2 + 1 / 4) / 2
    assert question_of(SPAN).chance(split([window(0, "ab", 2, 2)])) == 0


@given(st.integers(0, 2**32), st.floats(0.1, 300))
def test_the_joint_loss_is_minus_the_logarithm_of_summed_probabilities(seed: int, scale: float) -> None:
    generator = np.random.default_rng(seed)
    values = generator.normal(0, scale, (5, 7))
    right = generator.random((5, 7)) < 0.4
    right[np.arange(5), generator.integers(0, 7, 5)] = True
    x = torch.tensor(values, requires_grad=True)
    F.cross_entropy(join_right(x, torch.tensor(right), torch.tensor(right.argmax(1))), torch.tensor(right.argmax(1)),
                    reduction="sum").backward()  # fmt: skip
    shares = np.exp(values - values.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    of_right = np.where(right, shares, 0)
    assert x.grad is not None
    expected = shares - of_right / np.maximum(of_right.sum(1, keepdims=True), 1e-300)
    certain = of_right.sum(1) > 1e-200
    np.testing.assert_allclose(x.grad.numpy()[certain], expected[certain], atol=1e-9)
    loss = F.cross_entropy(join_right(x, torch.tensor(right), torch.tensor(right.argmax(1))),
                           torch.tensor(right.argmax(1)), reduction="none").detach().numpy()  # fmt: skip
    np.testing.assert_allclose(loss[certain], -np.log(of_right.sum(1)[certain]), rtol=1e-9, atol=1e-9)


ROWS: dict[Head, list[dict[str, Any]]] = {
    SPAN: [window(0, "abcdefg", 4, 5, 7, 8), window(1, "bc"), window(2, "gfed", 2, 2)],
    Choose(): [choice(1, 3, label=1), choice(0, 2, 5, label=2, rows=9), choice(1, 2, rows=4)],
}


def built(head: Head, mechanism: str = "dense") -> tuple[Model, list[Any], Asked]:
    """A model in double precision, three documents of differing length, and what is asked of them."""
    found = registry.load("mechanisms", mechanism).object
    model = Model(ModelConfig(dim=16, mlp=16, dropout=0.0), found, found.options(), head, 8, 12).double().eval()
    initialise(model, 3)
    batch = Batches(split(ROWS[head], head), question_of(head), Padding(), True, 12).collate(range(3))
    return model, [tuple(torch.from_numpy(x) for x in one if x is not None) for one in batch.documents], batch.asked


@pytest.mark.parametrize("head", ROWS, ids=lambda head: type(head).__name__)
def test_a_shift_changes_nothing_where_places_do_not_matter(head: Head) -> None:
    model, documents, asked = built(head)
    assert asked.places is not None
    places = torch.from_numpy(asked.places)
    plain = model(documents, places)
    assert plain.abs()[plain > IMPOSSIBLE].max() > 0.1
    for shift in (1, 5):
        torch.testing.assert_close(model(documents, places, shift), plain, rtol=0, atol=1e-10)


@pytest.mark.parametrize("head", ROWS, ids=lambda head: type(head).__name__)
def test_padding_and_batch_mates_change_no_answer(head: Head) -> None:
    model, documents, asked = built(head)
    together = model(documents, torch.from_numpy(asked.places))
    for index in range(3):
        one = Batches(split(ROWS[head], head), question_of(head), Padding(), True, 12).collate([index])
        assert one.asked.places is not None
        alone = model([(torch.from_numpy(one.documents[0][0]), None)], torch.from_numpy(one.asked.places))
        rows = slice(2 * index, 2 * index + 2) if isinstance(head, Span) else slice(index, index + 1)
        torch.testing.assert_close(together[rows, : alone.shape[1]], alone, rtol=0, atol=1e-10)
        assert (together[rows, alone.shape[1] :] == IMPOSSIBLE).all()


@pytest.mark.parametrize("head", ROWS, ids=lambda head: type(head).__name__)
def test_the_loss_reaches_every_parameter_that_matters_and_no_row_that_is_not_asked(head: Head) -> None:
    model, documents, asked = built(head)
    rows: list[torch.Tensor] = []
    model.encoder.norm.register_forward_hook(lambda module, given, out: (out.retain_grad(), rows.append(out))[0])
    found = model(documents, torch.from_numpy(asked.places))
    labels = torch.from_numpy(asked.labels)
    found = found if asked.right is None else join_right(found, torch.from_numpy(asked.right), labels)
    F.cross_entropy(found, labels).backward()
    for name, parameter in model.named_parameters():
        if parameter.numel():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
            # the keys' bias moves all logits of a query alike, and the head's moves all rows or candidates
            assert parameter.grad.any() or name.endswith("bias"), name
    assert asked.places is not None and rows[0].grad is not None
    touched = rows[0].grad.abs().sum(-1) > 0
    if isinstance(head, Span):
        np.testing.assert_array_equal(touched.numpy(), asked.places)
    else:
        assert [np.flatnonzero(row).tolist() for row in touched] == [sorted(row["marks"]) for row in ROWS[head]]


@pytest.mark.parametrize(
    "changes",
    [{"context": "abd"}, {"answers": ["B", "o"]}, {"answers": ["Bo", ""]}, {"question": 8}, {"spans": [2, 2]},
     {"offsets": [0, 0, 0, 0, 0, 1, 1, 2, 1, 3]}, {"answers": ["bo"]}],
    ids=str,
)  # fmt: skip
def test_each_column_is_in_the_content_hash(changes: dict[str, Any]) -> None:
    plain, changed = (dict.fromkeys(("train", "validation", "test"), split([row])) for row in
                      (GOOD[SPAN], {**GOOD[SPAN], **changes}))  # fmt: skip
    again = dict.fromkeys(("train", "validation", "test"), split([GOOD[SPAN]]))
    assert content_hash(plain) == content_hash(again) != content_hash(changed)


def test_marks_are_in_the_content_hash() -> None:
    sets = [dict.fromkeys(("train", "validation", "test"), split([choice(*m)], Choose())) for m in ((1, 3), (1, 4))]
    assert content_hash(sets[0]) != content_hash(sets[1])
