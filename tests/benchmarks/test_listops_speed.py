"""CPU time of the ListOps generator for one expression, on one core, beside that of the original program.

The original's 3 ms, of which 1 ms goes to text and value, were measured on another machine (docs/tasks/listops.md).
"""

from __future__ import annotations

import time

import pytest
from attnbench.tasks._listops.generator import CHUNK, draw
from attnbench.tasks._listops.grammar import Grammar
from pytest_benchmark.fixture import BenchmarkFixture

#: milliseconds of the original
CASES = {Grammar(500, 2000, 10, 10): 3.0, Grammar(15, 129, 10, 10): None, Grammar(7, 33, 3, 5): None}


@pytest.mark.parametrize("grammar", CASES, ids=lambda grammar: f"{grammar.min_length}-{grammar.max_length}")
def test_listops(benchmark: BenchmarkFixture, grammar: Grammar) -> None:
    """Into token ids and labels."""
    draw(grammar, 0, 0)  # compiles
    chunks, started = 0, time.process_time()

    def make() -> None:
        nonlocal chunks
        draw(grammar, 1, chunks)
        chunks += 1

    benchmark.pedantic(make, rounds=10)
    each = (time.process_time() - started) / chunks / CHUNK * 1000
    benchmark.extra_info["CPU microseconds an expression"] = round(each * 1000, 1)
    if original := CASES[grammar]:
        benchmark.extra_info["times the original"] = round(original / each)
        print(f"\nListOps: {each * 1000:.1f} us of CPU time an expression, {original / each:.0f} times the original")
