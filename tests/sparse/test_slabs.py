"""The slabs of the gather path: any cut gives the dense path's result, and what is kept and held stays small."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnbench.contracts import Layout, Tokens
from attnbench.errors import AttnbenchError
from attnbench.sparse import BlockWindow, Pattern, RandomBlocks, TokenWindow, dense, end_blocks, gather, slabs

LENGTH, HEADS = 37, 4
RANDOM = RandomBlocks(4, count=2, length=40, heads=HEADS, seed=0, avoid=(0,))
PATTERNS = {
    "block window": Pattern(BlockWindow(4, 3)),
    "block-diagonal": Pattern(BlockWindow(4, 1)),
    "token window": Pattern(TokenWindow(4, 6, 1)),
    "dilated": Pattern(TokenWindow(4, 2, 3, dilation=3)),
    "random": Pattern(RANDOM),
    "random and token window": Pattern(RANDOM | TokenWindow(4, 3, 3)),
    "bigbird": Pattern(RANDOM | BlockWindow(4, 3), content_globals=end_blocks),
    "window and end blocks": Pattern(BlockWindow(4, 3), content_globals=end_blocks),
}


def call(
    pattern: Pattern, *, batch: int = 4, masked: bool = True, globals: int = 2, dtype: torch.dtype = torch.float64
) -> tuple[list[Tensor], Tensor | None, Layout]:
    """Queries, keys, values and a weighting; a mask; a layout."""
    generator = torch.Generator().manual_seed(0)
    layout = Layout(Tokens(globals=globals, block_size=4), LENGTH)
    x = torch.randn(4, batch, HEADS, layout.rows, 6, generator=generator, dtype=torch.float64).to(dtype)
    mask = torch.rand(batch, layout.rows, generator=generator) < 0.8 if masked else None
    if mask is not None:
        mask[0, 14:] = False
        mask[1] = True
    return [one.requires_grad_() for one in x.unbind()], mask, layout


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scores", [1, 300, 700, 3000])
@pytest.mark.parametrize("name", PATTERNS)
def test_any_cut_gives_the_same(name: str, scores: int, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one block at a time to some heads of some examples."""
    monkeypatch.setattr(slabs, "CPU_SCORES", 8 * scores)
    (*qkv, weighting), mask, layout = call(PATTERNS[name], masked=masked)
    results = []
    for run in (gather, dense):
        y = run(*qkv, PATTERNS[name], mask, layout)
        real = 1 if mask is None else mask[:, None, :, None]
        results.append([y, *torch.autograd.grad((y * weighting * real).sum(), qkv)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("name", PATTERNS)
def test_the_gradient_is_that_of_finite_differences(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slabs, "CPU_SCORES", 8000)
    (*qkv, _), mask, layout = call(PATTERNS[name], batch=2)
    assert torch.autograd.gradcheck(lambda *x: gather(*x, PATTERNS[name], mask, layout), qkv, fast_mode=True)


def test_a_second_derivative_is_refused() -> None:
    pattern = PATTERNS["block window"]
    (q, k, v, _), mask, layout = call(pattern, globals=0)
    y = gather(q, k, v, pattern, mask, layout)
    with pytest.raises(AttnbenchError, match="no second derivative"):
        torch.autograd.grad(y.sum(), q, create_graph=True)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", PATTERNS)
def test_bfloat16_is_as_exact_as_dense(name: str, masked: bool) -> None:
    """Within twice the error that the dense path makes in bfloat16."""
    (*qkv, weighting), mask, layout = call(PATTERNS[name], masked=masked, dtype=torch.bfloat16)
    real = 1 if mask is None else mask[:, None, :, None]

    def results(run: slabs.Any, inputs: list[Tensor]) -> list[Tensor]:
        layout.memo.clear()
        y = run(*inputs, PATTERNS[name], mask, layout)
        return [y * real, *torch.autograd.grad((y * weighting * real).sum(), inputs)]

    exact = results(dense, [x.detach().double().requires_grad_() for x in qkv])
    for found, near, true in zip(results(gather, qkv), results(dense, qkv), exact, strict=True):
        error, allowed = ((x.double() - true).square().mean().sqrt().item() for x in (found, near))
        assert error <= 2 * allowed


class Made(TorchDispatchMode):
    """Notes the tensors that operations make, and the most bytes of them that live at once."""

    def __init__(self) -> None:
        super().__init__()
        self.refs: list[weakref.ref[Tensor]] = []
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = function(*args, **(kwargs or {}))
        self.refs += [weakref.ref(x) for x in tree_leaves(made) if isinstance(x, Tensor)]
        self.peak = max(self.peak, sum(self.storages().values()))
        return made

    def storages(self) -> dict[int, int]:
        self.refs = [ref for ref in self.refs if ref() is not None]
        living = [x.untyped_storage() for ref in self.refs if (x := ref()) is not None]
        return {storage.data_ptr(): storage.nbytes() for storage in living}


def test_nothing_is_kept_without_gradients() -> None:
    pattern = PATTERNS["bigbird"]
    (q, k, v, _), mask, layout = call(pattern, globals=0)
    gather(q, k, v, pattern, mask, layout)  # the tables of the layout stay
    with torch.no_grad(), Made() as made:
        y = gather(q, k, v, pattern, mask, layout)
        assert set(made.storages()) == {y.untyped_storage().data_ptr()}


@pytest.mark.parametrize(
    "pattern",
    [
        Pattern(BlockWindow(16, 3)),
        Pattern(TokenWindow(16, 16, 16)),
        Pattern(BlockWindow(16, 1)),
        Pattern(BlockWindow(16, 1), content_globals=end_blocks),
        Pattern(RandomBlocks(16, count=3, length=4096, heads=1, seed=0)),
    ],
    ids=["window", "token window", "block-diagonal", "global", "random"],
)
def test_memory_grows_with_the_length_alone(pattern: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exponent between 512 and 4,096 rows, forward and backward; that of the scores would be 2."""
    monkeypatch.setattr(slabs, "CPU_SCORES", 1 << 14)
    peaks = []
    for length in (512, 4096):
        q, k, v = torch.randn(3, 1, 1, length, 8).unbind()
        layout = Layout(Tokens(block_size=16), length)
        gather(q, k, v, pattern, None, layout)
        with Made() as made:
            q.requires_grad_()
            gather(q, k, v, pattern, None, layout).sum().backward()
        peaks.append(made.peak)
    assert math.log(peaks[1] / peaks[0]) / math.log(8) < 1.15
