"""Columns of a prepared set as numpy views over memory-mapped Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

_ROWS_OF_A_PART = 1000


class Ragged:
    """Rows of differing length over memory-mapped Arrow chunks; `ragged[i]` is a numpy view."""

    def __init__(self, column: pa.ChunkedArray):
        self._values, self._offsets = [], []
        if pa.types.is_fixed_size_list(column.type):
            column = column.cast(pa.list_(column.type.value_type))
        for chunk in column.chunks:
            self._offsets.append(chunk.offsets.to_numpy())
            self._values.append(chunk.values.to_numpy())
        self._ends = np.cumsum([len(offsets) - 1 for offsets in self._offsets])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> np.ndarray:
        chunk = int(np.searchsorted(self._ends, index, side="right"))
        row = index - (int(self._ends[chunk - 1]) if chunk else 0)
        offsets = self._offsets[chunk]
        view: np.ndarray = self._values[chunk][offsets[row] : offsets[row + 1]]
        return view

    def lengths(self) -> np.ndarray:
        return np.concatenate([np.diff(offsets) for offsets in self._offsets]) if len(self) else np.empty(0, np.int64)

    def parts(self) -> Iterator[np.ndarray]:
        """Row lengths and values, piece by piece; the same pieces for the same rows, however they are stored."""
        for start in range(0, len(self), _ROWS_OF_A_PART):
            rows = [self[index] for index in range(start, min(start + _ROWS_OF_A_PART, len(self)))]
            yield np.array([len(row) for row in rows], dtype=np.int64)
            yield np.concatenate(rows)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True)
class Split:
    """One split: documents by name, and targets, one number or one row of numbers an example.

    `extras` are the further columns that the head reads: rows of numbers (Ragged), numbers, or texts.
    """

    documents: list[Ragged]
    targets: np.ndarray | Ragged
    extras: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.targets)


class Texts:
    """A column of texts, or of lists of them, over memory-mapped Arrow; `texts[i]` is a str or a list."""

    def __init__(self, column: pa.ChunkedArray):
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, index: int) -> Any:
        return self._column[index].as_py()

    def parts(self) -> Iterator[np.ndarray]:
        """The texts as bytes, row by row; each is preceded by how many a row has and how long they are."""
        for index in range(len(self)):
            found = self[index]
            texts = [text.encode() for text in ([found] if isinstance(found, str) else found)]
            yield np.array([len(texts), *map(len, texts)], dtype=np.int64)
            yield np.frombuffer(b"".join(texts), dtype=np.uint8)


def filled(rows: Sequence[np.ndarray], length: int, value: int) -> tuple[np.ndarray, np.ndarray]:
    """(B, length) int64, the rows with `value` behind each, and (B, length) bool, where they stand."""
    numbers = np.full((len(rows), length), value, dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=bool)
    for index, row in enumerate(rows):
        numbers[index, : len(row)] = row
        mask[index, : len(row)] = True
    return numbers, mask


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def fault(table: pa.Table, name: str, in_rows: bool) -> str | None:
    """What is wrong with a column that must hold whole numbers, one or a row of them an example."""
    column = table.column(name)
    kind, rows = column.type, _is_list(column.type)
    inner = kind.value_type if rows else kind
    if rows != in_rows or not (pa.types.is_integer(inner) or pa.types.is_boolean(inner)):
        return f"column {name!r} holds {kind}, not {'rows of ' if in_rows else ''}whole numbers"
    if rows and any(chunk.flatten().null_count for chunk in column.chunks):
        return f"column {name!r} has rows with missing numbers"
    return f"column {name!r} has rows without a number" if not rows and column.null_count else None


def read_split(folder: Path, documents: Sequence[str], target: str, extras: Iterable[str]) -> Split:
    """The split saved in this folder, of these columns."""
    table = datasets.load_from_disk(str(folder)).data.table
    return Split(
        documents=[Ragged(table.column(column)) for column in documents],
        targets=_view(table.column(target)),
        extras={name: _view(table.column(name)) for name in extras},
    )


def _view(column: pa.ChunkedArray) -> Any:
    kind = column.type.value_type if _is_list(column.type) else column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Texts(column)
    return Ragged(column) if _is_list(column.type) else column.to_numpy()
