"""`model.causal`: the encoder asks every mechanism for its causal form, and nothing leaks from later tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from factories import portable_mechanisms

from attnbench import plan, registry
from attnbench.config import ModelConfig
from attnbench.contracts import Cell, Classify
from attnbench.errors import Unsupported
from attnbench.model import Encoder, Model
from attnbench.options import field_names, parse
from attnbench.randomness import initialise

Call = Callable[..., tuple[int, str, str]]
LENGTH, VOCAB = 29, 11
FEW = {"block_size": 4, "window": 3, "stride": 5, "columns": 2, "top_n": 4}


def able(*causal: str) -> list[str]:
    loaded = {name: registry.load("mechanisms", name).object for name in portable_mechanisms()}
    return [name for name, thing in loaded.items() if not isinstance(thing, Cell) and thing.causal in causal]


FORMS: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in able("capable", "only")]
FORMS += [("disjoint_local", {"groups": "comb"}), ("sparse_transformer", {"first_column": True})]


def model(name: str, options: dict[str, Any], **config: Any) -> Model:
    """In float64, after a few steps of training, so that no weight is as it was drawn."""
    mechanism = registry.load("mechanisms", name).object
    few = {key: value for key, value in FEW.items() if key in field_names(mechanism.options)}
    settings = {"dim": 12, "heads": 2, "layers": 3, "mlp": 16, "dropout": 0.0, "causal": True} | config
    made = Model(
        ModelConfig(**settings), mechanism, parse(name, mechanism.options, few | options), Classify(3), VOCAB, LENGTH
    )
    initialise(made, 0)
    made.double()
    optimiser = torch.optim.Adam(made.parameters(), lr=0.01)
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(VOCAB, (4, LENGTH), generator=generator)
        optimiser.zero_grad()
        F.cross_entropy(made([(tokens, None)], torch.zeros(4)), torch.arange(4) % 3).backward()
        optimiser.step()
    return made.eval()


def rows(encoder: Encoder, tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    found, _, layout = encoder(tokens, mask)
    assert layout.specials == 0
    return found


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize(("name", "options"), FORMS, ids=str)
def test_no_later_token_reaches_an_earlier_row(name: str, options: dict[str, Any], positions: str) -> None:
    encoder = model(name, options, positions=positions).encoder
    tokens = torch.arange(2 * LENGTH).view(2, LENGTH) * 7 % VOCAB
    holes = torch.ones(2, LENGTH, dtype=torch.bool)
    holes[0, 5:9] = holes[1, 20:] = False
    for mask in (None, holes):
        clean = rows(encoder, tokens, mask)
        for first in (1, 4, 13, LENGTH - 1):
            changed = tokens.clone()
            changed[:, first:] = (tokens[:, first:] + 3) % VOCAB
            found = rows(encoder, changed, mask)
            torch.testing.assert_close(found[:, :first], clean[:, :first], atol=1e-12, rtol=0)
            assert not torch.allclose(found[0, first], clean[0, first]), "the row itself changes"


@pytest.mark.parametrize("name", able("capable"))
def test_without_it_later_tokens_do_reach_earlier_rows(name: str) -> None:
    encoder = model(name, {}, causal=False).encoder
    tokens = torch.arange(28)[None] % VOCAB  # whole blocks of 4
    changed = tokens.clone()
    changed[:, -1] += 1
    difference = (rows(encoder, tokens, None) - rows(encoder, changed, None)).abs().amax(-1)[0]
    assert difference[-2] > 1e-6


@pytest.mark.parametrize("name", able("no"))
def test_what_has_no_causal_form_is_refused_by_name(name: str) -> None:
    made = plan.make(name, "recall", settings={"model.causal": True})
    assert made.refusal == f"{name} has no causal form, and model.causal=true asks for one"
    assert plan.make(name, "recall").refusal is None


@pytest.mark.parametrize("name", able("capable", "only"))
def test_what_has_one_is_not(name: str) -> None:
    assert plan.make(name, "recall", settings={"causal": True}).refusal is None


@pytest.mark.parametrize("name", able("capable"))
def test_a_row_in_front_cannot_be_causal(name: str) -> None:
    with pytest.raises(Unsupported, match="pooling=cls puts a row in front"):
        model(name, {}, pooling="cls")
    assert model(name, {}, pooling="last", layers=1).encoder.specials.tokens.globals == 0
    assert model(name, {}, pooling="cls", causal=False, layers=1).encoder.specials.tokens.globals == 1


TINY = [
    "task.train=200", "task.validation=40", "task.test=60", "task.length=16", "task.distance=2", "model.dim=16",
    "model.mlp=16", "model.layers=1", "budget.steps=2", "budget.eval_every=2", "budget.warmup=1", "budget.batch=8",
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-m", "hst"], "hst has no causal form, and model.causal=true asks for one"),
        (["-m", "ernie_sparse"], "hst has no causal form, and model.causal=true asks for one"),
        (["-m", "sliding"], None),
    ],
)
def test_the_command_says_it_in_one_line_and_keeps_a_record(
    call: Call, tmp_path: Path, arguments: list[str], reason: str | None
) -> None:
    settings = [word for pair in (*TINY, "model.causal=true") for word in ("--set", pair)]
    code, out, err = call("run", *arguments, "-t", "recall", "--json", *settings)
    record = json.loads(out)
    assert record["reason"] == reason if reason else record["status"] in ("ok", "trivial", "not_above_chance")
    assert code == (1 if reason else 0) and (record["status"] == "unsupported") == bool(reason)
    assert record["spec"]["model"]["causal"] is True and "Traceback" not in err
    assert Path(record["path"]).is_file() and json.loads(Path(record["path"]).read_text())["status"] == record["status"]
    if reason:
        shown = call("run", *arguments, "-t", "recall", *settings)
        assert sum(reason in line for line in (shown[1] + shown[2]).splitlines()) == 1
