"""Images a second of the Pathfinder generator on one core, beside those of the original program.

The original's rates were measured in CPU seconds of one core of another machine (docs/tasks/pathfinder.md).
"""

from __future__ import annotations

import time

import pytest
from attnbench.tasks._pathfinder import generate, parameters
from pytest_benchmark.fixture import BenchmarkFixture

#: (resolution, level): images a round, images a CPU second of the original where it was measured
CASES = {
    (32, "hard"): (1000, 6.5),
    (32, "intermediate"): (2000, 33.0),
    (32, "easy"): (2000, 60.0),
    (64, "hard"): (50, None),
    (128, "hard"): (100, 0.5),
    (256, "hard"): (300, None),
}


@pytest.mark.parametrize(("resolution", "level"), CASES, ids=lambda value: str(value))
def test_pathfinder(benchmark: BenchmarkFixture, resolution: int, level: str) -> None:
    count, original = CASES[resolution, level]
    chosen = parameters(resolution, level)
    generate(chosen, 0, range(2))  # compiles and draws the stamps
    drawn, started = 0, time.process_time()

    def draw() -> None:
        nonlocal drawn
        generate(chosen, 5, range(drawn, drawn + count))
        drawn += count

    benchmark.pedantic(draw, rounds=3, warmup_rounds=1)
    rate = drawn / (time.process_time() - started)
    benchmark.extra_info["images per CPU second"] = round(rate)
    if original:
        benchmark.extra_info["times the original"] = round(rate / original)
