"""Execution paths and mechanisms on CUDA against float64 truth: forward, backward, precisions, lengths, masks.

A kernel takes seconds to compile, so the cases share head widths and numbers of heads; `error` is the largest error of
the output and the three gradients, each relative to its largest value.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import reference
import torch
from torch import Tensor

import attnbench
from attnbench import registry
from attnbench.contracts import Cell, Layout, Tokens
from attnbench.errors import Unsupported
from attnbench.options import field_names
from attnbench.sparse import (
    PATHS,
    BlockWindow,
    Causal,
    FromRule,
    Pattern,
    RandomBlocks,
    Strided,
    TokenWindow,
    Topology,
    end_blocks,
)
from attnbench.sparse.dense import visibility

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device"),
]

B, HEADS, BATCH = 32, 2, 3
BOUND = {torch.float32: 5e-5, torch.bfloat16: 4e-2}
Note = Callable[[str, object], None]

PATTERNS: dict[str, Topology] = {
    "block window": BlockWindow(B, 3),
    "token window": TokenWindow(B, 40, 9),
    "dilated": TokenWindow(B, 20, 20, dilation=3),
    "causal strided": Causal(Strided(B, 7)),
    "a rule by head": FromRule(B, lambda b, h, q, k: (q - k).abs() <= 30 * h + 1, heads=HEADS),
    "bigbird": BlockWindow(B, 3) | RandomBlocks(B, count=2, length=1100, heads=HEADS, seed=3),
}


def relative_error(
    path: str,
    pattern: Pattern,
    layout: Layout,
    mask: Tensor | None,
    dtype: torch.dtype,
    width: int,
) -> float:
    generator = torch.Generator("cuda").manual_seed(1)
    shape = (4, BATCH, HEADS, layout.rows, width)
    q, k, v, up = torch.randn(shape, generator=generator, device="cuda", dtype=dtype)
    ours, theirs = ([x.detach().to(d).requires_grad_() for x in (q, k, v)] for d in (dtype, torch.float64))
    y = PATHS[path](*ours, pattern, mask, layout)
    wanted = reference.softmax_attention(*theirs, visibility(pattern, mask, layout, BATCH, q.device))
    assert y.dtype == dtype and y.isfinite().all()
    found = [y, *torch.autograd.grad((y * up).sum(), ours)]
    truth = [wanted, *torch.autograd.grad((wanted * up.double()).sum(), theirs)]
    return max(
        float((x.double() - t).abs().max() / t.abs().max().clamp(min=1e-9))
        for x, t in zip((x.detach() for x in found), (t.detach() for t in truth), strict=True)
    )


def some_masked(layout: Layout) -> Tensor:
    """Holes, padding behind, and an example without a real row."""
    mask = torch.rand(BATCH, layout.rows, generator=torch.Generator().manual_seed(2)) < 0.8
    mask[1, layout.rows // 2 :] = False
    mask[2] = False
    return mask.cuda()


def check(
    note: Note, path: str, pattern: Pattern, layout: Layout, masked: bool, dtype: torch.dtype, width: int
) -> None:
    mask = some_masked(layout) if masked else None
    error = relative_error(path, pattern, layout, mask, dtype, width)
    note("error", error)
    assert error < BOUND[dtype]


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("dtype", list(BOUND), ids=str)
@pytest.mark.parametrize("path", ["flex", "gather", "dense"])
@pytest.mark.parametrize("name", PATTERNS)
def test_path(record_property: Note, name: str, path: str, dtype: torch.dtype, masked: bool) -> None:
    layout = Layout(Tokens(globals=2, block_size=B), 1000)
    check(record_property, path, Pattern(PATTERNS[name]), layout, masked, dtype, 64)


@pytest.mark.parametrize("length", [1, 2, 100, 126, 510, 1022])
@pytest.mark.parametrize("path", ["flex", "gather"])
def test_length(record_property: Note, path: str, length: int) -> None:
    layout = Layout(Tokens(globals=2, block_size=B), length)
    check(record_property, path, Pattern(PATTERNS["token window"]), layout, True, torch.bfloat16, 64)


@pytest.mark.parametrize("width", [16, 24, 40, 63])
@pytest.mark.parametrize("path", ["flex", "gather"])
def test_head_width(record_property: Note, path: str, width: int) -> None:
    layout = Layout(Tokens(block_size=B), 300)
    check(record_property, path, Pattern(PATTERNS["block window"]), layout, False, torch.bfloat16, width)


@pytest.mark.parametrize("path", ["flex", "gather"])
def test_special_rows(record_property: Note, path: str) -> None:
    layout = Layout(Tokens(globals=1, reps_per_block=2, block_size=B), 700)
    pattern = Pattern(PATTERNS["bigbird"], broadcast=True, content_globals=end_blocks)
    check(record_property, path, pattern, layout, True, torch.float32, 64)


def test_flex_still_runs_compiled_after_a_refused_call() -> None:
    x = torch.randn(1, HEADS, 64, 64, requires_grad=True)
    layout, pattern = Layout(Tokens(block_size=B), 64), Pattern(PATTERNS["block window"])
    with pytest.raises(Unsupported):
        PATHS["flex"](x, x, x, pattern, None, layout)
    relative_error("flex", pattern, Layout(layout.tokens, 1000), None, torch.bfloat16, 64)


def test_flex_compiles_no_kernel_for_a_new_length() -> None:
    from torch._dynamo.utils import counters

    pattern, tokens = Pattern(PATTERNS["block window"]), Tokens(block_size=B)
    graphs = []
    for length in (901, 613, 777, 1001, 555, 1033):
        relative_error("flex", pattern, Layout(tokens, length), None, torch.bfloat16, 64)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[-1] == graphs[1]


def test_xformers(record_property: Note) -> None:
    pytest.importorskip("xformers")
    check(record_property, "xformers", Pattern(PATTERNS["bigbird"]), _plain(960), False, torch.float32, 64)


@pytest.mark.parametrize("length", [100, 1000])
@pytest.mark.parametrize("topology", [TokenWindow(B, 40, 9), Causal(TokenWindow(B, 40, 9)), BlockWindow(B, 1)], ids=str)
def test_fmha(record_property: Note, topology: Topology, length: int) -> None:
    pytest.importorskip("xformers")
    check(record_property, "fmha", Pattern(topology), _plain(length), False, torch.bfloat16, 64)


def _plain(length: int) -> Layout:
    return Layout(Tokens(block_size=B), length)


@pytest.mark.parametrize("name", attnbench.list_mechanisms())
def test_mechanism(record_property: Note, name: str) -> None:
    """A mixer in float32 on the GPU is the one in float64 on the CPU."""
    contract = registry.load("mechanisms", name).object
    if isinstance(contract, Cell):
        contract = registry.load("mechanisms", contract.mechanism).object
    if contract.requires:
        pytest.skip("its path has a test of its own")
    options = {"block_size": B} if "block_size" in field_names(contract.options) else {}
    x = torch.randn(2, 200, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = (torch.arange(200) < torch.tensor([[200], [130]])) if contract.honours_masks else None
    results = []
    for device, dtype in (("cuda", torch.float32), ("cpu", torch.float64)):
        mixer = attnbench.build_mechanism(name, dim=64, heads=HEADS, length=200, **options).to(device, dtype)
        given = x.to(device, dtype).requires_grad_()
        y = mixer(given, None if mask is None else mask.to(device))
        y = y if mask is None else y * mask.to(device)[..., None]
        results.append([y.detach().cpu().double(), torch.autograd.grad(y.square().sum(), given)[0].cpu().double()])
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*results, strict=True))
    record_property("error", error)
    assert error < 1e-4
