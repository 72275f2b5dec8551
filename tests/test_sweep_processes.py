"""A sweep with real processes: one crash costs one cell, Ctrl-C leaves a state that goes on, workers decide nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnbench import runner, suite, survey
from attnbench.errors import AttnbenchError
from attnbench.executor import Ended, Job, LocalExecutor, ending, last_line, workers_for
from attnbench.record import Record
from attnbench.store import Store
from attnbench.sweep import Settings, Sweep

SMALL = """
[set]
task = { train = 60, validation = 20, test = 20 }
model = { dim = 8, layers = 1 }
budget = { steps = 4, batch = 4, eval_every = 2 }
"""
#: A mechanism whose `attend` or `build` does something before it attends.
MECHANISM = """
import os, signal, sys, time
from attnbench import Mechanism
from attnbench.layers import QKVMixer

class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        {attend}
        return (q @ k.transpose(-1, -2)).softmax(-1) @ v

def build(shape, options):
    {build}
    return Mixer(shape)

MECHANISM = Mechanism(summary="for a test", paper="none", build=build)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with mechanisms that end their process, and one that is slow unless told otherwise."""
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    killed = {"attend": "print('almost', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGKILL)"}
    written = {
        "killed": killed,
        "stillborn": {"build": "os._exit(7)"},
        "slow": {"attend": "time.sleep(float(os.environ.get('SLOW', 0)))"},
    }
    for name, parts in written.items():
        source = MECHANISM.format(**{"attend": "pass", "build": "pass"} | parts)
        (tmp_path / f"{name}.py").write_text(source, "utf-8")
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "attnbench", "sweep", *words]


def sweep(*words: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(command(*words, "--json"), capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def records(results: str) -> dict[tuple[str, int], Record]:
    found, problems = Store(Path(results)).read_all()
    assert problems == []
    return {(record.label, record.seed): record for _, record in found}


def test_a_crash_costs_its_cell_and_workers_decide_nothing(folder: Path) -> None:
    (folder / "a.toml").write_text(
        'name = "a"\ntasks = ["recall"]\nmechanisms = ["dense", "killed.py", "stillborn.py"]\nseeds = 1\n' + SMALL
    )
    wanted, found = suite.load("a.toml"), survey.take_apart("a.toml")
    for workers in (1, 2):
        swept = Sweep(wanted, found, LocalExecutor(workers), Settings(Path(f"with{workers}")))
        swept()
        dense, killed, stillborn = (swept.outcomes[run] for run in swept.runs)
        assert dense.how == "ran" and dense.score is not None and len(swept.failed) == 2
        assert killed.reason is not None and stillborn.reason is not None
        assert "signal 9, SIGKILL" in killed.reason and killed.reason.endswith(": almost")
        assert "(exit code 7)" in stillborn.reason
    one, two = records("with1"), records("with2")
    assert list(one) == list(two)
    for key in one:
        for part in ("spec", "status", "reason", "quality", "curve", "predictions_sha", "kind"):
            assert getattr(one[key], part) == getattr(two[key], part), part
    assert one["dense", 0].machine["threads"] == two["dense", 0].machine["threads"] == 1
    assert one["killed", 0].spec.mechanism.implementation == "reference", "the row it would have had"


def test_ctrl_c_leaves_no_process_and_a_state_that_goes_on(folder: Path) -> None:
    text = 'name = "a"\ntasks = ["recall"]\nmechanisms = ["slow.py"]\nseeds = 2\n' + SMALL
    (folder / "a.toml").write_text(text.replace("steps = 4", "steps = 40"), "utf-8")
    words = ("a.toml", "--workers", "2", "--results", "results")
    process = subprocess.Popen(
        command(*words), env={**os.environ, "SLOW": "0.1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    unfinished = folder / "results" / "unfinished"
    limit = time.monotonic() + 240
    while (
        len({path.name.partition(".")[0] for path in unfinished.glob("*.safetensors")}) < 2
    ):  # each run has one or two
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopped by SIGINT; the same command goes on" in err
    assert "2 stopped" in out and not list((folder / "results").rglob("runs/**/*.json"))
    assert not list(unfinished.glob("*.lock")), "the runs ended by themselves"
    code, found = sweep(*words)
    assert code == 0 and [run["how"] for run in found["runs"]] == ["ran", "ran"]
    for (_, seed), record in records("results").items():
        assert "--resume" in record.command
        settings = {"task.train": 60, "task.validation": 20, "task.test": 20, "model.dim": 8, "model.layers": 1}
        budget = {"budget.steps": 40, "budget.batch": 4, "budget.eval_every": 2}
        whole = runner.run("slow.py", "recall", seed=seed, options={**settings, **budget}, results="whole")
        assert (record.quality, record.curve, record.predictions_sha) == (
            whole.quality, whole.curve, whole.predictions_sha,
        )  # fmt: skip


def test_a_dry_run_measures_and_runs_nothing(folder: Path) -> None:
    (folder / "a.toml").write_text('name = "a"\ntasks = ["recall"]\nmechanisms = ["dense"]\n' + SMALL, "utf-8")
    code, found = sweep("a.toml", "--dry-run", "--workers", "1", "--results", "results")
    (cell,) = found["cells"]
    assert code == 0 and (cell["runs"], cell["fault"]) == (3, None)
    assert cell["seconds"] > 0 and found["seconds"] == pytest.approx(3 * cell["seconds"])
    assert 50 << 20 < cell["peak_bytes"] < 4 << 30
    assert not (folder / "results").exists()


def test_plugins_that_end_the_process_when_they_are_read_are_one_line(folder: Path) -> None:
    (folder / "rude.py").write_text("import os\nos._exit(3)\n", "utf-8")
    (folder / "a.toml").write_text('name = "a"\ntasks = ["recall"]\nmechanisms = ["rude.py"]\n', "utf-8")
    with pytest.raises(AttnbenchError, match=r"^a.toml: loading rude.py and recall ended the process \(exit code 3\)$"):
        survey.take_apart("a.toml", prepare=False)


def test_a_fault_that_is_found_apart_is_the_same_line(folder: Path) -> None:
    (folder / "a.toml").write_text('name = "a"\ntasks = ["recal"]\nmechanisms = ["dense"]\n', "utf-8")
    with pytest.raises(AttnbenchError, match=r"^a.toml: unknown task 'recal'; did you mean recall"):
        survey.take_apart("a.toml", prepare=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gone.toml"], "gone.toml: cannot be read (No such file or directory)"),
        (["a.toml"], "a.toml: name: Field required"),
        (["quick", "--no-probe"], "--no-probe goes with --dry-run"),
        (["quick", "--budget", "soon"], "--budget takes a time such as 90s, 10m or 2h, got 'soon'"),
    ],
)
def test_a_faulty_request_is_one_line(call: Callable[..., tuple[int, str, str]], words: list[str], said: str) -> None:
    Path("a.toml").write_text("", "utf-8")
    code, out, err = call("sweep", *words)
    assert (code, out) == (2, "") and err.startswith(f"error: {said}") and err.count("\n") == 1


# --- the executor -----------------------------------------------------------------------------------------------------


def wait_for(executor: LocalExecutor, count: int) -> list[Ended]:
    found: list[Ended] = []
    limit = time.monotonic() + 120
    while len(found) < count and time.monotonic() < limit:
        found += executor.wait(5)
    return found


def test_jobs_end_apart_and_say_how() -> None:
    executor = LocalExecutor(2)
    executor.start(Job("fine", ("--version",)))
    executor.start(Job("bad", ("show", "nothing")))
    ended = {one.job.name: one for one in wait_for(executor, 2)}
    assert (ended["fine"].code, ended["bad"].code) == (0, 2)
    assert ended["fine"].output.startswith("attnbench ") and ended["bad"].last_line.startswith("error: unknown")
    assert executor.wait(0) == []


def test_a_job_that_does_not_listen_is_killed_with_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, lambda *a: None);"
    code += "print(subprocess.Popen(['sleep', '600']).pid, flush=True); [time.sleep(1) for _ in range(600)]"
    executor = LocalExecutor(1)
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda words, **more: real([sys.executable, "-c", code], **more))
    executor.start(Job("deaf", ()))
    monkeypatch.undo()
    (process,) = executor._running
    said = Path(process.folder.name, "out")
    limit = time.monotonic() + 60
    while not said.read_text() and time.monotonic() < limit:
        time.sleep(0.1)
    child = int(said.read_text())
    executor.stop()
    assert executor.wait(0.5) == []
    executor.kill()
    (ended,) = wait_for(executor, 1)
    assert ended.code == -9
    while time.monotonic() < limit and Path(f"/proc/{child}").exists():
        if " Z" in Path(f"/proc/{child}/status").read_text():
            break  # nobody has asked how it ended
        time.sleep(0.1)
    else:
        assert not Path(f"/proc/{child}").exists()


def test_every_job_has_its_share_of_threads_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    two = LocalExecutor(4, threads=3, gpus=2)
    assert [two._environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(4)] == ["5", "7", "5", "7"]
    assert two._environment(0)["OMP_NUM_THREADS"] == two._environment(0)["MKL_NUM_THREADS"] == "3"
    assert "FORCE_COLOR" not in two._environment(0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert LocalExecutor(2, gpus=2)._environment(1)["CUDA_VISIBLE_DEVICES"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in LocalExecutor(2)._environment(1)


def test_workers_fit_the_gpus_or_else_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.executor.cores", lambda: 8)
    assert [workers_for(threads, gpus) for threads, gpus in ((1, 0), (3, 0), (9, 0), (1, 4))] == [8, 2, 1, 4]


def test_how_a_process_ended_is_said_in_words() -> None:
    assert ending(3) == "exit code 3" and ending(-11) == "signal 11, SIGSEGV" and "out of memory" in ending(-9)
    assert last_line("first\n\x1b[31msecond\x1b[0m\r\n\n") == "[31msecond[0m" and last_line("") == ""
    assert last_line("training 1/9\rtraining 2/9\r") == "training 2/9" and len(last_line("x" * 1000)) == 300
