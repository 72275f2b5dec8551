"""What a study is made of, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from attnbench.comparison import holm
from attnbench.record import Record
from attnbench.statistics import Scores
from attnbench.studies.measures import POWER, Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Verdict = Literal["supports", "contradicts", "cannot tell"]
#: A seed counts as one that solved its task from this score on.
SOLVED = 0.9


@dataclass(frozen=True)
class Arm:
    """A cell of the study's suite with what its finished runs gave, by seed.

    Attributes:
        name: the label, such as hst+sar, and what sets the cell apart, such as window_blocks=1.
        settings: that as text, by key.
        scores: of the test examples, (N,).
        asked: how many seeds the suite has.
        others: statuses of runs without a score.
        lost: values that could not be chosen, with how their trials ended.
    """

    label: str
    settings: Mapping[str, str]
    records: Mapping[int, Record]
    scores: Mapping[int, Scores]
    asked: int
    others: Sequence[str] = ()
    lost: Sequence[str] = ()

    @property
    def name(self) -> str:
        return " ".join([self.label, *(f"{key}={value}" for key, value in self.settings.items())])

    @property
    def tests(self) -> dict[int, float]:
        """Test score by seed."""
        found = {seed: record.quality for seed, record in sorted(self.records.items())}
        return {seed: quality.test for seed, quality in found.items() if quality is not None}

    @property
    def solved(self) -> int:
        return sum(score >= SOLVED for score in self.tests.values())

    @property
    def above_trivial(self) -> bool:
        """Whether any of its runs is better than chance and the trivial predictors."""
        return any(record.status == "ok" for record in self.records.values())


Arms = Mapping[str, Arm]


@dataclass(frozen=True)
class Finding:
    """A claim against the runs.

    Attributes:
        claim: what is said to hold.
        measure: what the estimate is of.
        expected: the sign that the claim predicts.
        estimate: None where there is nothing to estimate; `void` says why, or why the estimate says nothing about the
            claim whatever its sign.
    """

    claim: str
    measure: str
    expected: Literal[-1, 1]
    estimate: Estimate | None
    void: str | None = None

    @property
    def verdict(self) -> Verdict:
        if self.void or self.estimate is None or not self.estimate.shows:
            return "cannot tell"
        return "supports" if self.estimate.mean * self.expected > 0 else "contradicts"

    @property
    def sentence(self) -> str:
        """The estimate in words, with what could have been seen."""
        if self.estimate is None:
            return f"nothing to estimate: {self.void}"
        one = self.estimate
        p = f"p = {one.p:.2g}" + ("" if one.adjusted is None else f", {one.adjusted:.2g} by Holm")
        power = f"a true effect of {one.smallest:.3f} would have shown with probability {POWER:g}"
        said = f"{one.mean:+.3f} [{one.low:+.3f}, {one.high:+.3f}] over {one.seeds} seeds, {p}; {power}"
        return f"{said}; void: {self.void}" if self.void else said


@dataclass(frozen=True)
class Drawing:
    """`shows` is for who does not see it; `draw` gives None where there is nothing to draw."""

    title: str
    shows: str
    draw: Callable[[Arms], Figure | None]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question. Its suite has the same name.

    Attributes:
        claim: the paper's, in our words.
        limits: what the answer does not cover.
        findings: from the arms by name; arms without runs are there, without records.
        drawings: by the end of their files' names.
    """

    name: str
    question: str
    claim: str
    limits: str
    findings: Callable[[Arms], list[Finding]]
    drawings: Mapping[str, Drawing] = field(default_factory=dict)


def adjusted(findings: Sequence[Finding]) -> list[Finding]:
    """The same with Holm's correction over all that have an estimate and are not void."""
    counted = [place for place, one in enumerate(findings) if one.estimate is not None and not one.void]
    found = list(findings)
    for place, p in zip(
        counted, holm([one.estimate.p for one in findings if one.estimate and not one.void]), strict=True
    ):
        estimate = found[place].estimate
        assert estimate is not None
        found[place] = replace(found[place], estimate=replace(estimate, adjusted=p))
    return found


def estimated(
    claim: str, measure: str, expected: Literal[-1, 1], how: Callable[[], Estimate], void: str | None = None
) -> Finding:
    """A finding whose estimate may be impossible for want of runs."""
    try:
        return Finding(claim, measure, expected, how(), void)
    except ValueError as lack:
        return Finding(claim, measure, expected, None, void or str(lack))
