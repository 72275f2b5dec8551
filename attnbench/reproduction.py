"""Runs the cell of a record again and tells whether the same came out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnbench import plan as plans
from attnbench.difference import Difference, compare
from attnbench.errors import AttnbenchError
from attnbench.record import FINISHED, Record
from attnbench.runner import Settings, execute

#: Statuses that the machine or the clock decided: to run such a cell again proves nothing.
_BY_CHANCE = ("timeout", "oom", "failed")


@dataclass(frozen=True)
class Reproduction:
    """The new record, where it lies, and what differs from the old one."""

    record: Record
    path: Path
    difference: Difference

    @property
    def equal(self) -> bool:
        return not self.difference.answer


def plan_of(record: Record, mechanism: str | None = None, task: str | None = None) -> plans.Plan:
    """The plan that made the record, every value as it is there. `mechanism`, `task`: the user's own files.

    Raises:
        AttnbenchError: a plugin is not to be had, or takes such values no longer.
    """
    spec = record.spec
    origin = record.code.get("origin", {})
    for kind, given, part in (("mechanism", mechanism, spec.mechanism), ("task", task, spec.task)):
        if given is None and origin.get(kind, "built-in").split(" ")[0] in ("file", "folder"):
            raise AttnbenchError(
                f"{kind} {part.name} came from the {origin[kind]}; name that file with --{kind} to run it again"
            )
    settings: dict[str, Any] = {f"mechanism.{name}": value for name, value in spec.mechanism.options.items()}
    settings |= {f"task.{name}": value for name, value in spec.task.options.items()}
    for choice in spec.regularizer:
        settings |= {f"{choice.name}.{name}": value for name, value in choice.options.items()}
    settings |= {name: value for name, value in spec.protocol.changes.items() if name != "tuning"}
    settings |= record.tuning.chosen if record.tuning else {}
    made = plans.make(
        mechanism or spec.mechanism.name,
        task or spec.task.name,
        seed=record.seed,
        regularizer="+".join(choice.name for choice in spec.regularizer),
        protocol=spec.protocol.name.rpartition("-")[0] if spec.protocol.changes else spec.protocol.name,
        settings=settings,
        tuning=record.tuning and record.tuning.asked,
    )
    return replace(made, label=record.label)


def reproduce(
    record: Record, settings: Settings, mechanism: str | None = None, task: str | None = None
) -> Reproduction:
    """
    Raises:
        AttnbenchError: the record has no score to find again, or its cell cannot be planned any more.
    """
    if record.status in _BY_CHANCE:
        raise AttnbenchError(f"{record.id} ended as {record.status}; only a run that came to its end can be compared")
    settings = replace(settings, trial=record.kind == "trial", test_shifts=len(record.shifts))
    again, path = execute(plan_of(record, mechanism, task), settings)
    if record.status in FINISHED and again.status not in FINISHED:
        raise AttnbenchError(f"the new run ended as {again.status} ({again.reason}); its record is {path}")
    return Reproduction(again, path, compare(record, again))
