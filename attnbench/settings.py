"""`--set key=value`: which part of a run a key belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnbench.errors import AttnbenchError, UnknownName


def parse_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """`["a=1", "b.c=x"]` -> {"a": "1", "b.c": "x"}."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise AttnbenchError(f"--set takes key=value, got {pair!r}")
        if key in found:
            raise AttnbenchError(f"--set {key} is given twice: {found[key]} and {value}")
        found[key] = value
    return found


def divide(
    settings: Mapping[str, Any], parts: Mapping[str, Sequence[str]], aliases: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Sorts settings into named parts, given the keys each part knows.

    `part.key` names the part, which may go by an alias; a bare `key` belongs to the only part that knows it. The key
    `preset` is known to parts that list it.

    Raises:
        UnknownName: no part knows the key.
        AttnbenchError: several parts know a bare key.
    """
    divided: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for key, value in settings.items():
        prefix, dot, rest = key.partition(".")
        prefix = prefix if prefix in parts else (aliases or {}).get(prefix, prefix)
        if dot and prefix in parts:
            if rest not in parts[prefix]:
                raise UnknownName(f"option of {prefix}", rest, parts[prefix])
            owners, name = [prefix], rest
        else:
            owners, name = [part for part, keys in parts.items() if key in keys], key
        if not owners:
            raise UnknownName("option", key, {k for keys in parts.values() for k in keys} | {f"{p}." for p in parts})
        if len(owners) > 1:
            raise AttnbenchError(
                f"option {key!r} is ambiguous: write {' or '.join(f'{part}.{key}' for part in owners)}"
            )
        if name in divided[owners[0]]:
            raise AttnbenchError(f"option {owners[0]}.{name} is given twice")
        divided[owners[0]][name] = value
    return divided
