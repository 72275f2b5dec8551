"""A set made piece by piece: what is written outlives an interruption, and memory holds a piece.

A piece is some consecutive questions of one part of the data; each split has a file of its rows, and the counts, which
are written last, tell a whole piece.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import datasets
import pyarrow as pa

from attnbench.contracts import Preparation
from attnbench.errors import AttnbenchError

from .. import _arrow
from .._documents import threads

SPLITS = ("train", "validation", "test")
Q = TypeVar("Q")


class Made(NamedTuple):
    """Rows that one question gives, and counts of what was done."""

    rows: list[dict[str, Any]]
    counts: Counter[str]


@dataclass(frozen=True)
class Part(Generic[Q]):
    """Questions as one file or published split has them.

    Attributes:
        questions: gives them anew at each call, always in the same order.
        splits: where each goes; "" = nowhere.
    """

    name: str
    questions: Callable[[], Iterable[Q]]
    splits: Sequence[str]

    def of(self, split: str) -> Iterable[Q]:
        return (one for one, where in zip(self.questions(), self.splits, strict=True) if where == split)


def claim(folder: Path, identity: Any) -> None:
    """Clears what an interrupted preparation of other data left. `identity`: what tells the data from other data."""
    note, wanted = folder / "of.json", json.dumps(identity, sort_keys=True)
    if not note.is_file() or note.read_text("utf-8") != wanted:
        shutil.rmtree(folder)
        folder.mkdir()
        note.write_text(wanted, "utf-8")


def identity_of(paths: Iterable[Path]) -> list[list[Any]]:
    return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]


def made(
    preparation: Preparation,
    parts: Sequence[Part[Q]],
    rows: Callable[[str, int, Q], Made],
    schema: pa.Schema,
    at_once: int,
) -> tuple[datasets.DatasetDict, dict[str, Counter[str]]]:
    """The splits, mapped from their files, and the sums of their counts. `rows(split, number, question)` makes rows.

    Raises:
        AttnbenchError: a split without a row.
    """
    folder = preparation.folder / "pieces"
    folder.mkdir(exist_ok=True)
    paths: dict[str, list[Path]] = {split: [] for split in SPLITS}
    counts: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
    for part in parts:
        questions = enumerate(part.questions())
        starts = range(0, len(part.splits), at_once)
        for start in preparation.progress(starts, f"questions of {part.name}, in {at_once:,}"):
            chosen = list(islice(questions, at_once))
            stem = folder / f"{part.name}-{start:09d}"
            done = stem.with_suffix(".json")
            if not done.is_file():
                with threads(preparation.workers):
                    _write(done, stem, part, chosen, rows, schema)
            for split, counted in json.loads(done.read_text("utf-8")).items():
                counts[split].update(counted)
                if counted["rows"]:
                    paths[split].append(_path(stem, split))
    for split in SPLITS:
        if not paths[split]:
            raise AttnbenchError(f"no question is left for {split}, of {counts[split]['questions']:,} there")
    return datasets.DatasetDict({split: _arrow.joined(paths[split]) for split in SPLITS}), counts


def _path(stem: Path, split: str) -> Path:
    return stem.with_name(f"{stem.name}-{split}.arrow")


def _write(
    done: Path,
    stem: Path,
    part: Part[Q],
    chosen: list[tuple[int, Q]],
    rows: Callable[[str, int, Q], Made],
    schema: pa.Schema,
) -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    counts: dict[str, Counter[str]] = {}
    for index, question in chosen:
        if split := part.splits[index]:
            one = rows(split, index, question)
            found.setdefault(split, []).extend(one.rows)
            counts.setdefault(split, Counter()).update({**one.counts, "rows": len(one.rows)})
    for split, many in found.items():
        if many:
            columns = {field.name: pa.array([row[field.name] for row in many], field.type) for field in schema}
            _arrow.write(_path(stem, split), columns)
    partial = done.with_suffix(".partial")
    partial.write_text(json.dumps(counts), "utf-8")
    partial.replace(done)
