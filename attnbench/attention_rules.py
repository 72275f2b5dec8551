"""What a protocol says to mechanisms: which options reach which one, and names that would reach none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnbench import registry
from attnbench.contracts import Cell, NoOptions
from attnbench.errors import AttnbenchError, UnknownName, resembles
from attnbench.options import field_names
from attnbench.protocol import Protocol
from attnbench.registry import Plugin


def options_for(rules: Protocol, task: str, mechanism: Plugin, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The mechanism's options: the protocol's, of those for all what it has, and what the user asks; the later ones
    win, and a preset over all that was said before it.
    """
    fields, presets = field_names(mechanism.object.options), mechanism.object.presets
    shared = [
        {
            key: value
            for key, value in layer.attention.items()
            if key in fields or (key == "preset" and value in presets)
        }
        for layer in rules.shared(task)
    ]
    found: dict[str, Any] = {}
    for layer in (*shared, *(own.attention for own in rules.own(task, mechanism.name)), asked):
        preset = presets.get(str(layer.get("preset", "")), {})
        found = {key: value for key, value in found.items() if key not in preset} | dict(layer)
    return found


def check_names(rules: Protocol, mechanism: Plugin, task: Plugin) -> None:
    """A misspelt name in a protocol would change nothing, in silence."""
    tasks, mechanisms = ({*registry.names(kind), it.name} for kind, it in (("tasks", task), ("mechanisms", mechanism)))
    if rules.closed and task.name not in rules.tasks:
        about = ", ".join(sorted(rules.tasks)) or "no task"
        raise AttnbenchError(f"protocol {rules.name} is about {about}, not about {task.name}")
    named = [*rules.mechanisms, *(name for one in rules.tasks.values() for name in one.mechanisms)]
    for kind, used, known in (("task", [*rules.tasks], tasks), ("mechanism", named, mechanisms)):
        for name in used:
            if name not in known and resembles(name, known):  # others may be files or packages that are not here
                raise UnknownName(f"{kind} in protocol {rules.name}", name, known)
    for name in mechanisms & set(named):
        _refuse_cell(rules.name, name)
    for_all = [item for layer in rules.shared(task.name) for item in layer.attention.items()]
    unknown = {f"preset={value}" if key == "preset" else key for key, value in for_all} - _attention_names(mechanism)
    options: set[str] = set()
    for built_in in (True, False):  # third parties' code is run only for a key that no built-in one has
        if unknown:
            options |= _options_of_mechanisms(built_in=built_in)
            unknown -= options
    for key in sorted(unknown):
        if resembles(key, options):
            raise UnknownName(f"option of any mechanism in protocol {rules.name}, tasks.{task.name}", key, options)


def _refuse_cell(protocol: str, name: str) -> None:
    """A cell trains another mechanism, and it is that one's rules that hold."""
    try:
        found = registry.load("mechanisms", name).object
    except AttnbenchError:  # the run's own mechanism from a file, or a plugin that this run is not about
        return
    if isinstance(found, Cell):
        raise AttnbenchError(
            f"protocol {protocol} has rules for {name}, which is {found.mechanism} with {found.regularizer}; "
            f"write mechanisms.{found.mechanism}"
        )


def _attention_names(mechanism: Plugin) -> set[str]:
    """What a protocol's attention section may say to this mechanism."""
    presets = getattr(mechanism.object, "presets", {})
    return {*field_names(getattr(mechanism.object, "options", NoOptions)), *(f"preset={name}" for name in presets)}


def _options_of_mechanisms(*, built_in: bool) -> set[str]:
    found: set[str] = set()
    for name in registry.names("mechanisms"):
        try:
            if (registry.home("mechanisms", name).how == "built-in") is built_in:
                plugin = registry.load("mechanisms", name)
                found |= _attention_names(plugin)
        except AttnbenchError:  # broken, or of a package that is not there: not this run's concern
            continue
    return found
