"""A training step of the program beside the same one with PyTorch as it comes, beside the runner published with
Nystromformer, and beside its own parts.

    pytest tests/benchmarks/test_step_speed.py --benchmark-only -s

docs/speed.md holds the targets and what was measured. Nothing here asserts a time.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Collection
from typing import Any

import pytest
import torch
from benchmarks import cells, paired, peers
from pytest_benchmark.fixture import BenchmarkFixture
from rich.console import Console
from torch import nn

from attnbench import progress
from attnbench.randomness import Dropout, Stream

#: As the targets were measured: BigBird sees 3 blocks around, 3 random ones and 2 global ones, HST its own block.
MECHANISMS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("dense", {}),
    "window": ("local", {}),
    "sliding": ("sliding", {}),
    "bigbird": ("bigbird", {"globals": "blocks"}),
    "hst": ("hst", {"window_blocks": 1}),
    "linear": ("linear", {}),
}
DTYPES = ("fp32", "bf16")


@pytest.fixture(autouse=True)
def _data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path_factory.getbasetemp() / "data"))


def measured(benchmark: BenchmarkFixture, candidates: paired.Candidates, **more: Any) -> paired.Comparison:
    found: list[paired.Comparison] = []
    benchmark.pedantic(lambda: found.append(paired.compare(candidates, **more)), rounds=1)
    return found[0]


def tell(benchmark: BenchmarkFixture, found: paired.Comparison, ours: Collection[str]) -> None:
    """How many times faster each of ours is than each other one."""
    others = [name for name in found.seconds if name not in ours]
    ratios = {f"x {one} / {name}": round(found.ratio(one, name), 3) for one in others for name in ours}
    benchmark.extra_info.update(found.info() | ratios)
    print("\n ", benchmark.name, benchmark.extra_info)


def steps(name: str) -> dict[str, paired.Run]:
    mechanism, options = MECHANISMS[name]
    return {dtype: cells.step(mechanism, **options, **{"numerics.dtype": dtype}) for dtype in DTYPES}


@pytest.mark.parametrize("name", MECHANISMS)
def test_beside_stock_dense(benchmark: BenchmarkFixture, name: str) -> None:
    """PyTorch as it comes, its fused attention, float32."""
    cells.trainer("dense")  # makes the data, for both processes
    with paired.Elsewhere(functools.partial(cells.step, "dense")) as stock:
        tell(benchmark, measured(benchmark, steps(name) | {"stock": stock}, seconds=40), DTYPES)


def test_dense_beside_the_published_softmax(benchmark: BenchmarkFixture) -> None:
    """Without checkpointing and dropout."""
    cells.trainer("dense")
    with (
        paired.Elsewhere(functools.partial(cells.step, "dense")) as stock,
        paired.Elsewhere(peers.published_step) as published,
    ):
        others = {"stock": stock, "published stock": published, "published fast": peers.published_step()}
        found = measured(benchmark, steps("dense") | others, rounds=7, seconds=60)
        tell(benchmark, found, [*DTYPES, "stock"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_dropout(benchmark: BenchmarkFixture, dtype: torch.dtype) -> None:
    """Forward and backward, a mask of 32 x 1,024 x 64; a new one in every call."""
    stream = Stream()
    x = torch.randn(32, 1024, 64, dtype=dtype, requires_grad=True)
    up = torch.randn_like(x)

    def run(module: nn.Module) -> None:
        stream.step += 1
        torch.autograd.grad(module(x), x, up)

    modules = {"ours": Dropout(0.1, "site", stream), "nn.Dropout": nn.Dropout(0.1)}
    candidates = {name: functools.partial(run, module) for name, module in modules.items()}
    tell(benchmark, measured(benchmark, candidates, rounds=41), ["ours"])


@pytest.mark.parametrize("name", ["linear", "hst"])
def test_what_is_not_the_model(benchmark: BenchmarkFixture, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizer with clipping, and progress on a terminal, beside the step of a fast mechanism."""
    monkeypatch.setattr(progress, "console", Console(file=io.StringIO(), force_terminal=True))
    mechanism, options = MECHANISMS[name]
    step, other = cells.step(mechanism, **options), cells.trainer(mechanism, **options)
    optimizer = other.optimizer
    with monkeypatch.context() as patched:
        patched.setattr(optimizer, "zero_grad", lambda: None)
        other._train_step()  # leaves gradients behind

    def update() -> None:
        other.accelerator.clip_grad_norm_(other.model.parameters(), other.job.budget.clip)
        optimizer.step()

    with progress.Bar("training", 10**9) as bar:

        def log() -> None:
            bar.advance(note="loss 0.123 validation 0.456 789 samples/s")
            other._check_limits()

        parts = {"update": update, "log": log}
        found = measured(benchmark, {"step": step} | parts, rounds=21)
    benchmark.extra_info.update({f"share of {part}": round(found.ratio(part, "step"), 5) for part in parts})
    tell(benchmark, found, parts)
