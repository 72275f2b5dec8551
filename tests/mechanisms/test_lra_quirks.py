"""What Long Range Arena and code after it do otherwise than the papers: named options, against explicit N x N forms.

Shape letters: B batch, H heads, N content rows, D head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import reference
import torch
import truth
from torch import Tensor, nn

import attnbench
from attnbench import registry
from attnbench.contracts import MixerShape
from attnbench.errors import AttnbenchError
from attnbench.options import as_json, parse
from attnbench.sparse import RandomBlocks, Union, visible
from attnbench.sparse.mixer import SparseMixer

DIM, HEADS = 8, 4


def build(name: str, length: int, heads: int = HEADS, **options: Any) -> nn.Module:
    return attnbench.build_mechanism(name, dim=DIM, heads=heads, length=length, **options).double()


def options_of(name: str, **values: Any) -> Any:
    mechanism = registry.load("mechanisms", name).object
    return parse(f"mechanism {name}", mechanism.options, values, mechanism.presets)


# --- patterns


def comb(length: int, block: int = 5) -> truth.Rule:
    """The released reshape of positions, tail added, to (block, columns): a column is a group."""
    extra = block - length % block
    grid = np.arange(length + extra).reshape(block, -1)
    column = {int(position): c for c in range(grid.shape[1]) for position in grid[:, c]}
    return lambda h, q, k: column[q] == column[k]


def first_column(factor: int) -> truth.Rule:
    """Segments of 7, of which the last 2 and the first are columns."""
    return (lambda h, q, k: q // 7 == k // 7) if factor == 1 else (lambda h, q, k: k % 7 >= 5 or k % 7 == 0)


def merged(h: int, q: int, k: int) -> bool:
    return first_column(1)(h, q, k) or first_column(2)(h, q, k)


def split(h: int, q: int, k: int) -> bool:
    return first_column(1 if h < HEADS // 2 else 2)(h, q, k)


def past(rule: truth.Rule) -> truth.Rule:
    return lambda h, q, k: k <= q and rule(h, q, k)


FIXED = {"stride": 7, "columns": 2, "first_column": True, "block_size": 4}
UNEVEN = {"window": 2, "window_right": 9, "global_projections": "shared", "block_size": 4}

#: id: (mechanism, options, causal on request, from the length: may head h see the pair (q, k)?)
PATTERNS: dict[str, tuple[str, dict[str, Any], bool, Callable[[int], truth.Rule]]] = {
    "combs": ("disjoint_local", {"block_size": 5, "groups": "comb"}, False, comb),
    "combs, causal": ("disjoint_local", {"block_size": 5, "groups": "comb"}, True, lambda n: past(comb(n))),
    "combs, dense path": ("disjoint_local", {"block_size": 5, "groups": "comb", "path": "dense"}, False, comb),
    "first column": ("sparse_transformer_bidirectional", FIXED, False, lambda n: merged),
    "first column, split": ("sparse_transformer_bidirectional", FIXED | {"factors": "split"}, False, lambda n: split),
    "first column, causal": ("sparse_transformer", FIXED, False, lambda n: past(merged)),
    "uneven window": ("longformer", UNEVEN, False, lambda n: lambda h, q, k: -2 <= k - q <= 9),
    "uneven window, one-sided": (
        "longformer",
        UNEVEN | {"window_right": 0, "global_tokens": 0},
        False,
        lambda n: lambda h, q, k: -2 <= k - q <= 0,
    ),
    "uneven window, dilated": (
        "longformer",
        UNEVEN | {"dilation": 3, "dilated_heads": HEADS},
        False,
        lambda n: lambda h, q, k: -6 <= k - q <= 27 and (k - q) % 3 == 0,
    ),
}


@pytest.mark.parametrize("length", truth.LENGTHS)
@pytest.mark.parametrize("case", PATTERNS)
def test_it_is_attention_over_the_pairs_of_the_definition(case: str, length: int) -> None:
    name, options, causal, rule = PATTERNS[case]
    mixer = attnbench.build_mechanism(name, dim=DIM, heads=HEADS, length=length, causal=causal, **options).double()
    globals = mixer.specials.tokens.globals
    seen = truth.pairs(rule(length), HEADS, length, globals)
    truth.check(mixer, lambda w, x, real: reference.mixer(w, x, real, HEADS, seen, globals), length, globals)


@pytest.mark.parametrize("length", [5, 20, 23, 24, 25])
def test_a_comb_follows_the_length_of_the_call(length: int) -> None:
    """Built for 40 rows, as an encoder with room for longer inputs."""
    mixer = build("disjoint_local", 40, block_size=5, groups="comb")
    seen = truth.pairs(comb(length), HEADS, length)
    truth.check(mixer, lambda w, x, real: reference.mixer(w, x, real, HEADS, seen, 0), length)


@pytest.mark.parametrize("length", [2000, 2001])  # without and with a CLS row
def test_the_first_token_of_listops_groups_with_41_and_82(length: int) -> None:
    mixer = mixer_of("disjoint_local", length, preset="lra")
    (group,) = mixer.groups_at(length)
    row = visible(group.pattern.topology, length)[0, 0].nonzero().flatten()
    assert row.tolist() == list(range(0, length, 41))
    assert group.pattern.topology.block_map(length).sum(-1).max() <= 3, "three blocks of 50 at most, not all 41"


def mixer_of(name: str, length: int, layer: int = 0, **options: Any) -> SparseMixer:
    chosen = options_of(name, **options)
    found = registry.load("mechanisms", name).object.build(
        MixerShape(dim=DIM, heads=HEADS, length=length, layer=layer), chosen
    )
    assert isinstance(found, SparseMixer)
    return found


def test_an_uneven_window_grows_on_both_sides() -> None:
    for layer, (left, right) in enumerate([(1, 2), (3, 6), (9, 18), (27, 30)]):
        mixer = mixer_of("longformer", 30, layer, window=1, window_right=2, window_growth=3, global_tokens=0)
        seen = visible(mixer.pattern.topology, 30).numpy()
        assert (seen == truth.pairs(lambda h, q, k, a=left, b=right: -a <= k - q <= b, 1, 30)[0]).all()


# --- bigbird


def drawn(mixer: SparseMixer, length: int) -> Tensor:
    """(H, K, K) bool: the random part."""
    topology = mixer.pattern.topology
    assert isinstance(topology, Union)
    (found,) = [part.block_map(length) for part in topology.parts if isinstance(part, RandomBlocks)]
    return found


@pytest.mark.parametrize("globals", ["tokens", "blocks"])
@pytest.mark.parametrize("within", [8, 11, 12, 31, 400])
def test_random_blocks_are_drawn_among_the_first_tokens(within: int, globals: str) -> None:
    """Blocks of 4 in 80 tokens; every block that may be drawn is, by one seed or another, and no other."""
    ever = torch.zeros(20, 20, dtype=torch.bool)
    able = truth.pairs(
        lambda h, q, k: abs(q - k) > 1 and 4 * (k + 1) <= within and not (globals == "blocks" and k == 0), 1, 20
    )[0, 0]
    for seed in range(30):
        options = {"block_size": 4, "random_blocks": 2, "random_within": within, "globals": globals, "seed": seed}
        found = drawn(mixer_of("bigbird", 80, **options), 80)
        assert (found.sum(-1).numpy() == np.minimum(2, able.sum(-1))).all()
        ever |= found.any(0)
    assert (ever.numpy() == able).all()


def test_a_limit_beyond_the_input_is_none() -> None:
    """And the default draws the graph that it always drew."""
    free, wide = (drawn(mixer_of("bigbird", 80, block_size=4, **more), 80) for more in ({}, {"random_within": 80}))
    assert torch.equal(free, wide) and free[:, :, 10:].any()


def test_bigbird_within_a_limit_is_attention_over_its_blocks() -> None:
    length, options = 50, {"block_size": 4, "random_blocks": 2, "random_within": 16, "global_tokens": 1}
    mixer = build("bigbird", length, **options)
    blocks = drawn(mixer.mixer, length).numpy()
    assert not blocks[:, :, 4:].any() and blocks[:, 10:].sum(-1).min() == 2
    seen = truth.pairs(lambda h, q, k: abs(q // 4 - k // 4) <= 1 or bool(blocks[h, q // 4, k // 4]), HEADS, length, 1)
    truth.check(mixer, lambda w, x, real: reference.mixer(w, x, real, HEADS, seen, 1), length, 1)


# --- masks ignored


IGNORING = [
    ("linear", {"masks": "ignored"}),
    ("linformer", {"rank": 5, "masks": "ignored"}),
    ("performer", {"features": 7, "masks": "ignored"}),
    ("performer", {"kernel": "relu", "projection": "none", "masks": "ignored"}),
]


@pytest.mark.parametrize(("name", "options"), IGNORING, ids=str)
def test_masks_ignored_means_that_padding_is_content(name: str, options: dict[str, Any]) -> None:
    x, mask = truth.content(24, DIM), torch.from_numpy(truth.real_tokens(24))
    mixer, honest = build(name, 24, **options), build(name, 24, **options | {"masks": "honoured"})
    contract, chosen = registry.load("mechanisms", name).object, options_of(name, **options)
    assert not contract.honours(chosen) and contract.honours(options_of(name, **options | {"masks": "honoured"}))
    assert torch.equal(mixer(x, mask), mixer(x)) and torch.equal(mixer(x), honest(x))
    changed = x.where(mask[..., None], 3.0)
    assert (mixer(changed, mask) - mixer(x, mask))[mask].abs().max() > 1e-3
    assert torch.equal(honest(changed, mask)[mask], honest(x, mask)[mask])


# --- forms


def explicit(weight_BHNN: np.ndarray, v_BHND: Tensor, real_BN: np.ndarray) -> np.ndarray:
    """The N x N product over real keys."""
    found: np.ndarray = (weight_BHNN * real_BN[:, None, None, :]) @ v_BHND.numpy()
    return found


def qkv(mixer: nn.Module, x: Tensor, mask: Tensor) -> list[Tensor]:
    weights = {name: value.detach() for name, value in mixer.state_dict().items()}
    return reference.project(weights, "mixer.", x.where(mask[..., None], 0.0), HEADS)


def joined(mixer: nn.Module, y_BHND: np.ndarray) -> Tensor:
    weights = {name: value.detach() for name, value in mixer.state_dict().items()}
    return reference.join(weights, "mixer.", list(torch.from_numpy(y_BHND).unbind(1)))


def elu_plus_one(x: Tensor) -> np.ndarray:
    found: np.ndarray = np.where(x.numpy() > 0, x.numpy() + 1, np.exp(x.numpy()))
    return found


@pytest.mark.parametrize("length", [1, 2, 13, 64])
def test_linear_without_a_normaliser_is_the_product_over_the_root_of_the_rows(length: int) -> None:
    """Rows of the call, padding included; the head width does not enter."""
    mixer = build("linear", 64, normalised=False)
    x, mask = truth.content(length, DIM), torch.from_numpy(truth.real_tokens(length))
    q, k, v = qkv(mixer, x, mask)
    weight = elu_plus_one(q) @ elu_plus_one(k).swapaxes(-1, -2) / length**0.5
    wanted = joined(mixer, explicit(weight, v, mask.numpy()))
    torch.testing.assert_close(mixer(x, mask), wanted, atol=1e-10, rtol=1e-10)


def test_its_scale_stays_where_the_normalised_one_falls() -> None:
    def spread(length: int, normalised: bool) -> float:
        mixer = build("linear", length, heads=1, normalised=normalised).mixer
        q, k, v = torch.randn(3, 32, 1, length, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return float(mixer.attend(q, k, v, None).std())

    assert spread(256, normalised=False) == pytest.approx(spread(64, normalised=False), rel=0.05)
    assert spread(256, normalised=True) == pytest.approx(spread(64, normalised=True) / 2, rel=0.05)
    assert spread(64, normalised=False) > 300 * spread(64, normalised=True)


def test_it_says_that_the_padded_length_counts() -> None:
    x = truth.content(9, DIM)
    mask = torch.arange(12).expand(3, -1) < 9
    for normalised in (True, False):
        mixer = build("linear", 12, normalised=normalised)
        padded = mixer(nn.functional.pad(x, (0, 0, 0, 3)), mask)[:, :9]
        assert torch.allclose(padded, mixer(x)) == normalised
        assert registry.load("mechanisms", "linear").object.is_bound(options_of("linear", normalised=normalised)) != (
            normalised
        )


@pytest.mark.parametrize("epsilon", [None, 0.0, 0.5])
@pytest.mark.parametrize("length", [1, 2, 13, 64])
def test_performer_without_a_projection_is_relu_of_queries_and_keys(length: int, epsilon: float | None) -> None:
    mixer = build("performer", 64, kernel="relu", projection="none", epsilon=epsilon)
    assert not list(mixer.buffers())
    x, mask = truth.content(length, DIM), torch.from_numpy(truth.real_tokens(length))
    q, k, v = qkv(mixer, x, mask)
    added = 1e-3 if epsilon is None else epsilon
    phi_q, phi_k = (np.maximum(rows.numpy(), 0) + added for rows in (q, k))
    weight = phi_q @ phi_k.swapaxes(-1, -2)
    total = (weight * mask.numpy()[:, None, None, :]).sum(-1, keepdims=True)
    share = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    torch.testing.assert_close(mixer(x, mask), joined(mixer, explicit(share, v, mask.numpy())), atol=1e-10, rtol=1e-10)


# --- presets


#: what the released configurations and code of Long Range Arena have
LRA: dict[str, dict[str, Any]] = {
    "bigbird": {"block_size": 64, "window_blocks": 3, "random_blocks": 3, "random_within": 1024, "globals": "blocks"},
    "disjoint_local": {"block_size": 50, "groups": "comb"},
    "linear": {"masks": "ignored", "normalised": True},
    "linformer": {"rank": 16, "sharing": "key-value", "masks": "ignored"},
    "longformer": {"window": 255, "window_right": 256, "window_growth": 1, "dilation": 1, "global_tokens": 0},
    "performer": {"kernel": "relu", "features": 256, "projection": "none", "masks": "ignored"},
    "sparse_transformer": {
        "pattern": "fixed", "stride": 50, "columns": 10, "first_column": True, "factors": "merged",
    },
}  # fmt: skip


def presets(name: str) -> Any:
    return getattr(registry.load("mechanisms", name).object, "presets", {})


def test_every_mechanism_of_the_benchmark_has_a_preset_with_its_values() -> None:
    assert {name for name in attnbench.list_mechanisms() if "lra" in presets(name)} == set(LRA)
    for name, wanted in LRA.items():
        assert as_json(options_of(name, preset="lra")).items() >= wanted.items(), name
        assert options_of(name) != options_of(name, preset="lra"), "a quirk is no default"
    assert options_of("disjoint_local", preset="lra-images").block_size == 64
    assert options_of("performer", preset="lra-listops").features == 2


def test_a_row_of_the_preset_sees_as_many_as_the_code_shows() -> None:
    """BigBird at 1088 rows: 8 of 17 blocks. Longformer: 512 tokens. Sparse Transformer: its mask, built as there."""
    bigbird = mixer_of("bigbird", 1088, preset="lra").pattern.topology.block_map(1088)
    assert (bigbird[:, 2:15].sum(-1) == 3 + 3).all(), "and two global blocks, which no other part shows"
    assert not bigbird[:, 3:14, 0].any() and not bigbird[:, 2:15, 16].any()
    window = visible(mixer_of("longformer", 1024, preset="lra").pattern.topology, 1024)[0, 500].nonzero().flatten()
    assert (int(window[0]), len(window), int(window[-1])) == (500 - 255, 512, 500 + 256)
    row = np.arange(300)
    left = row[None, :] % 50
    fixed = (row[:, None] // 50 == row[None, :] // 50) | (left == 0) | (left >= 40)
    seen = visible(mixer_of("sparse_transformer", 300, preset="lra").pattern.topology, 300)[0].numpy()
    assert ((seen & np.tri(300, dtype=bool)) == (fixed & np.tri(300, dtype=bool))).all()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("bigbird", {"random_within": 64, "random_blocks": 0}, "random_blocks=0"),
        ("bigbird", {"random_within": 63}, "leaves no block to draw; it takes at least 64"),
        ("bigbird", {"random_within": 127, "globals": "blocks"}, "at least 128"),
        ("bigbird", {"random_within": -1}, "greater than or equal to 0"),
        ("sparse_transformer", {"pattern": "strided", "first_column": True}, "leave it out"),
        ("sparse_transformer", {"stride": 4, "first_column": True}, "fewer columns than stride"),
        ("longformer", {"window_right": -1}, "greater than or equal to 0"),
        ("longformer", {"window": 0, "window_right": 0, "window_growth": 2}, "can neither grow"),
        ("disjoint_local", {"groups": "strided"}, "contiguous"),
        ("linear", {"masks": "no"}, "honoured"),
        ("linformer", {"masks": "no"}, "honoured"),
        ("performer", {"projection": "none"}, "kernel=softmax is made of random directions"),
        ("performer", {"projection": "none", "kernel": "relu", "features": 8}, "features must stay"),
        ("performer", {"projection": "none", "kernel": "relu", "seed": 1, "orthogonal": False}, "orthogonal and seed"),
    ],
    ids=str,
)
def test_what_cannot_be_or_changes_nothing_is_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(AttnbenchError, match=said):
        build(name, 8, **options)


def test_a_window_on_one_side_may_grow() -> None:
    assert options_of("longformer", window=0, window_right=2, window_growth=2).sides(2, 100) == (0, 8)
