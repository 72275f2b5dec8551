"""Prepared rows as Arrow: byte ids, and pieces of a set that are written one by one and mapped into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

#: 256 bytes, and 0 for padding alone.
BYTE_IDS = 257


def byte_ids(documents: Sequence[bytes]) -> pa.ListArray:
    """id = byte + 1, as LRA's byte encoder has it (TFDS ByteTextEncoder); id 0 never occurs."""
    joined = np.frombuffer(b"".join(documents), dtype=np.uint8).astype(np.uint16) + np.uint16(1)
    return rows(joined, np.array([len(document) for document in documents]))


def rows(values: np.ndarray, lengths: np.ndarray) -> pa.ListArray:
    """Consecutive values as rows of these lengths."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def dataset(columns: Mapping[str, Any]) -> datasets.Dataset:
    return datasets.Dataset(pa.table(dict(columns)))


def write(path: Path, columns: Mapping[str, Any]) -> None:
    """Writes a piece of a set; the file appears when it is complete."""
    table = pa.table(dict(columns))
    partial = path.with_suffix(".partial")
    with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    partial.replace(path)


def joined(paths: Sequence[Path]) -> datasets.Dataset:
    """The pieces as one set, mapped from their files."""
    return datasets.concatenate_datasets([datasets.Dataset.from_file(str(path)) for path in paths])
