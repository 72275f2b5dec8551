"""Prepared data sets: made once, kept as Arrow under a key of everything that shaped them, read memory-mapped.

    $ATTNBENCH_DATA (else ~/.cache/attnbench) / <task> / <key> / {train, validation, test, files, card.json}
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

from attnbench import baselines
from attnbench.contracts import NO_TARGET, Preparation, Task
from attnbench.errors import AttnbenchError
from attnbench.options import as_json
from attnbench.progress import say, track
from attnbench.record import canonical
from attnbench.registry import Plugin

SPLITS = ("train", "validation", "test")
#: Raise it when the stored form changes.
DATA_FORMAT = 1


def home() -> Path:
    return Path(os.environ.get("ATTNBENCH_DATA") or Path.home() / ".cache" / "attnbench")


def data_key(plugin: Plugin, options: Any) -> str:
    """12 hex digits of all that shapes the prepared set: task, version, options, source, stored form."""
    task: Task = plugin.object
    shaped_by = [plugin.name, task.version, as_json(options), plugin.source_sha, DATA_FORMAT]
    return hashlib.sha256(canonical(shaped_by).encode()).hexdigest()[:12]


class Ragged:
    """Rows of differing length over memory-mapped Arrow chunks; `ragged[i]` is a numpy view."""

    def __init__(self, column: pa.ChunkedArray):
        self._values, self._offsets = [], []
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


@dataclass(frozen=True)
class Split:
    """One split: documents by name, and targets, one number or one row of numbers an example."""

    documents: list[Ragged]
    targets: np.ndarray | Ragged

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class TaskData:
    """A prepared task. `card` holds counts, label shares, lengths and the scores of trivial predictors."""

    key: str
    splits: dict[str, Split]
    card: dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """Documents as (tokens (B, N) int64, mask (B, N) bool or None), targets (B,) or (B, N) int64, example indices (B,)."""

    documents: list[tuple[np.ndarray, np.ndarray | None]]
    targets: np.ndarray
    indices: np.ndarray


def load(plugin: Plugin, options: Any, source: Path | None = None, workers: int = 1) -> TaskData:
    """The prepared set, prepared first when it is not there yet.

    Raises:
        AttnbenchError: the preparation failed or its result does not fit the task's declaration.
    """
    key = data_key(plugin, options)
    folder = home() / plugin.name / key
    if not (folder / "card.json").is_file():
        _prepare(plugin, options, source, folder, workers)
    head = plugin.object.head(options)
    splits = {}
    for name in SPLITS:
        table = datasets.load_from_disk(str(folder / name)).data.table
        targets = table.column(head.target)
        ragged = pa.types.is_list(targets.type)
        splits[name] = Split(
            documents=[Ragged(table.column(column)) for column in head.documents],
            targets=Ragged(targets) if ragged else targets.to_numpy(),
        )
    return TaskData(key, splits, json.loads((folder / "card.json").read_text("utf-8")))


def _prepare(plugin: Plugin, options: Any, source: Path | None, folder: Path, workers: int) -> None:
    """Works in a neighbour folder and renames it at the end, so a half-made set is never taken for a whole one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
    try:
        say(f"preparing {plugin.name} (once; kept in {folder})")
        (partial / "files").mkdir()
        made = plugin.object.prepare(options, Preparation(partial / "files", source, track, workers))
        card = _card(plugin, options, made)
        for name in SPLITS:
            with _silent_datasets():
                made[name].save_to_disk(str(partial / name))
        (partial / "card.json").write_text(json.dumps(card, indent=1, sort_keys=True), "utf-8")
        try:
            partial.rename(folder)
        except OSError:
            if not (folder / "card.json").is_file():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class _silent_datasets:
    """Keeps the progress bars of `datasets` away; ours speak."""

    def __enter__(self) -> None:
        self._were_on = datasets.utils.logging.is_progress_bar_enabled()
        datasets.disable_progress_bars()

    def __exit__(self, *error: object) -> None:
        if self._were_on:
            datasets.enable_progress_bars()


def _card(plugin: Plugin, options: Any, made: datasets.DatasetDict) -> dict[str, Any]:
    task: Task = plugin.object
    head = task.head(options)
    if missing := [name for name in SPLITS if name not in made]:
        raise AttnbenchError(f"task {plugin.name}: prepare returned no split {' or '.join(missing)}")
    card: dict[str, Any] = {"task": plugin.name, "version": task.version, "options": as_json(options), "splits": {}}
    for name in SPLITS:
        split = made[name].with_format("numpy")
        if missing := [column for column in (*head.documents, head.target) if column not in split.column_names]:
            raise AttnbenchError(f"task {plugin.name}, {name}: no column {missing[0]!r}, found {split.column_names}")
        card["splits"][name] = _describe(f"task {plugin.name}, {name}", task, options, made[name])
    chance = task.chance(options) if task.chance else 1 / head.classes
    trivial = baselines.scores(head, made)
    if task.baselines:
        trivial |= task.baselines(options, made)
    return card | {"chance": chance, "trivial": trivial}


def _describe(where: str, task: Task, options: Any, split: datasets.Dataset) -> dict[str, Any]:
    """Counts of one split; refuses ids, targets and lengths outside what the task declares."""
    head, vocab, longest = task.head(options), task.vocab(options), task.max_length(options)
    if not len(split):
        raise AttnbenchError(f"{where}: empty")
    lengths: list[int] = []
    for column in head.documents:
        ragged = Ragged(split.data.table.column(column)) if split._indices is None else None
        rows = [ragged[i] for i in range(len(split))] if ragged else [np.asarray(r) for r in split[column]]
        for index, row in enumerate(rows):
            if not 0 < len(row) <= longest:
                raise AttnbenchError(f"{where}, row {index}: {len(row)} tokens, allowed are 1 to {longest}")
            if row.min() < 0 or row.max() >= vocab:
                raise AttnbenchError(f"{where}, row {index}: token {row.max()} outside 0..{vocab - 1}")
            if not task.padded and len(row) != longest:
                raise AttnbenchError(f"{where}, row {index}: {len(row)} tokens in a task that declares all have {longest}")
        lengths += [len(row) for row in rows]
    labels: Counter[int] = Counter()
    for index, target in enumerate(split[head.target]):
        values = [int(t) for t in np.atleast_1d(target) if t != NO_TARGET]
        if any(not 0 <= value < head.classes for value in values):
            raise AttnbenchError(f"{where}, row {index}: target outside 0..{head.classes - 1}")
        labels.update(values)
    quantiles = np.quantile(lengths, [0, 0.05, 0.5, 0.95, 1])
    return {
        "examples": len(split),
        "predictions": sum(labels.values()),
        "labels": {str(label): count for label, count in sorted(labels.items())},
        "length_min_5_50_95_max": [int(q) for q in quantiles],
    }


def collate(split: Split, indices: Sequence[int] | np.ndarray, pad_to: int | None, padded: bool) -> Batch:
    """The examples as arrays, filled with 0 behind; `pad_to` = None fills to the longest of the batch.

    Without `padded` all rows are equally long and there is no mask.
    """
    documents = []
    length = 0
    for ragged in split.documents:
        rows = [ragged[int(i)] for i in indices]
        length = pad_to or max(len(row) for row in rows)
        tokens, mask = _fill(rows, length, 0)
        documents.append((tokens, mask if padded else None))
    if isinstance(split.targets, Ragged):
        targets, _ = _fill([split.targets[int(i)] for i in indices], length, NO_TARGET)
    else:
        targets = split.targets[np.asarray(indices)].astype(np.int64)
    return Batch(documents, targets, np.asarray(indices, dtype=np.int64))


def _fill(rows: list[np.ndarray], length: int, value: int) -> tuple[np.ndarray, np.ndarray]:
    filled = np.full((len(rows), length), value, dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=bool)
    for index, row in enumerate(rows):
        filled[index, : len(row)] = row
        mask[index, : len(row)] = True
    return filled, mask


def in_order(split: Split, batch: int, pad_to: int | None, padded: bool) -> Iterator[Batch]:
    """All examples once, the last batch included."""
    for start in range(0, len(split), batch):
        yield collate(split, range(start, min(start + batch, len(split))), pad_to, padded)
