"""Runs checks on a subject, each at most once, and looks for the smallest input that fails."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attnbench.conformance import basics, cost, independence, repeatability, training, values
from attnbench.conformance.check import Case, Check, Mismatch, NotApplicable, Outcome
from attnbench.conformance.subject import Subject
from attnbench.errors import UnknownName, Unsupported, describe
from attnbench.progress import track
from attnbench.randomness import seeded

_THEMES = (basics, repeatability, values, independence, training, cost)

#: All checks by name, in the order in which they are run and printed.
CHECKS: dict[str, Check] = {check.name: check for theme in _THEMES for check in theme.CHECKS}

_SHRINKING_SECONDS = 5.0


@dataclass
class Examination:
    """The outcomes of one subject, each found when it is first asked for."""

    subject: Subject
    known: dict[str, Outcome] = field(default_factory=dict)

    def outcome(self, name: str) -> Outcome:
        if name not in self.known:
            check = CHECKS[name]
            broken = self._broken_base(check)
            started = time.monotonic()
            if broken:
                found = Outcome(check=name, status="not applicable", detail=f"{broken} failed, on which it builds")
            else:
                with seeded(0, "conformance", name), _one_thread():
                    found = judge(check, self.subject)
            self.known[name] = replace(found, seconds=round(time.monotonic() - started, 3))
        return self.known[name]

    def _broken_base(self, check: Check) -> str | None:
        """A check that failed among those this one builds on, at any depth: one fault gives one failure."""
        for name in check.needs:
            if self.outcome(name).status == "fail":
                return name
            if below := self._broken_base(CHECKS[name]):
                return below
        return None


def examine(reference: str, values: Mapping[str, Any] | None = None, only: Iterable[str] = ()) -> list[Outcome]:
    """Outcomes of all checks, or of `only` some, on a mechanism named as in `attnbench run --mechanism`.

    Raises:
        AttnbenchError: unknown mechanism, option or check.
        Unsupported: a package it needs is missing.
    """
    examination = Examination(Subject.of(reference, values or {}))
    wanted = list(only) or list(CHECKS)
    for name in wanted:
        if name not in CHECKS:
            raise UnknownName("check", name, CHECKS)
    return [examination.outcome(name) for name in track(wanted, f"checking {examination.subject.name}")]


@contextmanager
def _one_thread() -> Iterator[None]:
    """More threads cost time on tiny tensors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def judge(check: Check, subject: Subject) -> Outcome:
    """One check, whatever the ones it builds on say."""
    details = []
    cases: list[Case] | list[None] = list(check.cases(subject)) if check.cases else [None]
    for case in cases:
        outcome = _attempt(check, subject, case)
        if outcome.status == "not applicable":
            return outcome
        if outcome.status == "fail":
            return outcome if case is None else _smallest(check, subject, case, outcome)
        details.append(outcome.detail)
    return Outcome(check=check.name, status="pass", detail=details[-1])


def _attempt(check: Check, subject: Subject, case: Case | None) -> Outcome:
    try:
        detail = check.function(subject) if case is None else check.function(subject, case)
    except (NotApplicable, Unsupported) as reason:  # its execution path has limits, and says which
        return Outcome(check=check.name, status="not applicable", detail=str(reason))
    except Mismatch as mismatch:
        return Outcome(check=check.name, status="fail", expected=mismatch.expected, found=mismatch.found, case=case)
    except Exception as error:  # noqa: BLE001  a mechanism may fail in any way, and that is the finding
        return Outcome(check=check.name, status="fail", expected="no error", found=describe(error), case=case)
    return Outcome(check=check.name, status="pass", detail=detail or "")


def _smallest(check: Check, subject: Subject, case: Case, outcome: Outcome) -> Outcome:
    """The first failure of the same promise, from small inputs to large, within a few seconds."""
    sizes = itertools.product((1, 2, 3), _small_lengths(subject), ((2, 1), (4, 1), (8, 2), (16, 2)))
    smaller = [
        replace(case, batch=batch, length=length, dim=dim, heads=heads)
        for batch, length, (dim, heads) in sizes
        if batch * length * dim < case.size
    ]
    deadline = time.monotonic() + _SHRINKING_SECONDS
    for candidate in sorted(smaller, key=lambda c: c.size):
        if time.monotonic() > deadline:
            break
        found = _attempt(check, subject, candidate)
        if found.status == "fail" and found.expected == outcome.expected and _kind(found) == _kind(outcome):
            return found
    return outcome


def _small_lengths(subject: Subject) -> list[int]:
    return sorted({1, 2, 3, 5, 9, subject.block, subject.block + 1, 2 * subject.block + 1, subject.length})


def _kind(outcome: Outcome) -> str:
    """The kind of error, where one was raised."""
    return outcome.found.partition(":")[0] if outcome.expected == "no error" else ""
