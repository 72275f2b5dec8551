"""What tells records apart, in words: the values of their specs by path, and the code and data behind them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from attnbench.record import Record, canonical

#: A value's place in a spec: keys, and positions in lists.
Path = tuple[str | int, ...]


def sources(record: Record) -> list[tuple[tuple[str, ...], str]]:
    """The code and data behind a record: what it belongs to, and its fingerprint."""
    spec = record.spec
    protocol, task = canonical(spec.protocol.model_dump(mode="json")), spec.task
    return [
        (("engine",), str(spec.engine)),
        (("mechanism", record.label, spec.mechanism.name), spec.mechanism.source_sha),
        (("task", task.name), task.source_sha),
        (("data", protocol, task.name, canonical(task.options)), task.data_key),
        *((("regularizer", part.name), part.source_sha) for part in spec.regularizer),
    ]


def values_of(record: Record) -> dict[Path, str]:
    """Every value of the spec as JSON by its path, without what the table and the column already say."""
    flat = flatten(record.spec.model_dump(mode="json"))
    said = (("protocol",), ("task", "name"), ("task", "options"))
    return {path: value for path, value in flat.items() if path[:1] not in said and path[:2] not in said}


def flatten(value: Any, path: Path = ()) -> dict[Path, str]:
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {p: v for key, part in items for p, v in flatten(part, (*path, key)).items()}
    return {path: canonical(value)}


def flatten_json(text: str) -> dict[Path, str]:
    """The values of a JSON object by path; none for an empty one."""
    return {path: value for path, value in flatten(json.loads(text)).items() if path}


def is_source(path: Path) -> bool:
    fingerprint = path[-1] in ("source_sha", "data_key") and "options" not in path
    return path == ("engine",) or (path[0] in ("mechanism", "task", "regularizer") and fingerprint)


def differing(specs: Iterable[Mapping[Path, str]]) -> set[Path]:
    """Paths at which not all of the specs have the same value."""
    listed = list(specs)
    paths = {path for spec in listed for path in spec}
    return {path for path in paths if len({spec.get(path) for spec in listed}) > 1}


def dotted(path: Path) -> str:
    return ".".join(str(part) for part in path if part != "options")


def describe(values: Mapping[Path, str], paths: Iterable[Path]) -> str:
    shown = sorted((dotted(path), values[path], is_source(path)) for path in paths if path in values)
    return ", ".join(f"{name}={value.strip(chr(34))[:12] if source else value}" for name, value, source in shown)


def by_numbers(text: str) -> list[tuple[float, str]]:
    """A key that sorts 2 before 12, and 1e-05 before 0.001."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[-+]\d+)?)", text)
    return [(float(part), "") if at % 2 else (-1.0, part) for at, part in enumerate(parts)]
