"""The results folder: one JSON file per run with its test predictions beside it. Files are added, never changed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnbench import predictions as arrays
from attnbench.errors import AttnbenchError, one_line
from attnbench.files import exists, publish, writing
from attnbench.predictions import sha_of
from attnbench.record import ELSEWHERE, Record, from_json

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}(?<!\.)", re.ASCII)
#: What to do about predictions that are lost.
_AGAIN = "copy it again from where it was made, or run the cell again"


@dataclass(frozen=True)
class Store:
    """The results folder; records lie in `runs/<protocol>/<task>/<label>/<id>.json` below it."""

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder).expanduser())

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def folder_for(self, record: Record) -> Path:
        """Where the record belongs. Names that are no safe file name are replaced, so it never leaves the folder."""
        spec = record.spec
        return self.runs.joinpath(*map(file_name, (spec.protocol.name, spec.task.name, record.label)))

    def path_of(self, record: Record) -> Path:
        return self.folder_for(record) / f"{record.id}.json"

    def unfinished(self, identity: str) -> tuple[Path, Path]:
        """Where a run that has not come to its end keeps its newest state, and the one before it."""
        path = self.folder / "unfinished" / f"{identity}.safetensors"
        return path, path.with_suffix(".older.safetensors")

    def write(self, record: Record, predictions: arrays.Arrays | None = None) -> Path:
        """Stores a record and its predictions; returns the path of the JSON file.

        Raises:
            AttnbenchError: as `put`, or an array holds Python objects.
        """
        return self.put(record, None if predictions is None else arrays.pack(predictions))

    def put(self, record: Record, packed: bytes | None) -> Path:
        """Stores a record and its predictions, as they were packed.

        The predictions come first: a record that can be read has its predictions. Both appear under their name only
        when complete. A write that was cut off can be repeated.

        Raises:
            NotWritten: the disk refuses.
            AttnbenchError: the record (or other predictions under its id) exists, the id is no file name, or a number
                is NaN.
        """
        if file_name(record.id) != record.id:
            raise AttnbenchError(f"the record id {record.id!r} cannot be a file name; use letters, digits, - and _")
        path = self.path_of(record)
        beside = path.with_suffix(".predictions.npz")
        there = {} if packed is None else {"predictions": beside.name, "predictions_sha": sha_of(packed)}
        try:
            whole = record.model_copy(update={"predictions": None, "predictions_sha": None} | there)
            text = whole.to_json()
        except ValueError as error:
            raise AttnbenchError(f"record {record.id} cannot be written as JSON ({one_line(error)})") from None
        if path.exists():
            raise exists(path)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            publish(path, text.encode(), {} if packed is None else {beside: packed})
        return path

    def scan(self) -> Iterator[tuple[Path, Record | AttnbenchError]]:
        """All records, sorted by path, and in the place of a JSON file that is no usable record what is wrong with it.

        A file under another name than its id, or a label and id met before, is a copy: it would count one run twice.

        Raises:
            AttnbenchError: the results folder does not exist.
        """
        if not self.folder.is_dir():
            raise AttnbenchError(f"no results folder at {self.folder}")
        first: dict[tuple[str, str], Path] = {}
        for path, found in _below(self.runs):
            if isinstance(found, AttnbenchError):
                yield path, found
                continue
            try:
                record = read(path)
            except AttnbenchError as error:
                yield path, error
                continue
            if path.stem != record.id:
                what = f"holds the record {record.id}; not counted, name it {record.id}.json"
                yield path, AttnbenchError(f"{path}: {what}")
            elif (known := first.setdefault((record.label, record.id), path)) != path:
                yield path, AttnbenchError(f"{path}: not counted, the same record as {known}; delete one of them")
            else:
                yield path, record

    def read_all(self) -> tuple[list[tuple[Path, Record]], list[str]]:
        """What `scan` finds, and its problems as one line each.

        Raises:
            AttnbenchError: as `scan`.
        """
        records, problems = [], []
        for path, found in self.scan():
            if isinstance(found, Record):
                records.append((path, found))
            else:
                problems.append(str(found))
        return records, problems

    def find(self, reference: str) -> tuple[Path, Record]:
        """A record by its JSON file, its id, or the beginning of its id.

        Raises:
            AttnbenchError: there is none, or several.
        """
        if reference.endswith(".json"):
            return Path(reference), read(reference)
        named = [path for path, problem in _below(self.runs) if not problem and path.stem.startswith(reference)]
        exact = [path for path in named if path.stem == reference]
        found = exact or named
        if len(found) != 1:
            what = f"{len(found)} records whose id begins with" if found else "no record"
            shown = "".join(f"; {path.stem}" for path in found[:5])
            raise AttnbenchError(f"{self.folder}: {what} {reference!r}{shown}; attnbench list runs shows all")
        return found[0], read(found[0])


def read(path: Path | str) -> Record:
    """Reads one record file.

    Raises:
        AttnbenchError: unreadable, truncated, or not a record; names the file.
    """
    where = _one_line(path)
    try:
        with open(path, "rb") as file:
            return from_json(file.read(), where)
    except OSError as error:
        raise AttnbenchError(f"{where}: cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, RecursionError) as error:
        raise AttnbenchError(f"{where}: not a record ({one_line(error)}); {ELSEWHERE}") from None


def load_predictions(path: Path | str, record: Record | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """The test predictions of the record at `path` (the JSON file), arrays by name.

    `record` is that one, where it was read already.

    Raises:
        AttnbenchError: the record has none, or the file beside it is missing, changed, or no plain npz.
    """
    path = Path(path)
    record = record or read(path)
    packed = packed_predictions(path, record)
    return arrays.unpack(packed, str(path.with_name(record.predictions or "")))


def packed_predictions(path: Path, record: Record) -> bytes:
    """The file of predictions beside the record at `path`, checked against the record, as it is.

    Raises:
        AttnbenchError: the record has none, or the file is missing or changed.
    """
    if record.predictions is None:
        raise AttnbenchError(f"{path}: this run has no predictions")
    if file_name(record.predictions) != record.predictions:
        raise AttnbenchError(f"{path}: names predictions outside its folder: {record.predictions!r}; {ELSEWHERE}")
    beside = path.with_name(record.predictions)
    try:
        packed = beside.read_bytes()
    except OSError as error:
        raise AttnbenchError(f"{beside}: cannot be read ({error.strerror or error}); {_AGAIN}") from None
    if sha_of(packed) != record.predictions_sha:
        raise AttnbenchError(
            f"{beside}: not the predictions that {path.name} was written with (sha256 differs); {_AGAIN}"
        )
    return packed


def _below(folder: Path) -> Iterator[tuple[Path, AttnbenchError | None]]:
    """The JSON files below a folder in the order of their paths, and what could not be looked into."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        yield folder, AttnbenchError(f"{_one_line(folder)}: cannot be read ({error.strerror or error})")
        return
    for entry in entries:
        path, problem = Path(entry.path), None
        if entry.is_dir(follow_symlinks=False):
            yield from _below(path)
            continue
        if entry.is_dir():
            problem = "a link to a folder is not followed; put the folder itself there"
        elif not entry.name.endswith(".json"):
            continue
        elif not entry.is_file():
            problem = f"cannot be read (no file, or a link to none); {ELSEWHERE}"
        yield path, AttnbenchError(f"{_one_line(path)}: {problem}") if problem else None


def _one_line(path: Path | str) -> str:
    return str(path).replace("\n", "\\n").replace("\r", "\\r")


def file_name(name: str) -> str:
    """`name` itself where it is a safe file name, else what is left of it and a mark that tells such names apart."""
    if _SAFE_NAME.fullmatch(name):
        return name
    kept = re.sub(r"[^A-Za-z0-9_+-]+", "_", name)[:60].lstrip("+-")
    return f"{kept or '_'}-{sha_of(name.encode('utf-8', 'surrogatepass'))[:8]}"
