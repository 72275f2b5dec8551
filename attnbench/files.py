"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attnbench.errors import AttnbenchError

#: What file systems answer that know no hard links.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)


class NotWritten(AttnbenchError):
    """The disk refuses: it is full, read-only, or not ours. Nothing half written is left."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """
    Raises:
        NotWritten: instead of an OSError inside.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        todo = "make room" if full else "see that the folder can be written, or name another"
        raise NotWritten(f"{path}: cannot be written ({error.strerror or error}); {todo}") from None


def publish(path: Path, data: bytes, first: Mapping[Path, bytes]) -> None:
    """Makes `path` appear with all of `data`, behind the files of `first`.

    All of them are on disk before one has its name, so a disk that is full leaves none. One of `first` that is there
    with these very bytes, left by a write that was cut off, is no error.

    Raises:
        AttnbenchError: another file has such a name. It is left alone.
        OSError: the disk refuses.
    """
    contents = {**first, path: data}
    with ExitStack() as stack:
        prepared = {target: stack.enter_context(_temporary(target, content)) for target, content in contents.items()}
        for target, temporary in prepared.items():
            try:
                _claim(temporary, target)
            except FileExistsError:
                if target == path or target.read_bytes() != contents[target]:
                    raise exists(target) from None
            _sync_folder(target.parent)


def overwrite(path: Path, data: bytes) -> None:
    """Puts `data` in the place of what `path` holds, if anything.

    Raises:
        NotWritten: the disk refuses; what was there is kept.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(path, data) as temporary:
            temporary.replace(path)


def exists(path: Path) -> AttnbenchError:
    return AttnbenchError(f"{path}: exists already; results are never changed, give the new run an id of its own")


@contextmanager
def _temporary(path: Path, data: bytes) -> Iterator[Path]:
    """A file beside `path` that holds `data`, on disk; gone in the end."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


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


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
