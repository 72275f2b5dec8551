"""The protocol lra-2021: the released configurations as published, and what each of its switches does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from published import prepared
from small_sets import TINY

import attnbench
from attnbench import assembly, data, plan, registry
from attnbench.batches import Batches
from attnbench.columns import Ragged, Split
from attnbench.config import ModelConfig, Padding
from attnbench.contracts import Classify, Match, MixerShape
from attnbench.errors import AttnbenchError, Unsupported
from attnbench.layers import attention
from attnbench.model import Model
from attnbench.questions import question_of
from attnbench.randomness import Stream, WeightDropout, initialise
from attnbench.train import Trainer

PROTOCOL = "lra-2021"

#: github.com/google-research/long-range-arena at cd31e5c, the files in lra_benchmarks/*/configs: batch, steps, the rate
#: as written there, warm-up, decay, width, qkv, mlp, heads, layers, pooling, dropout. CLS of Retrieval: its first byte.
PUBLISHED: dict[str, tuple[Any, ...]] = {
    "listops": (32, 5_000, 0.05, 1_000, 0.1, 512, 512, 1024, 8, 4, "cls", 0.1),
    "text": (32, 20_000, 0.05, 8_000, 0.1, 256, 256, 1024, 4, 4, "cls", 0.1),
    "retrieval": (32, 5_000, 0.05, 8_000, 0.1, 128, 128, 512, 4, 4, "first", 0.1),
    "image": (256, 45_000 // 256 * 200, 0.0005, 45_000 // 256, 0, 128, 64, 128, 8, 1, "cls", 0.3),
    "pathfinder": (512, 160_000 // 512 * 200, 0.001, 160_000 // 512, 0, 32, 16, 32, 4, 4, "mean", 0.2),
    "pathx": (64, 160_000 // 64 * 200, 0.001, 160_000 // 64, 0, 32, 16, 32, 2, 1, "mean", 0.1),
}
#: Of single mechanisms on pictures: layers, heads, width, qkv, mlp, pooling, dropout.
OWN: dict[tuple[str, str], tuple[Any, ...]] = {
    ("image", "bigbird"): (1, 1, 128, 64, 128, "cls", 0.3),
    ("image", "longformer"): (4, 4, 128, 64, 128, "mean", 0.3),
    ("image", "disjoint_local"): (1, 2, 128, 64, 128, "mean", 0.3),
    ("image", "performer"): (1, 8, 128, 64, 128, "cls", 0.3),
    ("image", "linformer"): (1, 8, 128, 64, 128, "cls", 0.3),
    ("image", "linear"): (1, 8, 128, 64, 128, "cls", 0.3),
    ("pathfinder", "bigbird"): (4, 2, 64, 32, 64, "mean", 0.2),
    ("pathfinder", "longformer"): (2, 2, 32, 16, 32, "mean", 0.1),
    ("pathfinder", "sparse_transformer"): (1, 8, 32, 16, 32, "mean", 0.2),
    ("pathfinder", "disjoint_local"): (2, 4, 64, 32, 64, "mean", 0.1),
    ("pathfinder", "performer"): (4, 8, 32, 16, 32, "mean", 0.2),
    ("pathfinder", "linformer"): (1, 2, 32, 16, 32, "mean", 0.2),
    ("pathfinder", "linear"): (1, 2, 128, 64, 128, "mean", 0.2),
}


def model_of(mechanism: str, task: str) -> ModelConfig:
    return plan.make(mechanism, task, protocol=PROTOCOL).rules.model


@pytest.mark.parametrize("task", PUBLISHED)
def test_it_is_the_released_configuration(task: str) -> None:
    batch, steps, rate, warmup, decay, dim, qkv, mlp, heads, layers, pooling, dropout = PUBLISHED[task]
    made = plan.make("dense", task, protocol=PROTOCOL)
    model, budget, padding = made.rules.model, made.rules.budget, made.rules.padding
    assert (budget.batch, budget.steps, budget.warmup, budget.weight_decay) == (batch, steps, warmup, decay)
    assert (budget.beta1, budget.beta2, budget.eps, budget.select) == (0.9, 0.98, 1e-9, "last")
    assert budget.clip == (1 if task == "pathx" else 0)
    assert (model.dim, model.mlp, model.heads, model.layers) == (dim, mlp, heads, layers)
    assert (model.qkv or dim, model.qkv_bias, model.pooling, model.dropout) == (qkv, False, pooling, dropout)
    assert model.positions == ("learned" if task in ("image", "pathx") else "sinusoidal")
    assert model.attention_dropout == (0.2 if task == "image" else 0.1)
    assert list(model.head_hidden) == ([512, 256] if task == "retrieval" else [mlp])
    assert model.match == ("pair" if task == "retrieval" else "products")
    assert padding.mask_zeros == (task in ("image", "pathfinder", "pathx"))
    # as LRA writes it: rate * min(1, step / warmup) / sqrt(max(step, warmup)), with steps counted from 1 here
    for step in (1, 10, warmup, min(steps, 2 * warmup)):
        root = np.sqrt(max(step, warmup)) if rate == 0.05 else 1
        decayed = np.cos(np.pi / 2 * max(0, step - 1 - warmup) / (steps - warmup)) ** 2 if rate != 0.05 else 1
        assert budget.learning_rate(step - 1) == pytest.approx(rate * min(1, step / warmup) / root * decayed, rel=1e-4)


@pytest.mark.parametrize(("task", "mechanism"), OWN)
def test_a_mechanism_has_the_model_released_for_it(task: str, mechanism: str) -> None:
    found = model_of(mechanism, task)
    shape = (found.layers, found.heads, found.dim, found.qkv, found.mlp, found.pooling, found.dropout)
    assert shape == OWN[task, mechanism] and found.head_hidden == (found.mlp,)


def test_what_has_no_released_configuration_gets_that_of_dense_without_its_dropped_weights() -> None:
    for task in PUBLISHED:
        wanted = model_of("dense", task).model_copy(update={"attention_dropout": 0.0})
        assert model_of("hst", task) == model_of("ernie_sparse", task) == wanted


def test_data_are_cut_and_split_as_there() -> None:
    text = plan.make("dense", "text", protocol=PROTOCOL).task.options
    assert (text.max_length, text.validation) == (1_000, "test")
    assert plan.make("dense", "image", protocol=PROTOCOL).task.options.validation == "last"
    listops = plan.make("dense", "listops", protocol=PROTOCOL).task.options
    assert (listops.examples, listops.min_length, listops.max_length) == (100_000, 500, 2_000)


def test_mechanisms_have_their_quirks() -> None:
    options = {
        name: plan.make(name, "listops", protocol=PROTOCOL).mechanism.options for name in ("linear", "performer")
    }
    assert options["linear"].masks == "ignored" and options["performer"].kernel == "softmax"
    assert plan.make("performer", "text", protocol=PROTOCOL).mechanism.options.kernel == "relu"
    local = {task: plan.make("disjoint_local", task, protocol=PROTOCOL).mechanism.options for task in PUBLISHED}
    assert {task: one.block_size for task, one in local.items() if one.block_size == 64}.keys() == {
        "image", "pathfinder", "pathx",
    }  # fmt: skip
    assert all(one.groups == "comb" for one in local.values())


@pytest.mark.parametrize("task", PUBLISHED)
@pytest.mark.parametrize(
    "mechanism",
    [
        "dense",
        "bigbird",
        "longformer",
        "sparse_transformer",
        "disjoint_local",
        "performer",
        "linformer",
        "linear",
        "hst",
    ],
)
def test_every_model_of_the_table_can_be_built(mechanism: str, task: str) -> None:
    made = plan.make(mechanism, task, protocol=PROTOCOL)
    assert made.refusal is None
    model = assembly.build(made)
    assert 0 < model.count_parameters()[1] < model.count_parameters()[0]


@pytest.mark.parametrize(("mechanism", "task"), [("dense", "image"), ("linformer", "text"), ("bigbird", "pathfinder")])
def test_a_run_goes_through(
    mechanism: str, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "data"))
    samples = {"text": "imdb", "image": "cifar10_jpeg"}
    small = {"task.examples": 60} | ({"task.test_examples": 20} if task in samples else {})
    if task in samples:
        values = {"max_length": 1_000, "validation": "test"} if task == "text" else {"validation": "last"}
        source = request.getfixturevalue("test_data") / samples[task]
        prepared(task, source, **values, examples=60, test_examples=20)
    steps = {"budget.steps": 3, "budget.eval_every": 2, "budget.batch": 8}
    record = attnbench.run(mechanism, task, protocol=PROTOCOL, options=small | steps, results=tmp_path / "results")
    assert record.quality is not None, record.reason
    assert (record.quality.selected_on, record.quality.best_step) == ("last step", 3)
    assert record.spec.protocol.name.startswith("lra-2021-") and len(record.curve) == 2


# --- the switches


def test_zeros_are_masked_wherever_they_stand_when_asked() -> None:
    rows = [[0, 7, 0, 9], [0, 0, 0, 0]]
    split = Split([Ragged(pa.chunked_array([pa.array(rows, pa.list_(pa.uint8()))]))], np.zeros(2, dtype=np.int64))
    masks = {}
    for mask_zeros in (False, True):
        made = Batches(split, question_of(Classify(2)), Padding(mask_zeros=mask_zeros), False, 4)
        masks[mask_zeros] = made.collate([0, 1]).documents[0][1]
    assert masks[False] is None and masks[True] is not None
    assert masks[True].tolist() == [[False, True, False, True], [False] * 4]


def test_padding_stays_masked_beside_zeros() -> None:
    rows = [[5, 0, 3], [4]]
    split = Split([Ragged(pa.chunked_array([pa.array(rows, pa.list_(pa.uint8()))]))], np.zeros(2, dtype=np.int64))
    made = Batches(split, question_of(Classify(2)), Padding(mask_zeros=True), True, 4)
    mask = made.collate([0, 1]).documents[0][1]
    assert mask is not None and mask.tolist() == [[True, False, True], [True, False, False]]


def test_who_ignores_masks_is_refused_where_zeros_are_masked() -> None:
    settings = {"padding.mask_zeros": True, "mechanism.masks": "ignored"}
    refusal = plan.make("linformer", "digits", settings=settings).refusal
    assert refusal is not None and "padding.mask_zeros=true" in refusal
    unmasked = {"padding.rule": "max", "padding.unmasked": True}
    assert plan.make("linformer", "digits", settings=settings | unmasked).refusal is None


THREE = Classify(3)


def model(mechanism: str = "dense", head: Any = THREE, **config: Any) -> Model:
    contract = registry.load("mechanisms", mechanism).object
    values = {"dim": 8, "mlp": 8, "dropout": 0.0, **config}
    found = Model(ModelConfig(**values), contract, contract.options(), head, vocab=6, max_length=12)
    initialise(found, 0)
    return found.double()


TOKENS = torch.arange(24).view(2, 12) % 5 + 1


@pytest.mark.parametrize("qkv", [4, 16])
@pytest.mark.parametrize("bias", [True, False])
def test_queries_keys_and_values_have_a_width_of_their_own(qkv: int, bias: bool) -> None:
    """Against softmax attention written out for one layer's rows, in float64."""
    found = model(qkv=qkv, qkv_bias=bias, layers=1)
    mixer = found.encoder.layers[0].mixer
    assert mixer.qkv.weight.shape == (3 * qkv, 8) and mixer.out.weight.shape == (8, qkv)
    assert (mixer.qkv.bias is not None) == (mixer.out.bias is not None) == bias
    x = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, k, v = (part.unflatten(-1, (2, qkv // 2)) for part in mixer.qkv(x).split(qkv, dim=-1))
    weights = torch.einsum("bihd,bjhd->bhij", q, k).div((qkv // 2) ** 0.5).softmax(-1)
    wanted = torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2) @ mixer.out.weight.T
    torch.testing.assert_close(mixer(x), wanted + (mixer.out.bias if bias else 0))


@pytest.mark.parametrize("mechanism", ["bigbird", "hst", "longformer", "nsa", "moba", "linear", "nystromformer"])
def test_mechanisms_take_another_width(mechanism: str) -> None:
    found = model(mechanism, qkv=16, qkv_bias=False)
    found([(TOKENS, None)], None).sum().backward()
    assert all(p.grad is not None for p in found.parameters() if p.numel() and p.requires_grad)
    assert not any(name.endswith(("qkv.bias", "mixer.out.bias")) for name, _ in found.named_parameters())


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(AttnbenchError, match="heads=2 does not divide qkv=7"):
        MixerShape(dim=8, heads=2, length=4, qkv=7)
    assert MixerShape(dim=7, heads=2, length=4, qkv=8).head_dim == 4


@pytest.mark.parametrize("config", [{"qkv": 16}, {"qkv_bias": False}, {"attention_dropout": 0.1}])
def test_what_a_foreign_module_could_not_heed_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "still.py"
    path.write_text(
        "from torch import nn\nfrom attnbench import Mechanism\n"
        "class Still(nn.Module):\n    def forward(self, x, mask=None, layout=None):\n        return x\n"
        "MECHANISM = Mechanism(summary='', paper='', build=lambda shape, options: Still())\n"
    )
    contract = registry.load("mechanisms", str(path)).object
    with pytest.raises(Unsupported, match=next(iter(config))):
        Model(ModelConfig(dim=8, **config), contract, contract.options(), Classify(2), vocab=4, max_length=8)


def test_who_holds_no_weights_cannot_drop_them() -> None:
    with pytest.raises(Unsupported, match="drops attention weights, and this mechanism holds none"):
        model("bigbird", attention_dropout=0.1)


def test_dropped_weights_are_the_stateless_mask_on_softmax_attention() -> None:
    """By hand: softmax, the mask of (seed, step, site), a sum over values; rows that see nothing give 0."""
    stream = Stream(seed=3, step=5)
    drop = WeightDropout(0.4, "site", stream)
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 6, 4, dtype=torch.float64, generator=generator).unbind(0)
    q.requires_grad_()
    visible = torch.rand(2, 1, 6, 6, generator=generator) > 0.3
    visible[0, 0, 2] = False
    found = attention(q, k, v, visible, drop=drop)
    keep = drop(torch.ones(2, 3, 6, 6, dtype=torch.float64))
    assert set(keep.unique().tolist()) == {0.0, 1 / 0.6}
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / 2
    e = scores.exp() * visible
    wanted = torch.einsum("bhij,bhjd->bhid", e / e.sum(-1, keepdim=True).clamp(min=1e-300) * keep, v)
    torch.testing.assert_close(found, wanted)
    assert found[0, :, 2].abs().max() == 0
    found.sum().backward()
    assert q.grad is not None and q.grad.isfinite().all()
    causal = attention(q, k, v, causal=True, drop=drop)
    assert causal.isfinite().all() and not torch.equal(causal, attention(q, k, v, drop=drop))
    torch.testing.assert_close(causal[:, :, :1], v[:, :, :1] * keep[:, :, :1, :1])


@pytest.mark.parametrize(("columns", "moved"), [(9, 12), (4, 4)])
def test_a_shift_moves_the_mask_of_weights_with_the_content(columns: int, moved: int) -> None:
    """Of rows, and of columns where these are rows too; two special rows stand in front of the shift."""
    stream = Stream(specials=2)
    drop = WeightDropout(0.4, "site", stream)
    plain = drop(torch.ones(2, 3, 9, columns))
    stream.shift = 3
    shifted = drop(torch.ones(2, 3, 12, moved))
    kept = [0, 1, *range(5, 12)]
    assert torch.equal(shifted[:, :, kept][..., kept if columns == 9 else slice(None)], plain)
    assert len(plain.unique()) == 2


def test_weights_are_dropped_in_training_alone_at_the_rate_and_anew_each_step() -> None:
    stream = Stream()
    drop = WeightDropout(0.25, "site", stream)
    ones = torch.ones(8, 4, 50, 50)
    first = drop(ones)
    share = (first == 0).double().mean().item()
    assert abs(share - 0.25) < 4 * (0.25 * 0.75 / ones.numel()) ** 0.5
    assert torch.equal(first, drop(ones))
    stream.step = 1
    assert not torch.equal(first, drop(ones))
    assert torch.equal(drop.eval()(ones), ones)


def test_a_head_with_hidden_layers_is_linear_relu_linear() -> None:
    found = model(head_hidden=(5, 4)).eval()
    rows, _, _ = found.encoder(TOKENS, None)
    x = rows.mean(1)
    for number in (0, 2):
        layer = found.head.get_submodule(f"linear.{number}")
        x = (x @ layer.weight.T + layer.bias).clamp(min=0)
    last = found.head.get_submodule("linear.4")
    assert [tuple(found.head.get_submodule(f"linear.{n}").weight.shape) for n in (0, 2, 4)] == [(5, 8), (4, 5), (3, 4)]
    torch.testing.assert_close(found([(TOKENS, None)], None), x @ last.weight.T + last.bias)


def test_a_pair_is_the_two_vectors_alone_and_first_is_the_first_token() -> None:
    found = model(head=Match(3), match="pair", pooling="first").eval()
    other = TOKENS.flip(1)
    a, b = (found.encoder(tokens, None)[0][:, 0] for tokens in (TOKENS, other))
    assert found.encoder.specials.global_rows.numel() == 0
    linear = found.head.linear
    wanted = a @ linear.weight[:, :8].T + b @ linear.weight[:, 8:].T + linear.bias
    torch.testing.assert_close(found([(TOKENS, None), (other, None)], None), wanted)


def test_a_pair_of_one_document_is_refused() -> None:
    with pytest.raises(AttnbenchError, match="digits is not about two documents"):
        plan.make("dense", "digits", settings={"model.match": "pair"})


@pytest.mark.parametrize("select", ["best", "last"])
def test_the_step_that_is_tested_is_the_best_or_the_last(
    select: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path))
    settings = {**TINY, "budget.steps": 6, "budget.eval_every": 2, "budget.select": select}
    made = plan.make("dense", "digits", settings=settings)
    found = data.load(made.task.plugin, made.task.options)
    job = assembly.job_of(made, found, assembly.build(made), "cpu")
    trainer, scores = Trainer(job, quiet=True), iter([0.5, 0.9, 0.7])
    weights = []
    original = trainer.predict

    def judged(split: str) -> Any:
        weights.append(trainer.model.head.linear.weight.detach().clone())
        predictions = original(split)
        return replace(predictions, scores=np.full(len(predictions.scores), next(scores)))

    monkeypatch.setattr(trainer, "predict", judged)
    trainer.fit()
    monkeypatch.undo()
    trainer.test()
    best = {"best": 1, "last": 2}[select]
    assert (trainer.best_step, round(trainer.best_validation, 9)) == ((4, 0.9), (6, 0.7))[best - 1]
    assert torch.equal(trainer.model.head.linear.weight, weights[best])
