"""The gather path beside its peers: results are compared first, forward and backward, then times, then memory.

    make bench     or, of one comparison, pytest tests/benchmarks/test_attention_speed.py --benchmark-only -k bigbird

docs/speed.md holds the targets and what was measured. Nothing here asserts a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from attnbench.mechanisms import dense, hst
from benchmarks import paired, peers
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench.contracts import Layout, MixerShape, Tokens
from attnbench.sparse import BlockWindow, Pattern, RandomBlocks, TokenWindow, end_blocks, gather

HEADS, WIDTH = 4, 64
LENGTHS = [1024, 4096, 16384]


def inputs(length: int, batch: int | None = None) -> tuple[list[Tensor], Tensor]:
    """q, k, v and the gradient from above: 4 x 4 heads x 64, a single example at 16,384."""
    generator = torch.Generator().manual_seed(0)
    batch = batch or (4 if length <= 4096 else 1)
    *qkv, up = torch.randn(4, batch, HEADS, length, WIDTH, generator=generator).unbind()
    return [x.requires_grad_() for x in qkv], up


def check_and_compare(
    benchmark: BenchmarkFixture, attends: dict[str, peers.Attention], length: int, backward: bool, differs: str = ""
) -> None:
    """The first is ours; `differs` is the one that computes something else (dense)."""
    qkv, up = inputs(length)

    def results(attend: peers.Attention) -> list[Tensor]:
        y = attend(*qkv)
        return [y.detach(), *torch.autograd.grad(y, qkv, up)]

    expected = None
    for name, attend in attends.items():
        if name == differs:
            continue
        found = results(attend)
        for ours, theirs in zip(expected or found, found, strict=True):
            torch.testing.assert_close(theirs, ours, atol=2e-5, rtol=1e-4)
        expected = expected or found

    def step(attend: peers.Attention) -> Callable[[], object]:
        if backward:
            return lambda: torch.autograd.grad(attend(*qkv), qkv, up)
        return torch.no_grad()(lambda: attend(*qkv))

    record(benchmark, {name: step(attend) for name, attend in attends.items()})


def record(benchmark: BenchmarkFixture, candidates: paired.Candidates) -> None:
    found: list[paired.Comparison] = []
    benchmark.pedantic(lambda: found.append(paired.compare(candidates)), rounds=1)
    benchmark.extra_info.update(found[0].info())
    print("\n ", benchmark.name, found[0].info())


def ours(pattern: Pattern, length: int) -> peers.Attention:
    layout = Layout(Tokens(block_size=peers.BLOCK), length)
    return lambda q, k, v: gather(q, k, v, pattern, None, layout)


def random_blocks(length: int) -> RandomBlocks:
    last = length // peers.BLOCK - 1
    return RandomBlocks(peers.BLOCK, count=3, length=length, heads=HEADS, seed=0, avoid=(0, last))


def bigbird(length: int) -> Pattern:
    return Pattern(BlockWindow(peers.BLOCK, 3) | random_blocks(length), content_globals=end_blocks)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "both"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("peer", ["dense", "transformers", "transformers without its tail", "xformers"])
def test_bigbird(benchmark: BenchmarkFixture, peer: str, length: int, backward: bool) -> None:
    """3 window + 3 random + 2 global blocks."""
    pattern = bigbird(length)
    if peer == "dense":
        other: peers.Attention = scaled_dot_product_attention
    elif "transformers" in peer:
        other = peers.transformers_bigbird(random_blocks(length), tail="tail" not in peer)
    else:
        shown = pattern.topology.block_map(length).clone()
        for end in (0, -1):
            shown[:, end], shown[:, :, end] = True, True
        other = peers.xformers_blocks(shown)
    differs = peer if peer == "dense" else ""
    check_and_compare(benchmark, {"ours": ours(pattern, length), peer: other}, length, backward, differs)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "both"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("peer", ["dense", "local-attention", "transformers Longformer"])
def test_window(benchmark: BenchmarkFixture, peer: str, length: int, backward: bool) -> None:
    """A block and its neighbours, and for Longformer 64 tokens on each side."""
    pattern = Pattern(TokenWindow(64, 64, 64) if "Longformer" in peer else BlockWindow(64, 3))
    if peer == "dense":
        other: peers.Attention = scaled_dot_product_attention
    else:
        other = peers.local_attention() if "local" in peer else peers.transformers_longformer(HEADS, WIDTH)
    differs = peer if peer == "dense" else ""
    check_and_compare(benchmark, {"ours": ours(pattern, length), peer: other}, length, backward, differs)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "both"])
@pytest.mark.parametrize("length", LENGTHS)
def test_hst_block(benchmark: BenchmarkFixture, length: int, backward: bool) -> None:
    """Projections included, 256 wide, 4 heads; blocks of 64 rows, the representative among them, beside dense."""
    mixers = {}
    for name, found, options in (
        ("hst", hst.MECHANISM, hst.Options(block_size=63, window_blocks=1)),
        ("dense", dense.MECHANISM, None),
    ):
        tokens = found.tokens(options)
        content = length // 64 * 63 if tokens.block_size else length
        mixers[name] = (
            found.build(MixerShape(dim=256, heads=HEADS, length=content, tokens=tokens), options),
            Layout(tokens, content),
        )
    batch = 4 if length <= 4096 else 1

    def step(name: str) -> Callable[[], object]:
        module, layout = mixers[name]
        x = torch.randn(batch, layout.rows, 256, requires_grad=True)
        up = torch.randn_like(x)
        if backward:
            return lambda: torch.autograd.grad(module(x, None, layout), [x, *module.parameters()], up)
        return torch.no_grad()(lambda: module(x, None, layout))

    record(benchmark, {name: step(name) for name in mixers})


_SETTING = """
import sys; sys.path.insert(0, {tests!r})
from benchmarks import peers, test_attention_speed as here
from attnbench.sparse import BlockWindow, Pattern
length = {length}
attend = {attend}
qkv, up = here.inputs(length, {batch})
warm = [x.detach()[:1, :, :1024].clone().requires_grad_() for x in qkv]  # loads the libraries
torch.nn.functional.scaled_dot_product_attention(*warm).sum().backward()
def run():
    torch.autograd.grad(attend(*qkv), qkv, up)
"""


def peak(attend: str, length: int, batch: int) -> float:
    tests = str(Path(__file__).parents[1])
    return paired.peak_extra_mib(_SETTING.format(tests=tests, attend=ATTENDS[attend], length=length, batch=batch))


ATTENDS = {
    "bigbird": "here.ours(here.bigbird(length), length)",
    "transformers": "peers.transformers_bigbird(here.random_blocks(length))",
    "window": "here.ours(Pattern(BlockWindow(64, 3)), length)",
    "local-attention": "peers.local_attention()",
    "block-diagonal": "here.ours(Pattern(BlockWindow(64, 1)), length)",
    "random": "here.ours(Pattern(here.random_blocks(length)), length)",
    "global": "here.ours(Pattern(BlockWindow(64, 1), content_globals=here.end_blocks), length)",
    "dense": "torch.nn.functional.scaled_dot_product_attention",
}


@pytest.mark.parametrize(
    ("name", "peer"), [("bigbird", "transformers"), ("window", "local-attention"), ("bigbird", "dense")]
)
def test_peak_memory(benchmark: BenchmarkFixture, name: str, peer: str) -> None:
    """Forward and backward at 4,096, beside the inputs."""
    if peer != "dense":
        pytest.importorskip(peer.replace("-", "_"), reason=f"needs {peer}", exc_type=ImportError)
    found: dict[str, float] = {}
    benchmark.pedantic(lambda: found.update({n: peak(n, 4096, 4) for n in (name, peer)}), rounds=1)
    mib = {f"MiB {n}": round(value) for n, value in found.items()}
    benchmark.extra_info.update(mib | {"share": round(found[name] / found[peer], 3)})
    print("\n ", benchmark.name, benchmark.extra_info)


@pytest.mark.parametrize("name", ["window", "global", "random", "block-diagonal"])
def test_memory_grows_with_the_length(benchmark: BenchmarkFixture, name: str) -> None:
    """The exponent fitted to peak extra memory, forward and backward, from 4,096 to 65,536."""
    lengths = [4096 << i for i in range(5)]
    found: list[float] = []
    benchmark.pedantic(lambda: found.extend(peak(name, length, 1) for length in lengths), rounds=1)
    x, y = ([math.log(value) for value in values] for values in (lengths, found))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    exponent = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)
    benchmark.extra_info.update({"exponent": round(exponent, 2), "MiB": [round(mib) for mib in found]})
    print("\n ", benchmark.name, benchmark.extra_info)
