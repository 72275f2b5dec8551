"""What reading a batch costs beside a training step of a small model, and what it takes to read a set from the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import paired
from pytest_benchmark.fixture import BenchmarkFixture

from attnbench import data, plan
from attnbench.batches import Batches
from attnbench.runner import Settings, _build, _job
from attnbench.train import Trainer


@pytest.mark.parametrize("mechanism", ["linear", "local"])
def test_a_batch_beside_a_step(
    benchmark: BenchmarkFixture, mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 pictures of 1,024 pixels; a model of 2 layers, 64 wide. The issue's bound is 5 %."""
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path))
    made = plan.make(mechanism, "pathfinder", settings={"task.examples": 500, "budget.steps": 100_000})
    task = made.task.plugin.object
    prepared = data.load(made.task.plugin, made.task.options)
    trainer = Trainer(_job(made, task, prepared, _build(made, task), Settings(quiet=True)), quiet=True)
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
