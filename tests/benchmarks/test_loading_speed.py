"""What reading a batch costs beside a training step of a small model, and what it takes to read a set from the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import cells, paired
from pytest_benchmark.fixture import BenchmarkFixture

from attnbench.batches import Batches


def test_a_batch(benchmark: BenchmarkFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other; the issue's bound is 0.2 ms."""
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path))
    batches, step = cells.trainer("linear").job.batches("train"), iter(range(10**9))
    benchmark(lambda: batches.collate(batches.drawn(0, 32, next(step))))


@pytest.mark.parametrize("mechanism", ["linear", "local"])
def test_a_batch_beside_a_step(
    benchmark: BenchmarkFixture, mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 pictures of 1,024 pixels; a model of 2 layers, 64 wide. The issue's bound is 5 %."""
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path))
    trainer = cells.trainer(mechanism)
    batches: Batches = trainer.job.batches("train")
    step = iter(range(10**9))

    def read() -> None:
        batches.collate(batches.drawn(0, 32, next(step)))

    found: list[paired.Comparison] = []
    benchmark.pedantic(
        lambda: found.append(paired.compare({"batch": read, "step": trainer._train_step}, rounds=15)), rounds=1
    )
    benchmark.extra_info.update(found[0].info() | {"share": round(1 / found[0].times_faster["step"], 4)})
    print("\n ", benchmark.name, benchmark.extra_info)
