"""Errors a user can cause or must know about: one line each, with the exit code of the command line.

- AttnbenchError: exit 2; bad usage, bad option, bad plugin, bad input
- UnknownName, below it: a name that no plugin, option or command has; the closest names are in the message
- Unsupported, below it: this cell cannot run here or with these settings; becomes the status `unsupported`
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class AttnbenchError(Exception):
    """A fault the user can mend; its text is one line that says what was found and what to do."""


class Unsupported(AttnbenchError):
    """The combination asked for cannot run (missing package, masks not honoured, length bound)."""


class UnknownName(AttnbenchError):
    """A name nobody knows."""

    def __init__(self, what: str, name: str, known: Iterable[str]):
        super().__init__(f"unknown {what} {name!r}{suggestion(name, known)}")


def resembles(name: str, known: Iterable[str]) -> list[str]:
    """Known names that `name` may be a misspelling of, the closest first."""
    return difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)


def suggestion(name: str, known: Iterable[str]) -> str:
    """What to append to an error about an unknown name: the closest names, or all when they are few."""
    names = sorted(known)
    if close := resembles(name, names):
        return f"; did you mean {' or '.join(close)}?"
    if not names:
        return "; there are none"
    shown = ", ".join(names[:20])
    return f"; known: {shown}{', ...' if len(names) > 20 else ''}"


class Terminated(BaseException):
    """SIGTERM came; not an exception a plugin's code may take for a fault."""


def one_line(error: BaseException) -> str:
    """Kind and message of an exception, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def describe(error: BaseException) -> str:
    """An exception on one line: kind, message, and the place of the last frame outside installed libraries.

    A fault of ours (AttnbenchError) is its text.
    """
    if isinstance(error, AttnbenchError):
        return " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and not frame.filename.startswith("<")]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return one_line(error) + place


@contextmanager
def blame(what: str) -> Iterator[None]:
    """A plugin may fail in any way; the message says whose, how and where. OSError and MemoryError are no one's fault.

    Raises:
        AttnbenchError: instead of what was raised inside.
    """
    try:
        yield
    except (AttnbenchError, OSError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        raise AttnbenchError(f"{what}: {describe(error)}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Also for torch, whose CPU allocator raises a RuntimeError and whose CUDA one a class of its own."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return any(sign in str(error) for sign in ("can't allocate memory", "CUDA out of memory"))
