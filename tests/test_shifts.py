"""The test moved against the block grid: by hand, against scipy, and where theory says what must come out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.special
import scipy.stats
import torch
from torch import Tensor, nn

from attnbench import assembly, data, plan, registry
from attnbench.columns import Ragged, Split
from attnbench.config import Budget, ModelConfig, Numerics, Padding
from attnbench.contracts import NO_TARGET, Choose, Classify, Head, Layout, Match, Mechanism, Span, TagTokens
from attnbench.data import TaskData
from attnbench.errors import AttnbenchError
from attnbench.model import Model
from attnbench.options import parse
from attnbench.questions import IMPOSSIBLE, question_of
from attnbench.shifts import divergence, flipped, measure, readings
from attnbench.train import Job, Trainer

LENGTH, VOCAB, CLASSES, BLOCK = 24, 9, 3, 4
#: One length is a block's, one is longer than any multiple of it, one is the shortest.
LENGTHS = (LENGTH, 1, 4, 13, 7, 22)


def ragged(rows: list[Any]) -> Ragged:
    return Ragged(pa.chunked_array([pa.array([[int(x) for x in row] for row in rows], pa.list_(pa.int64()))]))


def split_of(head: Head) -> Split:
    """Documents of LENGTHS, questions and answers at random."""
    generator = np.random.default_rng(1)
    lengths = [max(n, 6) for n in LENGTHS] if isinstance(head, Span | Choose) else LENGTHS
    documents = [ragged([generator.integers(0, VOCAB, n) for n in lengths]) for _ in head.documents]
    if isinstance(head, TagTokens):
        targets = [np.where(generator.random(n) < 0.8, generator.integers(0, CLASSES, n), NO_TARGET) for n in lengths]
        for row in targets:
            row[0] = 0
        return Split(documents, ragged(targets))
    if isinstance(head, Choose):
        marks = [sorted(generator.choice(n, 2 + n % 3, replace=False)) for n in lengths]
        return Split(documents, np.zeros(len(lengths), np.int64), {head.marks: ragged(marks)})
    if isinstance(head, Span):
        letters = ["abcdefghijklmnopqrstuvwxyz"[: n - 1] for n in lengths]
        offsets = [[0, 0, *(place for i in range(n - 1) for place in (i, i + 1))] for n in lengths]
        extras = {"offsets": ragged(offsets), "context": letters, "answers": [[text[1:3]] for text in letters]}
        return Split(documents, ragged([[2, 3]] * len(lengths)), extras | {"question": np.arange(len(lengths))})
    return Split(documents, generator.integers(0, CLASSES, len(lengths)))


def trainer_of(
    head: Head, mechanism: Mechanism | str, options: dict[str, Any] | None = None, dtype: torch.dtype = torch.float32
) -> Trainer:
    """A tiny model with its first weights. Batches of the evaluation hold four examples."""
    found = registry.load("mechanisms", mechanism).object if isinstance(mechanism, str) else mechanism
    chosen, split = parse("made up", found.options, options or {}, found.presets), split_of(head)
    job = Job(
        model=Model(ModelConfig(dim=12, mlp=16, layers=2, dropout=0.0), found, chosen, head, VOCAB, LENGTH),
        data=TaskData("test", {"train": split, "validation": split, "test": split}, {}),
        question=question_of(head), padded=True, max_length=LENGTH, regularizers=[], numerics=Numerics(),
        padding=Padding(), budget=Budget(steps=4, batch=4, eval_batch=4, eval_every=2, warmup=0), seed=0, device="cpu",
    )  # fmt: skip
    made = Trainer(job, quiet=True)
    made.model.to(dtype)
    made.best_weights = made.model.state_dict()
    return made


# --- by hand ----------------------------------------------------------------------------------------------------------

SIZE = 1.5


class CountsRows(nn.Module):
    """All that is left of a row is whether its number is a multiple of BLOCK."""

    def forward(self, x: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
        rows = torch.arange(layout.length) % BLOCK == 0
        sign = torch.where(rows, 1.0, -1.0).to(x)
        return (1e9 * sign[:, None] * alternating(x.shape[-1]).to(x)).expand_as(x)


def alternating(width: int) -> Tensor:
    return 1.0 - 2.0 * (torch.arange(width) % 2)


def test_flips_divergence_and_score_of_a_mechanism_that_counts_rows_are_those_by_hand() -> None:
    """Class 1 has the logit SIZE where the row is a multiple of BLOCK, and -SIZE elsewhere; class 0 has 0."""
    head = TagTokens(2)
    mechanism = Mechanism(summary="x", paper="x", build=lambda shape, options: CountsRows())
    made = trainer_of(head, mechanism, dtype=torch.float64)
    linear = made.model.head.linear
    assert isinstance(linear, nn.Linear)
    with torch.no_grad():
        linear.weight.copy_(torch.stack([torch.zeros(12), SIZE * alternating(12) / 12]))
        linear.bias.zero_()
    targets = [np.asarray(row) for row in made.job.data.splits["test"].targets]
    asked = [np.flatnonzero(row != NO_TARGET) for row in targets]
    before = np.concatenate([rows % BLOCK == 0 for rows in asked])
    for point in measure(made, range(2 * BLOCK + 2)):
        said = [(rows + point.shift) % BLOCK == 0 for rows in asked]
        flips = np.mean(np.concatenate(said) != before)
        right = [np.mean(one == row[rows]) for one, row, rows in zip(said, targets, asked, strict=True)]
        assert point.flips == pytest.approx(flips, abs=1e-12) and point.test == pytest.approx(np.mean(right))
        # two coins with log odds SIZE and -SIZE: (p - q) (log odds p - log odds q) / 2
        assert point.kl == pytest.approx(flips * SIZE * math.tanh(SIZE / 2), rel=1e-6, abs=1e-12)
        assert (point.flips > 0) == (point.shift % BLOCK != 0)


@pytest.mark.parametrize(("rows", "classes", "scale"), [(1, 2, 1.0), (7, 10, 1.0), (7, 10, 20.0), (64, 3, 0.01)])
def test_divergence_is_that_of_scipy(rows: int, classes: int, scale: float) -> None:
    p, q = np.random.default_rng(rows).normal(0, scale, (2, rows, classes)).astype(np.float32)
    shares_p, shares_q = (scipy.special.softmax(x.astype(np.float64), axis=-1) for x in (p, q))
    both = scipy.stats.entropy(shares_p, shares_q, axis=-1) + scipy.stats.entropy(shares_q, shares_p, axis=-1)
    found = divergence(p, q)
    assert found.shape == (rows,) and found.dtype == np.float64
    np.testing.assert_allclose(found, both / 2, rtol=1e-10, atol=1e-15)
    np.testing.assert_array_equal(divergence(p, p), 0)
    np.testing.assert_array_equal(flipped(p, q), shares_p.argmax(-1) != shares_q.argmax(-1))


def test_what_cannot_be_chosen_adds_nothing() -> None:
    p, q = np.random.default_rng(0).normal(0, 1, (2, 5, 4)).astype(np.float32)
    wider = [np.concatenate([x, np.full((5, 2), IMPOSSIBLE, np.float32)], 1) for x in (p, q)]
    np.testing.assert_allclose(divergence(*wider), divergence(p, q), rtol=1e-12)
    np.testing.assert_array_equal(flipped(*wider), flipped(p, q))


# --- where theory says what must come out -----------------------------------------------------------------------------

HEADS: list[Head] = [
    Classify(CLASSES), Match(CLASSES), TagTokens(CLASSES), Choose(), Span(normalise=str.lower, longest=3),
]  # fmt: skip


def head_name(head: Head) -> str:
    return type(head).__name__


@pytest.mark.parametrize("head", HEADS, ids=head_name)
@pytest.mark.parametrize(
    ("mechanism", "options"), [("dense", {}), ("sliding", {"window": 3, "block_size": BLOCK}), ("longformer", {})]
)
def test_controls_do_not_move(head: Head, mechanism: str, options: dict[str, Any]) -> None:
    made = trainer_of(head, mechanism, options)
    score = float(made.test().scores.mean())
    points = measure(made, range(1, 2 * BLOCK))
    assert [point.shift for point in points] == [*range(1, 2 * BLOCK)]
    assert all(point.flips == 0 and point.kl < 1e-5 and point.test == score for point in points), points


@pytest.mark.parametrize("head", HEADS, ids=head_name)
def test_disjoint_blocks_move_except_by_a_whole_block(head: Head) -> None:
    made = trainer_of(head, "disjoint_local", {"block_size": BLOCK})
    *between, whole = measure(made, range(1, BLOCK + 1))
    assert min(point.kl for point in between) > 1e-6 and whole.kl < 1e-9 and whole.flips == 0


@pytest.mark.parametrize("head", HEADS, ids=head_name)
def test_unmoved_is_the_test_itself(head: Head) -> None:
    made = trainer_of(head, "local", {"block_size": BLOCK, "window_blocks": 1})
    score = float(made.test().scores.mean())
    (point,) = measure(made, [0])
    assert point.model_dump() == {"shift": 0, "test": score, "flips": 0.0, "kl": 0.0}


class Noisy(nn.Module):
    """As a mechanism that draws in evaluation too."""

    def forward(self, x: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
        return 5 * torch.randn_like(x)


def test_a_mechanism_that_draws_meets_its_draws_of_the_test_again() -> None:
    mechanism = Mechanism(summary="x", paper="x", build=lambda shape, options: Noisy())
    made = trainer_of(TagTokens(CLASSES), mechanism)
    score = float(made.test().scores.mean())
    moved, still = measure(made, [3, 0])
    assert still.model_dump() == {"shift": 0, "test": score, "flips": 0.0, "kl": 0.0}
    assert moved.flips > 0 and float(made.test().scores.mean()) == score
    assert measure(made, [3, 0]) == [moved, still] and measure(made, [3]) == [moved]


def test_points_of_a_trained_model_are_those_of_its_own_passes() -> None:
    """Every number again, from the logits of single examples and numpy."""
    settings = {
        "task.train": 200, "task.validation": 20, "task.test": 30, "task.length": 24, "task.distance": 4,
        "model.dim": 16, "model.layers": 1, "budget.steps": 30, "budget.batch": 8, "budget.eval_batch": 7,
        "budget.eval_every": 30, "budget.lr": 0.01, "block_size": 8, "window_blocks": 1,
    }  # fmt: skip
    made = plan.make("local", "recall", settings=settings)
    prepared = data.load(made.task.plugin, made.task.options)
    trainer = Trainer(assembly.job_of(made, prepared, assembly.ready(made, "cpu", 3), "cpu"), quiet=True)
    trainer.fit()
    trainer.test()
    points = measure(trainer, [1, 3])
    split, model = prepared.splits["test"], trainer.model.eval()
    for point in points:
        flips, divergences, scores = [], [], []
        for index in range(len(split)):
            targets = np.asarray(split.targets[index])
            places = torch.from_numpy(targets != NO_TARGET)[None]
            documents = [(torch.from_numpy(split.documents[0][index].astype(np.int64))[None], None)]
            with torch.no_grad():
                p, q = (
                    scipy.special.softmax(model(documents, places, s).double().numpy(), -1) for s in (0, point.shift)
                )
            flips += [*(p.argmax(-1) != q.argmax(-1))]
            divergences += [*((scipy.stats.entropy(p, q, axis=-1) + scipy.stats.entropy(q, p, axis=-1)) / 2)]
            scores.append(np.mean(q.argmax(-1) == targets[targets != NO_TARGET]))
        assert point.kl == pytest.approx(np.mean(divergences), rel=1e-3) and point.kl > 1e-3
        assert point.flips == pytest.approx(np.mean(flips)) and 0 < point.flips < 1
        assert point.test == pytest.approx(np.mean(scores))


# --- on the way -------------------------------------------------------------------------------------------------------


def test_a_batch_that_memory_does_not_hold_is_split(capsys: pytest.CaptureFixture[str]) -> None:
    made = trainer_of(Classify(CLASSES), "local", {"block_size": BLOCK}, dtype=torch.float64)
    made.test()
    wanted, whole = measure(made, [1, 2]), made.run_model

    def narrow(documents: Any, places: Any, shift: int, moved: bool) -> Any:
        if shift == 2 and len(documents[0][0]) > 2:
            raise MemoryError
        return whole(documents, places, shift, moved)

    made.run_model = narrow
    found = measure(made, [1, 2])
    assert "in batches of 2" in capsys.readouterr().err
    for one, other in zip(found, wanted, strict=True):
        assert one.model_dump() == pytest.approx(other.model_dump(), rel=1e-9)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda logits: 1 / 0, "test moved by 2 rows: ZeroDivisionError: division by zero (test_shifts.py:"),
        (lambda logits: logits / 0, "test moved by 2 rows: logits that are not finite"),
    ],
)
def test_what_fails_at_a_shift_is_one_line_that_names_it(broken: Callable[[Any], Any], said: str) -> None:
    made = trainer_of(Classify(CLASSES), "local", {"block_size": BLOCK})
    whole = made.run_model
    made.run_model = lambda documents, places, shift, moved: (
        broken(whole(documents, places, shift, moved)) if shift == 2 else whole(documents, places, shift, moved)
    )
    with pytest.raises(AttnbenchError) as caught:
        measure(made, [1, 2])
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_nothing_is_read_where_nothing_is_asked_for() -> None:
    made = trainer_of(Classify(CLASSES), "dense")
    made.run_model = None
    assert measure(made, []) == []


@pytest.mark.parametrize("shifts", [0, 1, 5])
def test_the_test_split_is_read_as_often_as_is_said(shifts: int) -> None:
    made, read = trainer_of(Classify(CLASSES), "dense"), []
    whole = made.run_model
    made.run_model = lambda documents, *more: read.append(len(documents[0][0])) or whole(documents, *more)
    made.test()
    measure(made, range(1, shifts + 1))
    assert sum(read) == len(LENGTHS) * readings(shifts)
