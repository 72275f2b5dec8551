"""Prepared data sets: made once, kept as Arrow under a key of everything that shaped them, read memory-mapped.

$ATTNBENCH_DATA (else ~/.cache/attnbench) / <task> / <key>-<stored form> / {train, validation, test, card.json}
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from attnbench import baselines
from attnbench.columns import Ragged, Split, fault, read_split
from attnbench.contracts import NO_TARGET, Preparation, TagTokens, Task
from attnbench.errors import AttnbenchError, blame
from attnbench.options import as_json
from attnbench.progress import say, track
from attnbench.record import canonical
from attnbench.registry import Plugin

SPLITS = ("train", "validation", "test")
#: Raise it when the stored form changes.
DATA_FORMAT = 2


def home() -> Path:
    return Path(os.environ.get("ATTNBENCH_DATA") or "~/.cache/attnbench").expanduser()


def data_key(plugin: Plugin, options: Any) -> str:
    """12 hex digits of all that shapes the prepared set: task, version, options, source."""
    task: Task = plugin.object
    shaped_by = [plugin.name, task.version, as_json(options), plugin.source_sha]
    return hashlib.sha256(canonical(shaped_by).encode()).hexdigest()[:12]


def folder_of(plugin: Plugin, options: Any) -> Path:
    """Where the set lies when it is prepared."""
    return home() / plugin.name / f"{data_key(plugin, options)}-{DATA_FORMAT}"


@dataclass(frozen=True)
class TaskData:
    """A prepared task. `card` holds counts, label shares, lengths, the scores of trivial predictors, content hashes.

    `key` is all that shaped the set; where the user's own files did, with the beginning of their content hash.
    """

    key: str
    splits: dict[str, Split]
    card: dict[str, Any]
    folder: Path = Path()


@dataclass(frozen=True)
class Batch:
    """Documents as (tokens (B, N) int64, mask (B, N) bool or None); targets (B,) or (B, N), indices (B,), int64."""

    documents: list[tuple[np.ndarray, np.ndarray | None]]
    targets: np.ndarray
    indices: np.ndarray


def load(
    plugin: Plugin, options: Any, source: Path | None = None, workers: int = 1, download: bool = False
) -> TaskData:
    """The prepared set, prepared first when it is not there yet. `source`: where the user's own files lie.

    Raises:
        AttnbenchError: the preparation failed or its result does not fit the task's declaration.
    """
    key = data_key(plugin, options)
    folder = folder_of(plugin, options)
    if not _is_whole(folder):
        with _alone(folder):
            if not _is_whole(folder):
                _prepare(plugin, options, source, folder, workers, download)
    splits = {name: read_split(folder / name, plugin.object.head(options)) for name in SPLITS}
    card = json.loads((folder / "card.json").read_text("utf-8"))
    return TaskData(f"{key}-{card['sha256'][:12]}" if card["from_files"] else key, splits, card, folder)


def verify(prepared: TaskData, plugin: Plugin, options: Any) -> dict[str, Any]:
    """Compares the stored set with its card, and with the hash on record for these options.

    Raises:
        AttnbenchError: they differ; the message says what to do.
    """
    found = content_hash(prepared.splits)
    again = f"remove {prepared.folder} and prepare it again"
    if found != prepared.card["sha256"]:
        raise AttnbenchError(f"{prepared.folder}: damaged: sha256 {found}, was {prepared.card['sha256']}; {again}")
    with blame(f"task {plugin.name}: pinned"):
        known = plugin.object.pinned(options) if plugin.object.pinned else None
    if known not in (None, found):
        raise AttnbenchError(f"{prepared.folder}: sha256 {found}, but the set on record has {known}; {again}")
    return {"folder": str(prepared.folder), "sha256": found, "on record": "the same" if known else "none"}


def export(plugin: Plugin, options: Any, folder: Path, workers: int) -> None:
    """
    Raises:
        AttnbenchError: the task has no such form, or writing it failed.
    """
    write = plugin.object.export
    if write is None:
        raise AttnbenchError(f"task {plugin.name} has no form to export")
    folder.mkdir(parents=True, exist_ok=True)
    with blame(f"task {plugin.name}: export failed"):
        write(options, Preparation(folder, None, track, say, workers))


def content_hash(splits: Mapping[str, Split]) -> str:
    """SHA-256 of all numbers of a set, in order: for each split and column its kind, row lengths and values."""
    digest = hashlib.sha256()
    for name in SPLITS:
        split = splits[name]
        for column in (*split.documents, split.targets):
            for part in column.parts() if isinstance(column, Ragged) else [column]:
                digest.update(f"{name} {part.dtype.name} {part.size} ".encode())
                digest.update(part.astype(part.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def _is_whole(folder: Path) -> bool:
    return (folder / "card.json").is_file()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process prepares a set; others wait for it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting: another process prepares {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _prepare(plugin: Plugin, options: Any, source: Path | None, folder: Path, workers: int, download: bool) -> None:
    """Works in a neighbour folder and renames it at the end, so a half-made set is never taken for a whole one.

    What the task wrote stays there when it is interrupted or the disk refuses, for the next time; a fault clears it.
    """
    partial = folder.with_suffix(".partial")
    files = partial / "files"
    say(f"preparing {plugin.name} (once; kept in {folder}){', going on' if files.is_dir() else ''}")
    files.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    facts: dict[str, Any] = {}

    def note(text: str) -> None:
        notes.append(text)
        say(f"{plugin.name}: {text}")

    try:
        with blame(f"task {plugin.name}: prepare failed"):
            made = plugin.object.prepare(
                options, Preparation(files, source, track, note, workers, download, facts.__setitem__)
            )
        _check_columns(plugin, options, made)
        for name in SPLITS:
            shutil.rmtree(partial / name, ignore_errors=True)
            with _SilentDatasets():
                made[name].save_to_disk(str(partial / name))
        card = _card(plugin, options, made, partial)
        card |= {"notes": notes, "facts": facts, "from_files": source is not None or download}
    except (AttnbenchError, MemoryError):
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(files)
    (partial / "card.json").write_text(json.dumps(card, indent=1, sort_keys=True), "utf-8")
    if folder.exists():  # without a card, so not whole
        shutil.rmtree(folder)
    partial.rename(folder)


class _SilentDatasets:
    """Keeps the progress bars of `datasets` away; ours speak."""

    def __enter__(self) -> None:
        self._were_on = datasets.utils.logging.is_progress_bar_enabled()
        datasets.disable_progress_bars()

    def __exit__(self, *error: object) -> None:
        if self._were_on:
            datasets.enable_progress_bars()


def _check_columns(plugin: Plugin, options: Any, made: datasets.DatasetDict) -> None:
    head = plugin.object.head(options)
    if not isinstance(made, datasets.DatasetDict):
        raise AttnbenchError(
            f"task {plugin.name}: prepare returned a {type(made).__name__}, not a datasets.DatasetDict"
        )
    for name in SPLITS:
        if name not in made:
            raise AttnbenchError(f"task {plugin.name}: prepare returned no split {name!r}, found {sorted(made)}")
        for column in (*head.documents, head.target):
            if column not in made[name].column_names:
                raise AttnbenchError(
                    f"task {plugin.name}, {name}: no column {column!r}, found {made[name].column_names}"
                )
            if not len(made[name]):
                raise AttnbenchError(f"task {plugin.name}, {name}: empty")
            in_rows = column in head.documents or isinstance(head, TagTokens)
            if what := fault(made[name].data.table, column, in_rows):
                raise AttnbenchError(f"task {plugin.name}, {name}: {what}")


def _card(plugin: Plugin, options: Any, made: datasets.DatasetDict, folder: Path) -> dict[str, Any]:
    """What `show` tells of a prepared set, after checking it against what the task declares."""
    task: Task = plugin.object
    head = task.head(options)
    splits = {name: read_split(folder / name, head) for name in SPLITS}
    counts = {name: _describe(f"task {plugin.name}, {name}", task, options, splits[name]) for name in SPLITS}
    trivial = baselines.scores(head, splits)
    if task.baselines:
        with blame(f"task {plugin.name}: baselines failed"):
            trivial |= task.baselines(options, made)
    chance = task.chance(options) if task.chance else 1 / head.classes
    for level, score in {"chance": chance, **trivial}.items():
        if not 0 <= score <= 1:
            raise AttnbenchError(f"task {plugin.name}: {level} is {score}, not a score in 0..1")
    return {
        "task": plugin.name,
        "version": task.version,
        "options": as_json(options),
        "splits": counts,
        "chance": chance,
        "trivial": trivial,
        "sha256": content_hash(splits),
    }


def _describe(where: str, task: Task, options: Any, split: Split) -> dict[str, Any]:
    """Counts of one split; refuses ids, targets and lengths outside what the task declares."""
    vocab, longest = task.vocab(options), task.max_length(options)
    for ragged in split.documents:
        for index, row in enumerate(ragged):
            if not 0 < len(row) <= longest:
                raise AttnbenchError(f"{where}, row {index}: {len(row)} tokens, allowed are 1 to {longest}")
            if row.min() < 0 or row.max() >= vocab:
                wrong = row.min() if row.min() < 0 else row.max()
                raise AttnbenchError(f"{where}, row {index}: token {wrong} outside 0..{vocab - 1}")
            if not task.padded and len(row) != longest:
                raise AttnbenchError(
                    f"{where}, row {index}: {len(row)} tokens in a task that declares all have {longest}"
                )
    labels = split.labels()
    classes = task.head(options).classes
    if isinstance(split.targets, Ragged) and (split.targets.lengths() != split.documents[0].lengths()).any():
        index = int((split.targets.lengths() != split.documents[0].lengths()).argmax())
        raise AttnbenchError(f"{where}, row {index}: not as many targets as tokens")
    for index, row in enumerate(labels):
        if not len(row):
            raise AttnbenchError(f"{where}, row {index}: no target")
        if not 0 <= row.min() <= row.max() < classes:
            raise AttnbenchError(f"{where}, row {index}: target outside 0..{classes - 1}")
    found, counts = np.unique(np.concatenate(labels), return_counts=True)
    lengths = np.concatenate([ragged.lengths() for ragged in split.documents])
    return {
        "examples": len(split),
        "predictions": int(counts.sum()),
        "labels": {str(label): int(count) for label, count in zip(found, counts, strict=True)},
        "length_min_5_50_95_max": [int(q) for q in np.quantile(lengths, [0, 0.05, 0.5, 0.95, 1])],
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
