"""From a plan to a record: what stands in it, which status it gets, and plugins that break on the way."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factories import portable_mechanisms

import attnbench
from attnbench import registry, runner, store
from attnbench.errors import AttnbenchError, UnknownName, Unsupported
from attnbench.plan import Plan, make
from attnbench.record import Record, from_json

TINY: dict[str, Any] = {
    "task.train": 200, "task.validation": 40, "task.test": 60, "task.length": 16, "task.distance": 2,
    "model.dim": 16, "model.mlp": 32, "model.layers": 1,
    "budget.steps": 3, "budget.eval_every": 2, "budget.warmup": 1, "budget.batch": 8,
}  # fmt: skip


def tiny(folder: Path, mechanism: str = "dense", task: str = "recall", **more: Any) -> Record:
    options = TINY if task == "recall" else {k: v for k, v in TINY.items() if not k.startswith("task.")}
    return attnbench.run(mechanism, task, results=folder, options={**options, **more.pop("options", {})}, **more)


def file_of(record: Record, folder: Path) -> Path:
    return next(folder.rglob(f"{record.id}.json"))


TASK = """
import datasets
import numpy as np
from attnbench import Unsupported
from attnbench.contracts import Classify, Source, Task

def label(tokens, generator):
    return {label}

def prepare(options, preparation):
    {before}
    made = {{}}
    for number, (name, count) in enumerate({{"train": 400, "validation": 100, "test": 400}}.items()):
        generator = np.random.default_rng(number)
        tokens = generator.integers(0, 8, (count, 12))
        rows = {{"tokens": tokens, "label": [int(label(row, generator)) for row in tokens]}}
        made[name] = datasets.Dataset.from_dict(rows)
    return datasets.DatasetDict(made)

TASK = Task(summary="x", source=Source(citation="x", licence="x"), head=lambda o: Classify(2),
            vocab=lambda o: {vocab}, max_length=lambda o: 12, prepare=prepare)
"""


def made_task(folder: Path, name: str, label: str = "tokens[0] % 2", before: str = "pass", vocab: str = "8") -> str:
    path = folder / f"{name}.py"
    path.write_text(TASK.format(label=label, before=before, vocab=vocab))
    return str(path)


MECHANISM = """
from attnbench import Mechanism, Tokens
from attnbench.layers import QKVMixer
import torch

class Mixer(QKVMixer):
    calls = 0
    def attend(self, q, k, v, mask):
        self.calls += self.training
        {attend}
        return v

def build(shape, options):
    {before}
    return Mixer(shape)

MECHANISM = Mechanism(summary="x", paper="x", build=build{arguments})
"""


def made_mechanism(folder: Path, name: str, before: str = "pass", arguments: str = "", attend: str = "pass") -> str:
    """`before` runs before the mixer is built, `attend` in each pass; self.calls counts those of training."""
    path = folder / f"{name}.py"
    path.write_text(MECHANISM.format(before=before, attend=attend, arguments=arguments and f", {arguments}"))
    return str(path)


# what stands in a record


@pytest.mark.parametrize("mechanism", portable_mechanisms())
@pytest.mark.parametrize("task", ["recall", "digits"])
def test_the_record_of_every_mechanism_is_complete_and_agrees_with_itself(
    tmp_path: Path, mechanism: str, task: str
) -> None:
    record = tiny(tmp_path, mechanism, task, seed=7)
    path = file_of(record, tmp_path)
    assert path.parent == tmp_path / "runs" / record.spec.protocol.name / task / mechanism
    text = path.read_text("utf-8")
    assert from_json(text, "here") == record and json.loads(text)["schema"] == 1
    assert record.status in ("ok", "not_above_chance", "trivial") and record.seed == 7
    assert record.spec.hash in record.id and record.spec.protocol.name.startswith("quick-")
    assert record.spec.budget["steps"] == 3 and record.spec.model["dim"] == 16
    names = {f.name for f in _fields(record.spec.mechanism.name)}
    assert set(record.spec.mechanism.options) == names, "every option, defaults included"
    assert record.spec.mechanism.implementation in ("kernel", "reference", "dense emulation")
    started, finished = (datetime.datetime.fromisoformat(at) for at in (record.started, record.finished))
    assert started <= finished and record.software["torch"] and record.machine["cpu"]
    assert [point.step for point in record.curve] == [2, 3]
    assert [point.examples for point in record.curve] == [16, 24]


def _fields(mechanism: str) -> Any:
    import dataclasses

    return dataclasses.fields(registry.load("mechanisms", mechanism).object.options)


def test_the_scores_follow_from_the_predictions(tmp_path: Path) -> None:
    record = tiny(tmp_path)
    arrays = store.load_predictions(file_of(record, tmp_path))
    assert record.quality is not None
    right = [
        np.mean(arrays["predicted"][arrays["example"] == example] == arrays["target"][arrays["example"] == example])
        for example in range(60)
    ]
    assert record.quality.test == pytest.approx(np.mean(right))
    assert (record.quality.examples, record.quality.predictions) == (60, len(arrays["target"])) == (60, 120)
    prepared = attnbench.build_task("recall", **{k[5:]: v for k, v in TINY.items() if k.startswith("task.")})
    assert (
        arrays["target"].tolist()
        == np.concatenate([row[row != -100] for row in prepared.splits["test"].targets]).tolist()
    )
    assert record.quality.chance == 0.25
    assert set(record.quality.trivial) == {"majority", "most_frequent_value_present"}
    validations = {point.step: point.validation for point in record.curve}
    assert record.quality.validation == validations[record.quality.best_step] == max(validations.values())


def test_parameters_are_counted_as_one_would_by_hand(tmp_path: Path) -> None:
    cost = tiny(tmp_path, options={"model.layers": 3}).cost
    assert cost is not None
    dim, mlp, vocab, positions, classes = 16, 32, 8 + 16 + 4, 0, 4  # recall has no positions in quick
    mixer = dim * 3 * dim + 3 * dim + dim * dim + dim
    layer = mixer + 4 * dim + dim * mlp + mlp + mlp * dim + dim
    total = vocab * dim + positions + 3 * layer + 2 * dim + dim * classes + classes
    assert (cost.params_mixer, cost.params_total) == (3 * mixer, total)
    assert cost.train_seconds > 0 and cost.samples_per_second > 0 and cost.peak_bytes > 2**20


def test_words_and_numbers_ask_for_the_same_run(tmp_path: Path) -> None:
    numbers = tiny(tmp_path / "numbers")
    words = tiny(tmp_path / "words", options={key: str(value) for key, value in TINY.items()})
    assert numbers.spec == words.spec and numbers.quality == words.quality and numbers.curve == words.curve


def test_ernie_sparse_and_hst_with_sar_are_one_cell_and_one_result(tmp_path: Path) -> None:
    one = tiny(tmp_path / "one", "ernie_sparse")
    two = tiny(tmp_path / "two", "hst", regularizer="sar")
    assert (one.label, two.label) == ("ernie_sparse", "hst+sar")
    assert one.spec.hash == two.spec.hash and (one.quality, one.curve) == (two.quality, two.curve)


def test_what_decides_a_number_decides_the_hash_and_the_seed_does_not(tmp_path: Path) -> None:
    path = made_mechanism(tmp_path, "mine")
    first = tiny(tmp_path / "a", path)
    assert tiny(tmp_path / "b", path, seed=1).spec.hash == first.spec.hash
    others = [{"budget.lr": 0.5}, {"model.dropout": 0.1}, {"task.pairs": 1}, {"padding.rule": "max"}]
    hashes = [tiny(tmp_path / f"{i}", path, options=more).spec.hash for i, more in enumerate(others)]
    dropout = {"model.dropout": 0.1}
    hashes += [tiny(tmp_path / "r", path, regularizer="rdrop", options=dropout).spec.hash, first.spec.hash]
    (tmp_path / "c").mkdir()
    hashes.append(tiny(tmp_path / "c", made_mechanism(tmp_path / "c", "mine", before="x = 1")).spec.hash)
    assert len(set(hashes)) == len(hashes)


def test_records_are_added_and_never_replaced(tmp_path: Path) -> None:
    first = tiny(tmp_path)
    bytes_before = file_of(first, tmp_path).read_bytes()
    second = tiny(tmp_path)
    assert first.id != second.id and file_of(first, tmp_path).read_bytes() == bytes_before
    records, problems = store.Store(tmp_path).read_all()
    assert len(records) == 2 and not problems
    assert not list(tmp_path.glob("unfinished/*")), "a finished run leaves no checkpoint"


# statuses


@pytest.mark.parametrize(
    ("name", "label", "status"),
    [
        ("coin", "generator.integers(2)", "not_above_chance"),
        ("rare", "generator.random() < 0.9", "trivial"),
        ("easy", "(tokens == 3).sum() > 1", "trivial"),
        ("where", "tokens[0] > tokens[1]", "ok"),
    ],
)
def test_a_score_gets_the_status_it_deserves(tmp_path: Path, name: str, label: str, status: str) -> None:
    """coin: nothing to learn; rare: one label mostly; easy: counts tell it; where: only places tell it."""
    steps = 250 if name == "where" else 20
    task = made_task(tmp_path, name, label)
    more = {"budget.steps": steps, "budget.eval_every": 50, "budget.lr": 0.01, "budget.batch": 32}
    record = tiny(tmp_path / "r", "dense", task, options=more)
    assert record.status == status, (record.reason, record.quality)
    assert record.quality is not None and (record.reason is None) == (status == "ok")


def test_a_cell_without_its_package_is_recorded_as_unsupported(tmp_path: Path) -> None:
    record = tiny(tmp_path, made_mechanism(tmp_path, "needs", arguments="requires=('no_such_package',)"))
    assert record.status == "unsupported" and record.reason is not None and "no_such_package" in record.reason
    assert record.quality is None and record.curve == [] and file_of(record, tmp_path).is_file()


@pytest.mark.parametrize(
    ("mechanism", "options", "reason"),
    [
        ("local", {"path": "flex"}, "no backward pass on a CPU"),
        ("hst", {"path": "flex"}, "no backward pass on a CPU"),
        ("hst", {"path": "xformers", "block_size": 16}, "takes no global rows, representatives"),
        ("sliding", {"path": "fmha", "block_size": 16}, "runs on CUDA, got cpu"),
        ("xformers_local", {}, "runs on CUDA, got cpu"),
        ("xformers_blocksparse", {"block_size": 8}, "at least 16 rows"),
        ("xformers_blocksparse", {"block_size": 16, "numerics.dtype": "bf16"}, "got torch.bfloat16"),
    ],
)
def test_outside_the_domain_of_its_path_a_cell_is_unsupported_before_training(
    tmp_path: Path, mechanism: str, options: dict[str, Any], reason: str
) -> None:
    if "block_size" not in options and mechanism != "xformers_local":
        options = {**options, "block_size": 4}
    record = tiny(tmp_path, mechanism, options=options, device="cpu")
    assert record.status == "unsupported" and record.reason is not None and reason in record.reason
    assert record.reason.startswith(f"{mechanism}: path ") and record.cost is None
    with pytest.raises(Unsupported, match="path "):
        runner.rehearse(make(mechanism, "recall", settings={**TINY, **options}), device="cpu")


def test_a_cell_of_xformers_runs_until_its_softmax_would_be_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"block_size": 16, "random_blocks": 0}
    record = tiny(tmp_path, "xformers_blocksparse", options=options)
    assert record.quality is not None and record.spec.mechanism.implementation == "reference"
    monkeypatch.setattr("attnbench.sparse.xformers.LOGIT_SPREAD", 0.0)
    record = tiny(tmp_path, "xformers_blocksparse", options=options)
    assert record.status == "failed" and str(record.reason).startswith("step 0: path xformers: rows whose")


def test_a_task_that_cannot_be_prepared_here_is_unsupported(tmp_path: Path) -> None:
    record = tiny(tmp_path, task=made_task(tmp_path, "far", before="raise Unsupported('needs the disc of 1998')"))
    assert record.status == "unsupported" and record.reason == "needs the disc of 1998"


@pytest.mark.parametrize(
    ("arguments", "regularizer", "reason"),
    [
        ("honours_masks=False", "sar", "ignores masks"),
        ("length_bound=True", "sar", "depends on the padded length"),
    ],
)
def test_a_cell_that_makes_no_sense_is_unsupported(
    tmp_path: Path, arguments: str, regularizer: str, reason: str
) -> None:
    path = made_mechanism(tmp_path, "odd", arguments=arguments)
    record = tiny(tmp_path, path, regularizer=regularizer)
    assert record.status == "unsupported" and record.reason is not None and reason in record.reason
    without_shift = tiny(tmp_path, path, regularizer="rdrop", options={"model.dropout": 0.1})
    assert without_shift.quality is not None


@pytest.mark.parametrize("where", ["building", "preparing", "on a GPU"])
def test_running_out_of_memory_before_the_first_step_is_a_status(tmp_path: Path, where: str) -> None:
    cell = {
        "building": lambda: (made_mechanism(tmp_path, "greedy", before="raise MemoryError('too\\nmuch')"), "recall"),
        "preparing": lambda: ("dense", made_task(tmp_path, "vast", before="raise MemoryError('too\\nmuch')")),
        "on a GPU": lambda: (
            made_mechanism(tmp_path, "cuda", before="raise torch.OutOfMemoryError('one\\ntwo')"),
            "recall",
        ),
    }[where]()
    record = tiny(tmp_path / "r", *cell)
    assert record.status == "oom" and record.reason is not None and "\n" not in record.reason
    assert record.reason.startswith("before the first step: ") and record.curve == []


@pytest.mark.parametrize(
    ("end", "status", "checkpoints"), [("v = v / 0", "diverged", 0), ("raise OSError(5, 'x')", "failed", 1)]
)
def test_the_checkpoint_of_a_run_that_would_diverge_again_is_removed(
    tmp_path: Path, end: str, status: str, checkpoints: int
) -> None:
    """Both wrote one at step 2."""
    path = made_mechanism(tmp_path, "ends", attend=f"if self.calls > 2: {end}")
    record = tiny(tmp_path / "r", path)
    assert record.status == status and [point.step for point in record.curve] == [2]
    assert len(list(tmp_path.glob("r/unfinished/*.safetensors"))) == checkpoints


# plugins that break


def outcome_of_breaking(folder: Path, *cell: str, **more: Any) -> str:
    """The one line a plugin's own fault ends in: an error, or the reason of a failed record."""
    try:
        record = tiny(folder, *cell, **more)
    except AttnbenchError as fault:
        said = str(fault)
    else:
        assert record.status == "failed" and record.reason is not None
        said = record.reason
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("before", "arguments"),
    [
        ("raise ValueError('one\\ntwo')", ""),
        ("pass", "tokens=lambda options: options.missing"),
        ("pass", "tokens=lambda options: 3"),
        ("pass", "options=dict"),
        ("pass", "version='two'"),
    ],
)
def test_a_mechanism_that_breaks_while_it_is_built_is_one_line(tmp_path: Path, before: str, arguments: str) -> None:
    said = outcome_of_breaking(tmp_path, made_mechanism(tmp_path, "breaks", before, arguments))
    assert "breaks" in said


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("OSError(5, 'one\\ntwo')", "OSError: [Errno 5] one two (breaks.py:"),
        ("FileNotFoundError('gone')", "FileNotFoundError: gone (breaks.py:"),
        ("AttnbenchError('one\\ntwo')", "one two"),
        ("Unsupported('not this')", "not this"),
    ],
)
@pytest.mark.parametrize("calls", [0, 2])
def test_a_mechanism_that_breaks_in_training_is_a_failed_run(tmp_path: Path, fault: str, said: str, calls: int) -> None:
    """Whatever it raises: it is no fault of the request any more, nor of the disk."""
    attend = f"from attnbench.errors import AttnbenchError, Unsupported\n        if self.calls > {calls}: raise {fault}"
    record = tiny(tmp_path / "r", made_mechanism(tmp_path, "breaks", attend=attend))
    assert record.status == "failed" and record.reason is not None
    assert record.reason.startswith(f"step {calls}: {said}") and "\n" not in record.reason


@pytest.mark.parametrize(
    ("label", "before", "vocab"),
    [
        ("1 / 0", "pass", "8"),
        ("1", "raise KeyError('one\\ntwo')", "8"),
        ("1", "return None", "8"),
        ("1", "pass", "o.missing"),
        ("1", "pass", "3"),
    ],
)
def test_a_task_that_breaks_is_one_line(tmp_path: Path, label: str, before: str, vocab: str) -> None:
    said = outcome_of_breaking(tmp_path, "dense", made_task(tmp_path, "torn", label, before, vocab))
    assert "torn" in said


@pytest.mark.parametrize(
    "loss",
    [
        "lambda options: None, max_shift=lambda options: options.missing",
        "lambda options: None, max_shift=lambda options: None",
        "lambda options: options.missing",
        "lambda options: lambda run, first, labels: None",
        "lambda options: lambda run, first, labels: first.sum()",
        "lambda options: lambda run, first, labels: run(shift=-1)",
    ],
)
def test_a_regularizer_that_breaks_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    (tmp_path / "plugins" / "regularizers").mkdir(parents=True)
    (tmp_path / "plugins" / "regularizers" / "torn.py").write_text(
        f"from attnbench import Regularizer\nREGULARIZER = Regularizer(summary='x', paper='x', loss={loss})\n"
    )
    monkeypatch.setenv("ATTNBENCH_PLUGINS", str(tmp_path / "plugins"))
    outcome_of_breaking(tmp_path, regularizer="torn")


def test_a_fault_of_the_request_is_an_error_and_leaves_no_record(tmp_path: Path) -> None:
    with pytest.raises(UnknownName):
        tiny(tmp_path, "densse")
    with pytest.raises(AttnbenchError, match=r"auto, cpu or cuda, got .tpu"):
        tiny(tmp_path, device="tpu")
    with pytest.raises(AttnbenchError, match="seed"):
        tiny(tmp_path, seed=-1)
    for limit in (-1, 0, float("nan"), "3"):
        with pytest.raises(AttnbenchError, match="max_seconds is a time above 0, or None, got"):
            tiny(tmp_path, max_seconds=limit)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("attend", ["v = v + torch.randn_like(v)", "raise OSError"])
def test_a_run_leaves_the_random_state_of_its_caller_alone(tmp_path: Path, attend: str) -> None:
    path = made_mechanism(tmp_path, "draws", before="torch.rand(3)", attend=attend)
    before = torch.get_rng_state()
    tiny(tmp_path / "r", path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"seed": 3},
        {"seed": 2, "regularizer": "sar", "options": {"model.dropout": 0.1, "sar.alpha": 0.5, "task.train": "50"}},
    ],
)
def test_the_command_of_a_python_run_gives_the_same_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """Here from the spec it would run, so that no full run is needed."""
    planned: list[Plan] = []

    def takes(plan: Plan, settings: runner.Settings) -> Any:
        planned.append(plan)
        return settings.command, None

    monkeypatch.setattr(runner, "execute", takes)
    command = attnbench.run("dense", "recall", results=tmp_path, **more)
    assert command.startswith("attnbench.run('dense', 'recall'") and all(name in command for name in more)
    assert eval(command) == command
    assert planned[0].as_json() == planned[1].as_json()


def test_a_results_folder_that_cannot_be_written_is_found_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises((AttnbenchError, OSError)):
        tiny(tmp_path / "file" / "results")


def test_the_python_face_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny(tmp_path)
    capfd.readouterr()
    tiny(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_load_records_shows_what_was_run(tmp_path: Path) -> None:
    for mechanism in ("dense", "local"):
        tiny(tmp_path, mechanism)
    table = attnbench.load_records(tmp_path).set_index("label")
    assert sorted(table.index) == ["dense", "local"] and set(table["task"]) == {"recall"}
    assert os.path.isfile(table.loc["dense", "path"])
