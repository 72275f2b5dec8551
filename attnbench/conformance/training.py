"""What training needs: a gradient for every parameter, right gradients, and a step under every head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck

from attnbench import registry
from attnbench.choice import Choice
from attnbench.columns import Ragged, Split
from attnbench.config import Budget, ModelConfig, Numerics, Padding
from attnbench.conformance.check import Case, Check, Mismatch
from attnbench.conformance.subject import Subject, full, mask_of, real_rows, rows, weighted
from attnbench.contracts import NO_TARGET, Choose, Classify, Head, Match, Span, TagTokens
from attnbench.data import TaskData
from attnbench.errors import blame
from attnbench.model import Model
from attnbench.options import parse
from attnbench.questions import question_of
from attnbench.refusals import idle, shift_refusal
from attnbench.train import Job, Stopped, Trainer

_VOCAB, _CLASSES, _EXAMPLES = 11, 3, 4
_MODEL = ModelConfig(dim=16, heads=2, layers=2, mlp=16, dropout=0.1)
_BUDGET = Budget(steps=1, batch=_EXAMPLES, warmup=0, eval_every=1)
_HEADS: tuple[Head, ...] = (Classify(_CLASSES), Match(_CLASSES), TagTokens(_CLASSES), Choose(), Span())


def gradient_reaches_parameters(subject: Subject, case: Case) -> None:
    """Every parameter has a gradient that is not zero: none is dead weight that the tables would count."""
    mixer, mask = subject.build(case), mask_of(case) if subject.honours else None
    weighted(real_rows(mixer, rows(case), mask)).backward()
    dead = [
        name
        for name, parameter in mixer.named_parameters()
        if parameter.requires_grad and parameter.numel() and (parameter.grad is None or not parameter.grad.any())
    ]
    if dead:
        raise Mismatch("a gradient for every parameter", f"none reaches {', '.join(dead)}")


def right_gradients(subject: Subject) -> None:
    """Gradients of input and parameters equal finite differences in float64, on a few rows."""
    case = Case(length=5, batch=2, dim=4)
    mixer = subject.build(case)
    names, values = zip(*mixer.named_parameters(), strict=True) if list(mixer.parameters()) else ((), ())

    def output(x: Tensor, *parameters: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), (x,))
        return y

    try:
        gradcheck(output, (rows(case).requires_grad_(), *values), fast_mode=True)
    except GradcheckError as error:
        first = next(line for line in str(error).splitlines() if line.strip())
        raise Mismatch("gradients equal to finite differences", first) from None


def trains_under_every_head(subject: Subject) -> str:
    """One training step and one evaluation inside the encoder, for every kind of head, under every
    regularizer that may be used with it, padded where it honours masks: all losses are finite.
    """
    done = []
    for head in _HEADS:
        for regularizer in _regularizers(subject):
            what = f"{type(head).__name__} with regularizer {regularizer.plugin.name}"
            with blame(what):
                _one_step(subject, head, regularizer, what)
            done.append(regularizer.plugin.name)
    return f"{len(_HEADS)} heads, regularizers {', '.join(dict.fromkeys(done))}"


def _regularizers(subject: Subject) -> Iterator[Choice]:
    """All that can be found, with their defaults, and that do not refuse this mechanism or this model."""
    for name in registry.names("regularizers"):
        plugin = registry.load("regularizers", name)
        choice = Choice(plugin, parse(f"regularizer {name}", plugin.object.options, {}))
        if not idle(subject.choice, choice, _MODEL.dropout) and not shift_refusal(subject.choice, choice):
            yield choice


def _one_step(subject: Subject, head: Head, regularizer: Choice, what: str) -> None:
    length = subject.length
    job = Job(
        model=Model(_MODEL, subject.mechanism, subject.choice.options, head, _VOCAB, length),
        data=_data(head, length, equal=not subject.honours),
        question=question_of(head),
        padded=subject.honours,
        max_length=length,
        budget=_BUDGET,
        numerics=Numerics(),
        padding=Padding(rule="max" if subject.is_bound else "batch"),
        regularizers=[(regularizer.plugin.object, regularizer.options)],
        seed=0,
        device="cpu",
    )
    try:
        Trainer(job, quiet=True).fit()
    except Stopped as stopped:
        raise Mismatch("a finite loss", f"{what}: {stopped}") from None


def _data(head: Head, length: int, equal: bool) -> TaskData:
    """A few random examples: the longest one full, the shortest of one token, or all full where `equal`."""
    generator = np.random.default_rng(0)
    counts = [length] * _EXAMPLES if equal else [length, length // 2, 3, 1]
    documents = [_ragged([generator.integers(_VOCAB, size=n) for n in counts]) for _ in head.documents]
    targets, extras = _TARGETS[type(head)](counts, generator)
    split = Split(documents, targets, extras)
    return TaskData(key="conformance", splits={"train": split, "validation": split}, card={})


def _classes(counts: list[int], generator: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    return np.arange(_EXAMPLES) % _CLASSES, {}


def _tags(counts: list[int], generator: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    labels = [generator.integers(_CLASSES, size=n) for n in counts]
    for row in labels:
        row[1::2] = NO_TARGET
    return _ragged(labels), {}


def _candidates(counts: list[int], generator: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    return np.zeros(_EXAMPLES, dtype=np.int64), {"marks": _ragged([np.arange(min(n, _CLASSES)) for n in counts])}


def _spans(counts: list[int], generator: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    """Every token but the first is a letter of the context; the last one is the answer, where there are two."""
    spans = [np.full(2, n - 1) if n > 1 else np.empty(0, dtype=np.int64) for n in counts]
    offsets = [np.repeat(np.arange(n), 2)[1:-1] if n > 1 else np.empty(0) for n in counts]
    extras = {
        "offsets": _ragged([np.concatenate([[0, 0], row]).astype(np.int64) for row in offsets]),
        "context": ["x" * n for n in counts],
        "answers": [["x"]] * _EXAMPLES,
        "question": np.arange(_EXAMPLES),
    }
    return _ragged(spans), extras


_TARGETS: dict[type, Callable[[list[int], np.random.Generator], tuple[Any, dict[str, Any]]]] = {
    Classify: _classes,
    Match: _classes,
    TagTokens: _tags,
    Choose: _candidates,
    Span: _spans,
}


def _ragged(rows: list[np.ndarray]) -> Ragged:
    return Ragged(pa.chunked_array([pa.array(rows, type=pa.list_(pa.int64()))]))


def _holes(subject: Subject) -> list[Case]:
    return [Case(length=case.length, mask="holes") for case in full(subject)]


CHECKS = (
    Check(gradient_reaches_parameters, needs=("shape_and_dtype",), cases=_holes),
    Check(right_gradients, needs=("stateless",)),
    Check(trains_under_every_head, needs=("shape_and_dtype",)),
)
