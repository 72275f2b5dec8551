"""What a sweep runs, in which order, and what it leaves alone; the runs themselves are played."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from stage import HEAD, Answer, Play, Stage, words

from attnbench import board, estimate, forecast, recording
from attnbench.commands.sweep import exit_code
from attnbench.errors import AttnbenchError
from attnbench.executor import Ended, Job
from attnbench.outcomes import Run
from attnbench.recording import Subject
from attnbench.store import Store
from attnbench.sweep import Sweep


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)


def hows(sweep: Sweep) -> list[str]:
    return [sweep.outcomes[run].how for run in sweep.runs if run.trial is None]


def test_runs_start_in_the_order_of_the_plan_whole_seeds_first(play: Play) -> None:
    stage = Stage(workers=2)
    play(HEAD, stage, words=("--device", "cpu"))
    assert list(zip(words(stage, "--seed"), words(stage, "-m"), strict=True)) == [
        (seed, mechanism) for seed in ("0", "1") for mechanism in ("dense", "local")
    ]
    assert stage.most == 2 and set(words(stage, "--device")) == {"cpu"}


def test_what_is_finished_is_left_alone_in_the_next_sweep(play: Play) -> None:
    play(HEAD)
    again = Stage()
    sweep = play(HEAD.replace("seeds = 2", "seeds = 3"), again)
    assert hows(sweep) == ["done"] * 4 + ["ran"] * 2 and words(again, "--seed") == ["2", "2"]
    assert play(HEAD, third := Stage()).failed == [] and third.jobs == []


@pytest.mark.parametrize("status", ["diverged", "oom", "timeout", "failed"])
def test_what_failed_is_kept_and_listed_until_it_is_to_be_tried_again(play: Play, status: str) -> None:
    first = play(HEAD, Stage(lambda subject: (status, 0.0) if subject.label == "local" else ("ok", 0.5)))
    assert len(first.failed) == 2
    second = play(HEAD, again := Stage())
    assert hows(second) == ["done", "kept"] * 2 and again.jobs == [] and len(second.failed) == 2
    assert f"run again with: --retry {status}" in "\n".join(board.closing(second))
    other = "oom" if status != "oom" else "failed"
    assert play(HEAD, untouched := Stage(), retry=frozenset({other})) and untouched.jobs == []
    third = play(HEAD, retried := Stage(), retry=frozenset({status, other}))
    assert words(retried, "-m") == ["local", "local"] and third.failed == []
    assert len(Store(third.settings.results).read_all()[0]) == 6, "the records of the failed runs are kept"
    assert hows(play(HEAD)) == ["done"] * 4, "what finished counts, whenever the other runs were"


def test_a_process_that_dies_without_a_record_gets_one(play: Play) -> None:
    sweep = play(HEAD, Stage(lambda subject: -signal.SIGSEGV if subject.label == "dense" else ("ok", 0.5)))
    outcome = sweep.outcomes[Run(0, 1)]
    assert outcome.path is not None
    record = json.loads(outcome.path.read_text("utf-8"))
    assert (record["status"], record["seed"], record["label"]) == ("failed", 1, "dense")
    assert record["reason"] == "the process ended without a record (signal 11, SIGSEGV): the last line it wrote"
    assert record["command"].startswith("attnbench run -m dense -t recall --seed 1 ")
    assert hows(sweep) == ["ran"] * 4 and len(sweep.failed) == 2


def test_a_cell_that_cannot_run_gets_its_record_without_a_process(play: Play, tmp_path: Path) -> None:
    source = (Path(__file__).parents[1] / "mechanisms" / "dense.py").read_text("utf-8")
    (tmp_path / "deaf.py").write_text(
        source.replace("MECHANISM = Mechanism(", "MECHANISM = Mechanism(honours_masks=False,")
    )
    (tmp_path / "needs.py").write_text("import nowhere_to_be_found\n", "utf-8")
    head = 'name = "a"\ntasks = ["recall"]\nseeds = 1\n'
    text = head + '[[cells]]\nmechanism = "needs.py"\n'
    text += '[[cells]]\nmechanism = "deaf.py"\nregularizer = "sar"\nset = { model.dropout = 0.1 }\n'
    sweep = play(text, stage := Stage())
    needs, deaf = (sweep.outcomes[run] for run in sweep.runs)
    assert stage.jobs == [] and sweep.failed == []
    assert (needs.how, needs.status, needs.path) == ("not run", "unsupported", None)
    assert (deaf.how, deaf.status) == ("not run", "unsupported") and deaf.path is not None
    assert play(text).outcomes[Run(1, 0)].how == "kept"


def test_a_checkpoint_that_is_there_is_gone_on_with_and_damaged_ones_are_passed_by(play: Play) -> None:
    sweep = play(HEAD, run=False)
    dense, local = (sweep.store.unfinished(cell.variants[0].subject.identity) for cell in sweep.survey.cells)
    dense[0].parent.mkdir(parents=True)
    for path in (dense[0], *local):
        path.touch()

    def answer(subject: Subject) -> Answer:
        assert stage.sweep is not None
        return 2 if subject.label == "local" and stage.sweep.running[subject.identity].resumed else ("ok", 0.5)

    play(HEAD, stage := Stage(answer))
    assert [(job.words[2], *job.words[-1:]) for job in stage.jobs] == [
        ("dense", "--resume"), ("local", "--resume"), ("local", "--resume-older"), ("local", "--json"),
        ("dense", "--json"), ("local", "--json"),
    ]  # fmt: skip


def test_a_run_that_another_process_is_at_is_left_to_it(play: Play) -> None:
    import fcntl

    sweep = play(HEAD, run=False)
    lock = sweep.store.unfinished(sweep.survey.cells[0].variants[0].subject.identity)[0].with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sweep = play(HEAD, Stage(lambda subject: 2 if subject.label == "dense" else ("ok", 0.5)))
    assert hows(sweep) == ["elsewhere", "ran", "ran", "ran"]
    assert [sweep.outcomes[run].status for run in sweep.runs] == [None, "ok", "failed", "ok"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_the_runs_to_stop_and_begins_no_other(play: Play, number: int) -> None:
    stage = Stage(workers=2)
    sweep = play(HEAD, stage, run=False)
    before = signal.getsignal(number)
    sweep.watch = lambda sweep: (
        os.kill(os.getpid(), number) if len(stage.jobs) == 2 and not stage.asked_to_stop else None
    )
    sweep()
    assert sweep.stopped_by == number and signal.getsignal(number) is before
    assert hows(sweep) == ["stopped", "stopped", "not begun", "not begun"]
    assert not sweep.settings.results.exists() or Store(sweep.settings.results).read_all()[0] == []
    assert hows(play(HEAD)) == ["ran"] * 4


@pytest.mark.parametrize("code", [130, 143, -signal.SIGINT, -signal.SIGTERM])
def test_a_run_that_others_ask_to_end_has_not_failed(play: Play, code: int) -> None:
    sweep = play(HEAD, Stage(lambda subject: code if subject.label == "dense" else ("ok", 0.5)))
    assert hows(sweep) == ["stopped", "ran", "stopped", "ran"] and sweep.stopped_by is None
    assert len(Store(sweep.settings.results).read_all()[0]) == 2 and exit_code(sweep) == 1
    again = play(HEAD)
    assert hows(again) == ["ran", "done", "ran", "done"] and exit_code(again) == 0


def test_a_signal_that_is_ignored_stays_so(play: Play) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        sweep = play(HEAD, run=False)
        sweep.watch = lambda sweep: os.kill(os.getpid(), signal.SIGHUP)
        sweep()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert hows(sweep) == ["ran"] * 4 and sweep.stopped_by is None


def test_when_a_record_cannot_be_written_no_process_stays(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **more: Any) -> None:
        raise AttnbenchError("the disk is full")

    stage = Stage(lambda subject: -9, workers=2)
    sweep = play(HEAD, stage, run=False)
    monkeypatch.setattr(recording, "store", full)
    with pytest.raises(AttnbenchError, match="the disk is full"):
        sweep()
    assert sweep.running == {} and stage.killed


# --- budget -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "workers", "whole"),
    [(1, 1, 1), (39, 1, 1), (40, 1, 2), (59, 1, 2), (60, 1, 3), (20, 2, 2), (29, 2, 2), (30, 2, 3), (1000, 1, 3)],
)
def test_a_budget_begins_only_whole_seeds_that_fit(play: Play, budget: float, workers: int, whole: int) -> None:
    """Two runs of ten seconds a seed; with nothing measured, the first seed begins."""
    sweep = play(HEAD.replace("seeds = 2", "seeds = 3"), Stage(workers=workers), budget=budget)
    if budget == 1:
        assert hows(sweep) == ["ran"] + ["not begun"] * 5, "no run begins after the end"
        return
    assert hows(sweep) == ["ran"] * 2 * whole + ["not begun"] * (6 - 2 * whole)
    assert sweep.failed == []


def test_a_budget_counts_what_earlier_sweeps_measured(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.outcomes._seconds", lambda record: 100.0)
    play(HEAD.replace("seeds = 2", "seeds = 1"))
    assert hows(play(HEAD, budget=199)) == ["done"] * 2 + ["not begun"] * 2
    assert hows(play(HEAD, budget=200)) == ["done"] * 2 + ["ran"] * 2


def test_a_slow_cell_counts_with_its_own_time(play: Play) -> None:
    def seconds(subject: Subject) -> float:
        return 100.0 if subject.label == "dense" else 1.0

    sweep = play(HEAD, Stage(seconds=seconds, workers=2), budget=150)
    assert hows(sweep) == ["ran"] * 2 + ["not begun"] * 2
    assert sweep.seconds_left([Run(0, 5), Run(1, 5), Run(1, 6)]) == 100.0


# --- order and shape of what it says ----------------------------------------------------------------------------------


def test_the_answer_does_not_depend_on_the_number_of_workers(play: Play, tmp_path: Path) -> None:
    def answer(subject: Subject) -> Answer:
        return -9 if (subject.label, subject.seed) == ("local", 1) else ("ok", 0.5 + 0.1 * subject.seed)

    def told(workers: int) -> list[Any]:
        found = board.as_json(play(HEAD, Stage(answer, workers, lambda subject: 30.0 - 9 * subject.seed)))
        Store(tmp_path / "results").folder.rename(tmp_path / f"with {workers}")
        return [{key: value for key, value in run.items() if key != "path"} for run in found["runs"]]

    assert told(1) == told(2) == told(3)


def test_lines_and_summary_say_what_came(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = play(HEAD, Stage(lambda subject: -9 if subject.label == "local" else ("ok", 0.75)), run=False)
    with board.Board() as shown:
        sweep.watch = shown
        sweep()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "[1/4] dense on recall, seed 0: ok 0.7500 (10 s)"
    assert lines[1].startswith("[2/4] local on recall, seed 0: failed (10 s) - the process ended without a record")
    found = board.as_json(sweep)
    assert (found["finished"], found["failed"]) == (2, 2)
    assert [run["score"] for run in found["runs"]] == [0.75, None, 0.75, None]


def test_a_forecast_starts_nothing_and_counts_what_is_left(play: Play) -> None:
    play(HEAD.replace("seeds = 2", "seeds = 1"), Stage(lambda s: ("oom", 0.0) if s.label == "local" else ("ok", 0.5)))
    stage = Stage(workers=2)
    sweep = play(HEAD, stage, run=False)
    dense, local = forecast.take(sweep, probe=False)
    assert stage.jobs == []
    assert [(one.runs, one.done, one.kept) for one in (dense, local)] == [(1, 1, 0), (1, 0, 1)]
    assert dense.seconds is not None and local.seconds is None
    assert forecast.closing(sweep, [dense, local], None)[0].startswith("2 runs left, 2 at a time: about 0 s")


def test_a_forecast_takes_the_time_that_a_probe_did_not_spend_on_steps(play: Play) -> None:
    class Probing(Stage):
        def start(self, job: Job) -> None:
            self.jobs.append(job)

        def wait(self, seconds: float) -> list[Ended]:
            probe = {"probe": {"seconds": 100.0, "measured": 2.0, "peak_bytes": 5 << 20}}
            job = self.jobs[-1]
            fine = Ended(job, 0, "said on import\n" + json.dumps(probe, indent=1) + "\n", "", 7.0)
            return [fine if job.name == "0" else Ended(job, 2, "", "error: no room", 7.0)]

    dense, local = forecast.take(sweep := play(HEAD, Probing(), run=False), probe=True)
    assert (dense.seconds, dense.peak_bytes, dense.fault) == (105.0, 5 << 20, None)
    assert (local.seconds, local.fault) == (None, "the probe ended with code 2: error: no room")
    assert forecast.total(sweep, [dense, local]) == 4 * 105.0
    assert forecast.seeds_within(sweep, [dense, local], 211) == [0]


@pytest.mark.parametrize(
    ("takes", "calls", "median"),
    [
        ([2.0, 2.25], 2, 2.125),
        ([2.0, 20.0, 2.25], 3, 2.25),  # a stall in the second call
        ([20.0, 2.0, 2.0], 3, 2.0),
        ([1.0, 2.0, 4.0, 8.0, 16.0, 16.0], 5, 4.0),  # they never agree
    ],
)
def test_a_probe_calls_until_two_took_as_long(
    monkeypatch: pytest.MonkeyPatch, takes: list[float], calls: int, median: float
) -> None:
    clock, left = [100.0], list(takes)

    def act() -> None:
        clock[0] += left.pop(0)

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    assert estimate.seconds_of_a_call(act) == median
    assert len(takes) - len(left) == calls
