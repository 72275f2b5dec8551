"""Protocols: named, versioned sets of rules, as TOML files in `attnbench/protocols` or of the user's own.

name, version, summary
[model] [budget] [numerics] [padding]         values for every task
[tasks.NAME.model] ... [tasks.NAME.padding]   what differs for one task
[tasks.NAME.task]                             options of the task
[tasks.NAME.attention]                        options for every mechanism that has them, e.g. block_size
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from attnbench.config import Budget, ModelConfig, Numerics, Padding
from attnbench.errors import AttnbenchError, UnknownName
from attnbench.options import first_fault
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


class _TaskRules(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    model: dict[str, Any] = {}
    budget: dict[str, Any] = {}
    numerics: dict[str, Any] = {}
    padding: dict[str, Any] = {}
    task: dict[str, Any] = {}
    attention: dict[str, Any] = {}


class Protocol(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    version: int
    summary: str
    model: dict[str, Any] = {}
    budget: dict[str, Any] = {}
    numerics: dict[str, Any] = {}
    padding: dict[str, Any] = {}
    tasks: dict[str, _TaskRules] = {}

    def rules(self, task: str) -> _TaskRules:
        return self.tasks.get(task, _TaskRules())


@dataclass(frozen=True)
class Resolved:
    """A protocol applied to one task, with the user's changes; `spec` names it in records."""

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
        return found
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AttnbenchError(f"{path}: not valid TOML: {error}") from None
    except ValidationError as error:
        raise AttnbenchError(f"{path}: {first_fault(error)}") from None


def resolve(
    protocol: Protocol, task: str, changes: Mapping[str, Mapping[str, Any]], tuning: Tuning | None = None
) -> Resolved:
    """All values for one task. With changes by the user it is another protocol, and its name says so.

    Of a value that is tuned, the grid makes the protocol, not what was chosen.
    """
    rules = protocol.rules(task)
    built: dict[str, Any] = {}
    changed: dict[str, Any] = {}
    for section, kind in SECTIONS.items():
        base = {**getattr(protocol, section), **getattr(rules, section)}
        built[section] = _build(protocol.name, section, kind, base)
        given = changes.get(section, {})
        if given:
            before = built[section].model_dump(mode="json")
            built[section] = _build(protocol.name, section, kind, {**base, **given})
            after = built[section].model_dump(mode="json")
            changed |= {f"{section}.{key}": after[key] for key in after if after[key] != before[key]}
    if tuning is not None:
        changed = {key: value for key, value in changed.items() if key not in tuning.grid}
        changed["tuning"] = tuning.model_dump(mode="json", include={"grid", "seeds"})
    name = protocol.name
    if changed:
        name += "-" + hashlib.sha256(canonical(changed).encode()).hexdigest()[:6]
    return Resolved(spec=ProtocolSpec(name=name, version=protocol.version, changes=changed), **built)


def check_tuning(protocol: Protocol, task: str, tuning: Tuning) -> Tuning:
    """The tuning with its values as the protocol holds them.

    Raises:
        AttnbenchError: a key that cannot be tuned, a value that cannot be, or nothing to choose from.
    """
    grid = {}
    for name, values in tuning.grid.items():
        section, _, key = name.partition(".")
        if name not in TUNABLE:
            raise UnknownName("value to tune", name, TUNABLE)
        base = {**getattr(protocol, section), **getattr(protocol.rules(task), section)}
        built = [_build(protocol.name, section, SECTIONS[section], {**base, key: value}) for value in values]
        grid[name] = [one.model_dump(mode="json")[key] for one in built]
        if len(grid[name]) < 2 or len(set(grid[name])) < len(grid[name]):
            raise AttnbenchError(f"tuning {name}: two or more different values to choose from, got {values}")
    if not grid or not tuning.seeds:
        raise AttnbenchError("tuning needs at least one key with its values, and a seed")
    return Tuning(grid=grid, seeds=tuning.seeds)


def _build(owner: str, section: str, kind: type[BaseModel], values: Mapping[str, Any]) -> BaseModel:
    for key in values:
        if key not in kind.model_fields:
            raise UnknownName(f"value of {section} in protocol {owner}", key, kind.model_fields)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise AttnbenchError(f"{section}: {first_fault(error)}") from None
