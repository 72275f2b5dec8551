"""Pieces of a set made in threads under a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from attnbench.contracts import Preparation


def in_parallel(work: Callable[[int], object], items: Sequence[int], preparation: Preparation, title: str) -> None:
    """Calls `work` with every item, in `preparation.workers` threads; for work that lets go of the interpreter."""
    pool = ThreadPoolExecutor(preparation.workers)
    try:
        done = pool.map(work, items)
        for _ in preparation.progress(items, title):
            next(done)
    finally:  # after an interrupt too: what is being written ends, what waits does not begin
        pool.shutdown(wait=True, cancel_futures=True)
