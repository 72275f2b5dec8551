"""Fills the cells of a suite: what is finished is left alone, what failed is kept, the rest is run by an executor."""

from __future__ import annotations

import fcntl
import json
import shlex
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnbench import outcomes, recording
from attnbench.estimate import in_words, makespan
from attnbench.executor import Ended, Executor, Job, ending
from attnbench.outcomes import How, Outcome, Run, subject_of
from attnbench.progress import say
from attnbench.record import DECIDED, FINISHED, Status, as_words, canonical
from attnbench.recording import Subject
from attnbench.signals import heard
from attnbench.store import Store, read
from attnbench.suite import Suite, as_text
from attnbench.survey import Survey, Variant

#: What a run has to write its checkpoint before it is killed.
GRACE_SECONDS = 30.0
_LOOK_SECONDS = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: How a run ends that was asked to: that is not the mechanism's fault, and no record.
_ASKED_TO_END = {code for number in _SIGNALS for code in (-number, 128 + number)}


@dataclass(frozen=True)
class Settings:
    """`retry`: statuses; what ended so is run again. `budget` is in seconds; `words` go to every run as they are."""

    results: Path
    retry: frozenset[str] = frozenset()
    budget: float | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class UnderWay:
    run: Run
    subject: Subject
    job: Job
    since: float
    started: str

    @property
    def resumed(self) -> bool:
        return self.job.words[-1].startswith("--resume")


@dataclass
class Sweep:
    """One sweep. `outcomes` grows until every run has one; `watch` is called whenever something may have changed."""

    suite: Suite
    survey: Survey
    executor: Executor
    settings: Settings
    watch: Callable[[Sweep], None] = lambda sweep: None
    clock: Callable[[], float] = time.monotonic
    outcomes: dict[Run, Outcome] = field(default_factory=dict)
    running: dict[str, UnderWay] = field(default_factory=dict)
    stopped_by: int | None = None

    def __post_init__(self) -> None:
        self.runs = outcomes.runs_of(self.suite, self.survey)
        self.pending = list(self.runs)
        self.store = Store(self.settings.results)
        self.history = outcomes.read_history(self.store, self.survey, self.suite.test_shifts)
        self._deadline: float | None = None
        self._begun: set[int] = set()
        self._out_of_time = False
        self._failed_ways: dict[Run, int] = {}  # how many ways to go on could not be gone
        self._choices: dict[int, int | str] = {}
        self._leaders = outcomes.leaders(self.suite, self.survey)
        self._kill_at: float | None = None
        self._impatient = False

    def __call__(self) -> None:
        """
        Raises:
            AttnbenchError: a record could not be written.
        """
        self._deadline = None if self.settings.budget is None else self.clock() + self.settings.budget
        with heard(_SIGNALS, self._told), self._none_left_behind():
            while True:
                while self.stopped_by is None and len(self.running) < self.executor.workers:
                    if (run := self._next()) is None:
                        break
                    self._start(run)
                self.watch(self)
                if not self.running:
                    break
                for ended in self._wait():
                    self._end(ended)
        for run in self.pending:
            self.outcomes[run] = self.known(run) or Outcome("not begun")
        self.watch(self)

    def settle(self) -> None:
        """Gives the runs that the store knows their outcome, and starts none."""
        for run in self.runs:
            if (found := self.known(run)) is not None:
                self.outcomes[run] = found
        self.pending = [run for run in self.runs if run not in self.outcomes]

    @property
    def failed(self) -> list[Run]:
        """Runs that came to no end of their own, now or earlier. A trial that diverges only loses."""
        return [
            run
            for run, outcome in self.outcomes.items()
            if outcome.status not in (None, "unsupported", *(FINISHED if run.trial is None else DECIDED))
        ]

    def lost(self, cell: int) -> list[str]:
        """Values that the cell could not choose, with how a trial of them was cut off."""
        ended = [(run, self.outcomes[run].status) for run in self._trials(self._leaders[cell]) if run in self.outcomes]
        found = {
            as_words(self.survey.cells[run.cell].variants[run.trial].values): status
            for run, status in ended
            if run.trial is not None and status not in (None, *DECIDED)
        }
        return [f"{values} ({status})" for values, status in found.items()]

    def title(self, run: Run) -> str:
        cell = self.survey.cells[run.cell]
        trial = "" if run.trial is None else f", trial {as_words(cell.variants[run.trial].values)}"
        return f"{' '.join(filter(None, (cell.label, 'on', cell.task_name, cell.detail)))}, seed {run.seed}{trial}"

    # --- what is to be done with a run ------------------------------------------------------------------------------

    def _next(self) -> Run | None:
        """The first run that needs a process and may have one; those before it that need none get their outcome."""
        for run in list(self.pending):
            variant = self.variant(run)
            if variant is None:
                continue  # its trials are not over
            found = self.known(run) or self._not_run(run, variant)
            if found is None and not self._may_begin(run):
                return None
            self.pending.remove(run)
            if found is None:
                return run
            self.outcomes[run] = found
        return None

    def variant(self, run: Run) -> Variant | str | None:
        """What to run, or why there is nothing; None while trials are missing."""
        cell = self.survey.cells[run.cell]
        if run.trial is not None:
            return cell.variants[run.trial]
        if not cell.variants:
            return cell.refusal or ""
        if cell.refusal is not None or not self.suite.tuning:
            return cell.variants[0]
        leader = self._leaders[run.cell]
        if leader not in self._choices:
            trials = self._trials(leader)
            over = {one: self.outcomes[one] for one in trials if one in self.outcomes and self.outcomes[one].status}
            if len(over) < len(trials):
                return None
            self._choices[leader] = outcomes.chosen(over)
        choice = self._choices[leader]
        return choice if isinstance(choice, str) else cell.variants[choice]

    def _trials(self, cell: int) -> list[Run]:
        return [run for run in self.runs if run.cell == cell and run.trial is not None]

    def known(self, run: Run) -> Outcome | None:
        """What the store says, unless it is to be tried again."""
        variant = self.variant(run)
        if isinstance(variant, str) and (variants := self.survey.cells[run.cell].variants):
            variant = variants[0]
        if not isinstance(variant, Variant):
            return None
        path, record = self.history.records.get(subject_of(variant, run).identity, (None, None))
        if path is None or record is None:
            return None
        found = outcomes.of_record("done", path, record)
        if found.finished:
            return found
        return None if record.status in self.settings.retry else outcomes.of_record("kept", path, record)

    def _not_run(self, run: Run, variant: Variant | str) -> Outcome | None:
        """The outcome of a run that cannot take place, with a record where it is known what it would have been."""
        cell = self.survey.cells[run.cell]
        if not cell.variants:
            return Outcome("not run", "unsupported", cell.refusal)
        if isinstance(variant, str):
            statuses = [self.outcomes[one].status for one in self._trials(self._leaders[run.cell])]
            bad = next((status for status in statuses if status not in (None, *FINISHED)), None)
            return self._record("not run", run, cell.variants[0], bad or "failed", variant)
        if cell.refusal is not None:
            return self._record("not run", run, variant, "unsupported", cell.refusal)
        return None

    def _may_begin(self, run: Run) -> bool:
        """Of a seed that was not begun: whether all of it fits the time that is left, by what was measured so far.

        The answer waits for cells that run for the first time.
        """
        if self._deadline is None:
            return True
        left = self._deadline - self.clock()
        if left <= 0 or self._out_of_time:
            return False
        if run.trial is None and run.seed not in self._begun:
            if any(not self.history.seconds.get(one.run.cell) for one in self.running.values()):
                return False
            whole = [one for one in self.pending if one.trial is None and one.seed == run.seed and not self.known(one)]
            need = self.seconds_left(whole)
            if need is not None and need > left:
                say(f"seed {run.seed} is not begun: it needs about {in_words(need)}, and {in_words(left)} are left")
                self._out_of_time = True
                return False
            self._begun.add(run.seed)
        return True

    def seconds_left(self, runs: Sequence[Run]) -> float | None:
        """Until these and those under way are done, or None when nothing was measured."""
        each = {cell: statistics.fmean(values) for cell, values in self.history.seconds.items() if values}
        if not each:
            return None
        usual, now = statistics.fmean(each.values()), self.clock()
        busy = [max(0.0, each.get(one.run.cell, usual) - (now - one.since)) for one in self.running.values()]
        return makespan(busy, [each.get(run.cell, usual) for run in runs], self.executor.workers)

    # --- running ----------------------------------------------------------------------------------------------------

    def _start(self, run: Run) -> None:
        variant = self.variant(run)
        assert isinstance(variant, Variant)
        subject = subject_of(variant, run)
        ways = self._ways(subject)
        way = ways[min(self._failed_ways.get(run, 0), len(ways) - 1)]
        job = Job(subject.identity, (*self.words(run, variant), *way))
        self.running[job.name] = UnderWay(run, subject, job, self.clock(), recording.now())
        try:
            self.executor.start(job)
        except BaseException:
            del self.running[job.name]
            raise

    def _ways(self, subject: Subject) -> list[tuple[str, ...]]:
        """How the run may be begun, the best first."""
        newest, older = self.store.unfinished(subject.identity)
        some = [("--resume",)] if newest.is_file() or older.is_file() else []
        return [*some, *([("--resume-older",)] if newest.is_file() and older.is_file() else []), ()]

    def words(self, run: Run, variant: Variant) -> tuple[str, ...]:
        """The run behind `attnbench`."""
        cell, suite = self.survey.cells[run.cell], self.suite
        words = ["run", "-m", cell.mechanism, "-t", cell.task, "--seed", str(run.seed)]
        words += ["-r", cell.regularizer] if cell.regularizer else []
        words += ["-p", suite.where(suite.protocol)]
        for key, value in (*cell.settings, *as_text(variant.values)):
            words += ["--set", f"{key}={value}"]
        words += ["--tuning", canonical(suite.tuning.model_dump(mode="json"))] if suite.tuning else []
        if run.trial is not None:
            words.append("--trial")
        elif suite.test_shifts:
            words += ["--test-shifts", str(suite.test_shifts)]
        return (*words, "--results", str(self.settings.results), *self.settings.words, "--json")

    def _end(self, ended: Ended) -> None:
        one = self.running.pop(ended.job.name)
        path = printed(ended.output).get("path") if ended.code in (0, 1) else None
        if path is not None:
            outcome = outcomes.of_record("ran", Path(path), read(path), ended.seconds)
            if outcome.finished and not one.resumed:
                self.history.seconds[one.run.cell].append(ended.seconds)
        elif self.stopped_by is not None or ended.code in _ASKED_TO_END:
            outcome = Outcome("stopped", reason=ended.last_line)
        elif ended.code == 2 and _held(self.store.unfinished(one.subject.identity)[0].with_suffix(".lock")):
            outcome = Outcome("elsewhere", reason=ended.last_line)
        elif ended.code == 2 and one.resumed:
            say(f"{self.title(one.run)}: {ended.last_line}")
            self._failed_ways[one.run] = self._failed_ways.get(one.run, 0) + 1
            self.pending.insert(0, one.run)
            return
        else:
            said = f": {ended.last_line}" if ended.last_line else ", without a word"
            reason = f"the process ended without a record ({ending(ended.code)}){said}"
            outcome = self._write("ran", one.subject, one.job.words, "failed", reason, one.started, ended.seconds)
        self.outcomes[one.run] = outcome

    def _record(self, how: How, run: Run, variant: Variant, status: Status, reason: str) -> Outcome:
        return self._write(how, subject_of(variant, run), self.words(run, variant), status, reason, recording.now())

    def _write(
        self, how: How, subject: Subject, words: Sequence[str], status: Status, reason: str, started: str,
        seconds: float | None = None,
    ) -> Outcome:  # fmt: skip
        command = shlex.join(["attnbench", *words])
        record, path = recording.store(self.store.folder, subject, status, reason, started=started, command=command)
        return outcomes.of_record(how, path, record, seconds)

    # --- stopping ---------------------------------------------------------------------------------------------------

    def _wait(self) -> list[Ended]:
        if self.stopped_by is not None and self._kill_at is None:
            self._kill_at = time.monotonic() + GRACE_SECONDS
            self.executor.stop()
        if self._kill_at is not None and (self._impatient or time.monotonic() > self._kill_at):
            self.executor.kill()
        return self.executor.wait(_LOOK_SECONDS)

    def _told(self, number: int) -> None:
        """The first SIGINT, SIGTERM or SIGHUP asks the runs to stop; the second, or too much time, kills them."""

        self._impatient = self.stopped_by is not None
        self.stopped_by = number

    @contextmanager
    def _none_left_behind(self) -> Iterator[None]:
        """Whatever goes wrong here, no process stays."""
        try:
            yield
        except BaseException:
            self.executor.kill()
            limit = time.monotonic() + GRACE_SECONDS
            while self.running and time.monotonic() < limit:
                for ended in self.executor.wait(_LOOK_SECONDS):
                    self.running.pop(ended.job.name, None)
            raise


def printed(output: str) -> dict[str, Any]:
    """What a command with --json printed, {} for nothing; plugins may have printed before."""
    start = f"\n{output}".rfind("\n{")
    try:
        found = json.JSONDecoder().raw_decode(output[start:])[0] if start >= 0 else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _held(lock: Path) -> bool:
    """Whether a process is at this run."""
    try:
        with lock.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
