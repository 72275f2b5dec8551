"""Cells of `attnbench speed` under pytest-benchmark's clock.

    pytest tests/benchmarks/test_speed_cells.py --benchmark-only --benchmark-json=FILE
    attnbench speed --from FILE

They are checked and prepared as they are there, but one is timed after the other in one process: a machine that
drifts moves their ratios, which `attnbench speed` guards against. ATTNBENCH_SPEED_MECHANISMS=dense,hst names others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from benchmarks.paired import NUMERICS, THREADS
from pytest_benchmark.fixture import BenchmarkFixture

from attnbench import machine, numerics
from attnbench.speed import footprint, plan, worker
from attnbench.speed.benchmark import KEY
from attnbench.speed.result import Setting

MECHANISMS = os.environ.get("ATTNBENCH_SPEED_MECHANISMS", "dense,local,hst,linear").split(",")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SETTING = Setting(dim=64, heads=2, device=DEVICE, threads=THREADS, numerics=NUMERICS)


@pytest.fixture(autouse=True)
def as_in_a_process_of_its_own() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(SETTING.threads)
    with numerics.applied("stock" if DEVICE == "cuda" else SETTING.numerics):
        yield
    torch.set_num_threads(before)
    footprint.release(DEVICE)


@pytest.mark.parametrize("length", [256, 512, 1024])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_cell(benchmark: BenchmarkFixture, mechanism: str, length: int) -> None:
    (candidate,) = plan.candidates([mechanism], {})
    cell = plan.Cell(candidate, length)
    facts, run = worker.prepare(cell.request(SETTING), SETTING)

    def call() -> None:
        run()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    benchmark.extra_info[KEY] = {
        "setting": SETTING.model_dump(),
        "cell": cell.result("skipped", **facts).model_dump(),
        "peak_how": footprint.how(DEVICE),
        "machine": machine.describe_machine(),
        "software": machine.describe_software(),
        "code": machine.describe_code(),
    }
    benchmark.pedantic(call, rounds=SETTING.rounds, iterations=facts["calls"], warmup_rounds=1)
