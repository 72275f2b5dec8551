"""Paths with limits: right inside their domain, an error that names the limit outside, and nothing loaded before."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any, get_args

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Drawn, Grid, Part, Window
from torch import Tensor

from attnbench.contracts import Layout, Tokens
from attnbench.errors import Unsupported
from attnbench.sparse import (
    PATHS,
    BlockWindow,
    Call,
    Causal,
    Fixed,
    FromRule,
    PathName,
    Pattern,
    RandomBlocks,
    Strided,
    TokenWindow,
    Topology,
    end_blocks,
    flex,
    visible,
    xformers,
)

CPU = torch.device("cpu")


def test_the_names_that_options_take_are_those_of_the_paths() -> None:
    assert get_args(PathName) == tuple(PATHS)
    assert {name: run.name for name, run in PATHS.items()} == {name: name for name in PATHS}


@pytest.mark.parametrize("module", ["attnbench", "attnbench.sparse", "attnbench.mechanisms.xformers_blocksparse"])
def test_importing_loads_no_xformers_and_prints_nothing(module: str) -> None:
    code = f"import {module}, sys; sys.exit(any(n == 'xformers' or n.startswith('xformers.') for n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def rows(layout: Layout, batch: int, heads: int, width: int, dtype: torch.dtype, count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (count, batch, heads, layout.rows, width)
    return list(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))


# --- flex: the forward pass, which the CPU has too

B = 16
FLEX_PATTERNS: dict[str, Topology] = {
    "block window": BlockWindow(B, 3),
    "token window": TokenWindow(B, 7, 2),
    "dilated": TokenWindow(B, 2, 3, dilation=3),
    "causal strided": Causal(Strided(B, 5)),
    "fixed": Fixed(B, 24, 3),
    "a rule by head": FromRule(B, lambda b, h, q, k: (q - k).abs() <= 3 * h, heads=2),
    "union": BlockWindow(B, 1) | RandomBlocks(B, count=2, length=400, heads=2, seed=3) | TokenWindow(B, 20, 0),
}
FLEX_ERROR = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 4e-2}


@st.composite
def flex_calls(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(sorted(FLEX_PATTERNS)))
    reps = 0 if FLEX_PATTERNS[name].order(1) is not None else draw(st.integers(0, 2))
    return {
        "name": name,
        "length": draw(st.sampled_from([1, 2, 17, 96, 127, 128, 129, 256, 300])),
        "tokens": Tokens(globals=draw(st.integers(0, 3)), reps_per_block=reps, block_size=B),
        "broadcast": bool(reps) and draw(st.booleans()),
        "by_blocks": draw(st.booleans()),
        "width": draw(st.sampled_from([1, 24, 40, 63, 64])),
        "dtype": draw(st.sampled_from(list(FLEX_ERROR))),
        "masked": draw(st.sampled_from([None, 0.2, 0.9])),
    }


@settings(max_examples=12)
@given(flex_calls())
def test_flex_equals_the_dense_path(call: dict[str, Any]) -> None:
    check_flex(call)


@pytest.mark.slow
@settings(max_examples=200, derandomize=False)
@given(flex_calls())
def test_flex_equals_the_dense_path_at_length(call: dict[str, Any]) -> None:
    check_flex(call)


def check_flex(call: dict[str, Any]) -> None:
    layout = Layout(call["tokens"], call["length"])
    pattern = Pattern(FLEX_PATTERNS[call["name"]], call["broadcast"], end_blocks if call["by_blocks"] else None)
    q, k, v = rows(layout, 3, 2, call["width"], call["dtype"])
    mask = None
    if call["masked"] is not None:
        mask = torch.rand(3, layout.rows, generator=torch.Generator().manual_seed(6)) > call["masked"]
        mask[0] = False
    with torch.no_grad():
        y, again = (PATHS["flex"](q, k, v, pattern, mask, layout) for _ in range(2))
        wanted = PATHS["dense"](q.double(), k.double(), v.double(), pattern, mask, layout)
    assert y.dtype == call["dtype"] and torch.equal(y, again)
    torch.testing.assert_close(y.double(), wanted, atol=FLEX_ERROR[call["dtype"]], rtol=0)
    if mask is not None:
        assert (y[0] == 0).all(), "rows that see nothing"


def test_flex_follows_each_mask_of_a_layout() -> None:
    layout, pattern = Layout(Tokens(block_size=B), 40), Pattern(BlockWindow(B, 3))
    q, k, v = rows(layout, 1, 2, 24, torch.float32)
    with torch.no_grad():
        for cut in (40, 7, 19):
            mask = (torch.arange(40) < cut)[None]
            fresh = PATHS["dense"](q, k, v, pattern, mask, Layout(layout.tokens, 40))
            torch.testing.assert_close(PATHS["flex"](q, k, v, pattern, mask, layout), fresh, atol=2e-6, rtol=0)


def test_flex_skips_tiles_and_keeps_equal_ones_once() -> None:
    """4096 tokens in a window of 128: a tile sees itself and a neighbour a side, in three kinds of bits and none."""
    tiles = flex._tiles(Pattern(TokenWindow(64, 64, 64)), Tokens(block_size=64), 4096, 4, CPU)
    assert tiles.some.sum() == 3 * 32 - 2 and not tiles.every.any()
    assert len(tiles.bits) == 4
    whole = flex._tiles(Pattern(BlockWindow(128, 3)), Tokens(block_size=128), 4096, 4, CPU)
    assert torch.equal(whole.some, whole.every), "no bits are read where tiles are seen whole"


@pytest.mark.slow
def test_lengths_and_patterns_share_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's part of the compilation alone, without generating code."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(flex._attend, dynamic=True, fullgraph=True, backend=counter)
    monkeypatch.setattr(flex, "_kernel", lambda: compiled)

    def run(topology: Topology, length: int, batch: int) -> None:
        layout, pattern = Layout(Tokens(globals=1, block_size=B), length), Pattern(topology)
        q, k, v = rows(layout, batch, 2, 24, torch.float32)
        tiles = flex._tiles(pattern, layout.tokens, length, 2, CPU)
        if tiles.rows is not None:
            q, k, v = q[:, :, tiles.rows], k[:, :, tiles.rows], v[:, :, tiles.rows]
        with torch.no_grad():
            flex._compiled(q, k, v, tiles.shown)

    for length, batch in [(300, 3), (700, 7), (900, 5)]:
        run(TokenWindow(B, 3, 9), length, batch)
    before = counter.frame_count
    assert 1 <= before <= 3
    for index, topology in enumerate(FLEX_PATTERNS.values()):
        run(topology, 390 - index, 3 + index)
        run(TokenWindow(B, index, 5), 801 + 13 * index, 9)
    assert counter.frame_count <= before + 2


def test_flex_does_not_fall_back_to_plain_python_in_silence() -> None:
    layout, pattern = Layout(Tokens(block_size=B), 20), Pattern(BlockWindow(B, 3))
    q, k, v = rows(layout, 1, 1, 16, torch.float32)
    shown = flex._tiles(pattern, layout.tokens, 20, 1, CPU).shown
    with pytest.raises(RuntimeError, match="gave up compiling"):
        flex._attend(q, k, v, shown)


@pytest.mark.parametrize("which", range(3))
def test_flex_refuses_to_train_on_a_cpu_before_it_calls_anything(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "flex_attention", None)
    layout = Layout(Tokens(block_size=B), 20)
    qkv = rows(layout, 1, 1, 16, torch.float32)
    qkv[which].requires_grad_()
    with pytest.raises(Unsupported, match="path flex: FlexAttention has no backward pass on a CPU; use path=gather"):
        PATHS["flex"](*qkv, Pattern(BlockWindow(B, 3)), None, layout)


# --- xformers: its block-sparse tensor


@st.composite
def blocksparse_calls(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "block_size": draw(st.sampled_from([16, 17, 24])),
        "blocks": draw(st.integers(1, 6)),
        "window": draw(st.sampled_from([1, 3])),
        "random": draw(st.integers(0, 2)),
        "heads": draw(st.integers(1, 3)),
        "width": draw(st.sampled_from([1, 24, 40, 63])),
        "batch": draw(st.integers(1, 3)),
        "dtype": draw(st.sampled_from([torch.float32, torch.float64])),
        "spread": draw(st.sampled_from([0.0, 20.0, 40.0])),
    }


@settings(max_examples=40)
@given(blocksparse_calls())
def test_xformers_equals_the_reference_forward_and_backward(call: dict[str, Any]) -> None:
    """Also where the logits of the first block of rows lie `spread` below those of the others."""
    b, heads = call["block_size"], call["heads"]
    layout = Layout(Tokens(block_size=b), b * call["blocks"])
    topology: Topology = BlockWindow(b, call["window"])
    parts: tuple[Part, ...] = (Window(call["window"]),)
    if call["random"]:
        drawn = RandomBlocks(b, count=call["random"], length=layout.length, heads=heads, seed=1, outside_window=1)
        topology, parts = topology | drawn, (*parts, Drawn.of(drawn.block_map(layout.length)))
    q, k, v, up = rows(layout, call["batch"], heads, call["width"], torch.float64, 4)
    q[..., 0], k[..., 0] = 0, -1
    q[:, :, :b, 0] = call["spread"] * call["width"] ** 0.5
    seen = torch.from_numpy(reference.visible(parts, Grid(0, 0, b, layout.length), heads))[None]
    ours, theirs = ([x.detach().to(d).requires_grad_() for x in (q, k, v)] for d in (call["dtype"], torch.float64))
    y = PATHS["xformers"](*ours, Pattern(topology), None, layout)
    wanted = reference.softmax_attention(*theirs, seen)
    grads = torch.autograd.grad((y * up.to(y.dtype)).sum(), ours)
    truth = torch.autograd.grad((wanted * up).sum(), theirs)
    relative = {torch.float32: 3e-5, torch.float64: 1e-12}[call["dtype"]]
    for found, expected in zip([y.detach(), *grads], [wanted.detach(), *truth], strict=True):
        bound = relative * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(found.double(), expected, atol=bound, rtol=0)


def test_xformers_notices_logits_out_of_its_range() -> None:
    """Left alone, its softmax is wrong there by all of the result."""
    layout, pattern = Layout(Tokens(block_size=B), 4 * B), Pattern(BlockWindow(B, 3))
    q, k, v = rows(layout, 2, 2, 24, torch.float32)
    q[..., 0], k[..., 0] = 0, -1
    q[:, :, :B, 0] = 60 * 24**0.5
    with pytest.raises(Unsupported, match=r"logits lie .* apart; its softmax is right up to 55, use path=gather"):
        PATHS["xformers"](q, k, v, pattern, None, layout)
    q[0, 0, 3] = float("nan")  # for the trainer to report as such
    assert PATHS["xformers"](q, k, v, pattern, None, layout).isnan().any()


# --- fmha: its biases can be read without a GPU


@pytest.mark.parametrize("length", [1, 16, 40, 65])
@pytest.mark.parametrize(
    "topology",
    [TokenWindow(B, 5, 2), TokenWindow(B, 90, 90), TokenWindow(B, 0, 0), Causal(TokenWindow(B, 5, 2))],
    ids=str,
)
def test_the_bias_of_a_window_shows_what_the_topology_does(topology: Topology, length: int) -> None:
    bias = xformers.window_bias(topology, 2, length, CPU).materialize((length, length))
    assert torch.equal(bias == 0, visible(topology, length)[0]) and bias[bias != 0].isneginf().all()


@pytest.mark.parametrize("length", [1, 16, 40])
def test_the_bias_of_blocks_runs_over_the_batch(length: int) -> None:
    bias = xformers.window_bias(BlockWindow(B, 1), 2, length, CPU).materialize((2 * length, 2 * length))
    one = visible(BlockWindow(B, 1), length)[0]
    assert torch.equal(bias == 0, torch.block_diag(one, one))


# --- the limits

CUDA = torch.device("cuda")
PLAIN = Pattern(BlockWindow(B, 3))
WINDOW = Pattern(TokenWindow(B, 3, 3))
INSIDE: dict[str, tuple[Pattern, Call]] = {
    "flex": (PLAIN, Call(Layout(Tokens(block_size=B), 100), True, 24, torch.bfloat16, CUDA, True)),
    "xformers": (PLAIN, Call(Layout(Tokens(block_size=B), 96), False, 63, torch.float32, CPU, True)),
    "fmha": (WINDOW, Call(Layout(Tokens(block_size=B), 100), False, 24, torch.bfloat16, CUDA, True)),
}


def with_tokens(length: int, **tokens: int) -> dict[str, Any]:
    return {"layout": Layout(Tokens(block_size=B, **tokens), length)}


@pytest.mark.parametrize(
    ("name", "pattern", "changes", "said"),
    [
        ("flex", PLAIN, {"device": CPU}, "no backward pass on a CPU"),
        ("flex", PLAIN, {"device": torch.device("mps")}, "runs on CUDA, got mps"),
        ("flex", PLAIN, {"dtype": torch.float64}, "got torch.float64"),
        ("flex", PLAIN, {"width": 15}, "16 to 256 columns, got 15"),
        ("xformers", PLAIN, {"masked": True}, "takes no mask"),
        ("xformers", PLAIN, with_tokens(96, globals=1), "takes no global rows"),
        ("xformers", PLAIN, with_tokens(96, reps_per_block=1), "takes no global rows, representatives"),
        ("xformers", replace(PLAIN, content_globals=end_blocks), {}, "global content"),
        ("xformers", Pattern(Strided(B, 3)), {}, "reorders"),
        ("xformers", Pattern(BlockWindow(15)), with_tokens(90), "at least 16 rows, got block_size=15"),
        ("xformers", PLAIN, with_tokens(97), "97 rows are no multiple of block_size=16"),
        ("xformers", WINDOW, {}, "a rule inside blocks"),
        ("xformers", PLAIN, {"dtype": torch.bfloat16}, "got torch.bfloat16"),
        ("fmha", WINDOW, {"device": CPU}, "runs on CUDA, got cpu"),
        ("fmha", WINDOW, {"masked": True}, "takes no mask"),
        ("fmha", PLAIN, {}, "blocks that see themselves alone"),
        ("fmha", WINDOW, {"dtype": torch.float32}, "got torch.float32"),
        ("fmha", WINDOW, {"width": 20}, "multiple of 8 columns up to 256, got 20"),
        ("fmha", WINDOW, {"width": 264}, "got 264"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),  # the same in every process
)
def test_outside_its_domain_a_path_names_the_limit(
    name: str, pattern: Pattern, changes: dict[str, Any], said: str
) -> None:
    reason = PATHS[name].refusal(pattern, replace(INSIDE[name][1], **changes))
    assert reason is not None and reason.startswith(f"path {name}: ") and said in reason


@pytest.mark.parametrize("name", ["flex", "xformers"])
def test_inside_it_does_not(name: str) -> None:
    assert PATHS[name].refusal(*INSIDE[name]) is None


@pytest.mark.parametrize("name", ["xformers", "fmha"])
def test_without_the_package_the_paths_of_xformers_say_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xformers, "find_spec", lambda package: None)
    assert PATHS[name].refusal(*INSIDE[name]) == f"path {name}: needs the package xformers, which is not installed"


def test_a_pattern_with_rows_that_see_nothing_is_not_for_xformers() -> None:
    empty = Pattern(RandomBlocks(B, count=1, length=B, heads=1, seed=0))
    call = replace(INSIDE["xformers"][1], layout=Layout(Tokens(block_size=B), B))
    assert "sees nothing" in str(PATHS["xformers"].refusal(empty, call))
