"""Faults that published comparisons had (docs/traps.md), where no other test would catch them here.

Over all tasks and mechanisms there are, so that a new one is held to the same.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import small_sets
import torch
from factories import portable_mechanisms
from small_sets import TINY
from torch import Tensor

from attnbench import assembly, data, plan, protocol, registry
from attnbench.batches import Batch, Batches
from attnbench.columns import Ragged, Split
from attnbench.config import Budget, ModelConfig, Padding
from attnbench.contracts import Cell, Classify, Match
from attnbench.errors import Unsupported
from attnbench.model import Model
from attnbench.options import field_names, parse
from attnbench.questions import question_of
from attnbench.randomness import initialise
from attnbench.record import CurvePoint
from attnbench.train import Trainer

TASKS = registry.names("tasks")
MECHANISMS = [name for name in portable_mechanisms() if not isinstance(registry.load("mechanisms", name).object, Cell)]
#: Protocols without the quirks of others.
SOUND = [name for name in protocol.names() if not name.startswith("lra-")]
CELLS: list[tuple[str, dict[str, Any]]] = [("dense", {}), ("bigbird", {}), ("performer", {}), ("ernie_sparse", {})]


# --- identity of data and tokens: another process, another order of sets and other hashes


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes with different hashes of text, each with an empty cache, make of all tasks."""
    home, found = tmp_path_factory.mktemp("processes"), []
    for salt in ("1", "2"):
        request = {
            "samples": os.environ.get("ATTNBENCH_TEST_DATA"),
            "results": str(home / salt),
            "shared": str(home / "shared"),
            "cells": CELLS,
        }
        environment = {**os.environ, "PYTHONHASHSEED": salt, "ATTNBENCH_DATA": str(home / f"cache{salt}")}
        done = subprocess.run(
            [sys.executable, small_sets.__file__],
            input=json.dumps(request),
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert found[0]["hash"] != found[1]["hash"]
    return found


def test_another_process_prepares_the_same_ids_under_the_same_key(processes: list[dict[str, Any]]) -> None:
    one, other = (found["sets"] for found in processes)
    assert set(small_sets.generated()) <= set(one) and one == other


def test_another_process_scores_the_same(processes: list[dict[str, Any]]) -> None:
    one, other = (found["runs"] for found in processes)
    assert set(one) == dict(CELLS).keys() and one == other
    assert all(predictions_sha for _, _, predictions_sha in one.values())


def test_a_checkpoint_goes_on_in_another_process_with_the_same_ids(processes: list[dict[str, Any]]) -> None:
    begun, ended = (found["shared"] for found in processes)
    assert begun[0] is None and ended[0] is not None
    assert ended == processes[0]["whole"] == processes[1]["whole"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNBENCH_DATA", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("task", sorted({*small_sets.generated(), *small_sets.SAMPLES}))
def test_splits_share_no_example_and_labels_stand_in_no_order(
    cache: None, task: str, request: pytest.FixtureRequest
) -> None:
    """Nothing of test is trained on or chosen by, in what the options are by default."""
    samples = request.getfixturevalue("test_data") if task in small_sets.SAMPLES else None
    found = small_sets.prepared(task, samples)
    rows = {
        name: {b"|".join(row.astype("<i4").tobytes() for row in rows) for rows in zip(*split.documents, strict=True)}
        for name, split in found.splits.items()
    }
    assert sum(map(len, rows.values())) == len(set().union(*rows.values())) and all(rows.values())
    labels = found.splits["train"].targets
    if isinstance(labels, np.ndarray):
        changes = np.count_nonzero(np.diff(labels.astype(int)))
        assert changes > 0.5 * (len(labels) - 1) * (1 - np.mean(labels[:, None] == labels))


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("task", TASKS)
def test_every_option_of_a_task_is_part_of_the_key_of_its_data(task: str) -> None:
    plugin = registry.load("tasks", task)
    usual = plugin.object.options()
    keys = [data.data_key(plugin, usual)]
    for field in dataclasses.fields(usual):
        value, other = getattr(usual, field.name), copy.copy(usual)
        new = value + 1 if isinstance(value, int | float) else "other"
        object.__setattr__(other, field.name, new)  # values that no task takes alone too
        keys.append(data.data_key(plugin, other))
    assert len(set(keys)) == 1 + len(dataclasses.fields(usual))


# --- masks, padding, pooling


@pytest.mark.parametrize("task", ["digits", "pathfinder"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_black_picture_is_content_to_its_last_pixel(mechanism: str, task: str) -> None:
    made = plan.make(mechanism, task)
    model, contract = assembly.build(made).eval(), made.task.plugin.object
    length = contract.max_length(made.task.options)
    black = torch.zeros(1, length, dtype=torch.int64)
    places = (0, 1, length // 2, length - 1)
    with torch.no_grad():
        _, mask, layout = model.encoder(black, None)
        plain = model([(black, None)], None)
        spotted = [model([(black.index_fill(1, torch.tensor([at]), 9), None)], None) for at in places]
    assert not contract.padded and mask is None and layout.length == length
    assert plain.isfinite().all()
    assert all(found.isfinite().all() and not torch.equal(found, plain) for found in spotted)


@pytest.mark.parametrize("rule", ["max", "batch", "grouped"])
@pytest.mark.parametrize("task", ["digits", "image", "pathfinder", "pathx"])
def test_no_pixel_is_padding(task: str, rule: Any) -> None:
    """Black, 0, is the id that fills batches elsewhere."""
    contract = registry.load("tasks", task).object
    usual = contract.options()
    length = contract.max_length(usual)
    black = Ragged(pa.chunked_array([pa.array([[0] * length] * 3, pa.list_(pa.uint8()))]))
    split = Split([black], np.zeros(3, dtype=np.int64))
    made = Batches(split, question_of(contract.head(usual)), Padding(rule=rule), contract.padded, length)
    for batch in made.in_order(2):
        tokens, mask = batch.documents[0]
        assert mask is None and tokens.shape == (len(batch.indices), length)


def built(mechanism: str, head: Any, pooling: str, vocab: int = 5, length: int = 12) -> Model:
    contract = registry.load("mechanisms", mechanism).object
    known = field_names(contract.options)
    chosen = parse(mechanism, contract.options, {"block_size": 4} if "block_size" in known else {})
    config = ModelConfig(dim=8, mlp=8, dropout=0, pooling=pooling)  # type: ignore[arg-type]
    found = Model(config, contract, chosen, head, vocab=vocab, max_length=length)
    initialise(found, 0)
    return found.double().eval()


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_two_documents_are_compared_by_both_vectors_their_product_and_their_difference(pooling: str) -> None:
    """By hand, from the rows of the encoder: with cls a row that is no token of either document."""
    model = built("dense", Match(3), pooling)
    tokens = torch.arange(24).view(2, 12) % 5
    masks = [torch.arange(12).expand(2, -1) < torch.tensor([[n], [12]]) for n in (7, 9)]
    documents = [(tokens, masks[0]), (tokens.flip(1), masks[1])]
    with torch.no_grad():
        a, b = (_vector(model, pooling, *document) for document in documents)
        weight, bias = (model.get_parameter(f"head.linear.{name}") for name in ("weight", "bias"))
        one, two, product, difference = weight.split(8, dim=1)
        wanted = a @ one.T + b @ two.T + (a * b) @ product.T + (a - b) @ difference.T + bias
        torch.testing.assert_close(model(documents, None), wanted)


def _vector(model: Model, pooling: str, tokens: Tensor, mask: Tensor) -> Tensor:
    rows: Tensor
    rows, _, layout = model.encoder(tokens, mask)
    front = int(pooling == "cls")
    assert rows.shape[1] == front + 12 and layout.length == 12
    if pooling == "cls":
        assert not torch.equal(model.encoder.specials.global_rows[0], model.encoder.embedding.weight[tokens[0, 0]])
        return rows[:, 0]
    real = [row[: int(kept.sum())] for row, kept in zip(rows, mask, strict=True)]
    return torch.stack([row.mean(0) if pooling == "mean" else row[-1] for row in real])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_row_in_front_takes_no_token_and_no_id(mechanism: str) -> None:
    """The last token of the longest input counts, the highest id is a token like any, and no id is the row in front."""
    try:
        model = built(mechanism, Classify(3), "cls")
    except Unsupported:
        assert registry.load("mechanisms", mechanism).object.causal == "only"
        return
    assert model.encoder.embedding.weight.shape == (5, 8)
    highest = torch.full((1, 12), 4)
    rows, _, layout = model.encoder(highest, None)
    assert layout.length == 12 and rows.shape[1] == layout.specials + 12
    gradients = {}
    for name, tokens in {"highest": highest, "last": torch.tensor([[4] * 11 + [2]])}.items():
        model.zero_grad()
        model([(tokens, None)], None)[0, 0].backward()
        weight = model.encoder.embedding.weight.grad
        assert weight is not None
        gradients[name] = weight.abs().amax(1) > 0
    assert gradients["highest"].tolist() == [False, False, False, False, True]
    assert gradients["last"].tolist() == [False, False, True, False, True]


# --- training and evaluation


def trainer_for(task: str, **settings: Any) -> Trainer:
    small = {f"task.{name}": size for name, size in {"train": 200, "validation": 40, "test": 60}.items()}
    changes = {**TINY, **(small if task == "recall" else {}), **settings}
    made = plan.make("dense", task, settings=changes)
    found = data.load(made.task.plugin, made.task.options)
    job = assembly.job_of(made, found, assembly.build(made), "cpu")
    return Trainer(job, quiet=True)


@pytest.mark.parametrize(("batch", "accumulate", "eval_batch"), [(8, 1, 7), (8, 4, 64), (32, 2, 1)])
def test_each_evaluation_reads_its_whole_split_in_one_order(
    cache: None, monkeypatch: pytest.MonkeyPatch, batch: int, accumulate: int, eval_batch: int
) -> None:
    sizes = {"budget.batch": batch, "budget.accumulate": accumulate, "budget.eval_batch": eval_batch}
    trainer = trainer_for("recall", **sizes)
    read: dict[str, list[list[int]]] = {"validation": [], "test": []}
    original = Batches.in_order

    def spy(batches: Batches, size: int) -> Iterator[Batch]:
        assert size == eval_batch
        found = list(original(batches, size))
        name = next(name for name, split in trainer.job.data.splits.items() if split is batches.split)
        read[name].append([index for one in found for index in one.indices.tolist()])
        return iter(found)

    monkeypatch.setattr(Batches, "in_order", spy)
    trainer.fit()
    assert len(trainer.test().scores) == 60
    assert read == {"validation": [list(range(40))] * 2, "test": [list(range(60))]}


RATES = {
    "cosine": lambda step: math.cos(math.pi / 2 * (step - 3) / 9) ** 2,
    "rsqrt": lambda step: math.sqrt(3 / (step + 1)),
    "constant": lambda step: 1.0,
}


@pytest.mark.parametrize("schedule", RATES)
def test_the_optimiser_steps_at_the_rate_of_the_protocol(cache: None, schedule: str) -> None:
    """After a warm-up of three steps 0.02 and not its square, nor a schedule of another's."""
    rules = {"budget.schedule": schedule, "budget.lr": 0.02, "budget.warmup": 3, "budget.steps": 12}
    trainer, used = trainer_for("recall", **rules), []
    trainer._raw_optimizer.register_step_pre_hook(
        lambda optimizer, *_: used.append([group["lr"] for group in optimizer.param_groups])
    )
    trainer.fit()
    wanted = [0.02 * (step + 1) / 3 for step in range(3)] + [0.02 * RATES[schedule](step) for step in range(3, 12)]
    assert used == [[pytest.approx(rate)] for rate in wanted]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", SOUND)
def test_a_budget_is_longer_than_its_warm_up(name: str, task: str) -> None:
    budget = protocol.resolve(protocol.load(name), task, "dense", {}).budget
    assert 2 * budget.warmup <= budget.steps
    assert max(map(budget.learning_rate, range(budget.steps))) == pytest.approx(budget.lr)


#: A second value of every setting of model and budget.
SECOND: dict[str, Any] = {
    "model.dim": 24, "model.heads": 4, "model.layers": 2, "model.mlp": 24, "model.positions": "none",
    "model.dropout": 0.3, "model.pooling": "last", "model.causal": True,
    "budget.steps": 7, "budget.batch": 6, "budget.lr": 0.01, "budget.schedule": "constant", "budget.warmup": 3,
    "budget.weight_decay": 0.1, "budget.beta1": 0.5, "budget.beta2": 0.5, "budget.eps": 1e-3, "budget.clip": 0.1,
    "budget.eval_every": 2,
    "model.qkv": 8, "model.qkv_bias": False, "model.attention_dropout": 0.3, "model.head_hidden": [8],
}  # fmt: skip
#: These must change nothing but rounding; test_training.py sees to it.
ROUNDING = {"budget.accumulate", "budget.eval_batch"}
#: What a curve of this task does not show; test_lra_2021.py sees to them.
ELSEWHERE = {"budget.select", "model.match"}


@pytest.fixture(scope="module")
def usual_curve(cache: None) -> list[CurvePoint]:
    return fitted()


def fitted(**settings: Any) -> list[CurvePoint]:
    trainer = trainer_for("digits", **settings)
    trainer.fit()
    return trainer.curve


def test_every_setting_has_a_second_value() -> None:
    known = {f"model.{name}" for name in ModelConfig.model_fields} | {f"budget.{name}" for name in Budget.model_fields}
    assert known == SECOND.keys() | ROUNDING | ELSEWHERE


@pytest.mark.parametrize("name", SECOND)
def test_no_setting_is_taken_and_ignored(usual_curve: list[CurvePoint], name: str) -> None:
    assert fitted(**{name: SECOND[name]}) != usual_curve == fitted()


@pytest.mark.parametrize("task", ["recall", "retrieval", "pathfinder"])
@pytest.mark.parametrize("name", SOUND)
def test_every_mechanism_gets_the_same_encoder(name: str, task: str) -> None:
    """Every parameter that is neither a mixer's nor a special row has the shape it has around dense."""
    shapes = {}
    for mechanism in MECHANISMS:
        made = plan.make(mechanism, task, protocol=name)
        shapes[mechanism] = {
            key: tuple(value.shape)
            for key, value in assembly.build(made).named_parameters()
            if ".mixer." not in key and ".specials." not in key
        }
    assert len(shapes["dense"]) > 10 and all(found == shapes["dense"] for found in shapes.values())
