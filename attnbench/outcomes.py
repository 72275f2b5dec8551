"""The runs of a sweep and how each came out: now, or earlier by the records of the results folder."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from attnbench.progress import say
from attnbench.record import FINISHED, Record, Status
from attnbench.recording import Subject
from attnbench.store import Store
from attnbench.suite import Suite
from attnbench.survey import Survey, Variant

#: done: finished earlier. kept: ended otherwise earlier. not run: it cannot be. elsewhere: another process is at it.
How = Literal["done", "kept", "ran", "not run", "stopped", "not begun", "elsewhere"]


@dataclass(frozen=True)
class Run:
    """A cell, by its place in the survey, and a seed; `trial` is the place of the variant that is tried."""

    cell: int
    seed: int
    trial: int | None = None


@dataclass(frozen=True)
class Outcome:
    """`score` is the test score, of a trial the best validation score. Without a record there is no path."""

    how: How
    status: Status | None = None
    reason: str | None = None
    score: float | None = None
    path: Path | None = None
    seconds: float | None = None

    @property
    def finished(self) -> bool:
        return self.status in FINISHED


@dataclass
class History:
    """By identity the record that counts: one that finished, and was tested with all shifts asked for, else the newest
    of those that did not finish. `seconds` of finished ones by cell.
    """

    records: dict[str, tuple[Path, Record]] = field(default_factory=dict)
    seconds: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))


def runs_of(suite: Suite, survey: Survey) -> list[Run]:
    """In order: trials first, of cells that can run and lead their group; then whole seeds over all cells."""
    first = leaders(suite, survey)
    trials = [
        Run(place, seed, trial)
        for seed in (suite.tuning.seeds if suite.tuning else [])
        for place, cell in enumerate(survey.cells)
        if cell.refusal is None and first[place] == place
        for trial in range(len(cell.variants))
    ]
    return trials + [Run(place, seed) for seed in suite.seeds for place in range(len(survey.cells))]


def leaders(suite: Suite, survey: Survey) -> list[int]:
    """For every cell the one whose trials choose for it: the first that can run of those that share a choice."""
    share = suite.tuning.share if suite.tuning else []
    groups = [cell.group(share) if share else str(place) for place, cell in enumerate(survey.cells)]
    first: dict[str, int] = {}
    for place, cell in enumerate(survey.cells):
        if cell.refusal is None:
            first.setdefault(groups[place], place)
    return [first.get(group, place) for place, group in enumerate(groups)]


def subject_of(variant: Variant, run: Run) -> Subject:
    return variant.subject.model_copy(update={"seed": run.seed, "trial": run.trial is not None})


def of_record(how: How, path: Path, record: Record, seconds: float | None = None) -> Outcome:
    score = record.quality.test if record.quality else None
    if record.kind == "trial" and record.status in FINISHED:
        score = max((point.validation for point in record.curve), default=None)
    return Outcome(how, record.status, record.reason, score, path, _seconds(record) if seconds is None else seconds)


def chosen(tried: Mapping[Run, Outcome]) -> int | str:
    """The place of the variant with the best mean validation score, the first of equals. One that failed on a seed is
    out; where none is left, the reason.
    """
    scores: dict[int, list[float | None]] = defaultdict(list)
    for run, outcome in tried.items():
        assert run.trial is not None
        scores[run.trial].append(outcome.score)
    means = {
        trial: statistics.fmean(score for score in found if score is not None)
        for trial, found in sorted(scores.items())
        if None not in found
    }
    if means:
        return max(means, key=means.__getitem__)
    first = next(outcome for outcome in tried.values() if not outcome.finished)
    return f"none of the values to choose from finished all trials; {first.status}: {first.reason}"


def read_history(store: Store, survey: Survey, test_shifts: int = 0) -> History:
    """What the results folder holds of these cells. A run that finished without shifts asked for now counts for nothing
    but its time.
    """
    found = History()
    if not store.folder.is_dir():
        return found
    places = {variant.subject.spec.hash: place for place, cell in enumerate(survey.cells) for variant in cell.variants}
    records, problems = store.read_all()
    for problem in problems:
        say(f"warning: {problem}")
    for path, record in sorted(records, key=lambda item: (item[1].started, item[1].id)):
        spec_hash = record.spec.hash
        if spec_hash not in places:
            continue
        finished = record.status in FINISHED
        identity = Subject.named(spec_hash, record.seed, record.kind == "trial")
        if finished:
            found.seconds[places[spec_hash]].append(_seconds(record))
        if finished and record.kind != "trial" and len(record.shifts) < test_shifts:
            continue
        if finished or identity not in found.records or found.records[identity][1].status not in FINISHED:
            found.records[identity] = (path, record)
    return found


def _seconds(record: Record) -> float:
    try:
        return (datetime.fromisoformat(record.finished) - datetime.fromisoformat(record.started)).total_seconds()
    except ValueError:  # a record from elsewhere may say anything there
        return record.cost.train_seconds if record.cost else 0.0
