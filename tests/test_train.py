"""The training loop against independent truth: the loss by hand, ragged targets, where a run went wrong, resuming.

Whole runs through the command stand in test_training.py; here a plugin file in a folder of its own sets the trap.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import attnbench
from attnbench import assembly, data, plan, store
from attnbench.errors import AttnbenchError
from attnbench.memory import in_parts, needed
from attnbench.record import Record
from attnbench.train import Trainer

TINY: dict[str, Any] = {
    "task.train": 200, "task.validation": 40, "task.test": 60, "task.length": 16, "task.distance": 2,
    "model.dim": 16, "model.mlp": 32, "model.layers": 2,
    "budget.steps": 12, "budget.eval_every": 4, "budget.warmup": 2, "budget.batch": 8,
}  # fmt: skip


def options_for(task: str, more: dict[str, Any]) -> dict[str, Any]:
    base = TINY if task == "recall" else {k: v for k, v in TINY.items() if not k.startswith("task.")}
    return base | more


def tiny(folder: Path, mechanism: str = "dense", task: str = "recall", **more: Any) -> Record:
    options = options_for(task, more.pop("options", {}))
    return attnbench.run(mechanism, task, results=folder, options=options, **more)


def ended(folder: Path, *cell: str, **more: Any) -> tuple[str, str]:
    """Status and reason of a run; `refused` and the one line when it never became one."""
    try:
        record = tiny(folder, *cell, **more)
    except AttnbenchError as fault:
        found = ("refused", str(fault))
    else:
        found = (record.status, record.reason or "")
    assert "\n" not in found[1]
    return found


def trainer_for(mechanism: str, task: str, options: dict[str, Any], seed: int = 0, **more: Any) -> Trainer:
    made = plan.make(mechanism, task, seed=seed, settings=options_for(task, options), **more)
    prepared = data.load(made.task.plugin, made.task.options)
    return Trainer(assembly.job_of(made, prepared, assembly.build(made), "auto"), quiet=True)


def outcome(record: Record, folder: Path) -> dict[str, Any]:
    """What must be equal when two runs are the same run."""
    arrays = store.load_predictions(next(folder.rglob(f"{record.id}.json")))
    return {
        "curve": [point.model_dump() for point in record.curve],
        "quality": record.quality.model_dump() if record.quality else None,
        "predictions": {name: values.tolist() for name, values in arrays.items()},
    }


MIXER = """
import torch
from attnbench.contracts import Mechanism
from attnbench.layers import QKVMixer
from torch import nn

class Mixer({base}):
{body}

MECHANISM = Mechanism(summary="x", paper="x", build=lambda shape, options: Mixer({arguments}))
"""


def mixer(folder: Path, name: str, body: str, base: str = "nn.Module", arguments: str = "") -> str:
    path = folder / f"{name}.py"
    text = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    path.write_text(MIXER.format(base=base, body=text, arguments=arguments))
    return str(path)


TAGGING = """
import datasets
import numpy as np
from attnbench.contracts import NO_TARGET, Source, TagTokens, Task

def prepare(options, preparation):
    made = {{}}
    for number, (name, count) in enumerate({{"train": 96, "validation": 30, "test": 41}}.items()):
        generator = np.random.default_rng(number)
        rows = [generator.integers(1, 9, {length}).tolist() for _ in range(count)]
        targets = [[t % 3 if i < 1 or t > 3 else NO_TARGET for i, t in enumerate(row)] for row in rows]
        {more}
        made[name] = datasets.Dataset.from_dict({{"tokens": rows, "targets": targets}})
    return datasets.DatasetDict(made)

TASK = Task(summary="x", source=Source(citation="x", licence="x"), head=lambda o: TagTokens(3), vocab=lambda o: 9,
            max_length=lambda o: 12, prepare=prepare, padded=True)
"""


def tagging_task(folder: Path, name: str, length: str = "generator.integers(1, 13)", more: str = "pass") -> str:
    (folder / f"{name}.py").write_text(TAGGING.format(length=length, more=more))
    return str(folder / f"{name}.py")


MATCHING = """
import datasets
import numpy as np
from attnbench.contracts import Match, Source, Task

def prepare(options, preparation):
    made = {}
    for number, (name, count) in enumerate({"train": 96, "validation": 30, "test": 41}.items()):
        generator = np.random.default_rng(number)
        rows = [[generator.integers(1, 9, generator.integers(1, 13)).tolist() for _ in range(count)] for _ in "ab"]
        label = [int(max(a) > max(b)) for a, b in zip(*rows)]
        made[name] = datasets.Dataset.from_dict({"tokens": rows[0], "tokens_b": rows[1], "label": label})
    return datasets.DatasetDict(made)

TASK = Task(summary="x", source=Source(citation="x", licence="x"), head=lambda o: Match(2), vocab=lambda o: 9,
            max_length=lambda o: 12, prepare=prepare, padded=True)
"""


@pytest.fixture
def tagging(tmp_path: Path) -> str:
    """Examples of differing length with differing numbers of targets."""
    return tagging_task(tmp_path, "tagging")


@pytest.fixture
def matching(tmp_path: Path) -> str:
    """Two documents of differing length."""
    (tmp_path / "matching.py").write_text(MATCHING)
    return str(tmp_path / "matching.py")


# loss and score


def test_validation_and_test_are_the_plain_means_over_examples_and_predictions(tagging: str) -> None:
    """One example at a time, by hand, against batches with padding."""
    trainer = trainer_for("dense", tagging, {"budget.eval_batch": 7})
    split = trainer.job.data.splits["validation"]
    found = trainer.predict("validation")
    trainer.model.eval()
    losses, shares = [], []
    with torch.no_grad():
        for tokens, targets in zip(split.documents[0], split.targets, strict=True):
            wanted = torch.from_numpy(np.array(targets))
            logits = trainer.model([(torch.from_numpy(np.array(tokens))[None], None)], wanted[None] != -100)
            wanted = wanted[wanted != -100]
            losses += F.cross_entropy(logits, wanted, reduction="none").tolist()
            shares.append((logits.argmax(-1) == wanted).float().mean().item())
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert found.scores == pytest.approx(shares)
    assert np.unique(found.stored["example"]).tolist() == list(range(30))


@pytest.mark.parametrize("accumulate", [2, 4, 8])
def test_micro_batches_of_unequal_targets_change_nothing_but_rounding(tagging: str, accumulate: int) -> None:
    """The mean over the targets of a batch, however it is cut."""
    curves = []
    for parts in (1, accumulate):
        trainer = trainer_for("dense", tagging, {"budget.accumulate": parts, "padding.rule": "max", "budget.eps": 1e-4})
        trainer.fit()
        curves.append([(point.loss, point.validation_loss) for point in trainer.curve])
    np.testing.assert_allclose(curves[1], curves[0], rtol=2e-4)


def test_an_example_without_a_single_target_is_refused_or_counts_nothing(tmp_path: Path) -> None:
    task = tagging_task(tmp_path, "gaps", more="targets[::7] = [[NO_TARGET] * len(row) for row in rows[::7]]")
    status, said = ended(tmp_path / "r", "dense", task, options={"budget.batch": 1, "budget.steps": 30})
    assert status not in ("diverged", "failed"), said
    assert "target" in said if status == "refused" else True


@pytest.mark.parametrize("regularizer", ["none", "sar", "rdrop", "sar+rdrop"])
@pytest.mark.parametrize("mechanism", ["dense", "hst"])
def test_two_documents_train_under_every_regularizer(
    tmp_path: Path, matching: str, mechanism: str, regularizer: str
) -> None:
    options = {"model.dropout": 0.1} | ({"block_size": 4} if mechanism == "hst" else {})
    record = tiny(tmp_path / "r", mechanism, matching, regularizer=regularizer, options=options)
    assert record.quality is not None and record.quality.predictions == 41
    assert [point.step for point in record.curve] == [4, 8, 12]


@pytest.mark.parametrize("rule", ["batch", "max"])
def test_scores_of_two_documents_do_not_depend_on_the_batch(tmp_path: Path, matching: str, rule: str) -> None:
    found = []
    for size in (1, 7, 64):
        options = {"block_size": 4, "budget.eval_batch": size, "padding.rule": rule}
        record = tiny(tmp_path / f"{size}", "hst", matching, options=options)
        found.append(outcome(record, tmp_path / f"{size}")["predictions"])
    assert found[0] == found[1] == found[2]


def test_a_model_learns_what_needs_no_attention(tmp_path: Path) -> None:
    """The loop does train: the label of an example is its only token."""
    easy = tagging_task(tmp_path, "easy", length="1")
    record = tiny(tmp_path / "r", "dense", easy, options={"budget.steps": 80, "budget.lr": 0.01})
    assert record.status == "ok" and record.quality is not None and record.quality.test == 1.0


# repeatability

ATTENTION = """
def __init__(self):
    super().__init__()
    self.inner = nn.MultiheadAttention(16, 2, batch_first=True)
    self.scale = nn.Parameter(torch.randn(16))
    self.register_buffer("noise", torch.randn(16))
def forward(self, x, mask=None, layout=None):
    return self.inner(x, x, x)[0] * self.scale + self.noise
"""


def test_a_mechanism_that_draws_its_own_start_follows_the_seed(tmp_path: Path) -> None:
    path = mixer(tmp_path, "drawn", ATTENTION)
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(ord(name))
        found.append(outcome(tiny(tmp_path / name, path, seed=seed), tmp_path / name))
    assert found[0] == found[1] != found[2]


def test_a_mechanism_alone_that_draws_its_own_start_follows_the_seed(tmp_path: Path) -> None:
    path = mixer(tmp_path, "drawn_alone", ATTENTION)

    def start(torch_seed: int, seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(torch_seed)
        return attnbench.build_mechanism(path, dim=16, heads=2, length=4, init_seed=seed).state_dict()

    one, two, other = start(1, 5), start(2, 5), start(1, 6)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


NOISY = """
def __init__(self, shape):
    super().__init__(shape)
def attend(self, q, k, v, mask):
    return v + torch.randn_like(v)
"""


def test_randomness_that_a_mechanism_brings_is_the_same_when_a_finished_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of hashing attention, which draws in evaluation too; the run is cut off between training and test."""
    path = mixer(tmp_path, "noisy", NOISY, "QKVMixer", "shape")
    whole = outcome(tiny(tmp_path / "whole", path), tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "test", lambda trainer: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            tiny(tmp_path / "cut", path)
    torch.manual_seed(1)
    resumed = tiny(tmp_path / "cut", path, resume=True)
    assert outcome(resumed, tmp_path / "cut") == whole


def test_the_first_of_equally_good_steps_is_tested(tmp_path: Path) -> None:
    record = tiny(tmp_path, options={"budget.lr": 1e-9})
    assert record.quality is not None and len({point.validation for point in record.curve}) == 1
    assert record.quality.best_step == 4


def test_a_run_of_one_step_that_never_reaches_a_validation_is_validated_at_its_end(tmp_path: Path) -> None:
    record = tiny(tmp_path, options={"budget.steps": 1, "budget.eval_every": 50})
    assert [point.step for point in record.curve] == [1] and record.quality is not None


# where it went wrong

BACKWARD = """
class _Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        return grad * float("nan")

def __init__(self):
    super().__init__()
    self.inner = nn.Linear(16, 16)
def forward(self, x, mask=None, layout=None):
    return self._Bad.apply(self.inner(x))
"""


def test_a_gradient_that_is_no_number_names_the_parameter(tmp_path: Path) -> None:
    for clip in (1.0, 0.0):
        record = tiny(tmp_path, mixer(tmp_path, "backward", BACKWARD), options={"budget.clip": clip})
        assert record.status == "diverged" and record.reason is not None
        assert record.reason.startswith("step 0: gradient norm is nan")
        assert "first parameter with a non-finite gradient: encoder." in record.reason


EVALUATION = """
def __init__(self):
    super().__init__()
    self.inner = nn.Linear(16, 16)
def forward(self, x, mask=None, layout=None):
    return self.inner(x) if self.training else self.inner(x) * float("inf")
"""


def test_a_validation_that_is_no_number_is_a_divergence(tmp_path: Path) -> None:
    record = tiny(tmp_path, mixer(tmp_path, "evaluation", EVALUATION))
    assert record.status == "diverged" and record.reason is not None
    assert "step 4" in record.reason and "encoder.layers.0.mixer" in record.reason


def test_a_learning_rate_that_blows_up_is_named_diverged_not_failed(tmp_path: Path) -> None:
    record = tiny(tmp_path, options={"budget.lr": 1e30, "budget.clip": 0, "budget.warmup": 0})
    assert record.status == "diverged" and record.reason is not None and record.reason.startswith("step ")


DEEP = """
class Inner(nn.Module):
    def forward(self, x):
        return x / 0

def __init__(self):
    super().__init__()
    self.fine = nn.Linear(16, 16)
    self.inner = self.Inner()
def forward(self, x, mask=None, layout=None):
    return self.inner(self.fine(x))
"""


def test_the_innermost_module_is_named(tmp_path: Path) -> None:
    record = tiny(tmp_path, mixer(tmp_path, "deep", DEEP))
    assert record.reason is not None and record.reason.endswith("encoder.layers.0.mixer.inner")


FORGETS_MEMORY = """
def forward(self, x, mask=None, layout=None):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB\\nmore advice")
"""


def test_running_out_of_memory_is_a_status(tmp_path: Path) -> None:
    record = tiny(tmp_path, mixer(tmp_path, "greedy", FORGETS_MEMORY), options={"budget.accumulate": 2})
    assert record.status == "oom" and record.reason is not None
    assert "step 0" in record.reason and "1 x 16 tokens" in record.reason and "\n" not in record.reason
    needed = float(record.reason.partition("it needs ")[2].removesuffix(" GiB or more"))
    assert 20 < needed < 30, "20 GiB more than this process had at its peak"


HOLDS_LITTLE = """
def __init__(self):
    super().__init__()
    self.line = nn.Linear(16, 16)
def forward(self, x, mask=None, layout=None):
    if len(x) > (2 if self.training else 5):
        raise torch.OutOfMemoryError("CUDA out of memory")
    return self.line(x)
"""


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_that_memory_does_not_hold_is_taken_in_parts(
    tmp_path: Path, accumulate: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same numbers as when the parts were asked for, and the record says in how many the steps ran."""
    path = mixer(tmp_path, "small", HOLDS_LITTLE)
    rules = {"model.dropout": 0.2, "budget.eval_batch": 20}
    found = tiny(tmp_path / "a", path, options=rules | {"budget.accumulate": accumulate})
    told = capsys.readouterr().err
    wanted = tiny(tmp_path / "b", path, options=rules | {"budget.accumulate": 4, "budget.eval_batch": 5})
    assert found.quality is not None, found.reason
    assert (found.quality, found.curve) == (wanted.quality, wanted.curve)
    assert found.cost is not None and found.cost.micro_batches == 4 and found.spec.budget["accumulate"] == accumulate
    assert told.count("step 0: memory does not hold the batch; from here on in micro-batches of 2") == 1
    assert told.count("from here on in batches of 5") == 1


def test_parts_are_the_next_divisor_from_twice_as_many_on() -> None:
    tried, told = [], []

    def work(parts: int, error: Exception) -> str:
        tried.append(parts)
        if parts < 12:
            raise error
        return "done"

    memory = torch.OutOfMemoryError("CUDA out of memory")
    assert in_parts(lambda parts: work(parts, memory), 2, 12, told.append) == "done"
    assert (tried, told) == ([2, 4, 12], [4, 12])
    for parts, most, error in ((2, 3, memory), (2, 12, ZeroDivisionError())):
        tried.clear()
        with pytest.raises(type(error)):
            in_parts(lambda parts, error=error: work(parts, error), parts, most, told.append)  # type: ignore[misc]
        assert (tried, told) == ([parts], [4, 12])


@pytest.mark.parametrize("regularizer", ["none", "sar", "rdrop"])
def test_a_step_cut_short_by_memory_leaves_no_gradient_behind(regularizer: str, monkeypatch: Any) -> None:
    """It ends behind the first of two micro-batches; all is then as if four had been asked for."""
    options = {"model.dropout": 0.2, "block_size": 4, "budget.eps": 1e-4} | (
        {"sar.shift": "1..4"} if regularizer == "sar" else {}
    )
    cut, wanted = (
        trainer_for("hst", "recall", options | {"budget.accumulate": parts}, regularizer=regularizer)
        for parts in (2, 4)
    )
    calls, backward = [], cut.accelerator.backward

    def failing(loss: Any) -> None:
        calls.append(len(calls))
        if calls == [0, 1]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        backward(loss)

    monkeypatch.setattr(cut.accelerator, "backward", failing)
    assert [cut._train_step() for _ in range(2)] == [wanted._train_step() for _ in range(2)]
    assert cut.micro_batches == 4 and len(calls) == 2 + 2 * 4
    for found, other in zip(cut.model.parameters(), wanted.model.parameters(), strict=True):
        assert torch.equal(found, other)


@pytest.mark.parametrize("regularizer", ["sar", "rdrop", "sar+rdrop"])
def test_micro_batches_change_nothing_but_rounding_under_a_regularizer(regularizer: str) -> None:
    """Without dropout, or at a rate that drops none: the passes of a part are those of the whole."""
    options = {"block_size": 4, "budget.eps": 1e-4, "padding.rule": "max", "budget.steps": 3}
    options |= {"sar.shift": "1..4"} if "sar" in regularizer else {}
    options |= {"model.dropout": 1e-9} if "rdrop" in regularizer else {}
    losses = []
    for parts in (1, 2, 8):
        trainer = trainer_for("hst", "recall", options | {"budget.accumulate": parts}, regularizer=regularizer)
        losses.append([trainer._train_step() for _ in range(3)])
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=2e-4)


def test_a_resumed_run_goes_on_in_the_same_parts() -> None:
    kept: list[Any] = []
    checkpoint: Any = SimpleNamespace(write=lambda *state: kept.append(state), read=lambda: kept[-1])
    first, again = (trainer_for("dense", "recall", {}) for _ in range(2))
    first.checkpoint = again.checkpoint = checkpoint
    first.micro_batches = 4
    first.fit()
    again.resume()
    assert (again.step, again.micro_batches) == (12, 4)


@pytest.mark.parametrize(
    ("message", "held", "wanted"),
    [
        ("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has", 2**30, 2.5 * 2**30),
        ("CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0", 0, 2**29),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12", 1, 4097),
        ("out of memory", 5, None),
    ],
)
def test_what_was_needed_is_read_from_the_allocator(message: str, held: int, wanted: float | None) -> None:
    assert needed(RuntimeError(message), held) == wanted


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("raises", "def forward(self, x, mask=None, layout=None):\n    raise KeyError('first\\nsecond')", "raises.py"),
        ("later", "def forward(self, x, mask=None, layout=None):\n    assert self.training\n    return x", "step 4"),
        ("signature", "def forward(self, x):\n    return x", "TypeError"),
    ],
)  # fmt: skip
def test_a_mechanism_that_raises_gives_a_record_that_says_where(
    tmp_path: Path, name: str, body: str, said: str
) -> None:
    record = tiny(tmp_path, mixer(tmp_path, name, body))
    assert record.status == "failed" and record.quality is None and record.reason is not None
    assert said in record.reason and "\n" not in record.reason


def test_a_mechanism_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    """Before the first step it is an error of the plugin as well as a failed run."""
    path = mixer(tmp_path, "starts", "def reset_parameters(self):\n    raise KeyError('one\\ntwo')")
    _, said = ended(tmp_path, path)
    assert "KeyError" in said and "starts.py" in said


@pytest.mark.parametrize("returned", ["x[:, :1]", "x[..., :1]", "x.mean()", "x.unsqueeze(0)", "(x, None)", "None"])
def test_a_mechanism_that_returns_another_shape_never_trains(tmp_path: Path, returned: str) -> None:
    """Some of these would broadcast in silence."""
    path = mixer(tmp_path, "reshapes", f"def forward(self, x, mask=None, layout=None):\n    return {returned}")
    status, said = ended(tmp_path, path)
    assert status in ("refused", "failed") and said


# resuming


def test_a_checkpoint_of_other_settings_is_not_taken(tmp_path: Path) -> None:
    tiny(tmp_path, max_seconds=1e-9)
    for more in ({"budget.lr": 0.5}, {"budget.steps": 24}, {"task.pairs": 1}, {"model.dropout": 0.5}):
        with pytest.raises(AttnbenchError, match="nothing to resume"):
            tiny(tmp_path, options=more, resume=True)
    with pytest.raises(AttnbenchError, match="nothing to resume"):
        tiny(tmp_path, resume=True, seed=1)


def test_a_checkpoint_is_whole_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill in the middle of a write leaves the one before it."""
    tiny(tmp_path, max_seconds=1e-9)
    path = next(tmp_path.glob("unfinished/*.safetensors"))
    before = path.read_bytes()

    def dies(tensors: Any, partial: Path, header: Any) -> None:
        Path(partial).write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("attnbench.checkpoint.save_file", dies)
        with pytest.raises(KeyboardInterrupt):
            tiny(tmp_path, resume=True)
    assert path.read_bytes() == before
    assert tiny(tmp_path, resume=True).quality is not None


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    settings = [f"--set={key}={value}" for key, value in {**TINY, "budget.steps": 60, "model.dropout": 0.1}.items()]
    command = [sys.executable, "-m", "attnbench", "run", "-m", "hst", "-t", "recall", "--set=block_size=4", "--json"]
    return subprocess.Popen(
        [*command, "--results", str(folder), *settings, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, said = process.communicate(timeout=120)
    return process.returncode, out, said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_was_stopped_goes_on_to_the_same_end(tmp_path: Path, number: signal.Signals) -> None:
    """The real thing: a process, a signal at some moment, and the same command with --resume."""
    code, _, said = finish(start(tmp_path / "whole"))
    assert code == 0, said
    process = start(tmp_path / "cut")
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("cut/unfinished/*.safetensors")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    code, out, said = finish(process)
    assert code != 0, "it was done before the signal came; give the run more steps"
    assert code == (-9 if number == signal.SIGKILL else 130) and out == ""
    if number != signal.SIGKILL:
        assert f"stopped by {number.name} after step" in said and "--resume" in said and "Traceback" not in said
    code, _, said = finish(start(tmp_path / "cut", "--resume"))
    assert code == 0, said
    found = []
    for name in ("whole", "cut"):
        [(_, record)], problems = store.Store(tmp_path / name).read_all()
        assert not problems
        found.append(outcome(record, tmp_path / name))
    assert found[0] == found[1]


def test_bf16_trains_to_nearly_the_same_loss(tmp_path: Path) -> None:
    full, half = (tiny(tmp_path / dtype, options={"numerics.dtype": dtype}) for dtype in ("fp32", "bf16"))
    losses = np.array([[point.validation_loss for point in record.curve] for record in (full, half)])
    assert not np.array_equal(losses[0], losses[1]), "it did compute otherwise"
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.02)


def test_the_seconds_of_both_parts_count_against_the_limit(tmp_path: Path) -> None:
    record = tiny(tmp_path, max_seconds=1e-9)
    assert record.status == "timeout" and record.reason is not None and "at step 1" in record.reason
    again = tiny(tmp_path, max_seconds=1e-9, resume=True)
    assert again.status == "timeout" and again.reason is not None and "at step 2" in again.reason
