"""A study's page: question, claims with what the runs say, figures, and every seed. Same records, same bytes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from attnbench.record import as_words
from attnbench.reporting import style
from attnbench.reporting.picture import Picture
from attnbench.reporting.template import render
from attnbench.store import file_name
from attnbench.studies.study import Arm, Arms, Finding, Study, adjusted
from attnbench.suite import Suite


@dataclass(frozen=True)
class Answer:
    """A study with what its runs gave. `expected`: how many runs the suite has; `found`: how many have a score."""

    study: Study
    suite: Suite
    arms: Arms
    findings: Sequence[Finding]
    command: str

    @classmethod
    def of(cls, study: Study, arms: Arms, suite: Suite, command: str) -> Answer:
        return cls(study, suite, arms, adjusted(study.findings(arms)), command)

    @property
    def expected(self) -> int:
        return sum(arm.asked for arm in self.arms.values())

    @property
    def found(self) -> int:
        return sum(len(arm.tests) for arm in self.arms.values())

    @property
    def name(self) -> str:
        """Of its files; `quick` is the usual protocol."""
        protocol = self.suite.protocol
        return file_name(self.suite.name if protocol == "quick" else f"{self.suite.name}-{protocol}")

    @property
    def provenance(self) -> list[tuple[str, str]]:
        """Where the runs were made, and by which code."""
        records = [record for arm in self.arms.values() for record in arm.records.values()]
        commits = {str(one.code.get("commit"))[:12] + ("+" if one.code.get("dirty") else "") for one in records}
        facts = {
            "protocol": {f"{one.spec.protocol.name}, version {one.spec.protocol.version}" for one in records},
            "commit": commits,
            "machine": {str(one.machine.get("cpu") or one.machine.get("id")) for one in records},
            "threads": {str(one.machine.get("threads")) for one in records},
        }
        return [(name, ", ".join(sorted(values))) for name, values in facts.items() if values]


def pictures(answer: Answer) -> Iterator[Picture]:
    for end, drawing in answer.study.drawings.items():
        with style.settings():
            if (figure := drawing.draw(answer.arms)) is not None:
                alt = f"{drawing.shows} The numbers stand in the tables."
                yield Picture.of_figure(figure, answer.name, f"{answer.name}-{end}", drawing.title, alt)


def to_html(answer: Answer, drawn: Sequence[Picture]) -> str:
    return render("study.html.j2", answer=answer, pictures=drawn, rows=[_row(arm) for arm in answer.arms.values()])


def _row(arm: Arm) -> dict[str, Any]:
    tests = arm.tests
    chosen = next((record.tuning.chosen for record in arm.records.values() if record.tuning), {})
    return {
        "name": arm.name,
        "mean": f"{fmean(tests.values()):.3f}" if tests else "no run",
        "sd": f"± {stdev(tests.values()):.3f}" if len(tests) > 1 else "",
        "seeds": [(seed, f"{score:.3f}") for seed, score in tests.items()],
        "solved": f"{arm.solved} of {len(tests)}" if tests else "",
        "lacking": arm.asked - len(tests),
        "others": ", ".join(sorted(arm.others)),
        "chosen": as_words(chosen) + (f"; without {', '.join(arm.lost)}" if arm.lost else ""),
    }


def as_json(answer: Answer) -> str:
    """The findings and the arms' scores, every number in full precision."""
    found = [{**dataclasses.asdict(one), "verdict": one.verdict, "sentence": one.sentence} for one in answer.findings]
    arms = {
        name: {
            "test": {str(seed): score for seed, score in arm.tests.items()},
            "asked": arm.asked,
            "others": list(arm.others),
            "lost": list(arm.lost),
        }
        for name, arm in answer.arms.items()
    }
    whole = {
        "study": answer.study.name,
        "suite": answer.suite.name,
        "protocol": answer.suite.protocol,
        "findings": found,
        "arms": arms,
    }
    return json.dumps(whole, indent=1, sort_keys=True, allow_nan=False) + "\n"
