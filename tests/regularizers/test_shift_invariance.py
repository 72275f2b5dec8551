"""In which mechanisms a shift of the input changes nothing, and that SAR is refused where it could do nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from factories import portable_mechanisms

from attnbench import plan, registry
from attnbench.config import ModelConfig
from attnbench.contracts import Cell
from attnbench.errors import AttnbenchError
from attnbench.model import Encoder
from attnbench.options import field_names, parse
from attnbench.randomness import initialise

LENGTH, VOCAB = 16, 9
FEW = {
    "block_size": 4, "window": 2, "stride": 3, "columns": 1, "rank": 3, "landmarks": 3, "features": 5, "top_n": 4,
    "compress_block": 2, "compress_stride": 2, "top_k": 2,
}  # fmt: skip
NAMES = [name for name in portable_mechanisms() if not isinstance(registry.load("mechanisms", name).object, Cell)]
FORMS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES),
    ("sparse_transformer", {"pattern": "strided", "columns": None}),
    ("sparse_transformer_bidirectional", {"pattern": "strided", "columns": None, "factors": "interleaved"}),
    ("longformer", {"dilation": 2, "dilated_heads": 1, "window_right": 1}),
    ("performer", {"kernel": "relu", "projection": "none", "features": 256}),
    ("bigbird", {"globals": "blocks"}),
    ("hst", {"representatives": "pooled"}),
]


def shortest_to_longest() -> torch.Tensor:
    """(4, LENGTH) bool: one token, some, a hole in the middle, all."""
    mask = torch.arange(LENGTH) < torch.tensor([1, 9, LENGTH, LENGTH])[:, None]
    mask[2, 5:8] = False
    return mask


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize(("name", "options"), FORMS, ids=str)
def test_a_shift_changes_nothing_where_that_is_declared_and_only_there(
    name: str, options: dict[str, Any], positions: str
) -> None:
    """Row by row in float64."""
    mechanism = registry.load("mechanisms", name).object
    few = {key: value for key, value in FEW.items() if key in field_names(mechanism.options)}
    chosen = parse(name, mechanism.options, few | options)
    config = ModelConfig(dim=12, mlp=16, dropout=0, positions=positions)  # type: ignore[arg-type]
    encoder = Encoder(config, mechanism, chosen, VOCAB, LENGTH)
    initialise(encoder, 0)
    encoder.double().eval()
    tokens, mask = torch.arange(4 * LENGTH).view(4, LENGTH) * 5 % VOCAB, shortest_to_longest()
    with torch.no_grad():
        rows, _, layout = encoder(tokens, mask)
        moves = []
        for shift in (1, 2, 3):
            moved, _, moved_layout = encoder(tokens, mask, shift)
            difference = moved[:, moved_layout.specials + shift :] - rows[:, layout.specials :]
            moves.append(float(difference[mask].abs().max()))
    assert max(moves) < 1e-10 if mechanism.shift_invariant(chosen) else max(moves) > 1e-6, moves


def sar(mechanism: str, **settings: Any) -> plan.Plan:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return plan.make(mechanism, "recall", regularizer="sar", settings=given)


@pytest.mark.parametrize(
    ("mechanism", "settings"),
    [
        ("dense", {}),
        ("longformer", {}),
        ("linear", {"sar__alpha": 0}),
        ("performer", {"sar__shift": "1..3"}),
        ("nystromformer", {"sar__dropout": "shared", "model__dropout": 0.1}),
        ("sparse_transformer", {"pattern": "strided"}),
    ],
    ids=str,
)
def test_sar_is_refused_where_its_passes_could_not_differ(mechanism: str, settings: dict[str, Any]) -> None:
    with pytest.raises(AttnbenchError) as caught:
        sar(mechanism, **settings)
    said = f"sar: a shift of the input changes nothing in {mechanism}, and its passes differ in dropout masks only"
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("mechanism", "settings"),
    [
        ("dense", {"model__dropout": 0.1}),  # R-Drop, by another name
        ("dense", {"sar__mode": "positions"}),
        ("sliding", {"sar__dropout": "off", "model__dropout": 0.1}),
        ("sparse_transformer", {"pattern": "fixed"}),
        ("linformer", {}),
        ("hst", {}),
    ],
    ids=str,
)
def test_sar_is_planned_where_they_could(mechanism: str, settings: dict[str, Any]) -> None:
    assert [choice.plugin.name for choice in sar(mechanism, **settings).regularizers] == ["sar"]
