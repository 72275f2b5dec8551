"""Linear attention, Linformer, Performer and Nyströmformer against their definitions, written out in numpy.

Shape letters: B batch, H heads, R rows, D head width, K rank, L landmarks. EXACT is for float64.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attnbench.mechanisms.linear import phi
from attnbench.mechanisms.nystromformer import pseudo_inverse
from torch import Tensor, nn

import attnbench
from attnbench import registry
from attnbench.contracts import Layout, MixerShape, Tokens
from attnbench.errors import AttnbenchError
from attnbench.layers import linear_attention
from attnbench.options import parse
from attnbench.randomness import initialise

EXACT = 1e-10
HEADS, HEAD_DIM = 2, 4

#: every kind of each mechanism, small
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("linformer", {"rank": 5}),
    ("linformer", {"rank": 5, "sharing": "none"}),
    ("linformer", {"rank": 5, "sharing": "key-value"}),
    ("performer", {"features": 10}),
    ("performer", {"features": 10, "epsilon": 0}),
    ("performer", {"features": 10, "kernel": "relu"}),
    ("nystromformer", {"landmarks": 4, "conv_kernel": 3}),
    ("nystromformer", {"landmarks": 4, "exact_inverse": True, "conv_kernel": 0}),
]


def build(name: str, length: int, layer: int = 0, heads: int = HEADS, **options: Any) -> nn.Module:
    """The bare mixer, for exactly `length` rows, in float64."""
    mechanism = registry.load("mechanisms", name).object
    shape = MixerShape(dim=heads * HEAD_DIM, heads=heads, length=length, layer=layer)
    mixer: nn.Module = mechanism.build(shape, parse(name, mechanism.options, options))
    initialise(mixer, 0)
    return mixer.double()


def qkv(length: int, heads: int = HEADS, batch: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    drawn = torch.randn(
        3, batch, heads, length, HEAD_DIM, generator=torch.Generator().manual_seed(length), dtype=torch.float64
    )
    q, k, v = drawn.unbind()
    return q, k, v


def three_examples(length: int, specials: int = 0) -> Tensor:
    """(3, length) bool: padding in the middle and behind, one real content row alone, all real."""
    mask = torch.ones(3, specials + length, dtype=torch.bool)
    content = mask[:, specials:]
    content[0, length // 3 : length // 2] = content[0, length - length // 5 :] = content[1, 1:] = False
    return mask


def layout(length: int, specials: int = 0) -> Layout:
    return Layout(Tokens(globals=specials), length)


def softmax(score: np.ndarray) -> np.ndarray:
    """Over the last axis; minus infinity takes no part."""
    weight: np.ndarray = np.exp(score - score.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


def explicit(weight_BHRR: np.ndarray, v_BHRD: Tensor, mask_BR: Tensor) -> Tensor:
    """The R x R product: weights of real keys only, normalised; all zero where there is no weight."""
    seen = weight_BHRR * mask_BR.numpy()[:, None, None, :]
    total = seen.sum(-1, keepdims=True)
    return torch.from_numpy(np.divide(seen, total, out=np.zeros_like(seen), where=total > 0) @ v_BHRD.numpy())


# --- all four


@pytest.mark.parametrize("length", [1, 7, 24])
@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
def test_an_example_without_a_real_row_gives_zeros_and_finite_gradients(
    name: str, options: dict[str, Any], length: int
) -> None:
    mixer = build(name, 24, **options)
    rows = [tensor.requires_grad_() for tensor in qkv(length)]
    mask = three_examples(length)
    mask[0] = False
    y = mixer.mix(*rows, mask, layout(length))
    assert (y[0] == 0).all() and y.isfinite().all() and (y[2] != 0).any()
    y.square().sum().backward()
    assert all(row.grad is not None and row.grad.isfinite().all() for row in rows)


@pytest.mark.parametrize("scale", [1e-3, 30.0, 1e3])
@pytest.mark.parametrize(("name", "options"), [kind for kind in KINDS if kind[1].get("epsilon") != 0], ids=str)
def test_large_and_small_norms_stay_finite_in_float32(name: str, options: dict[str, Any], scale: float) -> None:
    mixer = build(name, 24, **options).float()
    q, k, v = (tensor.float() for tensor in qkv(24))
    rows = [(q * scale).requires_grad_(), (k * scale).requires_grad_(), v]
    y = mixer.mix(*rows, three_examples(24), layout(24))
    y.square().sum().backward()
    assert y.isfinite().all() and all(row.grad is not None and row.grad.isfinite().all() for row in rows[:2])


@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
def test_only_linformer_sees_where_the_content_stands(name: str, options: dict[str, Any]) -> None:
    """Masked rows in front: a shift moves nothing but the columns of E and F."""
    mixer, (q, k, v) = build(name, 24, **options), qkv(17)
    alone = mixer.mix(q, k, v, None, layout(17))
    mask = torch.arange(20).expand(3, -1) >= 3
    shifted = mixer.mix(*(F.pad(row, (0, 0, 3, 0), value=9.0) for row in (q, k, v)), mask, layout(20))[:, :, 3:]
    moved = (shifted - alone).abs().max()
    assert moved > 0.01 if name == "linformer" else moved < EXACT


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
def test_three_steps_of_training(tmp_path: Path, name: str, options: dict[str, Any], dtype: str) -> None:
    settings = {
        "task.train": 100, "task.validation": 20, "task.test": 30, "task.length": 16, "task.distance": 2,
        "model.dim": 16, "model.mlp": 32, "model.layers": 2,
        "budget.steps": 3, "budget.eval_every": 3, "budget.warmup": 1, "budget.batch": 8, "numerics.dtype": dtype,
    }  # fmt: skip
    record = attnbench.run(name, "recall", results=tmp_path, options=settings | options)
    assert record.status in ("ok", "not_above_chance", "trivial"), record.reason
    assert record.quality is not None and all(np.isfinite(point.loss) for point in record.curve)
    assert record.spec.mechanism.options.items() >= options.items()


# --- linear


@pytest.mark.parametrize("length", [1, 2, 13, 64])
def test_linear_is_the_normalised_product_of_elu_features(length: int) -> None:
    q, k, v = qkv(length)
    mask = three_examples(length)

    def elu_plus_one(x: np.ndarray) -> np.ndarray:
        return np.where(x > 0, x + 1, np.exp(x))

    weight = elu_plus_one(q.numpy()) @ elu_plus_one(k.numpy()).swapaxes(-1, -2)
    y = build("linear", length).mix(q, k, v, mask, layout(length))
    torch.testing.assert_close(y, explicit(weight, v, mask), atol=EXACT, rtol=0)


def test_features_far_below_zero_keep_their_ratios_in_float32() -> None:
    """elu(x) + 1 taken literally is 0 from -17 on."""
    q, k, v = (tensor.float() for tensor in qkv(13))
    mixer = build("linear", 13).float()
    y = mixer.attend(q - 25, k - 25, v, None)
    wanted = linear_attention((q.double() - 25).exp(), (k.double() - 25).exp(), v.double(), None)
    torch.testing.assert_close(y.double(), wanted, atol=1e-4, rtol=0)


# --- linformer


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, EXACT), (torch.float32, 1e-5)])
@pytest.mark.parametrize("sharing", ["none", "headwise", "key-value"])
@pytest.mark.parametrize("length", [1, 2, 13, 64])
def test_linformer_with_the_identity_is_dense(length: int, sharing: str, dtype: torch.dtype, tolerance: float) -> None:
    mixer, dense = build("linformer", length, rank=length, sharing=sharing), build("dense", length)
    with torch.no_grad():
        mixer.projection.copy_(torch.eye(length))
    dense.load_state_dict({name: value for name, value in mixer.state_dict().items() if name != "projection"})
    x = torch.randn(2, length, HEADS * HEAD_DIM, generator=torch.Generator().manual_seed(0), dtype=dtype)
    torch.testing.assert_close(mixer.to(dtype)(x), dense.to(dtype)(x), atol=tolerance, rtol=0)


@pytest.mark.parametrize("specials", [0, 2])
@pytest.mark.parametrize("sharing", ["none", "headwise", "key-value"])
@pytest.mark.parametrize("length", [1, 13, 24])
def test_linformer_follows_its_definition(length: int, sharing: str, specials: int) -> None:
    """Content row n meets column n of E and F, whatever stands in front of the content."""
    mixer = build("linformer", 24, rank=5, sharing=sharing)
    q, k, v = qkv(specials + length)
    mask = three_examples(length, specials)
    wanted = np.zeros(q.shape)
    for b, h in np.ndindex(*q.shape[:2]):
        real = mask[b].numpy()[:, None]
        e, f = (p[min(h, len(p) - 1)].detach().numpy()[:, :length] for p in (mixer.projection[0], mixer.projection[-1]))
        keys, values = k[b, h].numpy() * real, v[b, h].numpy() * real
        keys = np.concatenate([keys[:specials], e @ keys[specials:]])
        values = np.concatenate([values[:specials], f @ values[specials:]])
        wanted[b, h] = softmax(q[b, h].numpy() @ keys.T / np.sqrt(HEAD_DIM)) @ values
    y = mixer.mix(q, k, v, mask, layout(length, specials))
    torch.testing.assert_close(y, torch.from_numpy(wanted), atol=EXACT, rtol=0)


@pytest.mark.parametrize(("sharing", "matrices"), [("none", 2 * HEADS), ("headwise", 2), ("key-value", 1)])
def test_sharing_saves_parameters(sharing: str, matrices: int) -> None:
    projection = build("linformer", 24, rank=5, sharing=sharing).projection
    assert projection.numel() == matrices * 5 * 24
    assert projection.std().item() == pytest.approx(5**-0.5, rel=0.2)


# --- performer


@pytest.mark.parametrize("length", [1, 2, 13, 64])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3])
def test_performer_relu_is_the_product_of_its_features(length: int, epsilon: float) -> None:
    mixer = build("performer", length, kernel="relu", features=10, epsilon=epsilon)
    q, k, v = qkv(length)
    mask = three_examples(length)
    directions = mixer.directions.numpy()

    def features(x: Tensor) -> np.ndarray:
        return np.maximum(x.numpy() @ directions.swapaxes(-1, -2) / HEAD_DIM**0.25, 0) + epsilon

    weight = features(q) @ features(k).swapaxes(-1, -2)
    y = mixer.mix(q, k, v, mask, layout(length))
    torch.testing.assert_close(y, explicit(weight, v, mask), atol=EXACT, rtol=0)


@pytest.mark.parametrize("length", [1, 2, 13, 64])
def test_performer_softmax_is_the_product_of_its_features(length: int) -> None:
    """Without an epsilon the stabilisation changes no value."""
    mixer = build("performer", length, features=10, epsilon=0)
    q, k, v = qkv(length)
    mask = three_examples(length)
    directions = mixer.directions.numpy()

    def features(x: Tensor) -> np.ndarray:
        scaled = x.numpy() / HEAD_DIM**0.25
        found: np.ndarray = np.exp(scaled @ directions.swapaxes(-1, -2) - (scaled**2).sum(-1, keepdims=True) / 2)
        return found

    weight = features(q) @ features(k).swapaxes(-1, -2)
    y = mixer.mix(q, k, v, mask, layout(length))
    torch.testing.assert_close(y, explicit(weight, v, mask), atol=EXACT, rtol=0)


def _error(features: int, seeds: int, **options: Any) -> float:
    """Root mean square distance to softmax attention for small norms; values are N(0, 1)."""
    q, k, v = qkv(32, heads=1)
    q, k = q / 2, k / 2
    exact = F.scaled_dot_product_attention(q, k, v)
    mixers = [build("performer", 32, heads=1, features=features, seed=seed, **options) for seed in range(seeds)]
    return float(np.sqrt(np.mean([(mixer.attend(q, k, v, None) - exact).square().mean() for mixer in mixers])))


@pytest.mark.parametrize("orthogonal", [True, False])
def test_performer_softmax_converges_to_dense(orthogonal: bool) -> None:
    """The error falls as features^(-1/2)."""
    counts = [64, 256, 1024, 4096]
    errors = [_error(count, seeds=16, orthogonal=orthogonal, epsilon=0) for count in counts]
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert -0.6 < slope < -0.4
    assert errors[-1] < 0.01
    assert _error(65_536, seeds=2, orthogonal=orthogonal) < 0.005, "the default epsilon stands in the way"


def test_orthogonal_directions_serve_better_than_independent_ones() -> None:
    assert _error(16, seeds=64, orthogonal=True) < 0.9 * _error(16, seeds=64, orthogonal=False)


def test_directions_are_orthogonal_within_a_block_and_as_long_as_gaussian_ones() -> None:
    directions = build("performer", 8, features=4 * HEAD_DIM + 3, orthogonal=True).directions
    for start in range(0, directions.shape[1], HEAD_DIM):
        block = directions[:, start : start + HEAD_DIM]
        gram = block @ block.mT
        off_diagonal = gram - torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1))
        assert off_diagonal.abs().max() < 1e-5  # they are stored in float32
    many = build("performer", 8, features=10_000, orthogonal=True).directions.flatten(0, 1)
    torch.testing.assert_close(many.T @ many / len(many), torch.eye(HEAD_DIM, dtype=many.dtype), atol=0.03, rtol=0)
    assert many.mean(0).abs().max() < 0.03
    assert many.square().sum(-1).var().item() == pytest.approx(2 * HEAD_DIM, rel=0.05)  # chi squared
    assert many.pow(4).mean().item() == pytest.approx(3, rel=0.05)  # as of N(0, 1)


def test_directions_differ_by_head_layer_and_seed_and_by_nothing_else() -> None:
    one = build("performer", 8, features=10).directions
    assert torch.equal(one, build("performer", 24, features=10, kernel="relu", epsilon=0.5).directions)
    for other in (
        one.flip(0),
        *(build("performer", 8, features=10, **{what: 1}).directions for what in ("layer", "seed")),
    ):
        assert not torch.isclose(one, other).any()


def test_directions_are_the_same_in_every_process() -> None:
    code = (
        "import attnbench, torch; torch.manual_seed({seed}); "
        "mixer = attnbench.build_mechanism('performer', dim=8, heads=2, length=8, features=10, init_seed={seed}); "
        "print(mixer.mixer.directions.numpy().tobytes().hex())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code.format(seed=seed)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    here = build("performer", 8, features=10).float().directions
    assert found == {here.numpy().tobytes().hex() + "\n"}


def test_directions_are_saved_with_the_weights() -> None:
    q, k, v = qkv(8)
    saved, other = build("performer", 8, features=10), build("performer", 8, features=10, seed=1)
    other.load_state_dict(saved.state_dict())
    assert torch.equal(other.attend(q, k, v, None), saved.attend(q, k, v, None))


# --- nystromformer


def segment_means(x_ND: np.ndarray, landmarks: int) -> np.ndarray:
    """Means of consecutive segments, at most one a row; row n of N is in segment floor(n L / N)."""
    n = len(x_ND)
    count = min(landmarks, n)
    segments = [x_ND[[row for row in range(n) if row * count // n == one]] for one in range(count)]
    sizes = [len(segment) for segment in segments]
    assert max(sizes) - min(sizes) <= 1
    return np.array([segment.mean(0) for segment in segments])


@pytest.mark.parametrize("specials", [0, 2])
@pytest.mark.parametrize("conv_kernel", [0, 3, 33])
@pytest.mark.parametrize("length", [1, 3, 13, 24, 64])
def test_nystromformer_follows_its_definition(length: int, conv_kernel: int, specials: int) -> None:
    """Example by example, on the real rows alone."""
    mixer = build("nystromformer", length, landmarks=4, exact_inverse=True, conv_kernel=conv_kernel)
    q, k, v = qkv(specials + length)
    mask = three_examples(length, specials)
    y = mixer.mix(q, k, v, mask, layout(length, specials))
    for b, h in np.ndindex(*q.shape[:2]):
        real = mask[b].numpy()
        content = real & (np.arange(len(real)) >= specials)
        queries, keys, values = (x[b, h].numpy() for x in (q, k, v))
        q_LD, k_LD = segment_means(queries[content], 4), segment_means(keys[content], 4)
        root = np.sqrt(HEAD_DIM)
        middle = np.linalg.pinv(softmax(q_LD @ k_LD.T / root))
        wanted = softmax(queries @ k_LD.T / root) @ middle @ softmax(q_LD @ keys[real].T / root) @ values[real]
        for row in range(specials, len(real)) if conv_kernel else ():
            for step in range(conv_kernel):
                other = row + step - conv_kernel // 2
                if specials <= other < len(real) and real[other]:
                    wanted[row] += mixer.conv.weight[h, 0, step, 0].item() * values[other]
        torch.testing.assert_close(y[b, h][mask[b]], torch.from_numpy(wanted[real]), atol=1e-8, rtol=0)


@pytest.mark.parametrize("landmarks", [13, 20])
def test_nystromformer_with_a_landmark_a_row_and_the_exact_inverse_is_dense(landmarks: int) -> None:
    mixer = build("nystromformer", 13, landmarks=landmarks, exact_inverse=True, conv_kernel=0)
    q, k, v = qkv(13)
    mask = three_examples(13)
    exact = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
    torch.testing.assert_close(mixer.mix(q, k, v, mask, layout(13)), exact, atol=1e-8, rtol=0)


@pytest.mark.parametrize("size", [1, 4, 8, 16, 64])
def test_the_iteration_reaches_the_pseudo_inverse(size: int) -> None:
    """The larger the condition number, the more steps it takes; six are few."""
    drawn = torch.randn(20, size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    a = drawn.softmax(-1)
    a[0, :, -1] = a[0, -1] = 0.0  # a landmark without a row
    truth = torch.from_numpy(np.linalg.pinv(a.numpy()))

    def error(iterations: int) -> float:
        """The largest distance, relative to the norm of the inverse."""
        gap, norm = torch.linalg.matrix_norm(pseudo_inverse(a, iterations) - truth), torch.linalg.matrix_norm(truth)
        return float((gap / norm.masked_fill(norm == 0, 1)).max())

    assert error(40) < 1e-10
    assert error(40) <= error(12) + EXACT <= error(6) + 2 * EXACT < 1


def test_nystromformer_with_enough_iterations_equals_the_exact_inverse() -> None:
    q, k, v = qkv(64)
    iterated, exact = (
        build("nystromformer", 64, landmarks=4, conv_kernel=0, **how).mix(q * 3, k * 3, v, None, layout(64))
        for how in ({"iterations": 20}, {"exact_inverse": True})
    )
    torch.testing.assert_close(iterated, exact, atol=1e-8, rtol=0)


# --- options


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("linear", {"features": 4}, "features"),
        ("linformer", {"rank": 0}, "rank"),
        ("linformer", {"sharing": "layerwise"}, "sharing"),
        ("performer", {"features": 0}, "features"),
        ("performer", {"kernel": "elu"}, "kernel"),
        ("performer", {"epsilon": -1e-6}, "epsilon"),
        ("performer", {"seed": -1}, "seed"),
        ("nystromformer", {"landmarks": 0}, "landmarks"),
        ("nystromformer", {"iterations": 0}, "iterations"),
        ("nystromformer", {"conv_kernel": 4}, "odd"),
        ("nystromformer", {"exact_inverse": True, "iterations": 6}, "iterations"),
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused(name: str, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(AttnbenchError, match=complaint):
        attnbench.build_mechanism(name, dim=8, heads=2, length=8, **options)


def test_the_feature_map_of_linear_and_its_derivatives() -> None:
    """elu + 1, by PyTorch's; first and second derivative by finite differences."""
    x = torch.tensor([-700.0, -40, -1, -1e-9, 0, 1e-9, 0.5, 30], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(phi(x), F.elu(x) + 1, rtol=1e-12, atol=1e-15)
    assert (phi(x) > 0).all()
    (slope,) = torch.autograd.grad(phi(x).sum(), x)
    assert torch.equal(slope, x.clamp(max=0).exp())
    away = torch.linspace(-3, 3, 8, dtype=torch.float64, requires_grad=True)  # of 0, where the second one jumps
    assert torch.autograd.gradcheck(phi, away) and torch.autograd.gradgradcheck(phi, away)


def test_weights_that_are_all_zero_give_zero() -> None:
    features = torch.zeros(1, 1, 3, 2, requires_grad=True)
    y = linear_attention(features, features + 1, torch.ones(1, 1, 3, 4), None)
    y.sum().backward()
    assert (y == 0).all() and features.grad is not None and features.grad.isfinite().all()
