"""Longformer's global rows with projections of their own, against the definition and against transformers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import reference
import torch
import truth
from torch import Tensor, nn

import attnbench

DIM, HEADS, WINDOW = 12, 3, 8


def longformer(weights: Mapping[str, Tensor], x_BNC: Tensor, real_BN: np.ndarray, globals: int) -> Tensor:
    """Section 3.1: two sets of projections; the second is used by global rows, for all rows they see."""
    length = x_BNC.shape[1]
    x_BNC = torch.where(torch.from_numpy(real_BN)[..., None], x_BNC, 0.0)
    x = torch.cat([weights["specials.global_rows"].expand(len(x_BNC), -1, -1), x_BNC], dim=1)
    real = torch.from_numpy(np.concatenate([np.ones((len(x), globals), dtype=bool), real_BN], axis=1))
    near = torch.from_numpy(truth.pairs(lambda h, q, k: abs(q - k) <= WINDOW, HEADS, length, globals))
    y = reference.softmax_attention(*reference.project(weights, "mixer.", x, HEADS), near & real[:, None, None, :])
    everything = real[:, None, None, :].expand_as(y[..., :1].expand(-1, -1, -1, globals + length))
    rows = reference.softmax_attention(*reference.project(weights, "mixer.global_", x, HEADS), everything)
    y = torch.cat([rows[:, :, :globals], y[:, :, globals:]], dim=2)
    return reference.join(weights, "mixer.", list(y.unbind(1)))


def build(length: int, globals: int) -> nn.Module:
    return attnbench.build_mechanism(
        "longformer", dim=DIM, heads=HEADS, length=length, window=WINDOW, global_tokens=globals, block_size=16
    ).double()


@pytest.mark.parametrize("globals", [1, 3])
@pytest.mark.parametrize("length", truth.LENGTHS)
def test_global_rows_have_projections_of_their_own(length: int, globals: int) -> None:
    truth.check(build(length, globals), lambda w, x, real: longformer(w, x, real, globals), length, globals)


def test_a_row_put_in_front_by_the_encoder_is_global_too() -> None:
    from attnbench import registry
    from attnbench.config import ModelConfig
    from attnbench.model import Encoder
    from attnbench.options import parse

    mechanism = registry.load("mechanisms", "longformer").object
    for globals, pooling, separate in ((0, "mean", False), (0, "cls", True), (2, "cls", True)):
        options = parse("longformer", mechanism.options, {"global_tokens": globals})
        encoder = Encoder(ModelConfig(dim=8, pooling=pooling), mechanism, options, vocab=5, max_length=9)
        assert all((layer.mixer.global_qkv is not None) == separate for layer in encoder.layers)
        rows, _, layout = encoder(torch.zeros(1, 9, dtype=torch.int64), None)
        assert layout.globals == globals + (pooling == "cls") and rows.isfinite().all()


@pytest.mark.parametrize("globals", [0, 1, 4])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 300])
def test_it_equals_transformers(length: int, globals: int) -> None:
    """Up to single precision, in which that implementation takes its softmax whatever its input."""
    pytest.importorskip("transformers", reason="transformers is not installed; it comes with the extra hf")
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=DIM, num_attention_heads=HEADS, attention_window=[2 * WINDOW], attention_probs_dropout_prob=0.0
    )
    theirs, ours = LongformerSelfAttention(config, 0).double().eval(), build(length, globals)
    for prefix in ("", "_global"):
        linear = ours.mixer.global_qkv if prefix else ours.mixer.qkv
        if linear is None:
            continue
        for name, weight, bias in zip(
            ("query", "key", "value"), linear.weight.chunk(3), linear.bias.chunk(3), strict=True
        ):
            getattr(theirs, name + prefix).load_state_dict({"weight": weight, "bias": bias})

    mask = torch.from_numpy(truth.real_tokens(length))
    x, real, layout = ours.specials.insert(truth.content(length, DIM), mask)
    rows = -(-layout.rows // (2 * WINDOW)) * 2 * WINDOW  # whole chunks are what it takes
    x_padded = nn.functional.pad(x, (0, 0, 0, rows - layout.rows))
    is_masked = nn.functional.pad(~real, (0, rows - layout.rows), value=True)
    is_global = (torch.arange(rows) < globals).expand(3, -1)
    y = theirs(
        x_padded,
        attention_mask=torch.where(is_masked, -10_000.0, torch.where(is_global, 10_000.0, 0.0)),
        is_index_masked=is_masked,
        is_index_global_attn=is_global,
        is_global_attn=globals > 0,
    )[0]
    wanted = ours.mixer.out(y[:, : layout.rows])
    torch.testing.assert_close(ours.mixer(x, real, layout)[real], wanted[real], atol=1e-6, rtol=1e-6)
