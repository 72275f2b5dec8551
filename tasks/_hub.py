"""Data sets of the Hugging Face hub: parquet files by split, in a clone, in the hub's cache, or fetched when asked to.

Rows are read column by column with their types checked; what is missing, empty or of another kind is named with file
and row instead of being filled in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from attnbench.contracts import Preparation
from attnbench.errors import AttnbenchError, one_line
from attnbench.options import as_json

from ._files import refuse_stand_in, utf8

_ROWS_AT_ONCE = 1000
_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)
_SHARD = re.compile(r"-(\d+)-of-(\d+)\.parquet$")


@dataclass(frozen=True)
class Column:
    """A column that must be there. `names`: those of the classes, in the order of their numbers."""

    name: str
    kind: Literal["text", "number", "picture"]
    names: tuple[str, ...] = ()


class Batches(NamedTuple):
    """Some rows of a split: where they stand, of which kinds, and the rows."""

    where: str
    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]


@dataclass(frozen=True)
class Hub:
    """A data set of the hub. `folder` holds the parquet files of the configuration; "" = it has its name, or data."""

    repo: str
    config: str
    splits: tuple[str, ...]
    folder: str = ""

    def find(self, source: Path) -> dict[str, list[Path]] | None:
        """The parquet files of each split, in order, or None where there are none.

        Raises:
            AttnbenchError: no such folder, two copies, a split or a part of one is missing.
        """
        if not source.is_dir():
            raise AttnbenchError(f"{source}: no such folder")
        places = {place.resolve(): place for place in self._places(source)}
        found = {place: self._files(place) for place in places.values()}
        found = {place: files for place, files in found.items() if any(files.values())}
        if len(found) > 1:
            first, second, *_ = found
            raise AttnbenchError(f"{source}: two copies, {first} and {second}; name one of them with --from")
        for place, files in found.items():
            for split in self.splits:
                if not files[split]:
                    raise AttnbenchError(f"{place}: no {split}-*.parquet there; complete the folder")
                _check_whole(place, split, files[split])
            return files
        return None

    def _places(self, source: Path) -> Iterator[Path]:
        owner, _, name = self.repo.partition("/")
        for base in (source, source / name, source / owner / name):
            yield from (base, *(base / folder for folder in ([self.folder] if self.folder else [self.config, "data"])))
        cache = f"datasets--{owner}--{name}"
        for home in (source, source / cache, source / "hub" / cache):
            yield from (snapshot / (self.folder or self.config) for snapshot in _snapshots(home))

    def _files(self, place: Path) -> dict[str, list[Path]]:
        return {
            split: sorted([*place.glob(f"{split}-*.parquet"), *place.glob(f"{split}.parquet")]) for split in self.splits
        }

    def download(self) -> dict[str, list[Batches]]:
        """The splits as the hub has them now; kept in the cache of `datasets`, which goes on where it was interrupted.

        Raises:
            AttnbenchError: it could not be fetched.
        """
        import datasets

        try:
            made = datasets.load_dataset(self.repo, self.config)
            tables = {split: made[split].data.table for split in self.splits}
        except Exception as error:
            raise AttnbenchError(
                f"{self.repo}: could not be fetched ({one_line(error)}); fetch it elsewhere and name its folder with "
                "--from"
            ) from error
        return {
            split: [Batches(f"{self.repo}, {split}", table.schema, table.to_batches(_ROWS_AT_ONCE))]
            for split, table in tables.items()
        }


def missing(task: str, options: Any, where: str, downloads: bool = True) -> AttnbenchError:
    """What to say where a task has neither files nor leave to fetch them: where to get them, and the whole command."""
    plain, usual = as_json(options), as_json(type(options)())
    changed = "".join(f" --set {name}={value}" for name, value in plain.items() if value != usual[name])
    ways = "--from DIR (or --download)" if downloads else "--from DIR"
    command = f"attnbench data prepare {task}{changed} {ways}"
    return AttnbenchError(f"{task}: not read in yet; get {where}, then run: {command}")


def _snapshots(home: Path) -> list[Path]:
    """The snapshot a folder of the hub's cache calls main, else all of them."""
    if not (home / "snapshots").is_dir():
        return []
    found = {path.name: path for path in sorted((home / "snapshots").iterdir())}
    main = home / "refs" / "main"
    named = found.get(main.read_text("utf-8", "replace").strip()) if main.is_file() else None
    return [named] if named else list(found.values())


def _check_whole(place: Path, split: str, files: Sequence[Path]) -> None:
    shards = [_SHARD.search(path.name) for path in files]
    numbers = [(int(shard[1]), int(shard[2])) for shard in shards if shard]
    if not numbers and len(files) == 1:
        return
    total = max((count for _, count in numbers), default=len(files))
    if numbers != [(index, total) for index in range(total)]:
        raise AttnbenchError(
            f"{place}: {len(files)} files of {split}, whose names speak of {total} parts: {files[0].name} to "
            f"{files[-1].name}; complete the folder, or take out what belongs to another version"
        )


def read(files: Sequence[Path]) -> Iterator[Batches]:
    """The rows of parquet files.

    Raises:
        AttnbenchError: no parquet file, or one that is cut short or damaged.
    """
    import pyarrow.parquet as pq

    for path in files:
        with open(path, "rb") as file:
            refuse_stand_in(path, file.read(64))
        try:
            parquet = pq.ParquetFile(path)
            schema = parquet.schema_arrow
            str(schema)  # names that are no UTF-8
        except _UNREADABLE as error:
            raise _damaged(str(path), error) from None
        with parquet:
            yield Batches(str(path), schema, parquet.iter_batches(_ROWS_AT_ONCE))


def _damaged(where: str, error: BaseException) -> AttnbenchError:
    return AttnbenchError(f"{where}: cut short, damaged or no parquet file ({one_line(error)}); get it again")


def rows(parts: Iterable[Batches], columns: Sequence[Column]) -> Iterator[tuple[str, list[Any]]]:
    """Where each row stands, and its values in the order of `columns`: bytes of text and pictures, whole numbers.

    Raises:
        AttnbenchError: a column is missing or of another kind, a value is missing, text is empty or no clean UTF-8.
    """
    for where, schema, batches in parts:
        for column in columns:
            _check_column(where, schema, column)
        row = 0
        try:
            for batch in batches:
                values = [_values(batch.column(column.name), column) for column in columns]
                for found in zip(*values, strict=True):
                    row += 1
                    place = f"{where}, row {row}"
                    for value, column in zip(found, columns, strict=True):
                        _check_value(place, value, column)
                    yield place, list(found)
        except _UNREADABLE as error:
            raise _damaged(f"{where} after row {row}", error) from None
        if not row:
            raise AttnbenchError(f"{where}: no rows")


def _check_column(where: str, schema: pa.Schema, column: Column) -> None:
    found = schema.names.count(column.name)
    if found != 1:
        how = "no column" if not found else "more than one column"
        raise AttnbenchError(f"{where}: {how} {column.name!r}, found {', '.join(schema.names)}")
    kind = schema.field(column.name).type
    fits = {
        "text": pa.types.is_string(kind) or pa.types.is_large_string(kind),
        "number": pa.types.is_integer(kind),
        "picture": pa.types.is_struct(kind)
        and kind.get_field_index("bytes") >= 0
        and pa.types.is_binary(kind.field("bytes").type),
    }
    if not fits[column.kind]:
        wanted = {"text": "text", "number": "whole numbers", "picture": "pictures (a struct with a field bytes)"}
        raise AttnbenchError(f"{where}: column {column.name!r} holds {kind}, expected {wanted[column.kind]}")
    names = _class_names(schema, column.name)
    if column.names and names and tuple(names) != column.names:
        raise AttnbenchError(
            f"{where}: the classes of {column.name!r} are {', '.join(names)}, expected {', '.join(column.names)}"
        )


def _class_names(schema: pa.Schema, column: str) -> list[str]:
    """As `datasets` wrote them into the file; none where it did not, or not in the form it writes."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return [str(name) for name in features[column]["names"]]
    except (KeyError, ValueError, TypeError):
        return []


def _values(array: pa.Array, column: Column) -> list[Any]:
    if column.kind == "text":
        array = array.cast(pa.large_binary())  # so that a byte that is no UTF-8 can be named
    elif column.kind == "picture":
        array = pa.compute.struct_field(array, "bytes")
    found: list[Any] = array.to_pylist()
    return found


def _check_value(where: str, value: Any, column: Column) -> None:
    if value is None:
        raise AttnbenchError(f"{where}: nothing in column {column.name!r}")
    if column.kind == "text":
        check_text(where, value)


def check_text(where: str, raw: bytes) -> None:
    """
    Raises:
        AttnbenchError: nothing but blanks, a NUL byte, or no UTF-8.
    """
    if not raw.strip():
        raise AttnbenchError(f"{where}: empty text")
    if (nul := raw.find(b"\0")) >= 0:
        raise AttnbenchError(f"{where}: byte {nul} of the text is NUL")
    utf8(where, raw)


def begin(task: str, options: Any, preparation: Preparation, hub: Hub, where: str) -> dict[str, list[Batches]] | Path:
    """The splits as the hub has them, fetched when the user allows it, or the folder where the user says they lie.

    Raises:
        AttnbenchError: neither.
    """
    if preparation.source is not None:
        return preparation.source
    if not preparation.download:
        raise missing(task, options, where)
    return hub.download()
