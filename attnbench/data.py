"""Prepared data sets: made once, kept as Arrow under a key of everything that shaped them, read memory-mapped.

$ATTNBENCH_DATA (else ~/.cache/attnbench) / <task> / <key>-<stored form> / {train, validation, test, card.json}
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from attnbench.cards import SPLITS, check_columns, make_card, read
from attnbench.columns import Split
from attnbench.contracts import Preparation, Task
from attnbench.errors import AttnbenchError, blame
from attnbench.options import as_json
from attnbench.progress import say, track
from attnbench.record import canonical
from attnbench.registry import Plugin

#: Folder of files that a task wants to stay with its set.
KEPT = "kept"
#: Raise it when the stored form changes.
DATA_FORMAT = 3
_CARD = "card.json"


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
    splits, card = read(folder, plugin.object.head(options)), json.loads((folder / _CARD).read_text("utf-8"))
    return TaskData(f"{key}-{card['sha256'][:12]}" if card["from_files"] else key, splits, card, folder)


def card(plugin: Plugin, options: Any) -> dict[str, Any] | None:
    """What is known of the set of these options, or None while it is not prepared."""
    folder = folder_of(plugin, options)
    found: dict[str, Any] | None = json.loads((folder / _CARD).read_text("utf-8")) if _is_whole(folder) else None
    return found


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


def _is_whole(folder: Path) -> bool:
    return (folder / _CARD).is_file()


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
        check_columns(plugin, options, made)
        for name in SPLITS:
            shutil.rmtree(partial / name, ignore_errors=True)
            with _SilentDatasets():
                made[name].save_to_disk(str(partial / name))
        card = make_card(plugin, options, made, partial)
        card |= {"notes": notes, "facts": facts, "from_files": source is not None or download}
    except (AttnbenchError, MemoryError):
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if (kept := files / KEPT).is_dir():
        shutil.rmtree(partial / KEPT, ignore_errors=True)
        kept.rename(partial / KEPT)
    shutil.rmtree(files)
    (partial / _CARD).write_text(json.dumps(card, indent=1, sort_keys=True), "utf-8")
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
