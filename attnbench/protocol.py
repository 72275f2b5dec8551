"""Protocols: named, versioned sets of rules, as TOML files in `attnbench/protocols` or of the user's own.

name, version, summary
closed = true                                 it is about the tasks it names and no others
seeds = 3                                     at least so many in a cell of a table
parameters_within = 0.1                       share by which a model may be larger or smaller than with plain attention
[tuning]                                      grid and seeds by which every cell chooses values (record.Tuning)
[model] [budget] [numerics] [padding]         values for every cell
[attention]                                   options, or a preset, for every mechanism that has them, e.g. block_size
[tasks.NAME.model] ... [tasks.NAME.attention] what differs for one task
[tasks.NAME.task]                             options of the task
[mechanisms.NAME.model] ...                   what differs for one mechanism; then the encoder is not the same for all
[tasks.NAME.mechanisms.NAME.model] ...        and for one mechanism on one task

The later ones win, and the user over all.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveInt, ValidationError, field_validator

from attnbench.config import Budget, ModelConfig, Numerics, Padding
from attnbench.errors import AttnbenchError, UnknownName
from attnbench.options import dotted, first_fault
from attnbench.record import ProtocolSpec, Tuning, canonical

FOLDER = Path(__file__).parent / "protocols"
SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelConfig,
    "budget": Budget,
    "numerics": Numerics,
    "padding": Padding,
}
#: What each mechanism may have a value of its own for; everything else would change what it may spend or is.
TUNABLE = (
    *(f"budget.{name}" for name in ("lr", "schedule", "warmup", "weight_decay", "beta1", "beta2", "eps", "clip")),
    "model.dropout",
)


class _Rules(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    model: dict[str, Any] = {}
    budget: dict[str, Any] = {}
    numerics: dict[str, Any] = {}
    padding: dict[str, Any] = {}
    attention: dict[str, Any] = {}


class _TaskRules(_Rules):
    task: dict[str, Any] = {}
    mechanisms: dict[str, _Rules] = {}


class Protocol(_Rules):
    name: Annotated[str, Field(min_length=1)]
    version: PositiveInt
    summary: str
    closed: bool = False
    seeds: PositiveInt = 1
    parameters_within: NonNegativeFloat | None = None
    tuning: Tuning | None = None
    tasks: dict[str, _TaskRules] = {}
    mechanisms: dict[str, _Rules] = {}

    @field_validator("tuning", mode="before")
    @classmethod
    def _dotted_grid(cls, value: Any) -> Any:
        return {**value, "grid": dotted(value["grid"])} if isinstance(value, dict) and "grid" in value else value

    def every(self) -> Iterator[_Rules]:
        """All sections, of whatever task and mechanism."""
        yield from (self, *self.mechanisms.values())
        for rules in self.tasks.values():
            yield from (rules, *rules.mechanisms.values())

    def rules(self, task: str) -> _TaskRules:
        return self.tasks.get(task, _TaskRules())

    def shared(self, task: str) -> list[_Rules]:
        """What holds for every mechanism on this task; the later ones win."""
        return [self, self.rules(task)]

    def own(self, task: str, mechanism: str) -> list[_Rules]:
        """What holds for this mechanism alone."""
        found = (self.mechanisms.get(mechanism), self.rules(task).mechanisms.get(mechanism))
        return [rules for rules in found if rules is not None]

    def section(self, name: str, task: str, mechanism: str) -> dict[str, Any]:
        layers = [*self.shared(task), *self.own(task, mechanism)]
        return {key: value for rules in layers for key, value in getattr(rules, name).items()}


@dataclass(frozen=True)
class Resolved:
    """A protocol applied to one cell, with the user's changes; `spec` names it in records, `of` is its own name."""

    of: str
    spec: ProtocolSpec
    model: ModelConfig
    budget: Budget
    numerics: Numerics
    padding: Padding


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(reference: str) -> Protocol:
    """A protocol by name, or from a `.toml` file of the user's.

    Raises:
        AttnbenchError: unknown, unreadable, or a key that no protocol has.
    """
    path = Path(reference) if reference.endswith(".toml") else FOLDER / f"{reference}.toml"
    if not path.is_file():
        raise (
            AttnbenchError(f"{path}: no such file")
            if reference.endswith(".toml")
            else UnknownName("protocol", reference, names())
        )
    try:
        found = Protocol.model_validate(tomllib.loads(path.read_text("utf-8")))
        if path.parent != FOLDER and found.name in names():
            raise AttnbenchError(f"{path}: the name {found.name!r} is taken by a protocol of attnbench; choose another")
        _check_keys(found)
        return found
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AttnbenchError(f"{path}: not valid TOML: {error}") from None
    except ValidationError as error:
        raise AttnbenchError(f"{path}: {first_fault(error)}") from None


def resolve(
    protocol: Protocol,
    task: str,
    mechanism: str,
    changes: Mapping[str, Mapping[str, Any]],
    tuning: Tuning | None = None,
) -> Resolved:
    """All values for one mechanism on one task. With changes by the user it is another protocol, and its name says so.

    Of a value that is tuned, the grid makes the protocol, not what was chosen.
    """
    built: dict[str, Any] = {}
    changed: dict[str, Any] = {}
    for section, kind in SECTIONS.items():
        base = protocol.section(section, task, mechanism)
        built[section] = _build(section, kind, base)
        given = changes.get(section, {})
        if given:
            before = built[section].model_dump(mode="json")
            built[section] = _build(section, kind, {**base, **given})
            after = built[section].model_dump(mode="json")
            changed |= {f"{section}.{key}": after[key] for key in after if after[key] != before[key]}
    if tuning is not None:
        changed = {key: value for key, value in changed.items() if key not in tuning.grid}
    if tuning != (protocol.tuning and check_tuning(protocol, task, mechanism, protocol.tuning)):
        changed["tuning"] = tuning and tuning.model_dump(mode="json", exclude_defaults=True)
    name = protocol.name
    if changed:
        name += "-" + hashlib.sha256(canonical(changed).encode()).hexdigest()[:6]
    spec = ProtocolSpec(
        name=name,
        version=protocol.version,
        changes=changed,
        seeds=protocol.seeds,
        parameters_within=protocol.parameters_within,
    )
    return Resolved(of=protocol.name, spec=spec, **built)


def check_tuning(protocol: Protocol, task: str, mechanism: str, tuning: Tuning) -> Tuning:
    """The tuning with its values as the protocol holds them.

    Raises:
        AttnbenchError: a key that cannot be tuned, a value that cannot be, or nothing to choose from.
    """
    grid = {}
    for name, values in tuning.grid.items():
        section, _, key = name.partition(".")
        if name not in TUNABLE:
            raise UnknownName("value to tune", name, TUNABLE)
        base = protocol.section(section, task, mechanism)
        built = [_build(section, SECTIONS[section], {**base, key: value}) for value in values]
        grid[name] = [one.model_dump(mode="json")[key] for one in built]
        if len(grid[name]) < 2 or len(set(grid[name])) < len(grid[name]):
            raise AttnbenchError(f"tuning {name}: two or more different values to choose from, got {values}")
    if not grid or not tuning.seeds:
        raise AttnbenchError("tuning needs at least one key with its values, and a seed")
    if min(tuning.seeds) < 0 or len(set(tuning.seeds)) < len(tuning.seeds):
        raise AttnbenchError(f"tuning seeds: different whole numbers from 0 on, got {tuning.seeds}")
    return tuning.model_copy(update={"grid": grid})


def _check_keys(protocol: Protocol) -> None:
    """Of every task and mechanism, also of those that this run is not about."""
    for rules in protocol.every():
        for section, kind in SECTIONS.items():
            for key in getattr(rules, section):
                if key not in kind.model_fields:
                    raise UnknownName(f"value of {section} in protocol {protocol.name}", key, kind.model_fields)


def _build(section: str, kind: type[BaseModel], values: Mapping[str, Any]) -> BaseModel:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise AttnbenchError(f"{section}: {first_fault(error)}") from None
