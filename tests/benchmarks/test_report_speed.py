"""The HTML page of 2,000 and of 10,000 records, three seeds a cell, curves of 40 points."""

from __future__ import annotations

import pytest
from books import book, grid
from pytest_benchmark.fixture import BenchmarkFixture

from attnbench.reporting.html import to_html


@pytest.mark.parametrize("mechanisms", [34, 167])
def test_a_page(benchmark: BenchmarkFixture, mechanisms: int) -> None:
    """The issue's bounds are for 2,000 records, reading and judging included: 10 s, 10 MB."""
    records = grid(mechanisms, 20)
    page = benchmark.pedantic(lambda: to_html(book(records)), rounds=3)
    print(f"\n{len(records)} records: {len(page.encode()) / 1e6:.1f} MB, {benchmark.stats.stats.min:.1f} s")
