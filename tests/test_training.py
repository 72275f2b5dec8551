"""Whole runs on a tiny recall: repeatability, resume, limits, divergence, selection, padding."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import attnbench
from attnbench import assembly, data, plan, store
from attnbench.adapters import wrap_module
from attnbench.batches import Batches
from attnbench.errors import AttnbenchError
from attnbench.record import Record
from attnbench.train import Interrupted, Trainer

TINY = {
    "task.train": 300, "task.validation": 40, "task.test": 60, "task.length": 16, "task.distance": 2,
    "model.dim": 16, "model.mlp": 32, "model.layers": 2,
    "budget.steps": 12, "budget.eval_every": 4, "budget.warmup": 2, "budget.batch": 8,
}  # fmt: skip


def tiny(folder: Path, mechanism: str = "dense", task: str = "recall", **more: Any) -> Record:
    options = {**TINY, **more.pop("options", {})}
    if task != "recall":
        options = {key: value for key, value in options.items() if not key.startswith("task.")}
    return attnbench.run(mechanism, task, results=folder, options=options, **more)


def outcome(record: Record, folder: Path) -> dict[str, Any]:
    """What must be equal when two runs are the same run."""
    path = next(folder.rglob(f"{record.id}.json"))
    arrays = store.load_predictions(path)
    return {
        "curve": [point.model_dump() for point in record.curve],
        "quality": record.quality.model_dump() if record.quality else None,
        "predictions": {name: values.tolist() for name, values in arrays.items()},
        "sha": record.predictions_sha,
    }


@pytest.mark.parametrize("cell", ["dense", "ernie_sparse"])
def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path, cell: str) -> None:
    options = {"model.dropout": 0.1} | ({"block_size": 4} if cell != "dense" else {})
    one, two = (tiny(tmp_path / name, cell, options=options) for name in "ab")
    torch.manual_seed(99)
    np.random.seed(99)
    other = tiny(tmp_path / "c", cell, options=options, seed=1)
    assert outcome(one, tmp_path / "a") == outcome(two, tmp_path / "b")
    assert one.spec.hash == two.spec.hash == other.spec.hash
    assert outcome(other, tmp_path / "c")["curve"] != outcome(one, tmp_path / "a")["curve"]


class _StopAt:
    """Makes `Trainer` receive SIGINT's effect after a given step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int):
        original = Trainer._check_limits

        def check(trainer: Trainer) -> None:
            if trainer.step == step:
                trainer._stop_signal = signal.SIGINT
            original(trainer)

        monkeypatch.setattr(Trainer, "_check_limits", check)


@pytest.mark.parametrize("step", [1, 5, 8])
def test_a_stopped_run_goes_on_and_ends_as_the_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    whole = tiny(tmp_path / "whole", "ernie_sparse", options={"block_size": 4, "model.dropout": 0.1})
    with monkeypatch.context() as patch:
        _StopAt(patch, step)
        with pytest.raises(Interrupted, match=f"after step {step}"):
            tiny(tmp_path / "broken", "ernie_sparse", options={"block_size": 4, "model.dropout": 0.1})
    resumed = tiny(tmp_path / "broken", "ernie_sparse", options={"block_size": 4, "model.dropout": 0.1}, resume=True)
    assert outcome(resumed, tmp_path / "broken") == outcome(whole, tmp_path / "whole")
    assert not list((tmp_path / "broken" / "unfinished").iterdir()), "a finished run leaves no checkpoint"


def test_a_signal_to_the_command_stops_it_and_says_how_to_go_on(tmp_path: Path) -> None:
    settings = [f"--set={key}={value}" for key, value in {**TINY, "budget.steps": 100_000}.items()]
    command = [
        sys.executable,
        "-m",
        "attnbench",
        "run",
        "-m",
        "dense",
        "-t",
        "recall",
        "--results",
        str(tmp_path),
        *settings,
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=os.environ)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("unfinished/*.safetensors")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped by SIGINT after step" in said and "--resume" in said and "Traceback" not in said
    assert not list(tmp_path.glob("runs/**/*.json"))


@pytest.mark.parametrize("damage", ["cut", "text", "other run", "no step", "no identity", "a list", "no weights"])
def test_a_checkpoint_that_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    with monkeypatch.context() as patch:
        _StopAt(patch, 5)
        with pytest.raises(Interrupted):
            tiny(tmp_path)
    (path,) = (one for one in tmp_path.glob("unfinished/*.safetensors") if ".older." not in one.name)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "text":
        path.write_text("not a checkpoint")
    elif damage != "other run":
        rewrite(path, damage)
    else:
        path.replace(path.with_name(path.name.replace("-s0", "-s1")))
    with pytest.raises(AttnbenchError, match=r"damaged|belongs to another run") as caught:
        tiny(tmp_path, resume=True, seed=1 if damage == "other run" else 0)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def rewrite(path: Path, damage: str) -> None:
    """The checkpoint with something missing, in a file that is sound."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["attnbench"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if damage == "no weights":
        tensors = {name: value for name, value in tensors.items() if "norm" not in name}
    header.pop({"no step": "step", "no identity": "identity"}.get(damage, ""), None)
    save_file(tensors, path, {"attnbench": json.dumps([1] if damage == "a list" else header)})


def test_resume_without_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AttnbenchError, match="nothing to resume"):
        tiny(tmp_path, resume=True)


def test_micro_batches_change_nothing_but_rounding(tmp_path: Path) -> None:
    whole = tiny(tmp_path / "1")
    parts = tiny(tmp_path / "4", options={"budget.accumulate": 4})
    losses = [[point.loss for point in record.curve] for record in (whole, parts)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def test_two_mechanisms_of_one_seed_see_the_same_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[np.ndarray]] = {}
    original = Batches.drawn

    def spy(batches: Batches, seed: int, size: int, step: int) -> np.ndarray:
        found = original(batches, seed, size, step)
        seen[label].append(found)
        return found

    monkeypatch.setattr(Batches, "drawn", spy)
    for label in ("dense", "bigbird"):
        seen[label] = []
        tiny(tmp_path, label, options={"block_size": 4} if label == "bigbird" else {})
    assert len(seen["dense"]) == TINY["budget.steps"]
    assert all(np.array_equal(a, b) for a, b in zip(seen["dense"], seen["bigbird"], strict=True))


DIVERGING = """
import torch
from attnbench.contracts import Mechanism
from torch import nn

class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.calls = 0
    def forward(self, x, mask=None, layout=None):
        self.calls += self.training
        y = self.inner(x)
        return y * float("{value}") if self.calls > {calls} and self.training else y

MECHANISM = Mechanism(summary="x", paper="x", build=lambda shape, options: Mixer())
"""


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_loss_that_is_no_number_names_step_and_module(tmp_path: Path, value: str) -> None:
    path = tmp_path / f"breaks_{value}.py"
    path.write_text(DIVERGING.format(value=value, calls=6))
    record = tiny(tmp_path, str(path), options={"budget.clip": 1.0})
    assert record.status == "diverged" and record.quality is None
    assert record.reason is not None and record.reason.startswith("step 6: ")
    assert "encoder.layers.0.mixer" in record.reason
    assert [point.step for point in record.curve] == [4]


def test_time_out_is_a_status_and_can_be_resumed(tmp_path: Path) -> None:
    record = tiny(tmp_path, max_seconds=1e-9)
    assert record.status == "timeout" and record.quality is None and record.reason is not None
    assert tiny(tmp_path, resume=True).quality is not None


def test_the_step_that_was_best_on_validation_is_tested_and_test_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = {4: 0.2, 8: 0.9, 12: 0.5}
    read: list[int] = []
    weights: dict[int, dict[str, torch.Tensor]] = {}
    original = Trainer.predict

    class Scripted:
        loss = 1.0

        def __init__(self, score: float):
            self.scores = np.array([score])

    def predict(trainer: Trainer, split: str) -> Any:
        if split == "test":
            read.append(trainer.step)
            weights[-1] = trainer._weights()
            return original(trainer, split)
        weights[trainer.step] = trainer._weights()
        return Scripted(scripted[trainer.step])

    monkeypatch.setattr(Trainer, "predict", predict)
    record = tiny(tmp_path)
    assert record.quality is not None
    assert (record.quality.best_step, record.quality.validation) == (8, 0.9)
    assert read == [12]
    assert all(torch.equal(weights[-1][name], value) for name, value in weights[8].items())
    assert any(not torch.equal(weights[-1][name], value) for name, value in weights[12].items())


PADDED_TASK = """
import datasets
import numpy as np
from attnbench.contracts import Classify, Source, Task

def prepare(options, preparation):
    made = {}
    for number, (name, count) in enumerate({"train": 60, "validation": 20, "test": 33}.items()):
        generator = np.random.default_rng(number)
        rows = [generator.integers(1, 9, generator.integers(1, 21)).tolist() for _ in range(count)]
        made[name] = datasets.Dataset.from_dict({"tokens": rows, "label": [row[0] % 2 for row in rows]})
    return datasets.DatasetDict(made)

TASK = Task(summary="x", source=Source(citation="x", licence="x"), head=lambda o: Classify(2), vocab=lambda o: 9,
            max_length=lambda o: 20, prepare=prepare, padded=True)
"""


@pytest.mark.parametrize("mechanism", ["dense", "bigbird", "hst", "sliding", "moba", "nsa"])
def test_a_score_does_not_depend_on_the_batch_it_is_read_in(tmp_path: Path, mechanism: str) -> None:
    path = tmp_path / "ragged_task.py"
    path.write_text(PADDED_TASK)
    options = {"block_size": 4} if mechanism != "dense" else {}
    found = []
    for size in (1, 7, 64):
        for rule in ("batch", "max"):
            more = {**options, "budget.eval_batch": size, "padding.rule": rule}
            record = tiny(tmp_path / f"{size}{rule}", mechanism, str(path), options=more)
            if rule == "batch":
                found.append(outcome(record, tmp_path / f"{size}{rule}")["predictions"])
            assert record.quality is not None and record.quality.examples == 33
    assert found[0] == found[1] == found[2]


def test_bf16_runs_and_is_another_cell(tmp_path: Path) -> None:
    assert tiny(tmp_path, options={"numerics.dtype": "bf16"}).spec.hash != tiny(tmp_path).spec.hash


def test_the_update_is_that_of_torch_adamw(tmp_path: Path) -> None:
    """Three steps by the trainer against the textbook loop on a model that starts alike."""
    made = plan.make(
        "dense",
        "recall",
        settings={**TINY, "budget.steps": 3, "budget.eval_every": 3, "budget.clip": 0.5, "budget.eps": 1e-4},
    )
    prepared = data.load(made.task.plugin, made.task.options)
    job = assembly.job_of(made, prepared, assembly.build(made), "cpu")
    trainer = Trainer(job, quiet=True)
    twin = assembly.build(made)
    twin.load_state_dict(trainer.model.state_dict())
    budget = made.rules.budget
    optimizer = torch.optim.AdamW(
        twin.parameters(), lr=1.0, betas=(budget.beta1, budget.beta2), eps=budget.eps, weight_decay=budget.weight_decay
    )
    order = np.random.Generator(np.random.PCG64(runner_key(made.seed))).permutation(300)
    for step in range(3):
        rows = order[step * 8 : step * 8 + 8]
        tokens, targets = (
            torch.from_numpy(np.stack([column[int(i)] for i in rows]).astype(np.int64))
            for column in (prepared.splits["train"].documents[0], prepared.splits["train"].targets)
        )
        logits = twin([(tokens, None)], targets != -100)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, targets[targets != -100]).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        for group in optimizer.param_groups:
            group["lr"] = budget.learning_rate(step)
        optimizer.step()
    trainer.fit()
    for (name, mine), (_, theirs) in zip(trainer.model.named_parameters(), twin.named_parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6, msg=name)


def runner_key(seed: int) -> int:
    """The seed of the first epoch's order, written out."""
    import hashlib
    import json

    digest = hashlib.blake2b(json.dumps([seed, "order", 0]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def test_a_second_process_on_the_same_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Trainer.test

    def test(trainer: Trainer) -> Any:
        monkeypatch.setattr(Trainer, "test", original)
        with pytest.raises(AttnbenchError, match="going on already"):
            tiny(tmp_path)
        return original(trainer)

    monkeypatch.setattr(Trainer, "test", test)
    assert tiny(tmp_path).quality is not None
    assert len(list(tmp_path.glob("runs/**/*.json"))) == 1


@pytest.mark.parametrize(
    ("declared", "said"),
    [("chance=lambda o: 5.0", "chance is 5.0"), ("chance=lambda o: float('nan')", "chance is nan")],
)
def test_a_level_outside_0_to_1_is_refused_before_training(tmp_path: Path, declared: str, said: str) -> None:
    path = tmp_path / "odd_levels.py"
    path.write_text(PADDED_TASK.replace("padded=True", f"padded=True, {declared}"))
    with pytest.raises(AttnbenchError, match=said):
        tiny(tmp_path, "dense", str(path))
    assert not list(tmp_path.glob("unfinished/*"))


def test_a_module_that_would_mix_the_batch_reads_it_batch_first_or_is_refused() -> None:
    shape = attnbench.MixerShape(dim=8, heads=2, length=6)
    encoder = wrap_module(torch.nn.TransformerEncoderLayer, "torch.nn:TransformerEncoderLayer")
    assert encoder.build(shape, encoder.options()).module.self_attn.batch_first

    class Mixes(torch.nn.Module):
        def __init__(self, dim: int):
            super().__init__()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x.mean(0, keepdim=True)

    mixes = wrap_module(Mixes, "here:Mixes")
    with pytest.raises(AttnbenchError, match="depends on its batch-mates"):
        mixes.build(shape, mixes.options())
