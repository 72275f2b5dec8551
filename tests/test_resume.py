"""A run that was killed at any moment goes on to the same end, and a checkpoint that is not whole is never used."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

import attnbench
from attnbench import plan, store
from attnbench.errors import AttnbenchError
from attnbench.record import Record
from attnbench.runner import Settings, execute
from attnbench.train import Interrupted, Trainer

TINY: dict[str, Any] = {
    "task.train": 100, "task.validation": 30, "task.test": 30, "model.dim": 8, "model.layers": 1, "model.dropout": 0.1,
    "budget.steps": 24, "budget.batch": 4, "budget.eval_every": 2, "block_size": 8,
}  # fmt: skip


def run(folder: Path, resume: bool = False, **changes: Any) -> Record:
    options = TINY | {name.replace("_", ".", 1): value for name, value in changes.items()}
    return attnbench.run("hst", "recall", regularizer="sar", options=options, results=folder, resume=resume)


def outcome(folder: Path) -> tuple[Any, ...]:
    """All of a record that no clock is part of."""
    [(path, record)], problems = store.Store(folder).read_all()
    assert not problems
    arrays = {name: values.tolist() for name, values in store.load_predictions(path).items()}
    return record.quality, record.curve, record.predictions_sha, arrays


def killed_after(seconds: float, work: Callable[[], object]) -> bool:
    """Runs `work` in a child of this process and kills it; whether it was still at work."""
    if (child := os.fork()) == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001  a child must never come back into the tests
            os._exit(1)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, code = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(code) == 0, code
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def survives_kills(folder: Path, kills: int, seed: int) -> None:
    """Kills the run again and again, each time after a random share of the time the whole takes, then lets it end."""
    run(folder / "whole")
    started = time.monotonic()
    run(folder / "again")
    takes, chance = time.monotonic() - started, random.Random(seed)
    cut, hits, written = folder / "cut", 0, set()
    while hits < kills:
        resume = bool(list(cut.glob("unfinished/*.safetensors")))
        hits += killed_after(chance.uniform(0, takes), lambda resume=resume: run(cut, resume=resume))  # type: ignore[misc]
        written.add(len(list(cut.glob("unfinished/*.safetensors"))))
        if list(cut.glob("runs/**/*.json")):  # it came to its end, or was killed behind it
            assert outcome(cut) == outcome(folder / "whole")
            shutil.rmtree(cut)
    run(cut, resume=bool(list(cut.glob("unfinished/*.safetensors"))))
    assert outcome(cut) == outcome(folder / "whole") == outcome(folder / "again")
    assert written - {0}, "no kill left a checkpoint; the test shows nothing"


def test_a_run_killed_three_times_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    survives_kills(tmp_path, 3, seed=0)


@pytest.mark.slow
def test_a_run_killed_25_times_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    survives_kills(tmp_path, 25, seed=1)


@pytest.mark.parametrize("moment", ["saving", "between the renames"])
def test_a_kill_while_a_checkpoint_is_written_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    run(tmp_path / "whole")
    stop(tmp_path / "cut", monkeypatch, step=11)

    def work() -> None:
        if moment == "saving":
            monkeypatch.setattr("attnbench.checkpoint.save_file", lambda *a: os.kill(os.getpid(), signal.SIGKILL))
        else:
            replace = Path.replace

            def dies(path: Path, target: Path) -> Path:
                found = replace(path, target)
                os.kill(os.getpid(), signal.SIGKILL)
                return found

            monkeypatch.setattr(Path, "replace", dies)
        run(tmp_path / "cut", resume=True)

    with pytest.raises(AssertionError):  # it does not come to its own end
        killed_after(60, work)
    assert list((tmp_path / "cut").glob("unfinished/*.safetensors"))
    run(tmp_path / "cut", resume=True)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def stop(folder: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> Path:
    """Runs to `step`, as SIGTERM would end it there; the newest checkpoint."""
    original = Trainer._train_step

    def once(trainer: Trainer) -> float:
        loss = original(trainer)
        if trainer.step == step:
            trainer._stop_signal = signal.SIGTERM
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_step", once)
        with pytest.raises(Interrupted, match=f"SIGTERM after step {step}"):
            run(folder)
    (path,) = (p for p in folder.glob("unfinished/*.safetensors") if ".older." not in p.name)
    return path


@pytest.mark.parametrize("step", [11, 12, 24])
def test_a_signal_is_heeded_before_a_validation_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """At 12 a validation is due, which may take long; it is made up for afterwards."""
    run(tmp_path / "whole")
    asked: list[int] = []
    original = Trainer.predict
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "predict", lambda t, split: asked.append(t.step) or original(t, split))
        stop(tmp_path / "cut", monkeypatch, step)
    assert len(asked) == len(range(2, step + 1, 2))
    run(tmp_path / "cut", resume=True)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def tamper(path: Path) -> None:
    """Changes one number in a file that stays sound."""
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors["model.norm.weight" if "model.norm.weight" in tensors else min(tensors)].view(-1)[0] += 1
    save_file(tensors, path, header)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-50]),
    "tampered": tamper,
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    run(tmp_path / "whole")
    path = stop(tmp_path / "cut", monkeypatch, 11)
    DAMAGE[damage](path)
    with pytest.raises(AttnbenchError, match=rf"damaged .*{path.stem}\.older\.safetensors.*--resume-older") as caught:
        run(tmp_path / "cut", resume=True)
    assert "\n" not in str(caught.value)
    made = plan.make("hst", "recall", regularizer="sar", settings=TINY)
    execute(made, Settings(tmp_path / "cut", resume_older=True, quiet=True))
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
    assert not list(tmp_path.glob("cut/unfinished/*.safetensors"))


def test_when_both_are_damaged_there_is_nothing_to_offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stop(tmp_path, monkeypatch, 11)
    for one in path.parent.glob("*.safetensors"):
        tamper(one)
    made = plan.make("hst", "recall", regularizer="sar", settings=TINY)
    with pytest.raises(AttnbenchError, match=r"damaged .*run again without --resume"):
        execute(made, Settings(tmp_path, resume_older=True, quiet=True))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"budget_steps": 30}, "budget.steps=24, not 30"),
        ({"budget_lr": 0.5}, "budget.lr=0.002, not 0.5"),
        ({"task_pairs": 1}, "task.options.pairs=2, not 1"),
    ],
)
def test_a_changed_configuration_is_refused_and_the_difference_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    stop(tmp_path, monkeypatch, 11)
    with pytest.raises(AttnbenchError, match="nothing to resume") as caught:
        run(tmp_path, resume=True, **changes)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_not_resumed_is_kept_two_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stop(tmp_path, monkeypatch, 11)
    before = sorted(one.read_bytes() for one in path.parent.glob("*.safetensors"))
    steps = []
    for one in path.parent.glob("*.safetensors"):
        with safe_open(one, framework="pt") as file:
            steps.append(json.loads(file.metadata()["attnbench"])["step"])
    assert sorted(steps) == [10, 11]
    run(tmp_path)
    assert sorted(one.read_bytes() for one in path.parent.glob("*.safetensors")) == before
