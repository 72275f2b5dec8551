"""Mechanisms that ignore masks, or count the padded length, by their options: who is refused, and who runs unmasked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import attnbench
from attnbench import plan, refusals, registry
from attnbench.config import ModelConfig, Padding
from attnbench.contracts import Classify
from attnbench.errors import AttnbenchError, Unsupported
from attnbench.model import Encoder, Model
from attnbench.options import parse
from attnbench.randomness import initialise
from attnbench.record import Record

PADDED = """
import datasets
import numpy as np
from attnbench.contracts import Classify, Source, Task

def prepare(options, preparation):
    made = {}
    for number, (name, count) in enumerate({"train": 200, "validation": 40, "test": 200}.items()):
        generator = np.random.default_rng(number)
        tokens = [generator.integers(0, 8, generator.integers(3, 33)) for _ in range(count)]
        made[name] = datasets.Dataset.from_dict({"tokens": tokens, "label": [int(row[0]) % 2 for row in tokens]})
    return datasets.DatasetDict(made)

TASK = Task(summary="x", source=Source(citation="x", licence="x"), head=lambda o: Classify(2), padded=True,
            vocab=lambda o: 8, max_length=lambda o: 32, prepare=prepare)
"""
SMALL: dict[str, Any] = {
    "model.dim": 16, "model.mlp": 16, "model.layers": 1,
    "budget.steps": 3, "budget.eval_every": 3, "budget.warmup": 1, "budget.batch": 8,
}  # fmt: skip
TO_MAX = {"padding.rule": "max"}
UNMASKED = TO_MAX | {"padding.unmasked": True}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("task") / "uneven.py"
    path.write_text(PADDED)
    return str(path)


def refusal(mechanism: str, task: str, settings: dict[str, Any], regularizer: str | None = None) -> str | None:
    return plan.make(mechanism, task, regularizer=regularizer, settings=settings).refusal


IGNORING: list[tuple[str, dict[str, Any]]] = [
    ("linear", {"preset": "lra"}),
    ("linformer", {"masks": "ignored"}),
    ("performer", {"masks": "ignored"}),
    ("xformers_blocksparse", {"block_size": 16}),
]
BOUND = [("linear", {"normalised": False}), ("disjoint_local", {"block_size": 8, "groups": "comb"})]


@pytest.mark.parametrize(("mechanism", "options"), IGNORING, ids=str)
def test_who_ignores_masks_is_refused_unless_the_protocol_lets_it_run(
    task: str, mechanism: str, options: dict[str, Any]
) -> None:
    for settings in ({}, TO_MAX):
        said = refusal(mechanism, task, options | settings)
        assert said is not None and said.startswith(f"{mechanism} ignores masks") and "padding.unmasked=true" in said
    assert refusal(mechanism, task, options | UNMASKED) is None
    shifted = refusal(mechanism, task, options | UNMASKED | {"model.dropout": 0.1}, regularizer="sar")
    assert shifted is not None and "shifts the input behind masked rows" in shifted, "SAR stays refused"
    assert refusal(mechanism, "recall", options) is None, "all its examples have one length"


@pytest.mark.parametrize(("mechanism", "options"), BOUND, ids=str)
def test_who_counts_the_padded_length_is_padded_to_the_maximum(
    task: str, mechanism: str, options: dict[str, Any]
) -> None:
    for settings in ({}, {"padding.rule": "grouped"}):
        said = refusal(mechanism, task, options | settings)
        assert said is not None and said.startswith(f"{mechanism} depends on the padded length") and "rule=max" in said
    assert refusal(mechanism, task, options | TO_MAX) is None
    said = refusal(mechanism, task, options | TO_MAX, regularizer="sar")
    assert said is not None and f"the output of {mechanism} depends on the padded length" in said


@pytest.mark.parametrize("mechanism", ["linear", "linformer", "performer", "disjoint_local", "dense"])
def test_by_default_nothing_is_ignored_or_refused(task: str, mechanism: str) -> None:
    assert refusal(mechanism, task, {"block_size": 8} if mechanism == "disjoint_local" else {}) is None


def run(folder: Path, mechanism: str, task: str, options: dict[str, Any]) -> Record:
    return attnbench.run(mechanism, task, results=folder, options=SMALL | options)


@pytest.mark.parametrize(("mechanism", "options"), [*IGNORING, *BOUND], ids=str)
def test_it_runs_unmasked_and_the_record_says_so(
    tmp_path: Path, task: str, mechanism: str, options: dict[str, Any]
) -> None:
    if mechanism == "xformers_blocksparse":
        pytest.importorskip("xformers", reason="xformers is not installed")
    assert run(tmp_path, mechanism, task, options).status == "unsupported"
    record = run(tmp_path, mechanism, task, options | UNMASKED)
    assert record.quality is not None, record.reason
    assert record.spec.padding == {"rule": "max", "unmasked": True, "mask_zeros": False}
    assert record.spec.protocol.changes["padding.unmasked"] is True


@pytest.mark.parametrize("rule", ["batch", "grouped", None])
def test_unmasked_needs_one_length_for_all(task: str, rule: str | None) -> None:
    settings = {"padding.unmasked": True} | ({"padding.rule": rule} if rule else {})
    with pytest.raises(AttnbenchError, match="padding: unmasked=true needs rule=max") as caught:
        plan.make("linear", task, settings=settings)
    assert "\n" not in str(caught.value)
    assert Padding(rule="max", unmasked=True).unmasked


def encoder(mechanism: str, **options: Any) -> Encoder:
    contract = registry.load("mechanisms", mechanism).object
    chosen = parse(mechanism, contract.options, options, contract.presets)
    found = Encoder(ModelConfig(dim=8, mlp=8, dropout=0), contract, chosen, vocab=9, max_length=12)
    initialise(found, 0)
    return found.double().eval()


def test_padding_is_content_for_it_but_what_stood_there_is_not() -> None:
    """Rows of zeros in front of the first layer: their number counts, the ids in them do not."""
    mixed = encoder("linear", masks="ignored")
    tokens, mask = torch.arange(12)[None] % 9, torch.arange(12)[None] < 7
    rows, real, _ = mixed(tokens, mask)
    other = tokens.where(mask, 5)
    assert torch.equal(mixed(other, mask)[0][:, :7], rows[:, :7]) and torch.equal(real, mask)
    alone = mixed(tokens[:, :7], None)[0]
    assert not torch.allclose(rows[:, :7], alone), "it sees the padding"
    honest = encoder("linear")
    torch.testing.assert_close(honest(tokens, mask)[0][:, :7], honest(tokens[:, :7], None)[0], atol=1e-12, rtol=0)


def test_a_model_that_hands_no_masks_asks_its_path_for_none() -> None:
    contract = registry.load("mechanisms", "xformers_blocksparse").object
    chosen = parse("x", contract.options, {"block_size": 16})
    model = Model(ModelConfig(dim=16), contract, chosen, Classify(2), vocab=9, max_length=32)
    reason = model.refusal(32, True, torch.float32, torch.device("cpu"))
    assert reason is None or "package xformers" in reason
    assert model.encoder.layers[0].mixer.refusal(
        model.encoder.specials.insert(torch.zeros(1, 32, 16), None)[2], True, torch.float32, torch.device("cpu")
    )


# --- plugins of others


PLUGIN = "from attnbench import Mechanism\nfrom torch import nn\n"
PLUGIN += "MECHANISM = Mechanism(summary='s', paper='p', {0}, build=lambda s, o: nn.Identity())\n"


@pytest.mark.parametrize("what", ["ignores_masks", "counts_length", "shift_invariant"])
def test_what_follows_from_options_is_a_function_of_them(tmp_path: Path, what: str) -> None:
    path = tmp_path / "odd.py"
    path.write_text(PLUGIN.format(f"{what}=True"))
    with pytest.raises(AttnbenchError, match=f"{what} is a function of the options, got True"):
        plan.make(str(path), "recall")


@pytest.mark.parametrize("what", ["ignores_masks", "counts_length", "shift_invariant"])
def test_a_function_that_fails_is_one_line_that_names_it(tmp_path: Path, what: str) -> None:
    path = tmp_path / "odd.py"
    path.write_text(PLUGIN.format(f"{what}=lambda o: o.missing"))
    with pytest.raises(AttnbenchError) as caught:
        refusals.check_runnable(plan.make(str(path), "recall", regularizer="sar"))
    assert str(caught.value).startswith(f"mechanism odd: {what}: AttributeError") and "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["ignores_masks", "counts_length"])
def test_options_of_others_are_asked_too(tmp_path: Path, field: str) -> None:
    path = tmp_path / "odd.py"
    path.write_text(PLUGIN.format(f"{field}=lambda o: True"))
    with pytest.raises(Unsupported, match="shifts the input"):
        refusals.check_runnable(plan.make(str(path), "recall", regularizer="sar"))
