"""SAR, R-Drop and their sums through the trainer's own passes: identities, divergence, gradients, dropout masks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.special
import scipy.stats
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attnbench
from attnbench import registry
from attnbench.columns import Ragged, Split
from attnbench.config import Budget, ModelConfig, Numerics, Padding
from attnbench.contracts import NO_TARGET, Cell, Classify, Head, Loss, Match, TagTokens
from attnbench.data import TaskData
from attnbench.errors import AttnbenchError
from attnbench.model import Model
from attnbench.options import as_json, parse
from attnbench.passes import Passes
from attnbench.questions import question_of
from attnbench.randomness import Dropout, Stream
from attnbench.regularizers._divergence import divergence
from attnbench.train import Job, Trainer

LENGTH, VOCAB, CLASSES, BLOCK = 16, 9, 3, 4
ZERO = {torch.float32: 1e-5, torch.float64: 1e-10}
HEADS: dict[str, Head] = {"classify": Classify(CLASSES), "match": Match(CLASSES), "tokens": TagTokens(CLASSES)}


def ragged(rows: list[np.ndarray]) -> Ragged:
    return Ragged(pa.chunked_array([pa.array([row.tolist() for row in rows], pa.list_(pa.int64()))]))


def task_data(head: Head, padded: bool) -> TaskData:
    """A few examples, the same in every split; with `padded` of length 1 to LENGTH."""
    generator = np.random.default_rng(0)
    lengths = np.array([LENGTH, 1, 5, 8, 13, 3, LENGTH, 9]) if padded else np.full(8, LENGTH)
    documents = [ragged([generator.integers(0, VOCAB, n) for n in lengths]) for _ in head.documents]
    targets: np.ndarray | Ragged = generator.integers(0, CLASSES, len(lengths))
    if isinstance(head, TagTokens):
        rows = [generator.integers(0, CLASSES, n) for n in lengths]
        targets = ragged([np.where(generator.random(len(row)) < 0.7, row, NO_TARGET) for row in rows])
    split = Split(documents, targets)
    return TaskData("test", {"train": split, "validation": split, "test": split}, {})


def trainer(
    mechanism: str = "local",
    options: dict[str, Any] | None = None,
    *,
    regularizers: dict[str, dict[str, Any]] | None = None,
    head: str = "classify",
    padded: bool = False,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    **config: Any,
) -> Trainer:
    """A trainer with a tiny model; `regularizers` maps names to options."""
    contract = registry.load("mechanisms", mechanism).object
    chosen = parse(mechanism, contract.options, {} if options is None else options, contract.presets)
    settings = {"dim": 12, "heads": 2, "layers": 2, "mlp": 16, "dropout": 0.0} | config
    job = Job(
        model=Model(ModelConfig(**settings), contract, chosen, HEADS[head], VOCAB, LENGTH),
        data=task_data(HEADS[head], padded),
        question=question_of(HEADS[head]),
        padded=padded,
        max_length=LENGTH,
        budget=Budget(steps=4, batch=8, eval_every=2, warmup=0),
        numerics=Numerics(),
        padding=Padding(),
        regularizers=[],
        seed=seed,
        device="cpu",
    )
    for name, values in (regularizers or {}).items():
        plugin = registry.load("regularizers", name).object
        job.regularizers.append((plugin, parse(name, plugin.options, values)))
    made = Trainer(job, quiet=True)
    made.model.to(dtype).train()
    return made


def passes(made: Trainer, micro: int = 0) -> Passes:
    """A new batch of all examples, no pass made yet."""
    batches = made.job.batches("train")
    return Passes(made, batches.collate(np.arange(len(batches.split))), micro)


def terms(made: Trainer) -> Loss:
    """What the first regularizer makes of a fresh batch."""
    run = passes(made)
    loss: Loss = made.losses[0](run, run(), run.labels)
    return loss


def penalty(made: Trainer) -> float:
    return float(torch.as_tensor(terms(made).penalty).detach())


def sar(**options: Any) -> dict[str, dict[str, Any]]:
    return {"sar": options}


# --- identities


@pytest.mark.parametrize("alpha", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("head", HEADS)
def test_sar_without_a_shift_is_r_drop(head: str, step: int, alpha: float) -> None:
    losses = []
    for regularizers in (sar(shift=0, alpha=alpha), {"rdrop": {"alpha": alpha}}):
        made = trainer("local", {"block_size": BLOCK}, regularizers=regularizers, head=head, padded=True, dropout=0.2)
        made.step = step
        run = passes(made)
        loss = run.loss()
        gradient = torch.autograd.grad(loss, [p for p in made.model.parameters() if p.numel()])
        losses.append((loss, *gradient))
        assert run.passes == 2
    for ours, theirs in zip(*losses, strict=True):
        assert torch.equal(ours, theirs)
    assert penalty(made) > 0 or alpha == 0


@pytest.mark.parametrize("shift", [0, 1, 3, BLOCK])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", ZERO)
def test_dense_without_dropout_has_no_penalty(dtype: torch.dtype, padded: bool, head: str, shift: int) -> None:
    for positions in ("learned", "sinusoidal", "rotary", "none"):
        made = trainer(
            "dense", regularizers=sar(shift=shift), head=head, padded=padded, dtype=dtype, positions=positions
        )
        assert abs(penalty(made)) < ZERO[dtype]


#: whether the prediction may change when the input moves by one token, and by a whole block
TOPOLOGIES: list[tuple[str, dict[str, Any], bool, bool]] = [
    ("dense", {}, False, False),
    ("sliding", {"window": 2, "block_size": BLOCK}, False, False),
    ("local", {"window_blocks": 1, "block_size": BLOCK}, True, False),
    ("local", {"window_blocks": 3, "block_size": BLOCK}, True, False),
    ("bigbird", {"block_size": BLOCK, "random_blocks": 0, "window_blocks": 1}, True, False),
    ("bigbird", {"block_size": BLOCK, "random_blocks": 0, "window_blocks": 1, "globals": "blocks"}, True, False),
    ("bigbird", {"block_size": BLOCK, "random_blocks": 1, "window_blocks": 1, "global_tokens": 0}, True, True),
    ("hst", {"block_size": BLOCK, "window_blocks": 1}, True, False),
    ("hst", {"block_size": BLOCK, "preset": "literal"}, True, False),
    ("hst", {"block_size": BLOCK, "reps_per_block": 2, "global_tokens": 1, "broadcast": True}, True, False),
    ("hst", {"block_size": BLOCK, "representatives": "pooled", "window_blocks": 1}, True, False),
    ("hst", {"block_size": BLOCK, "random_blocks": 1, "window_blocks": 1}, True, True),
]


@pytest.mark.parametrize(("mechanism", "options", "by_one", "by_block"), TOPOLOGIES, ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_only_a_shift_that_changes_the_topology_costs(
    positions: str, padded: bool, mechanism: str, options: dict[str, Any], by_one: bool, by_block: bool
) -> None:
    for shift, costs in ((1, by_one), (BLOCK, by_block)):
        made = trainer(mechanism, options, regularizers=sar(shift=shift), padded=padded, positions=positions)
        if costs:
            assert penalty(made) > 1e-7
        else:
            assert abs(penalty(made)) < ZERO[torch.float64]


@pytest.mark.parametrize(("mechanism", "options", "by_one", "by_block"), TOPOLOGIES, ids=str)
def test_a_shifted_row_equals_the_unshifted_one_where_theory_says_so(
    mechanism: str, options: dict[str, Any], by_one: bool, by_block: bool
) -> None:
    """Row by row in float64, which logits in float32 cannot show."""
    made = trainer(mechanism, options, padded=True)
    tokens, mask = passes(made).documents[0]
    rows, _, layout = made.model.encoder(tokens, mask)
    for shift, changes in ((1, by_one), (BLOCK, by_block)):
        moved, _, moved_layout = made.model.encoder(tokens, mask, shift)
        difference = (moved[:, moved_layout.specials + shift :] - rows[:, layout.specials :])[mask].abs().max()
        assert difference > 1e-6 if changes else difference < 1e-10


@pytest.mark.parametrize("mechanism", [n for n in attnbench.list_mechanisms() if n != "ernie_sparse"])
@pytest.mark.parametrize("mode", ["input", "positions"])
def test_the_longest_input_moved_by_a_whole_block_fits(mode: str, mechanism: str) -> None:
    contract = registry.load("mechanisms", mechanism).object
    if isinstance(contract, Cell) or contract.length_bound or not contract.honours_masks:
        pytest.skip("takes no shift")
    options = {"block_size": BLOCK} if "block_size" in contract.options.__annotations__ else {}
    for positions in ("learned", "sinusoidal"):
        made = trainer(mechanism, options, regularizers=sar(shift=BLOCK, mode=mode), positions=positions)
        assert np.isfinite(penalty(made))


def test_moving_positions_too_makes_another_pass() -> None:
    def cost(mode: str, positions: str) -> float:
        return penalty(trainer("dense", regularizers=sar(mode=mode), positions=positions))

    assert cost("input", "learned") < 1e-10
    assert cost("positions", "learned") > 1e-7
    assert cost("positions", "sinusoidal") > 1e-7
    assert cost("positions", "rotary") < 1e-8, "rotary positions are relative"
    assert cost("positions", "none") < 1e-10


# --- the terms of the loss


def numpy_divergence(p_logits: Tensor, q_logits: Tensor, symmetric: bool) -> float:
    p, q = (scipy.special.softmax(x.detach().double().numpy(), axis=-1) for x in (p_logits, q_logits))
    forward, back = scipy.stats.entropy(p, q, axis=-1).mean(), scipy.stats.entropy(q, p, axis=-1).mean()
    return float((forward + back) / 2 if symmetric else forward)


def numpy_entropy(logits: Tensor, labels: Tensor) -> float:
    chosen = scipy.special.log_softmax(logits.detach().double().numpy(), axis=-1)
    return float(-chosen[np.arange(len(labels)), labels.numpy()].mean())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("rows", "classes", "scale"), [(1, 2, 1.0), (7, 10, 1.0), (7, 10, 20.0), (64, 3, 0.01)])
def test_divergence_is_that_of_scipy(rows: int, classes: int, scale: float, symmetric: bool) -> None:
    p, q = torch.randn(2, rows, classes, generator=torch.Generator().manual_seed(rows)) * scale
    wanted = numpy_divergence(p, q, symmetric)
    np.testing.assert_allclose(float(divergence(p, q, symmetric)), wanted, rtol=1e-4, atol=1e-8)
    assert float(divergence(p, p, symmetric)) == 0
    assert float(divergence(p, p + 3, symmetric)) < 1e-6, "logits count up to a constant"


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("ce_passes", ["both", "first"])
def test_sar_is_cross_entropy_and_alpha_times_divergence(
    ce_passes: str, symmetric: bool, detach: bool, dropout: float
) -> None:
    options = {"alpha": 0.7, "shift": 2, "ce_passes": ce_passes, "symmetric": symmetric, "detach": detach}
    made = trainer("local", {"block_size": BLOCK}, regularizers=sar(**options), dropout=dropout)
    run = passes(made)
    first, second = run(), run(shift=2)
    found = terms(made)
    entropy = numpy_entropy(first, run.labels)
    if ce_passes == "both":
        entropy = (entropy + numpy_entropy(second, run.labels)) / 2
    np.testing.assert_allclose(found.entropy.item(), entropy, rtol=1e-5)
    np.testing.assert_allclose(penalty(made), 0.7 * numpy_divergence(first, second, symmetric), rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(passes(made).loss().item(), found.entropy.item() + penalty(made), rtol=1e-6)


def test_no_regularizer_is_cross_entropy_of_one_pass() -> None:
    made = trainer("local", {"block_size": BLOCK}, regularizers={"none": {}}, dropout=0.2)
    run = passes(made)
    np.testing.assert_allclose(run.loss().item(), numpy_entropy(passes(made)(), run.labels), rtol=1e-5)
    assert run.passes == 1


def test_a_sum_is_the_mean_of_the_entropies_and_the_sum_of_the_penalties() -> None:
    parts = {"sar": {"alpha": 0.5, "shift": 2}, "rdrop": {"alpha": 2.0}}
    made = trainer("local", {"block_size": BLOCK}, regularizers=parts, dropout=0.2)
    run = passes(made)
    first, shifted, dropped = run(), run(shift=2), run()
    entropies = [
        (numpy_entropy(first, run.labels) + numpy_entropy(other, run.labels)) / 2 for other in (shifted, dropped)
    ]
    penalties = [0.5 * numpy_divergence(first, shifted, True), 2.0 * numpy_divergence(first, dropped, True)]
    run = passes(made)
    np.testing.assert_allclose(run.loss().item(), np.mean(entropies) + sum(penalties), rtol=1e-5)
    assert run.passes == 3
    assert not torch.allclose(shifted, dropped)


def test_the_first_pass_is_the_same_whatever_the_regularizer() -> None:
    """Common random numbers: cells of one seed differ by their loss, not by their masks."""
    firsts = []
    for regularizers in ({"none": {}}, sar(), {"rdrop": {}}, {"rdrop": {}} | sar(dropout="off")):
        made = trainer("local", {"block_size": BLOCK}, regularizers=regularizers, dropout=0.2)
        made.fit()
        made = trainer("local", {"block_size": BLOCK}, regularizers=regularizers, dropout=0.2)
        run = passes(made)
        run.loss()
        firsts.append(run.forward())
    for other in firsts[1:]:
        assert torch.equal(firsts[0], other)


# --- gradients


def flat_gradient(value: Tensor, model: nn.Module) -> Tensor:
    parameters = [p for p in model.parameters() if p.numel()]
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, found, strict=True)]
    )


def along(model: nn.Module, direction: Tensor, size: float) -> None:
    """Moves all parameters."""
    start = 0
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.numel()):
            parameter += size * direction[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()


def slope(model: nn.Module, direction: Tensor, value: Callable[[], float], step: float = 3e-3) -> float:
    """Central difference along the direction."""
    along(model, direction, step)
    above = value()
    along(model, direction, -2 * step)
    below = value()
    along(model, direction, step)
    return (above - below) / (2 * step)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("detach", [True, False])
def test_gradients_flow_through_both_passes_unless_detached(detach: bool, symmetric: bool) -> None:
    """Against finite differences: with `detach` the first pass stands still."""
    options = {"alpha": 100.0, "shift": 2, "detach": detach, "symmetric": symmetric}
    made = trainer("local", {"block_size": BLOCK}, regularizers=sar(**options), dropout=0.3)
    gradient = flat_gradient(torch.as_tensor(terms(made).penalty), made.model)
    fixed = passes(made)().detach()

    def value(hold_first: bool) -> float:
        run = passes(made)
        first, second = run().detach(), run(shift=2).detach()
        return 100.0 * numpy_divergence(fixed if hold_first else first, second, symmetric)

    direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0), dtype=gradient.dtype)
    direction = gradient / gradient.norm() + direction / direction.norm()
    slopes = {hold: slope(made.model, direction, lambda hold=hold: value(hold)) for hold in (True, False)}
    np.testing.assert_allclose(float(gradient @ direction), slopes[detach], rtol=2e-2)
    assert abs(slopes[True] - slopes[False]) > 0.1 * abs(slopes[detach]), "the two must be told apart"


def test_each_pass_has_its_share_of_the_gradient() -> None:
    first = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    second = torch.randn(5, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    labels = torch.arange(5) % 4
    plugin = registry.load("regularizers", "sar").object

    class Passes:
        def __call__(self, **how: Any) -> Tensor:
            return second

        def draw(self, name: str, low: int, high: int) -> int:
            return low

    for detach in (False, True):
        for ce_passes in ("both", "first"):
            options = parse("sar", plugin.options, {"detach": detach, "ce_passes": ce_passes})
            entropy, penalty = plugin.loss(options)(Passes(), first, labels)
            to_first, to_second = torch.autograd.grad(penalty, [first, second], allow_unused=True)
            assert (to_first is None) == detach
            assert to_second is not None and to_second.abs().max() > 0
            to_first, to_second = torch.autograd.grad(entropy, [first, second], allow_unused=True)
            assert to_first is not None and to_first.abs().max() > 0
            assert (to_second is None) == (ce_passes == "first")


# --- dropout and shift


def recorded_masks(made: Trainer, run: Passes, **how: Any) -> dict[str, Tensor]:
    """What each dropout module of the encoder kept of ones, by site, in one more pass of `run`."""
    kept: dict[str, Tensor] = {}
    modules = [m for m in made.model.modules() if isinstance(m, Dropout)]
    hooks = []
    for module in modules:

        def record(module: Dropout, given: tuple[Tensor], result: Tensor) -> None:
            kept[module.site] = module.forward(torch.ones_like(given[0]))

        hooks.append(module.register_forward_hook(record))
    run(**how)
    for hook in hooks:
        hook.remove()
    return kept


@pytest.mark.parametrize("shift", [1, 2, BLOCK])
@pytest.mark.parametrize("mechanism", ["dense", "hst"])
def test_a_shared_mask_stays_with_its_token(mechanism: str, shift: int) -> None:
    made = trainer(mechanism, {} if mechanism == "dense" else {"block_size": BLOCK}, dropout=0.3)
    run = passes(made)
    first = recorded_masks(made, run)
    shared = recorded_masks(made, run, shift=shift, dropout="shared")
    independent = recorded_masks(made, run, shift=shift, dropout="independent")
    off = recorded_masks(made, run, shift=shift, dropout="off")
    assert len(first) == 5
    for site, kept in first.items():
        assert 0.2 < float((kept == 0).double().mean()) < 0.4
        tokens = [masks[site][:, -LENGTH:] for masks in (first, shared, independent, off)]
        assert torch.equal(tokens[0], tokens[1])
        assert not torch.equal(tokens[0], tokens[2])
        assert (tokens[3] == 1).all()


@pytest.mark.parametrize("head", HEADS)
def test_dropout_of_the_extra_pass(head: str) -> None:
    made = trainer("dense", head=head, dropout=0.3)
    run = passes(made)
    first = run()
    assert torch.equal(first, run(dropout="shared"))
    torch.testing.assert_close(first, run(shift=3, dropout="shared"), atol=1e-6, rtol=0)
    assert not torch.allclose(first, run(), atol=1e-3)
    off = run(dropout="off")
    made.model.eval()
    assert torch.equal(off, run())
    made.model.train()
    assert not torch.allclose(off, run(), atol=1e-3), "the next pass has dropout again"


def test_masks_follow_seed_step_and_micro_batch() -> None:
    made, other = trainer("dense", dropout=0.3), trainer("dense", dropout=0.3)
    one = passes(made)()
    assert torch.equal(one, passes(other)())
    assert not torch.allclose(one, passes(made, micro=1)())
    made.step = 1
    assert not torch.allclose(one, passes(made)())
    made.step = 0
    torch.manual_seed(99)
    assert torch.equal(one, passes(made)())


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    module = Dropout(0.25, "here", Stream())
    x = torch.ones(100, 100, 10)
    y = module(x)
    np.testing.assert_allclose(float((y == 0).double().mean()), 0.25, atol=0.005)
    assert y.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert torch.equal(module.eval()(x), x)


def test_a_range_of_shifts_is_drawn_from_seed_and_step() -> None:
    made = trainer("local", {"block_size": BLOCK}, regularizers=sar(shift="1..3"))
    drawn = []
    for step in range(60):
        made.step = step
        drawn.append([passes(made, micro).draw("shift", 1, 3) for micro in (0, 0, 1)])
    first, again, other = zip(*drawn, strict=True)
    assert first == again == other, "however a batch is cut into parts"
    assert set(first) == {1, 2, 3}
    assert all(10 <= first.count(shift) <= 30 for shift in (1, 2, 3))

    shifts: list[int] = []
    original = made.model.encoder.forward
    made.model.encoder.forward = lambda tokens, mask, shift, moved: (
        shifts.append(shift) or original(tokens, mask, shift, moved)
    )
    for step in range(5):
        made.step = step
        passes(made).loss()
    assert shifts[0::2] == [0] * 5
    assert tuple(shifts[1::2]) == first[:5]


# --- the whole loop


@pytest.mark.parametrize("regularizers", [sar(shift="1..3"), {"rdrop": {}}, sar() | {"rdrop": {}}], ids=str)
@pytest.mark.parametrize("mechanism", ["dense", "hst"])
def test_training_with_a_regularizer_repeats_itself(mechanism: str, regularizers: dict[str, dict[str, Any]]) -> None:
    curves = []
    for _ in range(2):
        options = {} if mechanism == "dense" else {"block_size": BLOCK}
        made = trainer(mechanism, options, regularizers=regularizers, dtype=torch.float32, dropout=0.1, padded=True)
        made.fit()
        curves.append((made.curve, made.test().stored["predicted"].tolist()))
    assert curves[0] == curves[1]
    assert [point.step for point in curves[0][0]] == [2, 4]
    assert all(np.isfinite(point.loss) for point in curves[0][0])


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"shift": -1}, "shift"),
        ({"shift": "3..1"}, "3..1"),
        ({"shift": "one"}, "1..15"),
        ({"alpha": -0.5}, "alpha"),
        ({"mode": "mask"}, "mode"),
        ({"dropout": "same"}, "dropout"),
        ({"ce_passes": "second"}, "ce_passes"),
        ({"alfa": 1}, "alpha"),
        ({"alpha": 0, "detach": True}, "alpha=0 leaves it out"),
        ({"alpha": 0, "symmetric": False}, "alpha=0 leaves it out"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_with_a_reason(values: dict[str, Any], says: str) -> None:
    with pytest.raises(AttnbenchError, match=says):
        parse("sar", registry.load("regularizers", "sar").object.options, values)


@pytest.mark.parametrize(
    "values", [{}, {"shift": "1..15"}, {"shift": 3}, {"shift": 0, "mode": "positions", "detach": True}]
)
def test_options_survive_json(values: dict[str, Any]) -> None:
    plugin = registry.load("regularizers", "sar").object
    options = parse("sar", plugin.options, values)
    assert parse("sar", plugin.options, json.loads(json.dumps(as_json(options)))) == options
    assert plugin.max_shift(options) == options.shift[1]


@pytest.mark.parametrize("name", attnbench.list_regularizers())
def test_the_declared_number_of_passes_is_the_one_made(name: str) -> None:
    made = trainer("local", {"block_size": BLOCK}, regularizers={name: {}})
    run = passes(made)
    run.loss()
    assert run.passes == registry.load("regularizers", name).object.passes


def test_labels_leave_out_rows_without_a_target() -> None:
    made = trainer("dense", head="tokens", padded=True, regularizers=sar())
    run = passes(made)
    assert run().shape == (len(run.labels), CLASSES)
    assert (run.labels != NO_TARGET).all()
    assert F.cross_entropy(run(), run.labels).isfinite()
