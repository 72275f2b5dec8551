"""Sets made piece by piece: pieces in parallel under a progress bar, examples of differing length as Arrow files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from attnbench.contracts import Preparation

#: tokens: one row of ids an example; label: its class.
SCHEMA = pa.schema({"tokens": pa.list_(pa.uint8()), "label": pa.int64()})


def in_parallel(work: Callable[[int], object], items: Sequence[int], preparation: Preparation, title: str) -> None:
    """Calls `work` with every item, in `preparation.workers` threads; for work that lets go of the interpreter."""
    pool = ThreadPoolExecutor(preparation.workers)
    try:
        done = pool.map(work, items)
        for _ in preparation.progress(items, title):
            next(done)
    finally:  # after an interrupt too: what is being written ends, what waits does not begin
        pool.shutdown(wait=True, cancel_futures=True)


def table(tokens: np.ndarray, offsets: np.ndarray, labels: np.ndarray) -> pa.Table:
    """Example i is tokens[offsets[i] : offsets[i + 1]], uint8; `labels` holds one number an example."""
    rows = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(tokens, pa.uint8()))
    return pa.table([rows, pa.array(labels, pa.int64())], schema=SCHEMA)


def table_of(rows: Sequence[bytes], labels: Sequence[int]) -> pa.Table:
    """The same from one string of ids an example."""
    offsets = np.cumsum([0, *map(len, rows)])
    return table(np.frombuffer(b"".join(rows), np.uint8), offsets, np.array(labels, np.int64))


def rows_of(made: pa.Table) -> Iterator[bytes]:
    """The ids of each example."""
    for chunk in made.column("tokens").chunks:
        content, ends = chunk.values.to_numpy().tobytes(), chunk.offsets.to_pylist()
        yield from (content[start:end] for start, end in pairwise(ends))


def write(parts: Iterable[tuple[str, pa.Table]], paths: Mapping[str, Path]) -> None:
    """Appends each part to the file of its name: Arrow streams, which `datasets` maps into memory.

    The files appear when all of them are complete.
    """
    partial = {name: path.with_suffix(".partial") for name, path in paths.items()}
    with ExitStack() as stack:
        writers = {}
        for name, path in partial.items():
            file = stack.enter_context(pa.OSFile(str(path), "wb"))
            writers[name] = stack.enter_context(pa.ipc.new_stream(file, SCHEMA))
        for name, part in parts:
            writers[name].write_table(part)
    for name, path in partial.items():
        path.replace(paths[name])


def read(path: Path) -> pa.Table:
    """The table of one such file, mapped into memory."""
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_stream(file).read_all()
