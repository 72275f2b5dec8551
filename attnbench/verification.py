"""`attnbench data verify`: is a prepared set what it was, and what would make its scores mean less than they seem.

Damage is an error. Everything else is a finding to be told: real sets have duplicates, and IMDB has reviews in both
train and test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import datasets
import numpy as np

from attnbench.cards import SPLITS, content_hash
from attnbench.columns import Split
from attnbench.contracts import Task
from attnbench.data import TaskData
from attnbench.errors import AttnbenchError, blame
from attnbench.questions import Question, question_of
from attnbench.registry import Plugin

_BINS = 8
#: Runs of equal labels, as a share of those that a random order would have, below which a split counts as sorted.
_SORTED = 0.5


def verify(prepared: TaskData, plugin: Plugin, options: Any) -> dict[str, Any]:
    """Hashes, counts, label balance, duplicates, lengths, trivial levels, and `findings` in words.

    Raises:
        AttnbenchError: the set differs from its card, or from the one on record for these options.
    """
    task: Task = plugin.object
    sha = _check_hash(prepared, plugin, options)
    question = question_of(task.head(options))
    digests = {name: _digests(split) for name, split in prepared.splits.items()}
    findings: list[str] = []
    report = {
        "folder": str(prepared.folder),
        **sha,
        "splits": {name: _count(split, question, digests[name]) for name, split in prepared.splits.items()},
        "in two splits": {
            f"{a} and {b}": len(np.intersect1d(digests[a], digests[b])) for a, b in combinations(SPLITS, 2)
        },
        "facts": prepared.card.get("facts", {}),
        "chance": prepared.card["chance"],
        "trivial": prepared.card["trivial"] | _further_levels(prepared, task, options),
    }
    findings += _contradictions(prepared, question, digests)
    for name, counted in report["splits"].items():
        if counted["duplicates"]:
            findings.append(f"{name}: {counted['duplicates']} examples are there more than once")
        if counted["order"] != "mixed":
            findings.append(f"{name}: examples are sorted by label")
        if len(counted["labels"]) == 1 and question.chance(prepared.splits[name]) > 0:
            findings.append(f"{name}: one class only")
    findings += [f"{count} examples of {pair}" for pair, count in report["in two splits"].items() if count]
    return report | {"findings": findings or ["none"]}


def _check_hash(prepared: TaskData, plugin: Plugin, options: Any) -> dict[str, str]:
    found = content_hash(prepared.splits)
    again = f"remove {prepared.folder} and prepare it again"
    if found != prepared.card["sha256"]:
        raise AttnbenchError(f"{prepared.folder}: damaged: sha256 {found}, was {prepared.card['sha256']}; {again}")
    with blame(f"task {plugin.name}: pinned"):
        known = plugin.object.pinned(options) if plugin.object.pinned else None
    if known not in (None, found):
        raise AttnbenchError(f"{prepared.folder}: sha256 {found}, but the set on record has {known}; {again}")
    return {"sha256": found, "on record": "the same" if known else "none"}


def _digests(split: Split) -> np.ndarray:
    """(examples,) uint64: equal for equal documents."""

    def each() -> Iterator[int]:
        for row in zip(*split.documents, strict=True):
            digest = hashlib.blake2b(digest_size=8)
            for document in row:
                digest.update(f"{len(document)} ".encode() + document.astype("<i8").tobytes())
            yield int.from_bytes(digest.digest(), "little")

    return np.fromiter(each(), dtype=np.uint64, count=len(split))


def _count(split: Split, question: Question, digests: np.ndarray) -> dict[str, Any]:
    labels = np.concatenate(question.answers(split))
    names, counts = np.unique(labels, return_counts=True)
    lengths = np.concatenate([ragged.lengths() for ragged in split.documents])
    heights, edges = np.histogram(lengths, bins=min(_BINS, int(lengths.max() - lengths.min()) + 1))
    return {
        "examples": len(split),
        "predictions": len(labels),
        "labels": {str(name): int(count) for name, count in zip(names, counts, strict=True)},
        "order": _order(labels, counts),
        "duplicates": len(digests) - len(np.unique(digests)),
        "lengths": {f"{int(np.ceil(a))}..{int(b)}": int(n) for n, a, b in zip(heights, edges, edges[1:], strict=False)},
    }


def _order(labels: np.ndarray, counts: np.ndarray) -> str:
    """sorted when labels change far less often than they would by chance."""
    changes = int((labels[1:] != labels[:-1]).sum())
    expected = (len(labels) - 1) * (1 - float(((counts / len(labels)) ** 2).sum()))
    return "sorted" if expected > 10 and changes < _SORTED * expected else "mixed"


def _contradictions(prepared: TaskData, question: Question, digests: dict[str, np.ndarray]) -> list[str]:
    """Equal documents with unlike answers, over all splits."""
    every, times = np.unique(np.concatenate(list(digests.values())), return_counts=True)
    repeated = set(every[times > 1].tolist())
    answers: dict[int, set[bytes]] = {}
    if repeated:
        for name, split in prepared.splits.items():
            for digest, answer in zip(digests[name].tolist(), question.answers(split), strict=True):
                if digest in repeated:
                    answers.setdefault(digest, set()).add(answer.tobytes())
    unlike = sum(len(found) > 1 for found in answers.values())
    return [f"{unlike} documents occur with different labels"] if unlike else []


def _further_levels(prepared: TaskData, task: Task, options: Any) -> dict[str, float]:
    if task.levels is None:
        return {}
    made = datasets.DatasetDict({name: datasets.load_from_disk(str(prepared.folder / name)) for name in SPLITS})
    with blame("levels failed"):
        return task.levels(options, made)
