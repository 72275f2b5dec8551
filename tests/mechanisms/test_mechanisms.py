"""What every mechanism owes, whoever wrote it, as far as it declares to honour it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import reference
import torch
import torch.nn.functional as F
from factories import portable_mechanisms
from torch import Tensor, nn

import attnbench
from attnbench import registry
from attnbench.config import ModelConfig
from attnbench.contracts import NO_TARGET, Cell, Classify, Head, Match, Mechanism, TagTokens
from attnbench.errors import AttnbenchError, UnknownName, Unsupported
from attnbench.model import Encoder, Model
from attnbench.options import field_names, parse
from attnbench.randomness import initialise

DIM, HEADS, LENGTH = 12, 2, 24
EXACT = 1e-10


def contract(name: str) -> Mechanism:
    """The mechanism, a cell's being the one it trains."""
    found = registry.load("mechanisms", name).object
    return contract(found.mechanism) if isinstance(found, Cell) else found


NAMES = portable_mechanisms()
MASKED = [name for name in NAMES if contract(name).honours_masks and not contract(name).length_bound]


def small(name: str) -> dict[str, Any]:
    """Options that make several blocks, or few rows in their place, of a short input."""
    names = field_names(contract(name).options)
    few = {"block_size": 4, "window": 3, "random_blocks": 1, "rank": 5, "features": 7, "landmarks": 5, "conv_kernel": 3}
    few |= {"stride": 5, "columns": 2}
    return {option: value for option, value in few.items() if option in names}


#: forms of a mechanism that take another way through its code
FORMS = [(name, small(name)) for name in NAMES] + [
    ("bigbird", {"block_size": 4, "globals": "blocks", "random_blocks": 1}),
    ("bigbird", {"block_size": 4, "random_blocks": 0, "global_tokens": 0}),
    ("hst", {"block_size": 4, "representatives": "pooled"}),
    ("hst", {"block_size": 4, "reps_per_block": 2, "global_tokens": 1, "broadcast": True}),
    ("hst", {"block_size": 4, "preset": "literal"}),
    ("hst", {"block_size": 4, "reps_per_block": 0}),
    ("linformer", {"rank": 5, "sharing": "none"}),
    ("linformer", {"rank": 5, "sharing": "key-value"}),
    ("performer", {"features": 7, "kernel": "relu", "orthogonal": False}),
    ("performer", {"features": 7, "epsilon": 0}),
    ("nystromformer", {"landmarks": 5, "exact_inverse": True, "conv_kernel": 0}),
    ("nystromformer", {}),
    ("moba", {"block_size": 5, "top_k": 1}),
    ("moba_bidirectional", {"block_size": 3, "top_k": 2}),
    ("nsa", {"block_size": 4, "window": 3, "top_n": 3}),
    ("nsa_bidirectional", {"block_size": 3, "window": 3, "top_n": 4, "share_selection": True}),
    ("longformer", {"block_size": 4, "window": 2, "dilation": 3, "dilated_heads": 1, "global_tokens": 2}),
    ("longformer", {"block_size": 4, "window": 2, "global_projections": "shared"}),
    ("sparse_transformer", {"block_size": 4, "stride": 5, "pattern": "strided"}),
    ("sparse_transformer", {"block_size": 4, "stride": 5, "pattern": "strided", "factors": "split"}),
    ("sparse_transformer_bidirectional", {"block_size": 4, "stride": 5, "columns": 1, "factors": "split"}),
]
MASKED_FORMS = [form for form in FORMS if form[0] in MASKED]


def build(name: str, options: dict[str, Any], length: int = LENGTH) -> nn.Module:
    return attnbench.build_mechanism(name, dim=DIM, heads=HEADS, length=length, **options).double()


def content(batch: int = 3, length: int = LENGTH) -> Tensor:
    return torch.randn(batch, length, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def holes(length: int = LENGTH) -> Tensor:
    """(3, length): padding in the middle and behind, one token alone, all real."""
    mask = torch.ones(3, length, dtype=torch.bool)
    mask[0, length // 4 : length // 2] = mask[0, length - 5 :] = False
    mask[1, 1:] = False
    return mask


# --- the mixer alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("length", [LENGTH, 13, 5, 2, 1])
@pytest.mark.parametrize(("name", "options"), FORMS, ids=str)
def test_shape_and_dtype_are_those_of_the_input(
    name: str, options: dict[str, Any], length: int, dtype: torch.dtype
) -> None:
    mixer = build(name, options).to(dtype)
    x = content(2, length).to(dtype)
    y = mixer(x)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert y.isfinite().all()


@pytest.mark.parametrize(("name", "options"), MASKED_FORMS, ids=str)
def test_content_of_padding_changes_nothing(name: str, options: dict[str, Any]) -> None:
    mixer, x, mask = build(name, options), content(), holes()
    clean = mixer(x, mask)[mask]
    for filler in (1e30, float("nan")):
        y = mixer(x.masked_fill(~mask[..., None], filler), mask)[mask]
        torch.testing.assert_close(y, clean, atol=EXACT, rtol=0)


@pytest.mark.parametrize("length", [1, 4, 7, 17])
@pytest.mark.parametrize(("name", "options"), MASKED_FORMS, ids=str)
def test_padded_length_behind_changes_nothing(name: str, options: dict[str, Any], length: int) -> None:
    mixer, x = build(name, options), content(2, length)
    alone = mixer(x)
    for padded in (length + 1, LENGTH):
        mask = torch.arange(padded).expand(2, -1) < length
        y = mixer(F.pad(x, (0, 0, 0, padded - length), value=float("nan")), mask)
        torch.testing.assert_close(y[:, :length], alone, atol=EXACT, rtol=0)


@pytest.mark.parametrize(("name", "options"), FORMS, ids=str)
def test_other_examples_of_the_batch_change_nothing(name: str, options: dict[str, Any]) -> None:
    mixer, x = build(name, options), content()
    mask = holes() if name in MASKED else None
    together = mixer(x, mask)
    for i in range(3):
        alone = mixer(x[i : i + 1], None if mask is None else mask[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone, atol=EXACT, rtol=0)


@pytest.mark.parametrize(("name", "options"), MASKED_FORMS, ids=str)
def test_a_fully_masked_example_is_finite_and_hurts_nobody(name: str, options: dict[str, Any]) -> None:
    mixer, x, mask = build(name, options), content().requires_grad_(), holes()
    mask[0] = False
    y = mixer(x, mask)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None and x.grad.isfinite().all() and (x.grad[0] == 0).all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in mixer.parameters())
    torch.testing.assert_close(y[1:], mixer(x[1:], mask[1:]), atol=EXACT, rtol=0)


@pytest.mark.parametrize(("name", "options"), FORMS, ids=str)
def test_it_is_a_function_of_its_seed_and_input(name: str, options: dict[str, Any]) -> None:
    x = content()
    one, again, other = (
        attnbench.build_mechanism(name, dim=DIM, heads=HEADS, length=LENGTH, init_seed=seed, **options).double()
        for seed in (0, 0, 1)
    )
    assert torch.equal(one.train()(x), one(x))
    assert torch.equal(one(x), one.eval()(x))
    assert torch.equal(one(x), again(x))
    assert not torch.allclose(one(x), other(x))


@pytest.mark.parametrize(("name", "options"), FORMS, ids=str)
def test_a_gradient_reaches_every_parameter_and_all_content(name: str, options: dict[str, Any]) -> None:
    mixer, x = build(name, options), content().requires_grad_()
    y = mixer(x, holes() if name in MASKED else None, keep_special=True)
    (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=y.dtype)).sum().backward()
    for parameter_name, parameter in mixer.named_parameters():
        if parameter.numel():
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, parameter_name
    assert x.grad is not None
    touched = x.grad.abs().amax(-1) > 0
    assert touched[holes()].all() if name in MASKED else touched.all()


# --- values


@pytest.mark.parametrize("length", [1, 2, 13, 64])
def test_dense_is_softmax_attention(length: int) -> None:
    exact = [name for name in NAMES if contract(name).exact]
    assert "dense" in exact
    for name in exact:
        compare(name, {}, length, np.ones((1, 1, length, length), dtype=bool))


@pytest.mark.parametrize("window", [0, 1, 3, 40])
@pytest.mark.parametrize("length", [1, 2, 13, 64])
def test_sliding_is_a_band(length: int, window: int) -> None:
    band = np.array([[abs(q - k) <= window for k in range(length)] for q in range(length)])
    for block_size in (1, 4, 64):
        compare("sliding", {"window": window, "block_size": block_size}, length, band[None, None])


@pytest.mark.parametrize("window_blocks", [1, 3, 5])
@pytest.mark.parametrize("length", [1, 2, 13, 64])
def test_local_is_a_window_of_blocks(length: int, window_blocks: int) -> None:
    near = np.array([[abs(q // 4 - k // 4) <= window_blocks // 2 for k in range(length)] for q in range(length)])
    compare("local", {"window_blocks": window_blocks, "block_size": 4}, length, near[None, None])


@pytest.mark.parametrize("globals", [0, 3])
@pytest.mark.parametrize("length", [1, 2, 13, 64])
def test_bigbird_is_window_and_random_blocks_and_global_tokens(length: int, globals: int) -> None:
    options = {"block_size": 4, "random_blocks": 2, "global_tokens": globals}
    drawn = build("bigbird", options, length).mixer.pattern.topology.parts[1].block_map(length).numpy()
    pairs = reference.visible(
        (reference.Window(3), reference.Drawn.of(torch.from_numpy(drawn))), reference.Grid(globals, 0, 4, length), HEADS
    )
    compare("bigbird", options, length, pairs[None], globals)


@pytest.mark.parametrize("length", [2, 13, 64])
def test_bigbird_with_global_blocks_follows_the_real_tokens(length: int) -> None:
    options = {"block_size": 4, "random_blocks": 1, "globals": "blocks"}
    drawn = build("bigbird", options, length).mixer.pattern.topology.parts[1].block_map(length)
    assert not drawn[:, :, 0].any(), "the first block is global already"
    grid = reference.Grid(0, 0, 4, length)
    pairs = reference.visible((reference.Window(3), reference.Drawn.of(drawn)), grid, HEADS)
    compare("bigbird", options, length, reference.with_content_globals(pairs, grid, examples(length)))


def examples(length: int) -> np.ndarray:
    """(3, length) bool: padding in the middle and behind, one token alone, all real."""
    real = np.ones((3, length), dtype=bool)
    real[0, length // 3 : length // 2] = False
    real[0, length - length // 5 :] = False
    real[1, 1:] = False
    return real


def compare(name: str, options: dict[str, Any], length: int, seen_BHRR: np.ndarray, globals: int = 0) -> None:
    """Forward and gradient of every real row against softmax attention over the pairs given."""
    mixer, x, real = build(name, options, length), content(3, length), examples(length)
    rows = torch.from_numpy(np.concatenate([np.ones((3, globals), dtype=bool), real], axis=1))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    weights = reference.leaves(mixer)
    y = mixer(ours, torch.from_numpy(real), keep_special=True)[rows]
    wanted = reference.mixer(weights, theirs, real, HEADS, seen_BHRR, globals)[rows]
    torch.testing.assert_close(y, wanted, atol=1e-9, rtol=1e-9)
    weighting = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=y.dtype)
    used = [key for key, value in weights.items() if value.numel()]
    found = torch.autograd.grad((y * weighting).sum(), [ours, *(mixer.get_parameter(key) for key in used)])
    truth = torch.autograd.grad((wanted * weighting).sum(), [theirs, *(weights[key] for key in used)])
    for ours_grad, their_grad in zip(found, truth, strict=True):
        torch.testing.assert_close(ours_grad, their_grad, atol=1e-9, rtol=1e-9)


# --- inside the encoder


def encoder(name: str, options: dict[str, Any], **config: Any) -> Encoder:
    settings = {"dim": DIM, "heads": HEADS, "layers": 2, "mlp": 16, "dropout": 0.0} | config
    mechanism = contract(name)
    chosen = parse(name, mechanism.options, options, mechanism.presets)
    found = Encoder(ModelConfig(**settings), mechanism, chosen, vocab=11, max_length=LENGTH)
    initialise(found, 0)
    return found.double()


def ids(batch: int, length: int) -> Tensor:
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("length", [1, 5, 7, 17])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
@pytest.mark.parametrize(("name", "options"), MASKED_FORMS, ids=str)
def test_padding_behind_changes_no_real_row(name: str, options: dict[str, Any], positions: str, length: int) -> None:
    try:
        model = encoder(name, options, positions=positions)
    except Unsupported:
        assert positions == "rotary"
        return
    tokens = ids(2, length)
    alone, _, layout = model(tokens, None)
    for padded in (length + 1, length + 4, LENGTH):
        mask = torch.arange(padded).expand(2, -1) < length
        rows, row_mask, _ = model(F.pad(tokens, (0, padded - length), value=7), mask)
        assert row_mask is not None
        torch.testing.assert_close(rows[row_mask].view_as(alone), alone, atol=EXACT, rtol=0)
        assert layout.rows == alone.shape[1]


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
@pytest.mark.parametrize("name", NAMES)
def test_positions_matter(name: str, positions: str) -> None:
    """Two equal tokens in two blocks of equal tokens are told apart."""
    tokens = torch.zeros(1, LENGTH, dtype=torch.int64)
    tokens[0, 2] = 1
    moved = tokens.roll(1)
    try:
        model = encoder(name, small(name), positions=positions)
    except Unsupported:
        assert positions == "rotary"
        return
    rows, _, layout = model(tokens, None)
    others, _, _ = model(moved, None)
    assert not torch.allclose(rows[0, layout.specials + 2], others[0, layout.specials + 3], atol=1e-6)


HEAD_CASES: dict[str, tuple[Head, int]] = {
    "classify": (Classify(3), 1),
    "match": (Match(3), 2),
    "tokens": (TagTokens(3), 1),
}


def model(name: str, head: Head, options: dict[str, Any] | None = None, seed: int = 0, **config: Any) -> Model:
    settings = {"dim": DIM, "heads": HEADS, "layers": 2, "mlp": 16, "dropout": 0.1} | config
    mechanism = contract(name)
    chosen = parse(name, mechanism.options, small(name) if options is None else options, mechanism.presets)
    found = Model(ModelConfig(**settings), mechanism, chosen, head, vocab=11, max_length=LENGTH)
    initialise(found, seed)
    return found


@pytest.mark.parametrize("head_name", HEAD_CASES)
@pytest.mark.parametrize("name", NAMES)
def test_it_trains_under_every_head(name: str, head_name: str) -> None:
    head, documents = HEAD_CASES[head_name]
    found = model(name, head)
    lengths = [13, 19][:documents]
    masks = [
        None if name not in MASKED else torch.arange(n).expand(3, -1) < torch.tensor([[n], [5], [1]]) for n in lengths
    ]
    inputs = [(ids(3, n), mask) for n, mask in zip(lengths, masks, strict=True)]
    targets = torch.tensor([0, 1, 2])
    if head_name == "tokens":
        targets = torch.full((3, 13), NO_TARGET)
        targets[0, 2], targets[1, 4], targets[0, 12] = 0, 1, 2
    logits = found(inputs, targets != NO_TARGET)
    assert (logits.shape, logits.dtype) == ((3, 3), torch.float32)
    F.cross_entropy(logits, targets[targets != NO_TARGET]).backward()
    for parameter_name, parameter in found.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), parameter_name
    assert found.encoder.embedding.weight.grad is not None and found.encoder.embedding.weight.grad.abs().max() > 0


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("name", MASKED)
def test_pooled_predictions_do_not_depend_on_padding_behind(name: str, pooling: str) -> None:
    try:
        found = model(name, Classify(3), pooling=pooling).eval()
    except Unsupported:
        assert pooling == "cls" and contract(name).causal == "only"
        return
    tokens = ids(2, 9)
    alone = found([(tokens, None)], torch.zeros(2))
    mask = torch.arange(LENGTH).expand(2, -1) < 9
    padded = found([(F.pad(tokens, (0, LENGTH - 9), value=7), mask)], torch.zeros(2))
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=0)


def test_pooling_takes_the_rows_it_names() -> None:
    """mean: real content and representatives, no global; cls: the row in front; first, last: that real token."""
    head = Classify(DIM)
    tokens, mask = ids(2, 9), torch.arange(9).expand(2, -1) < torch.tensor([[9], [6]])
    mask[1, :2] = False
    for pooling in ("mean", "cls", "first", "last"):
        found = model("hst", head, {"block_size": 4, "global_tokens": 2}, pooling=pooling).eval()
        with torch.no_grad():
            found.head.linear.weight.copy_(torch.eye(DIM))
            found.head.linear.bias.zero_()
        rows, row_mask, layout = found.encoder(tokens, mask)
        assert row_mask is not None and layout.globals == 2 + (pooling == "cls")
        for i in range(2):
            wanted = {
                "mean": rows[i, layout.globals :][row_mask[i, layout.globals :]].mean(0),
                "cls": rows[i, 0],
                "first": rows[i, layout.specials :][mask[i]][0],
                "last": rows[i, layout.specials :][mask[i]][-1],
            }[pooling]
            torch.testing.assert_close(found([(tokens, mask)], torch.zeros(2))[i], wanted, atol=1e-6, rtol=0)


def test_a_row_that_is_masked_in_the_middle_is_not_the_last() -> None:
    found = model("dense", Classify(3), pooling="last").eval()
    tokens, mask = ids(1, 6), torch.tensor([[True, False, True, True, False, False]])
    changed = tokens.clone()
    changed[0, 4:] = 9
    assert torch.equal(found([(tokens, mask)], torch.zeros(1)), found([(changed, mask)], torch.zeros(1)))


@pytest.mark.parametrize("name", NAMES)
def test_common_parameters_start_alike_for_one_seed(name: str) -> None:
    """So that mechanisms of one seed are pairs."""
    dense = dict(model("dense", Classify(3)).named_parameters())
    other = dict(model(name, Classify(3)).named_parameters())
    common = [key for key in dense if key in other and dense[key].shape == other[key].shape and dense[key].numel()]
    assert {"encoder.embedding.weight", "head.linear.weight", "encoder.layers.1.mlp.0.weight"} <= set(common)
    for key in common:
        assert torch.equal(dense[key], other[key]), key
    place = "encoder.positions.weight"  # its length follows the block size
    assert torch.equal(dense[place][:LENGTH], other[place][:LENGTH])
    changed = dict(model(name, Classify(3), seed=1).named_parameters())
    assert not torch.equal(other["encoder.embedding.weight"], changed["encoder.embedding.weight"])


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_drawn_by_initialise(name: str) -> None:
    """No parameter keeps what stood in it before."""
    found = model(name, Classify(3))
    before = {key: value.clone() for key, value in found.state_dict().items()}
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.fill_(float("nan"))
    initialise(found, 0)
    for key, value in found.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_initialisation_leaves_the_global_random_state_alone() -> None:
    layer = nn.Linear(2, 2)
    before = torch.get_rng_state()
    initialise(layer, 0)
    assert torch.equal(before, torch.get_rng_state())


# --- the way in


@pytest.mark.parametrize("name", NAMES)
def test_options_are_frozen_and_have_defaults(name: str) -> None:
    options = contract(name).options()
    for field in dataclasses.fields(options):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(options, field.name, getattr(options, field.name))


RANDOM_GRAPH = [name for name in NAMES if {"seed", "random_blocks"} <= set(field_names(contract(name).options))]


@pytest.mark.parametrize("name", RANDOM_GRAPH)
def test_every_option_can_be_set_through_build_mechanism(name: str) -> None:
    """The seed of a random graph is an option of the mechanism, not the seed of its weights."""
    options = small(name) | {"random_blocks": 1}
    one, other = (build(name, options | {"seed": seed}) for seed in (0, 1))
    assert other.mixer.pattern.topology != one.mixer.pattern.topology


def test_wrong_requests_say_what_is_wrong() -> None:
    with pytest.raises(UnknownName, match="did you mean bigbird"):
        attnbench.build_mechanism("bigbrid", dim=4, heads=2, length=8)
    with pytest.raises(UnknownName, match="did you mean block_size"):
        attnbench.build_mechanism("local", dim=4, heads=2, length=8, blocksize=4)
    with pytest.raises(AttnbenchError, match="does not divide"):
        attnbench.build_mechanism("dense", dim=5, heads=2, length=8)
    with pytest.raises(AttnbenchError, match="global_tokens"):
        attnbench.build_mechanism("bigbird", dim=4, heads=2, length=8, globals="blocks", global_tokens=1)


@pytest.mark.parametrize("length", [0, -3])
def test_a_length_below_one_is_refused(length: int) -> None:
    with pytest.raises(AttnbenchError, match="at least 1"):
        attnbench.build_mechanism("dense", dim=4, heads=2, length=length)


@pytest.mark.parametrize("name", RANDOM_GRAPH)
def test_a_seed_that_draws_nothing_is_refused(name: str) -> None:
    with pytest.raises(AttnbenchError, match="random_blocks=0"):
        parse(name, contract(name).options, {"random_blocks": 0, "seed": 1})


X = torch.zeros(2, 8, 4)
MASK = torch.ones(2, 8, dtype=torch.bool)


@pytest.mark.parametrize(
    ("x", "mask", "said"),
    [
        (X[..., :3], None, r"x is \(batch, 1 to 8 rows, 4\), got \(2, 8, 3\)"),
        (torch.zeros(2, 9, 4), None, r"got \(2, 9, 4\)"),
        (X[:, :0], None, r"got \(2, 0, 4\)"),
        (X[0], None, r"got \(8, 4\)"),
        (X[None], None, r"got \(1, 2, 8, 4\)"),
        (X, MASK.float(), r"mask is \(2, 8\) bool, got \(2, 8\) torch.float32"),
        (X, MASK.int(), "torch.int32"),
        (X, MASK[:, :7], r"got \(2, 7\)"),
        (X, MASK[:1], r"got \(1, 8\)"),
        (X, MASK[:, None], r"got \(2, 1, 8\)"),
    ],
    ids=range(10),
)
@pytest.mark.parametrize("name", ["dense", "hst"])
def test_a_mixer_alone_refuses_what_it_was_not_built_for(name: str, x: Tensor, mask: Tensor | None, said: str) -> None:
    """Some of these would broadcast in silence."""
    mixer = attnbench.build_mechanism(name, dim=4, heads=2, length=8, **({"block_size": 4} if name == "hst" else {}))
    with pytest.raises(AttnbenchError, match=said):
        mixer(x, mask)
    for length in (1, 7, 8):
        assert mixer(X[:, :length], MASK[:, :length]).shape == (2, length, 4)
