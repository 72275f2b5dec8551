"""MoBA and NSA against their definitions, row by row and pair by pair in float64, and what the definitions promise."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import reference
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnbench import registry
from attnbench.config import ModelConfig
from attnbench.contracts import Layout, Tokens
from attnbench.errors import AttnbenchError, Unsupported
from attnbench.layers import QKVMixer
from attnbench.model import Encoder, mixer_shape
from attnbench.options import parse
from attnbench.randomness import initialise

DIM, HEADS = 12, 2
LENGTHS = (1, 2, 63, 64, 65, 127, 300)
CAUSAL, NAMES = ("moba", "nsa"), ("moba", "moba_bidirectional", "nsa", "nsa_bidirectional")
EXACT = 1e-10
ANGLES = 1e-5  # the engine's rotary angles have single precision


def build(name: str, length: int, front: int = 0, rotary: bool = False, **options: Any) -> QKVMixer:
    """The bare mixer in float64, told of `front` special rows."""
    mechanism = registry.load("mechanisms", name).object
    chosen = parse(name, mechanism.options, options, mechanism.presets)
    shape = mixer_shape(mechanism, chosen, dim=DIM, heads=HEADS, length=length, rotary=rotary)
    mixer = mechanism.build(replace(shape, tokens=replace(shape.tokens, globals=front)), chosen)
    initialise(mixer, 0)
    return mixer.double()


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def three_examples(length: int) -> np.ndarray:
    """(3, length) bool: padding in front, in the middle and behind, one token alone, all real."""
    real = np.ones((3, length), dtype=bool)
    real[0, length // 3 : length // 2] = False
    real[0, length - length // 5 :] = False
    real[0, : length // 9] = False
    real[1, 1:] = False
    return real


Truth = Callable[[dict[str, Tensor], Tensor, np.ndarray], Tensor]


def compare(mixer: QKVMixer, truth: Truth, length: int, front: int = 0, exact: float = EXACT) -> None:
    """Outputs of all real rows, and gradients of a fixed weighting of them, for input and parameters."""
    real = np.concatenate([np.ones((3, front), dtype=bool), three_examples(length)], axis=1)
    x, mask = normal(3, front + length, DIM), torch.from_numpy(real)
    ours, theirs, weights = x.clone().requires_grad_(), x.clone().requires_grad_(), reference.leaves(mixer)
    y = mixer(ours, mask, Layout(Tokens(globals=front), length))[mask]
    wanted = truth(weights, torch.where(mask[..., None], theirs, 0.0), real)[mask]
    torch.testing.assert_close(y, wanted, atol=exact, rtol=exact)
    weighting = normal(*y.shape, seed=2)
    found = torch.autograd.grad((y * weighting).sum(), [ours, *mixer.parameters()], materialize_grads=True)
    expected = torch.autograd.grad(
        (wanted * weighting).sum(), [theirs, *weights.values()], allow_unused=True, materialize_grads=True
    )
    for name, one, other in zip(["input", *weights], found, expected, strict=True):
        torch.testing.assert_close(
            one, other, atol=10 * exact, rtol=10 * exact, msg=lambda m, name=name: f"{name}: {m}"
        )


def places(front: int, length: int) -> list[int]:
    return [0] * front + list(range(length))


def see(rows: int, front: int, block_size: int, chosen: list[set[int]], real: np.ndarray, causal: bool) -> np.ndarray:
    """(rows, rows) bool: real keys of the chosen blocks; rows in front see all and are seen by all."""
    seen = np.zeros((rows, rows), dtype=bool)
    seen[:front] = True
    seen[:, :front] = True
    for query, blocks in enumerate(chosen):
        for key in range(query + 1 if causal else rows - front):
            seen[front + query, front + key] = key // block_size in blocks
    return seen & real


# --- moba


def moba_blocks(
    q_ND: Tensor, k_ND: Tensor, real_N: np.ndarray, block_size: int, top_k: int, causal: bool
) -> list[set[int]]:
    """The blocks each row sees."""
    means = {}
    for block in range(-(-len(q_ND) // block_size)):
        keys = [i for i in range(block * block_size, min((block + 1) * block_size, len(q_ND))) if real_N[i]]
        if keys:
            means[block] = k_ND[keys].mean(0)
    chosen = []
    for row, query in enumerate(q_ND):
        own = row // block_size
        others = [block for block in means if (block < own if causal else block != own)]
        best = sorted(others, key=lambda block: -(query @ means[block]).item())
        chosen.append({own, *best[: top_k - 1]})
    return chosen


def moba(length: int, block_size: int, top_k: int, causal: bool, front: int = 0, rotary: bool = False) -> Truth:
    def truth(weights: dict[str, Tensor], x: Tensor, real: np.ndarray) -> Tensor:
        q, k, v = reference.project(weights, "", x, HEADS)
        if rotary:
            q, k = (reference.rotated(rows, places(front, length)) for rows in (q, k))
        seen = np.zeros((len(x), HEADS, front + length, front + length), dtype=bool)
        for i, h in np.ndindex(len(x), HEADS):
            blocks = moba_blocks(
                q[i, h, front:].detach(), k[i, h, front:].detach(), real[i, front:], block_size, top_k, causal
            )
            seen[i, h] = see(front + length, front, block_size, blocks, real[i], causal)
        y = reference.softmax_attention(q, k, v, torch.from_numpy(seen))
        return reference.join(weights, "", y.unbind(1))

    return truth


@pytest.mark.parametrize(("block_size", "top_k"), [(8, 3), (64, 2), (5, 1), (1, 4)])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", NAMES[:2])
def test_moba_is_its_definition(name: str, length: int, block_size: int, top_k: int) -> None:
    mixer = build(name, length, block_size=block_size, top_k=top_k)
    compare(mixer, moba(length, block_size, top_k, causal=name == "moba"), length)


@pytest.mark.parametrize("name", NAMES[:2])
def test_moba_turns_queries_and_keys_before_it_chooses(name: str) -> None:
    compare(build(name, 45, rotary=True, block_size=4), moba(45, 4, 3, name == "moba", rotary=True), 45, exact=ANGLES)


def test_rows_in_front_of_moba_see_all_and_are_seen_by_all() -> None:
    compare(build("moba_bidirectional", 45, front=2, block_size=4), moba(45, 4, 3, False, front=2), 45, front=2)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", NAMES[:2])
def test_moba_that_chooses_all_blocks_is_softmax_attention(name: str, length: int) -> None:
    mixer, x = build(name, length, block_size=16, top_k=-(-length // 16)), normal(2, length, DIM)
    q, k, v = reference.project(reference.leaves(mixer), "", x, HEADS)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=name == "moba")
    torch.testing.assert_close(mixer(x), mixer.out(y.transpose(1, 2).flatten(2)), atol=EXACT, rtol=0)


@pytest.mark.parametrize("name", NAMES[:2])
def test_moba_chooses_the_blocks_of_its_definition(name: str) -> None:
    mixer, x, real = build(name, 61, block_size=4, top_k=4), normal(3, 61, DIM), three_examples(61)
    mask = torch.from_numpy(real)
    q, k, _ = mixer.project(x, torch.arange(61))
    chosen = mixer.choose_blocks(q, k, mask, Layout(Tokens(), 61))
    for i, h in np.ndindex(3, HEADS):
        wanted = moba_blocks(q[i, h], k[i, h], real[i], 4, 4, causal=name == "moba")
        found = [set(row) - {-1} for row in chosen[i, h].tolist()]
        assert [row for row, r in zip(found, real[i], strict=True) if r] == [
            row for row, r in zip(wanted, real[i], strict=True) if r
        ]


# --- nsa


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def mlp(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    hidden = gelu(x @ weights[f"{name}.0.weight"].T + weights[f"{name}.0.bias"])
    return hidden @ weights[f"{name}.2.weight"].T + weights[f"{name}.2.bias"]


def compress(
    weights: dict[str, Tensor], name: str, x_HND: Tensor, real_N: np.ndarray, block: int, stride: int
) -> Tensor:
    """(H, U, D): phi of every block that begins in the content, with nothing in the place of padding."""
    made = []
    for start in range(0, x_HND.shape[1], stride):
        parts = [
            x_HND[:, row] + weights[f"{name}.place.weight"][row - start]
            if row < len(real_N) and real_N[row]
            else torch.zeros_like(x_HND[:, 0])
            for row in range(start, start + block)
        ]
        made.append(mlp(weights, f"{name}.mlp", torch.cat(parts, dim=-1)))
    return torch.stack(made, dim=1)


def ends_in_time(length: int, block: int, stride: int, real_N: np.ndarray, causal: bool) -> np.ndarray:
    """(N, U) bool: compressed blocks with a real key, and all of the block at the row or before it where causal."""
    return np.array(
        [
            [real_N[s : s + block].any() and (not causal or s + block - 1 <= row) for s in range(0, length, stride)]
            for row in range(length)
        ]
    )


def nsa_blocks(p_NU: Tensor, real_N: np.ndarray, o: Any, causal: bool) -> list[set[int]]:
    """Equation 9 as printed, with indices from 1, then the best of the blocks that have a real key."""
    length, per, inner = len(p_NU), o.block_size // o.stride, o.block // o.stride
    kept = [b for b in range(-(-length // o.block_size)) if real_N[b * o.block_size : (b + 1) * o.block_size].any()]
    chosen = []
    for row in range(length):
        p = dict(enumerate(p_NU[row].tolist(), start=1))
        score = {b: sum(p.get(per * (b + 1) - m - n, 0.0) for m in range(per) for n in range(inner)) for b in kept}
        own = row // o.block_size
        always = {kept[0] if kept else 0, own - 1, own} | (set() if causal else {own + 1})
        able = [b for b in kept if b <= own or not causal]
        chosen.append(set(sorted(able, key=lambda b: (b not in always, -score[b]))[: o.top_n]))
    return chosen


def nsa(length: int, options: dict[str, Any], causal: bool, front: int = 0, rotary: bool = False) -> Truth:
    o = registry.load("mechanisms", "nsa").object.options(**options)

    def truth(weights: dict[str, Tensor], x: Tensor, real: np.ndarray) -> Tensor:
        q, k_slc, v_slc = reference.project(weights, "", x, HEADS)
        more = (x @ weights["more_kv.weight"].T + weights["more_kv.bias"]).chunk(4, dim=-1)
        k_cmp, v_cmp, k_win, v_win = (torch.stack(rows.chunk(HEADS, dim=-1), dim=1) for rows in more)
        if rotary:
            q, k_slc, k_win = (reference.rotated(rows, places(front, length)) for rows in (q, k_slc, k_win))
        rows, near = front + length, [near_rows(row, length, o.window, causal) for row in range(length)]
        y_BHRD = []
        for i in range(len(x)):
            content = real[i, front:]
            keys, values = (
                compress(weights, name, made[i, :, front:], content, o.block, o.stride)
                for name, made in (("compress_k", k_cmp), ("compress_v", v_cmp))
            )
            if rotary:
                keys = reference.rotated(keys[None], [s + o.block // 2 for s in range(0, length, o.stride)])[0]
            in_time = ends_in_time(length, o.block, o.stride, content, causal)
            in_time = np.concatenate([np.repeat(in_time.any(0, keepdims=True), front, axis=0), in_time])
            seen = torch.from_numpy(in_time)[None].expand(HEADS, -1, -1)
            y_cmp = reference.softmax_attention(q[i], keys, values, seen)
            one_hot = torch.eye(keys.shape[1], dtype=torch.float64).expand(HEADS, -1, -1)
            p = reference.softmax_attention(q[i], keys, one_hot, seen).detach()[:, front:]
            p = p.sum(0, keepdim=True).expand_as(p) if o.share_selection else p
            chosen = [nsa_blocks(p[h], content, o, causal) for h in range(HEADS)]
            far = np.stack([see(rows, front, o.block_size, blocks, real[i], causal) for blocks in chosen])
            y_slc = reference.softmax_attention(q[i], k_slc[i], v_slc[i], torch.from_numpy(far))
            in_window = torch.from_numpy(see(rows, front, 1, near, real[i], causal)).expand(HEADS, -1, -1)
            y_win = reference.softmax_attention(q[i], k_win[i], v_win[i], in_window)
            gates = torch.sigmoid(mlp(weights, "gate", x[i])).T.unflatten(0, (3, HEADS))[..., None]
            y_BHRD.append(gates[0] * y_cmp + gates[1] * y_slc + gates[2] * y_win)
        return reference.join(weights, "", torch.stack(y_BHRD).unbind(1))

    return truth


def near_rows(row: int, length: int, window: int, causal: bool) -> set[int]:
    return set(range(max(0, row - window), min(length, row + 1 if causal else row + window + 1)))


NSA_OPTIONS: dict[str, dict[str, Any]] = {
    "small": {"block_size": 8, "top_n": 4, "window": 6},
    "no overlap": {"block_size": 4, "compress_block": 4, "compress_stride": 4, "top_n": 5, "window": 0},
    "long blocks": {"block_size": 6, "compress_block": 6, "compress_stride": 2, "top_n": 4, "window": 9},
    "shared": {"block_size": 8, "top_n": 4, "window": 6, "share_selection": True},
    "paper": {},
}


@pytest.mark.parametrize("options", NSA_OPTIONS.values(), ids=NSA_OPTIONS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", NAMES[2:])
def test_nsa_is_its_definition(name: str, length: int, options: dict[str, Any]) -> None:
    compare(build(name, length, **options), nsa(length, options, causal=name == "nsa"), length)


@pytest.mark.parametrize("name", NAMES[2:])
def test_a_compressed_key_stands_in_the_middle_of_its_block(name: str) -> None:
    options = NSA_OPTIONS["small"]
    compare(build(name, 45, rotary=True, **options), nsa(45, options, name == "nsa", rotary=True), 45, exact=ANGLES)


def test_rows_in_front_of_nsa_see_all_and_are_seen_by_all() -> None:
    options = NSA_OPTIONS["small"]
    compare(build("nsa_bidirectional", 45, front=2, **options), nsa(45, options, False, front=2), 45, front=2)


def open_gate(mixer: QKVMixer, branch: int) -> None:
    """One branch counts 1, the others 0, for every row."""
    with torch.no_grad():
        mixer.gate[2].weight.zero_()
        mixer.gate[2].bias.fill_(-1e4).view(3, HEADS)[branch] = 1e4


@pytest.mark.parametrize("name", NAMES[2:])
def test_compressed_blocks_with_equal_keys_are_averaged(name: str) -> None:
    mixer, x = build(name, 20, **NSA_OPTIONS["no overlap"]), normal(2, 20, DIM)
    open_gate(mixer, 0)
    with torch.no_grad():
        mixer.compress_k.mlp[2].weight.zero_()
    values = mixer.more_kv(x)[..., DIM : 2 * DIM].unflatten(-1, (HEADS, -1)).transpose(1, 2)
    blocks = mixer.compress_v.mlp((values.unflatten(2, (5, 4)) + mixer.compress_v.place.weight).flatten(3))
    for row in range(20):
        ended = (row + 1) // 4 if name == "nsa" else 5
        y = blocks[:, :, :ended].mean(2) if ended else torch.zeros_like(blocks[:, :, 0])
        torch.testing.assert_close(mixer(x)[:, row], mixer.out(y.flatten(1)), atol=EXACT, rtol=0)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", NAMES[2:])
def test_the_selected_branch_with_all_blocks_is_softmax_attention(name: str, length: int) -> None:
    mixer, x = build(name, length, block_size=16, top_n=max(4, -(-length // 16))), normal(2, length, DIM)
    open_gate(mixer, 1)
    q, k, v = reference.project(reference.leaves(mixer), "", x, HEADS)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=name == "nsa")
    torch.testing.assert_close(mixer(x), mixer.out(y.transpose(1, 2).flatten(2)), atol=EXACT, rtol=0)


@pytest.mark.parametrize("window", [0, 5, 400])
@pytest.mark.parametrize("name", NAMES[2:])
def test_the_window_branch_is_a_band(name: str, window: int) -> None:
    mixer, x = build(name, 65, block_size=8, window=window), normal(2, 65, DIM)
    open_gate(mixer, 2)
    q, _, _ = reference.project(reference.leaves(mixer), "", x, HEADS)
    k, v = (rows.unflatten(-1, (HEADS, -1)).transpose(1, 2) for rows in mixer.more_kv(x).chunk(4, dim=-1)[2:])
    distance = torch.arange(65)[:, None] - torch.arange(65)
    band = (distance <= window) & (distance >= (0 if name == "nsa" else -window))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=band)
    torch.testing.assert_close(mixer(x), mixer.out(y.transpose(1, 2).flatten(2)), atol=EXACT, rtol=0)


def test_gates_are_independent_and_lie_between_0_and_1() -> None:
    mixer, x = build("nsa", 30, block_size=4), normal(2, 30, DIM)
    gates = mixer.gate(x)
    assert gates.shape == (2, 30, 3 * HEADS) and gates.min() > 0 and gates.max() < 1
    alone = []
    for branch in range(3):
        open_gate(mixer, branch)
        alone.append(mixer(x) - mixer.out.bias)
    with torch.no_grad():
        mixer.gate[2].bias.fill_(1e4)
    torch.testing.assert_close(mixer(x) - mixer.out.bias, sum(alone), atol=EXACT, rtol=0)


@pytest.mark.parametrize("name", NAMES[2:])
@pytest.mark.parametrize("shared", [False, True])
def test_nsa_selects_the_blocks_of_its_definition(name: str, shared: bool) -> None:
    """For any probabilities of the compressed blocks, padding or not."""
    mixer = build(name, 61, block_size=4, top_n=5, share_selection=shared)
    p, real = normal(3, HEADS, 61, 61).softmax(-1), three_examples(61)
    chosen = mixer.select_blocks(p, torch.from_numpy(real), Layout(Tokens(), 61))
    for i, h in np.ndindex(3, HEADS):
        wanted = nsa_blocks(p[i].sum(0) if shared else p[i, h], real[i], mixer.options, causal=name == "nsa")
        assert [set(row) - {-1} for row in chosen[i, h].tolist()] == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 8, "compress_stride": 3}, "divides"),
        ({"block_size": 8, "compress_block": 3}, "divides"),
        ({"block_size": 8, "compress_block": 16}, "no more than block_size"),
        ({"block_size": 8, "top_n": 2}, "3 blocks are always selected"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(AttnbenchError, match=message):
        build("nsa", 16, **options)


def test_both_neighbours_and_the_own_and_the_first_block_need_four() -> None:
    build("nsa", 16, top_n=3)
    with pytest.raises(AttnbenchError, match="4 blocks are always selected"):
        build("nsa_bidirectional", 16, top_n=3)


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 6, 8, 12, 64])
def test_compressed_blocks_follow_the_block_size(block_size: int) -> None:
    """In the paper's proportions where they are whole numbers."""
    options = parse("nsa", registry.load("mechanisms", "nsa").object.options, {"block_size": block_size}, {})
    assert options.block <= block_size and options.block % options.stride == block_size % options.stride == 0
    if block_size % 4 == 0:
        assert (options.block, options.stride) == (block_size // 2, block_size // 4)


# --- both

SMALL: dict[str, dict[str, Any]] = {
    "moba": {"block_size": 4, "top_k": 2},
    "moba_bidirectional": {"block_size": 4, "top_k": 2},
    "nsa": {"block_size": 4, "top_n": 4, "window": 5},
    "nsa_bidirectional": {"block_size": 4, "top_n": 5, "window": 5},
}


@pytest.mark.parametrize("mask", [None, three_examples(45)], ids=["all real", "padding"])
@pytest.mark.parametrize("name", CAUSAL)
def test_no_later_row_changes_an_earlier_output(name: str, mask: np.ndarray | None) -> None:
    mixer, x = build(name, 45, **SMALL[name]), normal(3, 45, DIM)
    real = None if mask is None else torch.from_numpy(mask)
    before = mixer(x, real)
    for cut in (1, 3, 4, 17, 44):
        changed = torch.cat([x[:, :cut], normal(3, 45 - cut, DIM, seed=cut) * 100], dim=1)
        torch.testing.assert_close(mixer(changed, real)[:, :cut], before[:, :cut], atol=EXACT, rtol=0)
        x.requires_grad_()
        (gradient,) = torch.autograd.grad((mixer(x, real)[:, :cut] * normal(3, cut, DIM)).sum(), x)
        assert (gradient[:, cut:] == 0).all() and gradient[:, :cut].abs().max() > 0
        x = x.detach()


@pytest.mark.parametrize("name", ["moba_bidirectional", "nsa_bidirectional"])
def test_a_later_row_changes_an_earlier_output_of_the_variants(name: str) -> None:
    mixer, x = build(name, 45, **SMALL[name]), normal(1, 45, DIM).requires_grad_()
    (gradient,) = torch.autograd.grad((mixer(x)[:, 0] * normal(1, DIM)).sum(), x)
    assert gradient[:, 5:].abs().max() > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_fully_masked_example_sees_nothing(name: str) -> None:
    mixer, x = build(name, 13, **SMALL[name]), normal(2, 13, DIM).requires_grad_()
    y = mixer(x, torch.tensor([[False], [True]]).expand(2, 13))
    assert (y[0] == mixer.out.bias).all()
    y.square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all() and (x.grad[0] == 0).all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())


@pytest.mark.parametrize("padded", [80, 200, 2000])
@pytest.mark.parametrize("name", NAMES[:2])
def test_equal_scores_go_to_the_earlier_block_whatever_padding_follows(name: str, padded: int) -> None:
    mixer, ones = build(name, padded, block_size=4, top_k=4), torch.ones(1, HEADS, padded, DIM // HEADS)
    mask = torch.arange(padded)[None] < 80
    chosen = mixer.choose_blocks(ones, ones, mask, Layout(Tokens(), padded))
    assert chosen[0, 0, 4 * 7 + 1].tolist() == [7, 0, 1, 2]


@pytest.mark.parametrize("name", NAMES)
def test_no_tensor_holds_all_pairs_of_rows(name: str) -> None:
    length = 2048
    mixer = build(
        name, length, **({"block_size": 32, "window": 32, "top_n": 4} if "nsa" in name else {"block_size": 32})
    )
    largest = Largest()
    with largest:
        mixer(normal(1, length, DIM).requires_grad_()).sum().backward()
    assert largest.numel < HEADS * length * length / 4


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor made."""

    numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return made


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_whole_blocks_of_padding_in_front_change_nothing(name: str, rotary: bool) -> None:
    """A shift as SAR makes it, here by two blocks: tokens keep their positions, and the first block is the first real
    one. Compressed blocks do not overlap, else one would straddle the start.
    """
    options = SMALL[name] | ({"compress_block": 4, "compress_stride": 4} if "nsa" in name else {})
    mixer, x = build(name, 53, rotary=rotary, **options), normal(2, 45, DIM)
    mask = (torch.arange(53) >= 8).expand(2, -1)
    shifted = mixer(F.pad(x, (0, 0, 8, 0), value=math.nan), mask, Layout(Tokens(), 53, shift=8))
    torch.testing.assert_close(shifted[:, 8:], mixer(x), atol=EXACT, rtol=0)


DIGEST = """
import hashlib, sys, torch, attnbench
x = torch.randn(2, 50, 12, generator=torch.Generator().manual_seed(1)).requires_grad_()
for name in sys.argv[1:]:
    mixer = attnbench.build_mechanism(name, dim=12, heads=2, length=50, block_size=4)
    y = mixer(x, torch.arange(50).expand(2, -1) < 43)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    print(hashlib.sha256(torch.cat([y, gradient]).detach().numpy().tobytes()).hexdigest())
"""


def test_two_processes_agree() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", DIGEST, *NAMES],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    ]
    assert outputs[0] == outputs[1] and len(set(outputs[0].split())) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_causal_forms_get_no_row_in_front(name: str) -> None:
    mechanism = registry.load("mechanisms", name).object
    config = ModelConfig(dim=DIM, heads=HEADS, layers=1, mlp=16, pooling="cls")
    if name in CAUSAL:
        with pytest.raises(Unsupported, match="causal"):
            Encoder(config, mechanism, mechanism.options(), vocab=5, max_length=16)
    else:
        assert Encoder(config, mechanism, mechanism.options(), vocab=5, max_length=16).specials.tokens.globals == 1


def test_the_forms_have_the_same_parameters() -> None:
    for causal in CAUSAL:
        one, other = (dict(build(name, 40).named_parameters()) for name in (causal, f"{causal}_bidirectional"))
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
