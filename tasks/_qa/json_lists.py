"""Long JSON files, one element of their list at a time; memory holds an element, not the file.

The library reads the values; what is around the list is read here. What JSON forbids is refused, and so is what it
leaves open and other readers resolve in silence: a name that stands twice, NaN, half a surrogate pair.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from attnbench.errors import AttnbenchError

from .._files import refuse_stand_in

_AT_ONCE = 1 << 20
#: Characters of one element; a question with all its documents has far fewer.
_MOST = 1 << 26
_BLANK = " \t\r\n"
#: No part of a token but of a string is so long: what is that close to the end of what was read may not be whole.
_TOKEN = 32


class _Refused(ValueError):
    """A value that the decoder would take."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Refused(f"the name {next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return found


def _constant(name: str) -> NoReturn:
    raise _Refused(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def elements(path: Path, key: str | None = None) -> Iterator[tuple[str, Any]]:
    """Where each element stands, and the element: of the list that the file is, or that it holds under `key`.

    Raises:
        AttnbenchError: no such file, no clean UTF-8, no JSON, no such list, or an empty one; names the place.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115  closed below
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise AttnbenchError(f"{path}: no such file") from None
    with file:
        refuse_stand_in(path, file.read(64))
        file.seek(0)
        reader = _Reader(path, file)
        if key is not None:
            reader.enter(key)
        number = 0
        for number, element in enumerate(reader.list_(key), 1):
            yield f"{path}, item {number}", element
        if not number:
            raise AttnbenchError(f"{path}: an empty list of data")
        reader.leave(inside=key is not None)


class _Reader:
    def __init__(self, path: Path, file: IO[bytes]):
        self.path, self.file = path, file
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.text, self.at, self.bytes_read, self.dropped, self.ended = "", 0, 0, 0, False
        if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
            self.bytes_read = len(codecs.BOM_UTF8)
        else:
            file.seek(0)

    def more(self) -> bool:
        """Reads as much again as is left; False at the end of the file."""
        if self.ended:
            return False
        left = len(self.text) - self.at
        if left > _MOST:
            self.fault(f"one element has more than {_MOST:,} characters; the published files have far smaller ones")
        raw = self.file.read(max(_AT_ONCE, left))
        self.ended = not raw
        pending = len(self.decoder.getstate()[0])
        try:
            decoded = self.decoder.decode(raw, final=self.ended)
        except UnicodeDecodeError as error:
            place = self.bytes_read - pending + error.start
            raise AttnbenchError(f"{self.path}: not UTF-8 at byte {place}; convert the file") from None
        self.bytes_read += len(raw)
        if not self.ended:
            self.dropped += self.at
            self.text, self.at = self.text[self.at :] + decoded, 0
        return not self.ended

    def fault(self, what: str, place: int | None = None) -> NoReturn:
        """`place`: in the whole text; where reading stands if none is given."""
        place = self.dropped + self.at if place is None else place
        raise AttnbenchError(f"{self.path}, character {place:,}: {' '.join(what.split())}") from None

    def next_(self) -> str:
        """The next character that is no blank, without taking it; "" at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in _BLANK:
                self.at += 1
            if self.at < len(self.text) or not self.more():
                return self.text[self.at : self.at + 1]

    def take(self, expected: str) -> str:
        """One of these characters."""
        found = self.next_()
        if not found:
            self.fault("the file is cut short; get it again")
        if found not in expected:
            self.fault(f"{found!r} where {' or '.join(expected)} is expected")
        self.at += 1
        return found

    def value(self) -> Any:
        self.next_()
        while True:
            try:
                found, end = _DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                place = self.dropped + error.pos
                unfinished = error.msg.startswith("Unterminated string") or error.pos > len(self.text) - _TOKEN
                if not unfinished or not self.more():
                    self.fault(f"no JSON, or a file cut short ({error.msg}); get it again", place)
            except RecursionError:
                self.fault("lists in lists, too deep to be data")
            except ValueError as error:  # also a number of thousands of digits
                self.fault(str(error))
            else:
                if end + _TOKEN < len(self.text) or not self.more():  # a number may go on behind what was read
                    self.at = end
                    return found

    def enter(self, key: str) -> None:
        """Goes to the value of `key` in the object that the file is."""
        self.take("{")
        seen: list[str] = []
        while self.next_() != "}":
            if seen:
                self.take(",")
            name = self.value()
            if not isinstance(name, str):
                self.fault(f"{str(name)[:20]!r} where a name is expected")
            self.take(":")
            if name == key:
                return
            seen.append(name)
            self.value()
        raise AttnbenchError(f"{self.path}: no list {key!r} in it, found {', '.join(seen[:10]) or 'nothing'}")

    def list_(self, key: str | None) -> Iterator[Any]:
        if self.next_() != "[":
            raise AttnbenchError(f"{self.path}: {'the file' if key is None else repr(key)} is no list")
        self.take("[")
        if self.next_() == "]":
            self.at += 1
            return
        while True:
            yield self.value()
            if self.take(",]") == "]":
                return

    def leave(self, inside: bool) -> None:
        """What stands behind the list must be JSON too, or the file is not whole."""
        while inside and self.take(",}") == ",":
            self.value()
            self.take(":")
            self.value()
        if rest := self.next_():
            self.fault(f"{rest!r} behind the end of the data")
