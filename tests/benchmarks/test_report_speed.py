"""The HTML page of 2,000 and of 10,000 records, three seeds a cell, curves of 40 points."""

from __future__ import annotations

from time import process_time

import pytest
from books import book, grid
from pytest_benchmark.fixture import BenchmarkFixture

from attnbench.reporting.html import to_html
from attnbench.reporting.plots import pictures


@pytest.mark.parametrize("mechanisms", [34, 167])
def test_a_page(benchmark: BenchmarkFixture, mechanisms: int) -> None:
    """The issue's bounds are for 2,000 records, reading and judging included: 10 s, 10 MB."""
    records = grid(mechanisms, 20)
    page = benchmark.pedantic(lambda: to_html(book(records)), rounds=3)
    print(f"\n{len(records)} records: {len(page.encode()) / 1e6:.1f} MB, {benchmark.stats.stats.min:.1f} s")


def test_pictures_in_a_page(benchmark: BenchmarkFixture) -> None:
    """Of 2,040 records: drawn once, as PNG and SVG."""
    made, began = book(grid(34, 20)), process_time()
    drawn = benchmark.pedantic(lambda: list(pictures(made)), rounds=1)
    spent, held = process_time() - began, sum(len(one.uri) for one in drawn)
    size = len(to_html(made, drawn).encode())
    print(f"\n{len(drawn)} pictures: {spent:.0f} s of CPU time; {held / 1e6:.1f} of the page's {size / 1e6:.1f} MB")
    assert size < 10e6
