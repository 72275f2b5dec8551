"""A sweep whose runs are played: no process, no training, and a clock that nobody waits for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from factories import make_quality

from attnbench import recording, suite, survey
from attnbench.executor import Ended, Job
from attnbench.record import FINISHED, CurvePoint, ShiftPoint
from attnbench.recording import Subject
from attnbench.sweep import Settings, Sweep

HEAD = 'name = "mine"\ntasks = ["recall"]\nmechanisms = ["dense", "local"]\nseeds = 2\n'
POINT = {"step": 1, "examples": 1, "loss": 1.0, "validation_loss": 1.0}
#: What a run comes to: a status with a score, or the exit code of a process that dies.
Answer = tuple[Any, float] | int


@dataclass
class Stage:
    """An executor whose runs take `seconds` of a clock that nobody waits for, and come to what `answer` says, with as
    many shifts as they were asked for.
    """

    answer: Callable[[Subject], Answer] = lambda subject: ("ok", 0.5)
    workers: int = 1
    seconds: Callable[[Subject], float] = lambda subject: 10.0
    now: float = 0.0
    sweep: Sweep | None = None
    jobs: list[Job] = field(default_factory=list)
    most: int = 0
    asked_to_stop: bool = False
    killed: bool = False
    _ends: dict[str, float] = field(default_factory=dict)

    def start(self, job: Job) -> None:
        assert self.sweep is not None and job.name not in self._ends
        self.jobs.append(job)
        self._ends[job.name] = self.now + self.seconds(self.sweep.running[job.name].subject)
        self.most = max(self.most, len(self._ends))

    def wait(self, seconds: float) -> list[Ended]:
        if not self._ends:
            return []
        name = min(self._ends, key=self._ends.__getitem__)
        self.now = max(self.now, self._ends.pop(name))
        job = next(job for job in reversed(self.jobs) if job.name == name)
        return [self._ended(job)]

    def _ended(self, job: Job) -> Ended:
        assert self.sweep is not None
        subject = self.sweep.running[job.name].subject
        seconds = self.seconds(subject)
        if self.asked_to_stop:
            return Ended(job, 130, "", "stopped by SIGTERM after step 3", seconds)
        answer = self.answer(subject)
        if isinstance(answer, int):
            return Ended(job, answer, "", "the last line it wrote", seconds)
        status, score = answer
        played = status in FINISHED and not subject.trial
        shifts = int(job.words[job.words.index("--test-shifts") + 1]) if "--test-shifts" in job.words else 0
        _, path = recording.store(
            self.sweep.settings.results, subject, status, None if status == "ok" else "played", started=recording.now(),
            command="played", quality=make_quality(score) if played else None,
            curve=[CurvePoint(validation=score, **POINT)],
            shifts=[ShiftPoint(shift=n, test=score, flips=0, kl=0) for n in range(1, shifts + 1)] if played else [],
        )  # fmt: skip
        return Ended(job, 0 if status in FINISHED else 1, json.dumps({"path": str(path)}), "", seconds)

    def stop(self) -> None:
        self.asked_to_stop = True

    def kill(self) -> None:
        self.killed = True


class Play:
    """Sweeps suites in a folder. A suite is surveyed once, without its data."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._surveys: dict[str, survey.Survey] = {}

    def __call__(self, text: str, stage: Stage | None = None, *, run: bool = True, **settings: Any) -> Sweep:
        (self.folder / "mine.toml").write_text(text, "utf-8")
        wanted = suite.load(str(self.folder / "mine.toml"))
        if text not in self._surveys:
            self._surveys[text] = survey.take(wanted, prepare=False)
        on = stage or Stage()
        on.sweep = sweep = Sweep(
            wanted, self._surveys[text], on, Settings(self.folder / "results", **settings), clock=lambda: on.now
        )
        if run:
            sweep()
            assert set(sweep.outcomes) == set(sweep.runs) and not sweep.running
        return sweep


def words(stage: Stage, option: str) -> list[str]:
    """The word behind an option of every job that was started."""
    return [job.words[job.words.index(option) + 1] for job in stage.jobs]
