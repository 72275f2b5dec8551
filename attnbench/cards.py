"""What a prepared set holds: checked against what its task declares, counted, hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from attnbench import baselines
from attnbench.columns import Split, read_split
from attnbench.contracts import Head, Task
from attnbench.errors import AttnbenchError, blame
from attnbench.options import as_json
from attnbench.questions import question_of
from attnbench.registry import Plugin

SPLITS = ("train", "validation", "test")


def read(folder: Path, head: Head) -> dict[str, Split]:
    """The splits stored in this folder."""
    question = question_of(head)
    extras = [name for name in (*question.columns, *question.texts) if name not in (*head.documents, head.target)]
    return {name: read_split(folder / name, head.documents, head.target, extras) for name in SPLITS}


def content_hash(splits: Mapping[str, Split]) -> str:
    """SHA-256 of all numbers and texts of a set, in order: of each split and column kind, row lengths and values."""
    digest = hashlib.sha256()
    for name in SPLITS:
        split = splits[name]
        for column in (*split.documents, split.targets, *split.extras.values()):
            for part in [column] if isinstance(column, np.ndarray) else column.parts():
                digest.update(f"{name} {part.dtype.name} {part.size} ".encode())
                digest.update(part.astype(part.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def check_columns(plugin: Plugin, options: Any, made: datasets.DatasetDict) -> None:
    """
    Raises:
        AttnbenchError: splits or columns that do not fit the task's declaration.
    """
    head = plugin.object.head(options)
    if not isinstance(made, datasets.DatasetDict):
        raise AttnbenchError(
            f"task {plugin.name}: prepare returned a {type(made).__name__}, not a datasets.DatasetDict"
        )
    for name in SPLITS:
        if name not in made:
            raise AttnbenchError(f"task {plugin.name}: prepare returned no split {name!r}, found {sorted(made)}")
        where = f"task {plugin.name}, {name}"
        if not len(made[name]):
            raise AttnbenchError(f"{where}: empty")
        if what := question_of(head).column_fault(made[name].data.table):
            raise AttnbenchError(f"{where}: {what}")


def make_card(plugin: Plugin, options: Any, made: datasets.DatasetDict, folder: Path) -> dict[str, Any]:
    """What `show` tells of a prepared set, after checking it against what the task declares."""
    task: Task = plugin.object
    head = task.head(options)
    splits = read(folder, head)
    counts = {name: _describe(f"task {plugin.name}, {name}", task, options, splits[name]) for name in SPLITS}
    trivial = baselines.scores(head, splits)
    if task.baselines:
        with blame(f"task {plugin.name}: baselines failed"):
            trivial |= task.baselines(options, made)
    chance = task.chance(options) if task.chance else question_of(head).chance(splits["test"])
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
    question = question_of(task.head(options))
    if wrong_row := question.row_fault(split):
        index, what = wrong_row
        raise AttnbenchError(f"{where}, row {index}: {what}")
    found, counts = np.unique(np.concatenate(question.answers(split)), return_counts=True)
    lengths = np.concatenate([ragged.lengths() for ragged in split.documents])
    return {
        "examples": len(split),
        "predictions": int(counts.sum()),
        "labels": {str(label): int(count) for label, count in zip(found, counts, strict=True)},
        "length_min_5_50_95_max": [int(q) for q in np.quantile(lengths, [0, 0.05, 0.5, 0.95, 1])],
    }
