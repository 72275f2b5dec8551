"""What sets two records apart: first the question, then the answer, then the circumstances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attnbench.record import Record, Spec

_ABSENT = "-"


@dataclass(frozen=True)
class Difference:
    """Values that differ, as (name, of the first, of the second)."""

    question: list[tuple[str, Any, Any]]
    answer: list[tuple[str, Any, Any]]
    circumstances: list[tuple[str, Any, Any]]

    @property
    def same_cell(self) -> bool:
        return not [name for name, _, _ in self.question if name != "seed"]


def compare(a: Record, b: Record) -> Difference:
    """Names are those of the record's JSON, with dots between levels. Answers are compared at the shifts that both were
    tested with; with how many is a circumstance.
    """
    shifts = min(len(a.shifts), len(b.shifts))
    return Difference(
        unlike(_question(a), _question(b)),
        unlike(answer(a, shifts), answer(b, shifts)),
        unlike(_circumstances(a), _circumstances(b)),
    )


def _question(record: Record) -> dict[str, Any]:
    return question(record.spec, record.seed)


def question(spec: Spec, seed: int) -> dict[str, Any]:
    return {**spec.model_dump(mode="json"), "seed": seed}


def answer(record: Record, shifts: int) -> dict[str, Any]:
    """What a run of the same question, on the same machine and with as many threads, must find again, with the test
    at the first `shifts`.
    """
    found = record.model_dump(mode="json", include={"status", "quality", "curve", "shifts"})
    return found | {"predictions": record.predictions_sha, "shifts": found["shifts"][:shifts]}


def _circumstances(record: Record) -> dict[str, Any]:
    found = record.model_dump(
        mode="json", include={"machine", "software", "code"}, exclude={"machine": {"load_before"}}
    )
    return found | {"test_shifts": len(record.shifts)}


def unlike(a: Any, b: Any) -> list[tuple[str, Any, Any]]:
    """The leaves of two JSON values that differ, as (name, of the first, of the second)."""
    left, right = dict(_leaves(a)), dict(_leaves(b))
    names = dict.fromkeys([*left, *right])
    pairs = ((name, left.get(name, _ABSENT), right.get(name, _ABSENT)) for name in names)
    return [(name, x, y) for name, x, y in pairs if x != y or type(x) is not type(y)]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if children is None or not value:
        yield name, value
        return
    for key, child in children:
        yield from _leaves(child, f"{name}.{key}" if name else str(key))
