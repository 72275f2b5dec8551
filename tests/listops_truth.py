"""ListOps once more, naively: what Long Range Arena's pipeline makes of a row, and what an expression is worth."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

#: Written out, so that a change of order is seen.
IDS = {
    "0": 1,
    "1": 2,
    "2": 3,
    "3": 4,
    "4": 5,
    "5": 6,
    "6": 7,
    "7": 8,
    "8": 9,
    "9": 10,
    "[MIN": 11,
    "[MAX": 12,
    "[MED": 13,
    "[SM": 14,
    "X": 15,
}
WORDS = {index: word for word, index in IDS.items()}
_FUNCTIONS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}


def value(words: list[str]) -> int:
    """Of words such as `[MAX 2 [SM 5 6 X X`, by recursion."""
    rest = iter(words)
    found = _read(rest)
    assert found is not None and not list(rest)
    return found


def _read(words: Iterator[str]) -> int | None:
    """The value that begins at the next word; None at a bracket."""
    word = next(words)
    if word in _FUNCTIONS:
        return _FUNCTIONS[word](list(iter(lambda: _read(words), None)))
    return None if word == "X" else int(word)


def pipeline(source: str) -> list[str]:
    """LRA's: `]` becomes `X`, parentheses are deleted, the rest is split at white space."""
    return source.replace("]", "X").replace("(", "").replace(")", "").split()


def rows(content: bytes) -> list[tuple[list[str], int]]:
    """Words and label of each row of a released file."""
    lines = content.decode().split("\n")[1:]
    pairs = [line.rstrip("\r").split("\t") for line in lines if line]
    return [(pipeline(source), int(label)) for source, label in pairs]
