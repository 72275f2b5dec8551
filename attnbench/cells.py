"""Which plugins a cell of a table consists of, its label, and the names its settings go by."""

from __future__ import annotations

from dataclasses import dataclass

from attnbench import registry
from attnbench.contracts import Cell
from attnbench.errors import AttnbenchError
from attnbench.options import field_names
from attnbench.protocol import SECTIONS
from attnbench.registry import Plugin

NO_REGULARIZER = "none"


@dataclass(frozen=True)
class Parts:
    """The plugins of a cell, its label, and what its settings may be called."""

    mechanism: Plugin
    task: Plugin
    regularizers: list[Plugin]
    label: str

    @property
    def parts(self) -> dict[str, list[str]]:
        """The keys that each part of the cell knows."""
        parts = {section: list(kind.model_fields) for section, kind in SECTIONS.items()}
        mechanism = self.mechanism.object
        parts["mechanism"] = field_names(mechanism.options) + (["preset"] if mechanism.presets else [])
        parts["task"] = field_names(self.task.object.options)
        return parts | {plugin.name: field_names(plugin.object.options) for plugin in self.regularizers}

    @property
    def aliases(self) -> dict[str, str]:
        names = (self.label.partition("+")[0], self.mechanism.name)
        return {**dict.fromkeys(names, "mechanism"), self.task.name: "task"}


def load(mechanism: str, task: str, regularizer: str | None) -> Parts:
    base, regularizers, label = named(mechanism, regularizer)
    return Parts(
        base, registry.load("tasks", task), [registry.load("regularizers", name) for name in regularizers], label
    )


def keys_of(mechanism: str, task: str, regularizer: str | None = None) -> set[str]:
    """Every name that a setting of this cell may have.

    Raises:
        AttnbenchError: as `make`.
    """
    loaded = load(mechanism, task, regularizer)
    found = {f"{part}.{key}" for part, keys in loaded.parts.items() for key in keys}
    found |= {f"{alias}.{key}" for alias, part in loaded.aliases.items() for key in loaded.parts[part]}
    return found | {key for keys in loaded.parts.values() for key in keys}


def named(reference: str, regularizer: str | None) -> tuple[Plugin, list[str], str]:
    """The mechanism, the names of its regularizers, and the label of the cell."""
    plugin = registry.load("mechanisms", reference)
    if isinstance(plugin.object, Cell):
        cell = plugin.object
        if regularizer not in (None, cell.regularizer):
            raise AttnbenchError(
                f"{plugin.name} is {cell.mechanism} with {cell.regularizer}; "
                f"for another regularizer use --mechanism {cell.mechanism} --regularizer {regularizer}"
            )
        return registry.load("mechanisms", cell.mechanism), [cell.regularizer], plugin.name
    names = (NO_REGULARIZER if regularizer is None else regularizer).split("+")
    if len(set(names)) < len(names) or (len(names) > 1 and NO_REGULARIZER in names):
        raise AttnbenchError(
            f"regularizer {regularizer!r}: a sum takes different ones, and {NO_REGULARIZER} stands alone"
        )
    label = plugin.name if names == [NO_REGULARIZER] else f"{plugin.name}+{'+'.join(names)}"
    return plugin, names, label
