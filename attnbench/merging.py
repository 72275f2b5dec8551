"""Takes the records of another results folder, such as another machine's, into this one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from attnbench.errors import AttnbenchError
from attnbench.files import NotWritten
from attnbench.predictions import unpack
from attnbench.record import Record
from attnbench.store import Store, packed_predictions, read


@dataclass
class Merged:
    """The records taken, how many were here already, and a line for each file that could not be taken."""

    taken: list[Path] = field(default_factory=list)
    known: int = 0
    problems: list[str] = field(default_factory=list)


def merge(into: Store, other: Store) -> Merged:
    """Every record is validated, and its predictions, and written as any record is; none that is here is changed.

    What was taken before the end, however it came, is whole, and the same call goes on.

    Raises:
        AttnbenchError: the other folder is not there, or the disk here refuses.
    """
    here = {(found.label, found.id): path for path, found in into.scan() if isinstance(found, Record)}
    merged = Merged()
    for path, found in other.scan():
        try:
            if not isinstance(found, Record):
                raise found
            _inside(path, other)
            mine = here.get((found.label, found.id), into.path_of(found))
            if not mine.exists():  # looked for now, since others may merge at the same time
                merged.taken.append(
                    into.put(found, None if found.predictions is None else _checked(path, found, other))
                )
            elif not _same(read(mine), found):
                raise AttnbenchError(
                    f"{path}: differs from the record of that id here, {mine}; attnbench diff says how"
                )
            else:
                merged.known += 1
        except NotWritten:
            raise
        except AttnbenchError as problem:
            merged.problems.append(str(problem))
    return merged


def _checked(path: Path, record: Record, store: Store) -> bytes:
    """The predictions beside the record, byte for byte, once it is known that they can be read.

    Raises:
        AttnbenchError: they cannot.
    """
    packed = packed_predictions(path, record)
    beside = path.with_name(record.predictions or "")
    _inside(beside, store)
    unpack(packed, str(beside))
    return packed


def _same(mine: Record, other: Record) -> bool:
    """Where the predictions lie is no part of what was found."""
    return mine == other.model_copy(update={"predictions": mine.predictions})


def _inside(path: Path, store: Store) -> None:
    """
    Raises:
        AttnbenchError: a link leads out of the folder.
    """
    if not path.resolve().is_relative_to(store.folder.resolve()):
        raise AttnbenchError(f"{path}: a link that leads out of the folder; put the file itself there")
