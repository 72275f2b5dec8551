"""Turns, groups, and what ends a cell: with processes that are played, and with small real ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from attnbench.errors import AttnbenchError, UnknownName
from attnbench.speed import measure, plan, process
from attnbench.speed.fit import ratios
from attnbench.speed.process import Over, Process
from attnbench.speed.result import Setting, SpeedResult

FACTS = {"implementation": "kernel", "calls": 1, "peak_bytes": 1, "flops": 1}


class Watch:
    """Counts what a progress bar would."""

    done = 0

    def advance(self, count: int = 1, note: str = "") -> None:
        self.done += count


class Played:
    """A process whose answers are those of `script`; `log` keeps the order in which processes are asked."""

    log: list[str]
    script: Callable[[str, int, int], float]  # mechanism, length, number of the question from 0 on

    def __init__(self, request: Mapping[str, Any], threads: int):
        self.name, self.length = request.get("mechanism", "yard"), request.get("length", 0)
        self.asked = 0

    def loaded(self) -> dict[str, str]:
        return {"mode": "stock"}

    def ask(self, seconds: float) -> dict[str, Any]:
        Played.log.append(f"{self.name}{self.length or ''}")
        found = Played.script(self.name, self.length, self.asked)
        self.asked += 1
        if self.asked == 1:
            return dict(FACTS) if self.length else {"calls": 1}
        return {"sample": {"seconds": found, "wall": found, "waited": 0.0}}

    def end(self) -> None:
        pass


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SpeedResult]]:
    """Measures dense and local with played processes."""
    monkeypatch.setattr(measure, "Process", Played)
    Played.log = []

    def run(
        script: Callable[[str, int, int], float], lengths: list[int], rounds: int = 4, together: int = 12
    ) -> SpeedResult:
        monkeypatch.setattr(Played, "script", staticmethod(script), raising=False)
        candidates = plan.candidates(["dense", "local"], {})
        asked = measure.Measurement(candidates, lengths, Setting(rounds=rounds), together=together)
        watch = Watch()
        found = asked(watch)
        assert watch.done == asked.steps
        return found

    return run


def test_cells_take_turns_there_and_back_again(measured: Callable[..., SpeedResult]) -> None:
    measured(lambda *_: 1.0, [64], rounds=3)
    there = ["yard", "dense64", "local64"]
    assert Played.log == there + there + there[::-1] + there  # getting ready, then three rounds


def test_a_ratio_holds_when_the_machine_drifts(measured: Callable[..., SpeedResult]) -> None:
    """Every answer takes 5 % longer than the one before; measured one after the other, equal cells would differ by a
    factor of 1.6 and more.
    """
    clock = [1.0]

    def drifting(name: str, length: int, asked: int) -> float:
        clock[0] *= 1.05
        return clock[0] * (1.3 if name == "local" else 1.0)

    dense, local = measured(drifting, [64], rounds=10).cells
    found = sorted(ratios(local.samples, dense.samples))
    assert sum(found) / len(found) == pytest.approx(1.3, rel=0.01)


def test_lengths_of_a_group_share_rounds_with_its_yardstick(measured: Callable[..., SpeedResult]) -> None:
    """Two mechanisms and four processes at a time: two lengths a group, and the rounds of the second go on."""
    found = measured(lambda *_: 1.0, [64, 128, 256], rounds=2, together=4)
    assert [(cell.mechanism, cell.length) for cell in found.cells] == [
        (name, length) for length in (64, 128, 256) for name in ("dense", "local")
    ]
    assert [[sample.round for sample in cell.samples] for cell in found.cells] == [[0, 1]] * 4 + [[2, 3]] * 2
    assert found.yardstick is not None
    assert [sample.round for sample in found.yardstick.samples] == [0, 1, 2, 3]


@pytest.mark.parametrize(("status", "then"), [("oom", "skipped"), ("timeout", "skipped"), ("wrong", "wrong")])
@pytest.mark.parametrize("together", [2, 12], ids=["groups of a length", "one group"])
@pytest.mark.parametrize("question", [0, 2], ids=["getting ready", "in a round"])
def test_what_is_too_much_is_a_result_and_ends_longer_inputs(
    status: str, then: str, together: int, question: int, measured: Callable[..., SpeedResult]
) -> None:
    def script(name: str, length: int, asked: int) -> float:
        if name == "dense" and length == 128 and asked == question:
            raise Over(status, "too much")  # type: ignore[arg-type]
        return 1.0

    found = {(cell.mechanism, cell.length): cell for cell in measured(script, [64, 128, 256], together=together).cells}
    assert {found["local", n].status for n in (64, 128, 256)} == {"ok"} == {found["dense", 64].status}
    assert (found["dense", 128].status, found["dense", 128].reason) == (status, "too much")
    if question and together == 12:  # it was under way already
        assert found["dense", 256].status == "ok"
    else:
        assert found["dense", 256].status == then
        assert found["dense", 256].reason == (f"{status} at 128 already" if then == "skipped" else "too much")


def test_a_fault_at_one_length_ends_no_other(measured: Callable[..., SpeedResult]) -> None:
    def script(name: str, length: int, asked: int) -> float:
        if length == 64:
            raise Over("failed", "by chance")
        return 1.0

    assert [cell.status for cell in measured(script, [64, 128]).cells] == ["failed", "failed", "ok", "ok"]


@pytest.mark.parametrize("text", ["", "0", "-1", "1,,2", "x", "1.5", "4m", "64,64", "1k,1024"])
def test_lengths_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(AttnbenchError, match="--lengths"):
        plan.lengths_of(text)


def test_lengths_are_sorted_and_may_be_thousands() -> None:
    assert plan.lengths_of("4k,256, 1K") == [256, 1024, 4096]


def test_options_reach_the_mechanism_that_has_them() -> None:
    found = plan.candidates(["dense", "hst", "local"], {"hst.block_size": "16", "reps_per_block": "2"})
    assert found[1].choice.options.block_size == 16 and found[1].choice.options.reps_per_block == 2
    assert found[2].choice.options.block_size != 16
    with pytest.raises(AttnbenchError, match=r"ambiguous: write hst.block_size or local.block_size"):
        plan.candidates(["hst", "local"], {"block_size": "16"})
    with pytest.raises(UnknownName, match="option"):
        plan.candidates(["dense"], {"block_size": "16"})


@pytest.mark.parametrize("names", [["dense", "dense"], ["hst", "ernie_sparse"]])
def test_one_mechanism_under_two_names_is_refused(names: list[str]) -> None:
    with pytest.raises(AttnbenchError, match="named twice"):
        plan.candidates(names, {})


PROGRAM = """
import json, sys, time
request = json.loads(sys.stdin.readline())
def say(answer): print(json.dumps(answer), flush=True)
say({{"up": True, "numerics": {{}}}})
sys.stdin.readline()
{then}
"""


@pytest.mark.parametrize(
    ("then", "status", "words"),
    [
        ("time.sleep(600)", "timeout", "more than 0.3 s"),
        ("import os; os.kill(os.getpid(), 9)", "failed", "signal 9, SIGKILL; often the system, out of memory"),
        ("print('torn apart', file=sys.stderr); sys.exit(3)", "failed", "exit code 3): torn apart"),
        ("say({'status': 'oom', 'reason': 'much', 'calls': 3})", "oom", "much"),
    ],
    ids=["hangs", "killed", "dies", "says so"],
)
def test_how_a_process_ends_is_said(then: str, status: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_PROGRAM", ["-c", PROGRAM.format(then=then)])
    one = Process({}, threads=1)
    try:
        one.loaded()
        with pytest.raises(Over) as caught:
            one.ask(0.3 if status == "timeout" else 60)
        if status == "timeout":
            assert one._popen.wait(10) == -9  # at once: it would disturb the others
    finally:
        one.end()
    assert caught.value.status == status and words in caught.value.reason
    assert caught.value.facts == ({"calls": 3} if status == "oom" else {})
    assert one._popen.poll() is not None


def test_processes_end_with_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is interrupted."""
    then = "say({'status': 'ok'}); time.sleep(600)"
    monkeypatch.setattr(process, "_PROGRAM", ["-c", PROGRAM.format(then=then)])
    started: list[Process] = []
    monkeypatch.setattr(measure, "Process", lambda *a: started.append(Process(*a)) or started[-1])

    class Interrupting(Watch):
        def advance(self, count: int = 1, note: str = "") -> None:
            raise KeyboardInterrupt

    asked = measure.Measurement(plan.candidates(["dense"], {}), [64], Setting(rounds=1))
    with pytest.raises(KeyboardInterrupt):
        asked(Interrupting())
    assert len(started) == 2 and all(one._popen.poll() is not None for one in started)


def test_threads_are_those_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "import os; say({'status': 'ok', 'omp': os.environ['OMP_NUM_THREADS']})"
    monkeypatch.setattr(process, "_PROGRAM", ["-c", PROGRAM.format(then=said)])
    one = Process({}, threads=3)
    one.loaded()
    assert one.ask(60)["omp"] == "3"
    one.end()
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_conditions_are_noted() -> None:
    found = measure.conditions("cpu")
    assert "load" in found or not hasattr(os, "getloadavg")
    assert Path("/proc/cpuinfo").exists() is ("cpu MHz" in found)
