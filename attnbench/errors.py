"""Errors a user can cause or must know about: one line each, with the exit code of the command line.

- AttnbenchError: exit 2; bad usage, bad option, bad plugin, bad input
- UnknownName, below it: a name that no plugin, option or command has; the closest names are in the message
- Unsupported, below it: this cell cannot run here or with these settings; becomes the status `unsupported`
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AttnbenchError(Exception):
    """A fault the user can mend; its text is one line that says what was found and what to do."""


class Unsupported(AttnbenchError):
    """The combination asked for cannot run (missing package, masks not honoured, length bound)."""


class UnknownName(AttnbenchError):
    """A name nobody knows."""

    def __init__(self, what: str, name: str, known: Iterable[str]):
        super().__init__(f"unknown {what} {name!r}{suggestion(name, known)}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """What to append to an error about an unknown name: the closest names, or all when they are few."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    if not names:
        return "; there are none"
    shown = ", ".join(names[:20])
    return f"; known: {shown}{', ...' if len(names) > 20 else ''}"


def one_line(error: BaseException) -> str:
    """Kind and message of an exception, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
