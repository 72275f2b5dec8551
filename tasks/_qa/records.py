"""Values of a record of somebody else's file, by name and kind; what is missing or of another kind is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from attnbench.errors import AttnbenchError

_KINDS = {str: "text", list: "a list", dict: "an object", int: "a whole number", type(None): "nothing"}


class Record(NamedTuple):
    """`where` names its place in messages."""

    where: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, where: str, value: Any) -> Record:
        if not isinstance(value, dict):
            raise AttnbenchError(f"{where}: {_kind(value)}, expected an object")
        return cls(where, value)

    def _value(self, name: str, kind: type) -> Any:
        if name not in self.values:
            raise AttnbenchError(f"{self.where}: no {name!r}, found {', '.join(map(str, self.values)) or 'nothing'}")
        value = self.values[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise AttnbenchError(f"{self.where}: {name!r} is {_kind(value)}, expected {_KINDS[kind]}")
        return value

    def text(self, name: str, *, empty: bool = False) -> str:
        """
        Raises:
            AttnbenchError: none, no text, or text that cannot be: blank (unless allowed), NUL, half a surrogate pair.
        """
        return checked(f"{self.where}: {name!r}", self._value(name, str), empty=empty)

    def number(self, name: str) -> int:
        return int(self._value(name, int))

    def items(self, name: str) -> list[Any]:
        found: list[Any] = self._value(name, list)
        return found

    def texts(self, name: str, *, empty: bool = False) -> list[str]:
        return [
            checked(f"{self.where}: {name!r}, number {number}", one, empty=empty)
            for number, one in enumerate(self.items(name), 1)
        ]

    def records(self, name: str) -> list[Record]:
        return [Record.of(f"{self.where}, {name} {number}", one) for number, one in enumerate(self.items(name), 1)]

    def record(self, name: str) -> Record:
        return Record(f"{self.where}, {name}", self._value(name, dict))

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None


def _kind(value: Any) -> str:
    return "true or false" if isinstance(value, bool) else _KINDS.get(type(value), f"a {type(value).__name__}")


def checked(where: str, text: Any, *, empty: bool = False) -> str:
    if not isinstance(text, str):
        raise AttnbenchError(f"{where} is {_kind(text)}, expected text")
    if not empty and not text.strip():
        raise AttnbenchError(f"{where} is empty")
    if (nul := text.find("\0")) >= 0:
        raise AttnbenchError(f"{where} has a NUL character at {nul}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AttnbenchError(f"{where} has half a surrogate pair at character {error.start}") from None
    return text
