"""HST against an independent dense float64 reference, and the properties that its definition promises."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Drawn, Grid
from torch import Tensor, nn

import attnbench
from attnbench import registry
from attnbench.config import ModelConfig
from attnbench.contracts import Layout
from attnbench.errors import AttnbenchError
from attnbench.model import Encoder, SpecialTokens, StandaloneMixer, mixer_shape
from attnbench.options import as_json, parse
from attnbench.sparse import RandomBlocks
from attnbench.sparse.dense import visibility

HST = registry.load("mechanisms", "hst").object
EXACT = 1e-10
LENGTHS = (1, 2, 63, 64, 65, 127, 1000, 1025)

#: every value of every option at least once
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "literal": {"preset": "literal"},
    "add": {"merge": "add", "window_blocks": 5},
    "parallel": {"stage2_input": "parallel", "merge": "add", "stage2_norm": False, "global_tokens": 1},
    "pooled": {"representatives": "pooled", "global_tokens": 2},
    "rich": {"reps_per_block": 2, "global_tokens": 2, "random_blocks": 2, "seed": 3, "broadcast": True},
    "split": {"head_split": 0.5, "share_projections": False, "random_blocks": 1},
    "stage 1 alone": {"reps_per_block": 0, "global_tokens": 1, "random_blocks": 1},
}


def build(dim: int, heads: int, length: int, **options: Any) -> nn.Module:
    """A standalone HST in float64 whose biases are not zero."""
    chosen = parse("hst", HST.options, options, HST.presets)
    shape = mixer_shape(HST, chosen, dim=dim, heads=heads, length=length)
    mixer = StandaloneMixer(HST.build(shape, chosen), SpecialTokens(dim, shape.tokens), dim, length).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return mixer


def drawn_blocks(mixer: nn.Module, length: int) -> Drawn | None:
    """The random block pairs the module drew, as data."""
    parts = getattr(mixer.mixer.pattern.topology, "parts", ())
    found = [part.block_map(length) for part in parts if isinstance(part, RandomBlocks)]
    return Drawn.of(found[0]) if found else None


def three_examples(length: int) -> np.ndarray:
    """(3, length) bool: padding in the middle and behind, one token alone, all real."""
    real = np.ones((3, length), dtype=bool)
    real[0, length // 3 : length // 2] = False
    real[0, length - length // 5 :] = False
    real[1, 1:] = False
    return real


def rows_and_gradients(y: Tensor, real: np.ndarray, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """The real rows of y, and the gradient of a fixed random weighting of them for every leaf."""
    rows = y[torch.from_numpy(real)]
    weighting = torch.randn(rows.shape, generator=torch.Generator().manual_seed(2), dtype=rows.dtype)
    grads = torch.autograd.grad((rows * weighting).sum(), list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), grads, strict=True)
    found = {f"gradient of {name}": torch.zeros_like(leaf) if grad is None else grad for (name, leaf), grad in pairs}
    return {"rows": rows.detach()} | found


def compare(mixer: nn.Module, heads: int, real: np.ndarray, use_mask: bool = True) -> None:
    """All rows, forward and gradient, against the reference."""
    options, (batch, length) = mixer.mixer.options, real.shape
    dim = mixer.mixer.shape.dim
    x = torch.randn(batch, length, dim, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    rows = reference.real_rows(reference.hst_grid(options, length), real)
    ours = {"x": x.clone().requires_grad_()} | dict(mixer.named_parameters())
    mask = torch.from_numpy(real) if use_mask else None
    found = rows_and_gradients(mixer(ours["x"], mask, keep_special=True), rows, ours)
    theirs = {"x": x.clone().requires_grad_()} | reference.leaves(mixer)
    y = reference.hst(theirs, theirs["x"], real, options, heads, drawn_blocks(mixer, length))
    wanted = rows_and_gradients(y, rows, theirs)
    for what, value in wanted.items():
        torch.testing.assert_close(
            found[what], value, atol=1e-9, rtol=1e-9, msg=lambda text, what=what: f"{what}: {text}"
        )


@pytest.mark.parametrize("path", ["gather", "dense"])
@pytest.mark.parametrize("length", LENGTHS[:6])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_reference_on_every_row(variant: str, length: int, path: str) -> None:
    mixer = build(4, 2, length, path=path, **VARIANTS[variant])
    compare(mixer, 2, three_examples(length))


@pytest.mark.parametrize(
    ("variant", "length", "path"),
    [
        pytest.param(variant, length, path, marks=() if fast else pytest.mark.slow)
        for variant, length, path in itertools.product(VARIANTS, LENGTHS[6:], ["gather", "dense"])
        for fast in [path == "gather" and (variant in ("default", "literal") or (variant, length) == ("rich", 1025))]
    ],
)
def test_equals_the_reference_on_every_row_of_long_inputs(variant: str, length: int, path: str) -> None:
    mixer = build(4, 2, length, path=path, **VARIANTS[variant])
    compare(mixer, 2, three_examples(length))


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_reference_without_a_mask(variant: str) -> None:
    mixer = build(6, 2, 13, block_size=4, **VARIANTS[variant])
    compare(mixer, 2, np.ones((2, 13), dtype=bool), use_mask=False)


@st.composite
def drawn_options(draw: st.DrawFn) -> dict[str, Any]:
    """Any combination that is not refused."""
    options = {
        "block_size": draw(st.integers(1, 5)),
        "window_blocks": draw(st.sampled_from([1, 3, 5])),
        "global_tokens": draw(st.integers(0, 2)),
        "random_blocks": draw(st.integers(0, 2)),
        "path": draw(st.sampled_from(["gather", "dense"])),
    }
    if options["random_blocks"]:
        options["seed"] = draw(st.integers(0, 3))
    form = draw(st.sampled_from(["none", "inserted", "inserted", "pooled"]))
    if form == "none":
        return options | {"reps_per_block": 0}
    options |= {
        "representatives": form,
        "stage2_norm": draw(st.booleans()),
        "share_projections": draw(st.booleans()),
        "head_split": draw(st.sampled_from([0.0, 0.25, 0.5])),
    }
    if form == "inserted":
        options["reps_per_block"] = draw(st.integers(1, 2))
        options["broadcast"] = draw(st.booleans())
        merges = [("add", "sequential"), ("add", "parallel"), ("replace", "sequential")]
        options["merge"], options["stage2_input"] = draw(st.sampled_from(merges))
    return options


@st.composite
def drawn_cases(draw: st.DrawFn) -> tuple[dict[str, Any], int, int, np.ndarray]:
    """Options, heads, head width, (batch, length) bool of real tokens."""
    options = draw(drawn_options())
    heads = 4 if options.get("head_split") else draw(st.integers(1, 3))
    length, batch = draw(st.integers(1, 17)), draw(st.integers(1, 3))
    real = np.array(
        draw(st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=batch, max_size=batch))
    )
    return options, heads, draw(st.integers(1, 3)), real


@settings(max_examples=120)
@given(drawn_cases())
def test_any_combination_of_options_equals_the_reference(case: tuple[dict[str, Any], int, int, np.ndarray]) -> None:
    options, heads, width, real = case
    compare(build(heads * width, heads, real.shape[1], **options), heads, real)


@pytest.mark.slow
@settings(max_examples=2000, derandomize=False)
@given(drawn_cases())
def test_any_combination_of_options_equals_the_reference_at_length(
    case: tuple[dict[str, Any], int, int, np.ndarray],
) -> None:
    options, heads, width, real = case
    compare(build(heads * width, heads, real.shape[1], **options), heads, real)


@pytest.mark.parametrize("variant", ["default", "pooled", "rich", "split"])
def test_rotary_positions_equal_the_reference(variant: str) -> None:
    """Queries and keys of both stages turn by a row's position, that of a representative being its block's middle."""
    options = parse("hst", HST.options, {"block_size": 4, **VARIANTS[variant]}, HST.presets)
    shape = mixer_shape(HST, options, dim=12, heads=2, length=12, rotary=True)
    mixer = StandaloneMixer(HST.build(shape, options), SpecialTokens(12, shape.tokens), 12, 12).double()
    x = torch.randn(3, 12, 12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    real = three_examples(12)
    rows = torch.from_numpy(reference.real_rows(reference.hst_grid(options, 12), real))
    y = mixer(x, torch.from_numpy(real), keep_special=True)[rows]
    weights, drawn = reference.leaves(mixer), drawn_blocks(mixer, 12)
    torch.testing.assert_close(
        y, reference.hst(weights, x, real, options, 2, drawn, rotary=True)[rows], atol=1e-5, rtol=1e-5
    )
    assert (y - reference.hst(weights, x, real, options, 2, drawn)[rows]).abs().max() > 1e-3


# --- what must not matter


@pytest.mark.parametrize("path", ["gather", "dense"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_content_of_padding_changes_nothing(variant: str, path: str) -> None:
    length = 11
    mixer = build(4, 2, length, block_size=4, path=path, **VARIANTS[variant])
    real = torch.from_numpy(three_examples(length))
    rows = torch.from_numpy(reference.real_rows(reference.hst_grid(mixer.mixer.options, length), real.numpy()))
    x = torch.randn(3, length, 4, dtype=torch.float64)
    clean = mixer(x, real, keep_special=True)[rows]
    for filler in (1e30, float("inf"), float("nan")):
        leaf = x.masked_fill(~real[..., None], filler).requires_grad_()
        y = mixer(leaf, real, keep_special=True)[rows]
        torch.testing.assert_close(y, clean, atol=EXACT, rtol=0)
        mixer.zero_grad()
        y.square().sum().backward()
        assert leaf.grad is not None and leaf.grad.isfinite().all()
        assert (leaf.grad[~real] == 0).all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in mixer.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("length", [1, 3, 4, 5, 9])
def test_padded_length_behind_changes_nothing(variant: str, length: int) -> None:
    mixer = build(4, 2, 20, block_size=4, **VARIANTS[variant])
    x = torch.randn(2, length, 4, dtype=torch.float64)
    alone = mixer(x, keep_special=True)
    for padded in (length + 1, 12, 20):
        longer = torch.nn.functional.pad(x, (0, 0, 0, padded - length), value=float("nan"))
        mask = torch.arange(padded).expand(2, -1) < length
        y = mixer(longer, mask, keep_special=True)
        rows = torch.from_numpy(reference.real_rows(reference.hst_grid(mixer.mixer.options, padded), mask.numpy()))
        torch.testing.assert_close(y[rows].view_as(alone), alone, atol=EXACT, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_other_examples_of_the_batch_change_nothing(variant: str) -> None:
    length = 11
    mixer = build(4, 2, length, block_size=4, **VARIANTS[variant])
    real = torch.from_numpy(three_examples(length))
    x = torch.randn(3, length, 4, dtype=torch.float64)
    together = mixer(x, real, keep_special=True)
    for i in range(3):
        alone = mixer(x[i : i + 1], real[i : i + 1], keep_special=True)
        torch.testing.assert_close(together[i : i + 1], alone, atol=EXACT, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_example_without_a_real_token_is_finite_and_hurts_nobody(variant: str) -> None:
    mixer = build(4, 2, 9, block_size=4, **VARIANTS[variant])
    real = torch.ones(2, 9, dtype=torch.bool)
    real[0] = False
    x = torch.randn(2, 9, 4, dtype=torch.float64, requires_grad=True)
    y = mixer(x, real, keep_special=True)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None and x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in mixer.parameters())
    torch.testing.assert_close(y[1:], mixer(x[1:], keep_special=True), atol=EXACT, rtol=0)


# --- reach


def reach(
    layers: int, length: int, monkeypatch: pytest.MonkeyPatch | None = None, **options: Any
) -> tuple[np.ndarray, Grid]:
    """(R, R) bool: does a change of the column's row at the start change the row after all layers? By autograd."""
    chosen = parse("hst", HST.options, {"block_size": 3, **options}, HST.presets)
    config = ModelConfig(dim=8, heads=2, layers=layers, mlp=8, dropout=0.0, positions="none")
    encoder = Encoder(config, HST, chosen, vocab=3, max_length=length).double()
    if monkeypatch:
        for layer in encoder.layers:
            monkeypatch.setattr(layer.mixer, "_stage2", lambda reps, *rest: torch.zeros_like(reps))
    grid = reference.hst_grid(chosen, length)
    rows = torch.randn(1, len(grid.rows()), 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rows.requires_grad_()
    layout, x = Layout(encoder.specials.tokens, length), rows
    for layer in encoder.layers:
        x = layer(x, None, layout)
    weighting = torch.randn(8, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = []
    for row in range(x.shape[1]):
        (grad,) = torch.autograd.grad(x[0, row] @ weighting, rows, retain_graph=True)
        found.append((grad[0].abs().sum(-1) > 1e-12).numpy())
    return np.stack(found), grid


LENGTH = 26  # nine blocks of 3, the last one short: far more than two windows reach


@pytest.mark.parametrize("window_blocks", [1, 3, 5])
@pytest.mark.parametrize("reps_per_block", [1, 2])
def test_one_layer_shows_a_token_its_window_and_the_representatives_there_only(
    window_blocks: int, reps_per_block: int
) -> None:
    found, grid = reach(1, LENGTH, window_blocks=window_blocks, reps_per_block=reps_per_block)
    rows = grid.rows()
    wanted = np.array([[abs(query[1] - key[1]) <= window_blocks // 2 for key in rows] for query in rows])
    np.testing.assert_array_equal(found[grid.specials :], wanted[grid.specials :])


STAGE2 = [
    {"merge": "add", "stage2_norm": True},
    {"merge": "add", "stage2_norm": False},
    {"merge": "replace", "stage2_norm": True},
    {"merge": "replace", "stage2_norm": False},
    {"share_projections": False},
    {"head_split": 0.5},
]


@pytest.mark.parametrize("options", STAGE2, ids=str)
@pytest.mark.parametrize("window_blocks", [1, 3])
def test_two_layers_show_every_token_everything(window_blocks: int, options: dict[str, Any]) -> None:
    found, grid = reach(2, LENGTH, window_blocks=window_blocks, **options)
    assert found[grid.specials :, grid.specials :].all()


@pytest.mark.parametrize("window_blocks", [1, 3])
def test_two_layers_without_stage_2_show_two_windows_only(window_blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    without_reps, grid = reach(2, LENGTH, window_blocks=window_blocks, reps_per_block=0)
    rows = grid.rows()
    wanted = np.array([[abs(query[1] - key[1]) <= 2 * (window_blocks // 2) for key in rows] for query in rows])
    np.testing.assert_array_equal(without_reps, wanted)
    silenced, grid = reach(2, LENGTH, monkeypatch, window_blocks=window_blocks)
    np.testing.assert_array_equal(silenced[grid.specials :, grid.specials :], wanted)


def test_parallel_stage_2_needs_a_third_layer() -> None:
    """Its representatives meet before they have seen a token."""
    two, grid = reach(2, LENGTH, stage2_input="parallel", merge="add")
    assert not two[grid.specials :, grid.specials :].all()
    three, _ = reach(3, LENGTH, stage2_input="parallel", merge="add")
    assert three[grid.specials :, grid.specials :].all()


def test_pooled_representatives_and_global_tokens_show_everything_sooner_or_through_a_bottleneck() -> None:
    pooled, grid = reach(1, LENGTH, representatives="pooled")
    assert pooled[grid.specials :, grid.specials :].all()
    through_global, grid = reach(2, LENGTH, reps_per_block=0, global_tokens=1)
    assert through_global[grid.specials :, grid.specials :].all()


def test_broadcast_shows_a_token_all_representatives_at_once() -> None:
    found, grid = reach(1, LENGTH, broadcast=True, window_blocks=1)
    rows = grid.rows()
    assert found[grid.specials :, : grid.specials].all()
    wanted = np.array([[query[1] == key[1] for key in rows] for query in rows])
    np.testing.assert_array_equal(found[grid.specials :, grid.specials :], wanted[grid.specials :, grid.specials :])


# --- identities


@pytest.mark.parametrize("window_blocks", [1, 3])
def test_without_stage_2_and_representatives_it_is_local(window_blocks: int) -> None:
    mixer = build(6, 2, 13, block_size=4, window_blocks=window_blocks, reps_per_block=0)
    local = attnbench.build_mechanism(
        "local", dim=6, heads=2, length=13, block_size=4, window_blocks=window_blocks
    ).double()
    local.load_state_dict(mixer.state_dict())
    real = torch.from_numpy(three_examples(13))
    x = torch.randn(3, 13, 6, dtype=torch.float64)
    assert torch.equal(mixer(x, real), local(x, real))


def parameters(mixer: nn.Module) -> int:
    return sum(p.numel() for p in mixer.parameters())


@pytest.mark.parametrize("reps_per_block", [1, 2])
@pytest.mark.parametrize("global_tokens", [0, 3])
def test_parameters_are_those_of_dense_and_the_special_embeddings(global_tokens: int, reps_per_block: int) -> None:
    shape: dict[str, Any] = {"dim": 12, "heads": 3, "length": 40}
    dense = parameters(attnbench.build_mechanism("dense", **shape))
    options: dict[str, Any] = {"global_tokens": global_tokens, "reps_per_block": reps_per_block}
    specials = (global_tokens + reps_per_block) * 12
    assert parameters(attnbench.build_mechanism("hst", **shape, **options)) == dense + specials
    apart = attnbench.build_mechanism("hst", **shape, **options, share_projections=False)
    assert parameters(apart) == 2 * dense + specials
    pooled = attnbench.build_mechanism("hst", **shape, global_tokens=global_tokens, representatives="pooled")
    assert parameters(pooled) == dense + global_tokens * 12


@pytest.mark.parametrize("length", [1, 5, 16, 63, 64, 65, 130])
@pytest.mark.parametrize("options", [
    {"block_size": 64, "window_blocks": 3, "reps_per_block": 1},
    {"block_size": 16, "window_blocks": 1, "reps_per_block": 2, "global_tokens": 3},
    {"block_size": 5, "window_blocks": 5, "reps_per_block": 1, "global_tokens": 1},
], ids=str)  # fmt: skip
def test_score_entries_are_those_of_the_design(options: dict[str, Any], length: int) -> None:
    mixer = build(4, 2, length, **options)
    grid = reference.hst_grid(mixer.mixer.options, length)
    closed = reference.score_entries(grid, options["window_blocks"])
    stage2 = (grid.reps_per_block * grid.blocks) ** 2
    seen = reference.visible((reference.Window(options["window_blocks"]),), grid, 1)
    assert closed == seen.sum() + stage2
    layout = Layout(mixer.specials.tokens, length)
    engine = visibility(mixer.mixer.pattern, None, layout, 1, torch.device("cpu"))
    assert closed == int(engine.sum()) + stage2


def test_score_entries_at_4096_tokens_are_the_published_figure() -> None:
    assert reference.score_entries(Grid(0, 1, 64, 4096), 3) == (64 * 3 - 2) * 65 * 65 + 64 * 64


def test_random_blocks_are_the_same_in_training_and_evaluation_and_when_built_again() -> None:
    mixer, again = (build(4, 2, 40, block_size=4, random_blocks=2, seed=5) for _ in range(2))
    other = build(4, 2, 40, block_size=4, random_blocks=2, seed=6)
    x = torch.randn(1, 40, 4, dtype=torch.float64)
    assert torch.equal(mixer.train()(x), mixer.eval()(x))
    assert torch.equal(mixer(x), again(x))
    assert not torch.allclose(mixer(x), other(x))


# --- options


CHANGED_MERGE = {"add": "replace", "replace": "add"}[HST.options().merge]
REFUSED = [
    ({"stage2_input": "parallel", "merge": "replace"}, "never see a token"),
    ({"reps_per_block": 0, "merge": CHANGED_MERGE}, "merge"),
    ({"reps_per_block": 0, "stage2_input": "parallel", "merge": "add"}, "stage2_input"),
    ({"reps_per_block": 0, "stage2_norm": False}, "stage2_norm"),
    ({"reps_per_block": 0, "share_projections": False}, "share_projections"),
    ({"reps_per_block": 0, "head_split": 0.5}, "head_split"),
    ({"reps_per_block": 0, "broadcast": True}, "broadcast"),
    ({"reps_per_block": 0, "representatives": "pooled"}, "representatives"),
    ({"representatives": "pooled", "reps_per_block": 2}, "reps_per_block"),
    ({"representatives": "pooled", "merge": CHANGED_MERGE}, "merge"),
    ({"representatives": "pooled", "stage2_input": "parallel", "merge": "add"}, "stage2_input"),
    ({"representatives": "pooled", "broadcast": True}, "broadcast"),
    ({"seed": 3}, "random_blocks=0"),
    ({"window_blocks": 2}, "odd"),
    ({"window_blocks": 0}, "window_blocks"),
    ({"block_size": 0}, "block_size"),
    ({"head_split": 1.0}, "head_split"),
    ({"head_split": -0.1}, "head_split"),
    ({"global_tokens": -1}, "global_tokens"),
    ({"merge": "mean"}, "merge"),
    ({"preset": "paper"}, "literal"),
    ({"windw_blocks": 3}, "window_blocks"),
]


@pytest.mark.parametrize(("options", "says"), REFUSED, ids=[str(options) for options, _ in REFUSED])
def test_dead_and_wrong_options_are_refused_with_a_reason(options: dict[str, Any], says: str) -> None:
    with pytest.raises(AttnbenchError) as refusal:
        parse("hst", HST.options, options, HST.presets)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("share", "heads"), [(0.1, 2), (0.9, 2), (0.5, 1)])
def test_a_head_split_that_leaves_a_stage_without_heads_is_refused(share: float, heads: int) -> None:
    with pytest.raises(AttnbenchError, match="both stages need one"):
        attnbench.build_mechanism("hst", dim=4, heads=heads, length=8, head_split=share)


def test_presets_are_starting_points_that_single_options_override() -> None:
    literal = parse("hst", HST.options, {"preset": "literal"}, HST.presets)
    assert (literal.window_blocks, literal.merge, literal.stage2_norm) == (1, "replace", False)
    assert parse("hst", HST.options, {"preset": "ours"}, HST.presets) == HST.options()
    mixed = parse("hst", HST.options, {"preset": "literal", "merge": "add"}, HST.presets)
    assert (mixed.window_blocks, mixed.merge) == (1, "add")


@settings(max_examples=50)
@given(drawn_options())
def test_options_survive_json(values: dict[str, Any]) -> None:
    options = parse("hst", HST.options, values, HST.presets)
    assert parse("hst", HST.options, json.loads(json.dumps(as_json(options)))) == options


def test_options_may_be_text() -> None:
    text = {"window_blocks": "1", "stage2_norm": "false", "head_split": "0.5", "merge": "replace"}
    options = parse("hst", HST.options, text, HST.presets)
    assert options == HST.options(window_blocks=1, stage2_norm=False, head_split=0.5, merge="replace")
