"""Mechanisms that are a set of pairs, against that set written out pair by pair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
import truth

import attnbench
from attnbench import registry
from attnbench.contracts import Layout, MixerShape, Tokens
from attnbench.errors import AttnbenchError, Unsupported
from attnbench.options import parse
from attnbench.sparse import BlockWindow, Pattern, end_blocks, visible
from attnbench.sparse.mixer import SparseMixer

DIM, HEADS = 8, 4


def strided(factor: int) -> truth.Rule:
    """A1 or A2 of Child et al. 2019, section 4.3, without direction; stride 7."""
    return (lambda h, q, k: abs(q - k) <= 7) if factor == 1 else (lambda h, q, k: (q - k) % 7 == 0)


def fixed(factor: int) -> truth.Rule:
    """Segments of 7, of which the last 2 are columns."""
    return (lambda h, q, k: q // 7 == k // 7) if factor == 1 else (lambda h, q, k: k % 7 >= 5)


def either(of: Any) -> truth.Rule:
    return lambda h, q, k: of(1)(h, q, k) or of(2)(h, q, k)


def by_half(of: Any) -> truth.Rule:
    return lambda h, q, k: of(1 if h < HEADS // 2 else 2)(h, q, k)


def past(rule: truth.Rule) -> truth.Rule:
    return lambda h, q, k: k <= q and rule(h, q, k)


STRIDED = {"pattern": "strided", "stride": 7, "block_size": 4}
FIXED = {"pattern": "fixed", "stride": 7, "columns": 2, "block_size": 4}
DILATED = {"window": 5, "dilation": 3, "dilated_heads": 3, "global_projections": "shared", "block_size": 4}

#: id: (mechanism, options, causal on request, may head h see the pair (q, k)?)
CASES: dict[str, tuple[str, dict[str, Any], bool, truth.Rule]] = {
    "disjoint": ("disjoint_local", {"block_size": 5}, False, lambda h, q, k: q // 5 == k // 5),
    "disjoint, causal": ("disjoint_local", {"block_size": 5}, True, past(lambda h, q, k: q // 5 == k // 5)),
    "local, causal": ("local", {"block_size": 5}, True, past(lambda h, q, k: abs(q // 5 - k // 5) <= 1)),
    "sliding, causal": ("sliding", {"window": 6, "block_size": 4}, True, past(lambda h, q, k: q - k <= 6)),
    "dense, causal": ("dense", {}, True, past(lambda h, q, k: True)),
    "longformer": (
        "longformer",
        {"window": 6, "global_tokens": 2, "global_projections": "shared", "block_size": 4},
        False,
        lambda h, q, k: abs(q - k) <= 6,
    ),
    "longformer, dilated": (
        "longformer",
        DILATED,
        False,
        lambda h, q, k: abs(q - k) <= 5 if h == 0 else abs(q - k) <= 15 and (q - k) % 3 == 0,
    ),
    **{
        f"{name}, {options['pattern']}, {factors}": (
            name,
            options | {"factors": factors},
            False,
            direction(made),
        )
        for name, direction in (("sparse_transformer", past), ("sparse_transformer_bidirectional", lambda rule: rule))
        for options, of in ((STRIDED, strided), (FIXED, fixed))
        for factors, made in (("merged", either(of)), ("split", by_half(of)), ("interleaved", of(1)))
    },
}


@pytest.mark.parametrize("length", truth.LENGTHS)
@pytest.mark.parametrize("case", CASES)
def test_it_is_attention_over_the_pairs_of_the_definition(case: str, length: int) -> None:
    name, options, causal, rule = CASES[case]
    mixer = attnbench.build_mechanism(name, dim=DIM, heads=HEADS, length=length, causal=causal, **options).double()
    globals = mixer.specials.tokens.globals
    seen = truth.pairs(rule, HEADS, length, globals)
    truth.check(mixer, lambda w, x, real: reference.mixer(w, x, real, HEADS, seen, globals), length, globals)


def built(name: str, options: dict[str, Any], **shape: Any) -> SparseMixer:
    mechanism = registry.load("mechanisms", name).object
    found = mechanism.build(
        MixerShape(dim=DIM, heads=HEADS, length=40, **shape), parse(name, mechanism.options, options)
    )
    assert isinstance(found, SparseMixer)
    return found


@pytest.mark.parametrize("name", ["sparse_transformer", "sparse_transformer_bidirectional"])
def test_interleaved_factors_take_turns_by_layer(name: str) -> None:
    for options, of in ((STRIDED, strided), (FIXED, fixed)):
        for layer in range(4):
            mixer = built(name, options | {"factors": "interleaved"}, layer=layer)
            seen = visible(mixer.pattern.topology, 40).numpy()
            assert (seen == truth.pairs(of(layer % 2 + 1), 1, 40)[0]).all()


def test_a_window_of_longformer_grows_with_the_layer() -> None:
    for layer, window in enumerate([2, 6, 18, 40, 40]):
        mixer = built("longformer", {"window": 2, "window_growth": 3}, layer=layer)
        seen = visible(mixer.pattern.topology, 30).numpy()
        assert (seen == truth.pairs(lambda h, q, k, w=window: abs(q - k) <= w, 1, 30)[0]).all()


def test_a_row_before_the_first_column_sees_nothing_there() -> None:
    """Its heads of the second factor give 0, so only the first half of the output matrix counts."""
    mixer = attnbench.build_mechanism(
        "sparse_transformer", dim=DIM, heads=HEADS, length=20, **FIXED, factors="split"
    ).double()
    x = truth.content(20, DIM)
    before = mixer(x)
    with torch.no_grad():
        mixer.mixer.out.weight[:, DIM // 2 :] = 0
    after = mixer(x)
    assert torch.equal(after[:, :5], before[:, :5]) and not torch.allclose(after[:, 5], before[:, 5])


# --- causal


def names(*causal: str) -> list[str]:
    loaded = {name: registry.load("mechanisms", name).object for name in attnbench.list_mechanisms()}
    return [name for name, thing in loaded.items() if getattr(thing, "causal", None) in causal]


def test_who_can_be_causal() -> None:
    assert {"dense", "local", "sliding", "disjoint_local"} <= set(names("capable"))
    assert "sparse_transformer" in names("only")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", names("capable", "only"))
def test_no_later_row_changes_an_earlier_output(name: str, masked: bool) -> None:
    length = 70
    mixer = attnbench.build_mechanism(name, dim=DIM, heads=HEADS, length=length, causal=True).double()
    x, mask = truth.content(length, DIM), torch.from_numpy(truth.real_tokens(length)) if masked else None
    clean = mixer(x, mask)
    for row in (1, 13, 63, 64, 69):
        changed = x.clone()
        changed[:, row:] = 5 * torch.randn(3, length - row, DIM, generator=torch.Generator().manual_seed(row))
        y = mixer(changed, mask)
        torch.testing.assert_close(y[:, :row], clean[:, :row], atol=1e-12, rtol=0)
        assert not torch.allclose(y[2, row], clean[2, row])


@pytest.mark.parametrize("name", names("no"))
def test_what_is_not_causal_refuses_to_be(name: str) -> None:
    with pytest.raises(Unsupported, match="cannot be causal"):
        attnbench.build_mechanism(name, dim=DIM, heads=HEADS, length=8, causal=True)


def test_rows_that_all_see_cannot_be_causal() -> None:
    pattern = Pattern(BlockWindow(4, 1))
    shape = MixerShape(dim=DIM, heads=HEADS, length=8, causal=True)
    for tokens in (Tokens(globals=1), Tokens(reps_per_block=1, block_size=4)):
        with pytest.raises(AttnbenchError, match="special rows in front"):
            SparseMixer(replace(shape, tokens=tokens), pattern)
    for open_pattern in (replace(pattern, content_globals=end_blocks), replace(pattern, broadcast=True)):
        with pytest.raises(ValueError, match="cannot be causal"):
            SparseMixer(shape, open_pattern)


# --- the way in


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("longformer", {"dilation": 2}, "set both"),
        ("longformer", {"dilated_heads": 2}, "set both"),
        ("longformer", {"dilation": 2, "dilated_heads": 5}, "dilated_heads=5 of 4 heads"),
        ("longformer", {"window": 0, "window_growth": 2}, "can neither grow"),
        ("sparse_transformer", {"pattern": "strided", "columns": 2}, "leave it out"),
        ("sparse_transformer", {"stride": 4, "columns": 5}, "columns=5"),
        ("disjoint_local", {"block_size": 0}, "greater than 0"),
    ],
)
def test_what_cannot_be_or_changes_nothing_is_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(AttnbenchError, match=said):
        attnbench.build_mechanism(name, dim=DIM, heads=HEADS, length=8, **options)


def test_split_factors_need_two_heads() -> None:
    with pytest.raises(AttnbenchError, match="two heads"):
        attnbench.build_mechanism("sparse_transformer", dim=DIM, heads=1, length=8, factors="split")


def test_a_mixer_without_a_layout_takes_all_rows_for_content() -> None:
    mixer = built("longformer", {"window": 2}, tokens=Tokens(globals=1)).double()
    x = truth.content(9, DIM)
    torch.testing.assert_close(mixer(x), mixer(x, None, Layout(Tokens(), 9)))
