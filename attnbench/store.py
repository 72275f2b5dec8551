"""The results folder: one JSON file per run with its test predictions beside it. Files are added, never changed."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import secrets
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.errors import AttnbenchError, one_line
from attnbench.record import Record, from_json

if TYPE_CHECKING:
    import pandas as pd

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}(?<!\.)", re.ASCII)
#: What file systems answer that know no hard links.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
#: The date in every zip entry, the earliest the format knows, so that equal arrays give equal bytes.
_NO_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Store:
    """The results folder; records lie in `runs/<protocol>/<task>/<label>/<id>.json` below it."""

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder).expanduser())

    def folder_for(self, record: Record) -> Path:
        """Where the record belongs. Names that are no safe file name are replaced, so it never leaves the folder."""
        spec = record.spec
        return self.folder.joinpath("runs", *map(_file_name, (spec.protocol.name, spec.task.name, record.label)))

    def unfinished(self, identity: str) -> tuple[Path, Path]:
        """Where a run that has not come to its end keeps its newest state, and the one before it."""
        path = self.folder / "unfinished" / f"{identity}.safetensors"
        return path, path.with_suffix(".older.safetensors")

    def write(self, record: Record, predictions: Mapping[str, np.ndarray[Any, Any]] | None = None) -> Path:
        """Stores a record and its predictions; returns the path of the JSON file.

        The predictions come first: a record that can be read has its predictions. Both appear under their name only
        when complete. A write that was cut off can be repeated.

        Raises:
            AttnbenchError: the record (or other predictions under its id) exists, the id is no file name, a number
                is NaN, an array holds Python objects, or the disk refuses.
        """
        if _file_name(record.id) != record.id:
            raise AttnbenchError(f"the record id {record.id!r} cannot be a file name; use letters, digits, - and _")
        folder = self.folder_for(record)
        path = folder / f"{record.id}.json"
        packed = None if predictions is None else _pack(predictions)
        name, sha = (None, None) if packed is None else (f"{record.id}.predictions.npz", _sha(packed))
        try:
            text = record.model_copy(update={"predictions": name, "predictions_sha": sha}).to_json()
        except ValueError as error:
            raise AttnbenchError(f"record {record.id} cannot be written as JSON ({one_line(error)})") from None
        if path.exists():
            raise _exists(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if packed is not None and name is not None:
                _publish(folder / name, packed, equal_is_fine=True)
            _publish(path, text.encode())
        except OSError as error:
            raise AttnbenchError(f"{path}: cannot be written ({error.strerror or error})") from None
        return path

    def read_all(self) -> tuple[list[tuple[Path, Record]], list[str]]:
        """All records, sorted by path, and one line per JSON file that is no usable record.

        A file under another name than its id, or a label and id met before, is a copy: it would count one run twice.

        Raises:
            AttnbenchError: the results folder does not exist.
        """
        if not self.folder.is_dir():
            raise AttnbenchError(f"no results folder at {self.folder}")
        records: list[tuple[Path, Record]] = []
        problems: list[str] = []
        first: dict[tuple[str, str], Path] = {}
        for path in sorted((self.folder / "runs").rglob("*.json")):
            try:
                record = read(path)
            except AttnbenchError as error:
                problems.append(str(error))
                continue
            if path.stem != record.id:
                problems.append(f"{path}: holds the record {record.id}; not counted, name it {record.id}.json")
            elif (key := (record.label, record.id)) in first:
                problems.append(f"{path}: not counted, the same record as {first[key]}")
            else:
                first[key] = path
                records.append((path, record))
        return records, problems

    def find(self, reference: str) -> tuple[Path, Record]:
        """A record by its JSON file, its id, or the beginning of its id.

        Raises:
            AttnbenchError: there is none, or several.
        """
        if reference.endswith(".json"):
            return Path(reference), read(reference)
        named = sorted(path for path in (self.folder / "runs").rglob("*.json") if path.stem.startswith(reference))
        exact = [path for path in named if path.stem == reference]
        found = exact or named
        if len(found) != 1:
            what = f"{len(found)} records whose id begins with" if found else "no record"
            shown = "".join(f"; {path.stem}" for path in found[:5])
            raise AttnbenchError(f"{self.folder}: {what} {reference!r}{shown}; attnbench list runs shows all")
        return found[0], read(found[0])

    def merge(self, other: Store) -> tuple[list[Path], int, list[str]]:
        """Takes in the other store's records: those taken, how many were here already, and what could not be taken."""
        records, problems = other.read_all()
        here = {(record.label, record.id): path for path, record in self.read_all()[0]}
        taken, known = [], 0
        for path, record in records:
            try:
                if (mine := here.get((record.label, record.id))) is not None:
                    if read(mine) != record:
                        raise AttnbenchError(f"{path}: differs from the record of that id here, {mine}")
                    known += 1
                else:
                    taken.append(self.write(record, load_predictions(path) if record.predictions else None))
            except AttnbenchError as error:
                problems.append(str(error))
        return taken, known, problems


def read(path: Path | str) -> Record:
    """Reads one record file.

    Raises:
        AttnbenchError: unreadable, truncated, or not a record; names the file.
    """
    try:
        record = from_json(Path(path).read_text(encoding="utf-8"), str(path))
        record.to_json()  # refuses NaN, which Python's parser lets through and the spec hash does not
    except OSError as error:
        raise AttnbenchError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, RecursionError) as error:
        raise AttnbenchError(f"{path}: not a record ({one_line(error)})") from None
    return record


def load_predictions(path: Path | str) -> dict[str, np.ndarray[Any, Any]]:
    """The test predictions of the record at `path` (the JSON file), arrays by name.

    Raises:
        AttnbenchError: the record has none, or the file beside it is missing, changed, or no plain npz.
    """
    path = Path(path)
    record = read(path)
    if record.predictions is None:
        raise AttnbenchError(f"{path}: this run has no predictions")
    if _file_name(record.predictions) != record.predictions:
        raise AttnbenchError(f"{path}: names predictions outside its folder: {record.predictions!r}")
    beside = path.with_name(record.predictions)
    try:
        packed = beside.read_bytes()
    except OSError as error:
        raise AttnbenchError(f"{beside}: cannot be read ({error.strerror or error})") from None
    if _sha(packed) != record.predictions_sha:
        raise AttnbenchError(f"{beside}: not the predictions that {path.name} was written with (sha256 differs)")
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise AttnbenchError(f"{beside}: not plain arrays ({one_line(error)})") from None


def load_records(path: Path | str) -> pd.DataFrame:
    """One row per record of the results folder `path`; a run without a score has missing values there.

    The kind `trial` marks runs that values were chosen by; they have no score.

    Files that are no usable record are named in a warning.

    Raises:
        AttnbenchError: the results folder does not exist.
    """
    import pandas as pd

    records, problems = Store(Path(path)).read_all()
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    rows = [_row(file, record) for file, record in records]
    # column by column, since pandas guesses that text is UTF-8, and a label from elsewhere may not be
    return pd.DataFrame({name: pd.Series([row.get(name) for row in rows], dtype=t) for name, t in _COLUMNS.items()})


_COLUMNS = {
    "id": "object",
    "kind": "object",
    "label": "object",
    "task": "object",
    "protocol": "object",
    "protocol_version": "int64",
    "mechanism": "object",
    "regularizer": "object",
    "seed": "int64",
    "status": "object",
    "test": "float64",
    "low": "float64",
    "high": "float64",
    "validation": "float64",
    "chance": "float64",
    "params": "Int64",
    "params_mixer": "Int64",
    "samples_per_second": "float64",
    "peak_bytes": "Int64",
    "spec_hash": "object",
    "path": "object",
}


def _row(path: Path, record: Record) -> dict[str, Any]:
    spec, quality, cost = record.spec, record.quality, record.cost
    row: dict[str, Any] = {
        "id": record.id,
        "kind": record.kind,
        "label": record.label,
        "task": spec.task.name,
        "protocol": spec.protocol.name,
        "protocol_version": spec.protocol.version,
        "mechanism": spec.mechanism.name,
        "regularizer": "+".join(part.name for part in spec.regularizer) or "none",
        "seed": record.seed,
        "status": record.status,
        "spec_hash": spec.hash,
        "path": str(path),
    }
    if quality is not None:
        row |= {"test": quality.test, "low": quality.interval[0], "high": quality.interval[1]}
        row |= {"validation": quality.validation, "chance": quality.chance}
    if cost is not None:
        row |= {"params": cost.params_total, "params_mixer": cost.params_mixer}
        row |= {"samples_per_second": cost.samples_per_second, "peak_bytes": cost.peak_bytes}
    return row


def _file_name(name: str) -> str:
    """`name` itself where it is a safe file name, else what is left of it and a mark that tells such names apart."""
    if _SAFE_NAME.fullmatch(name):
        return name
    kept = re.sub(r"[^A-Za-z0-9_+-]+", "_", name)[:60].lstrip("+-")
    return f"{kept or '_'}-{_sha(name.encode('utf-8', 'surrogatepass'))[:8]}"


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _exists(path: Path) -> AttnbenchError:
    return AttnbenchError(f"{path}: exists already; results are never changed, give the new run an id of its own")


def _pack(predictions: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """An npz file that depends on the arrays alone: no date, no compression library, names in order."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(predictions):
            entry = zipfile.ZipInfo(f"{name}.npy", _NO_DATE)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            content = io.BytesIO()
            try:
                np.lib.format.write_array(content, np.asarray(predictions[name], order="C"), allow_pickle=False)
            except ValueError:
                raise AttnbenchError(f"predictions {name!r} hold Python objects; give numbers or text") from None
            archive.writestr(entry, content.getvalue())
    return buffer.getvalue()


def _publish(path: Path, data: bytes, equal_is_fine: bool = False) -> None:
    """Makes `path` appear with all of `data`, on disk.

    Raises:
        AttnbenchError: there is such a file. It is left alone; with `equal_is_fine` one with these very bytes, left
            by a write that was cut off, is no error.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _claim(temporary, path)
    except FileExistsError:
        if not (equal_is_fine and path.read_bytes() == data):
            raise _exists(path) from None
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _claim(temporary: Path, path: Path) -> None:
    """Gives the finished file its name. A plain rename would overwrite; a hard link fails if the name is taken."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # The name is taken with an empty file, which no reader takes for a record, and then filled in one step.
        with open(path, "xb"):
            pass
        os.replace(temporary, path)
