"""A plugin with its options, and what it declares with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attnbench import cells
from attnbench.contracts import Mechanism, Task
from attnbench.errors import Unsupported, blame
from attnbench.options import as_json, parse
from attnbench.registry import Plugin


@dataclass(frozen=True)
class Choice:
    """A plugin and its options, all values decided."""

    plugin: Plugin
    options: Any

    def spec(self) -> dict[str, Any]:
        """The keyword arguments of a `PluginSpec`."""
        return {
            "name": self.plugin.name,
            "version": self.plugin.object.version,
            "source_sha": self.plugin.source_sha,
            "options": as_json(self.options),
        }


def choose(kind: str, plugin: Plugin, values: Mapping[str, Any]) -> Choice:
    presets = getattr(plugin.object, "presets", {})
    return Choice(plugin, parse(f"{kind} {plugin.name}", plugin.object.options, values, presets))


def load_mechanism(reference: str) -> Plugin:
    """The mechanism `reference` names; a cell's is the one it trains.

    Raises:
        AttnbenchError: unknown or broken.
        Unsupported: a package it needs is missing.
    """
    plugin, _, _ = cells.named(reference, None)
    check_packages(plugin)
    return plugin


def choose_mechanism(reference: str, values: Mapping[str, Any]) -> Choice:
    """The same with its options.

    Raises:
        AttnbenchError: besides, an option or value that cannot be.
    """
    return choose("mechanism", load_mechanism(reference), values)


def honours(mechanism: Choice) -> bool:
    """Padding changes nothing in this mechanism with its options."""
    return declared(mechanism, "ignores_masks", mechanism.plugin.object.honours)


def is_bound(mechanism: Choice) -> bool:
    """The output of this mechanism with its options depends on the padded length."""
    return declared(mechanism, "counts_length", mechanism.plugin.object.is_bound)


def declared(mechanism: Choice, what: str, of_options: Callable[[Any], bool]) -> bool:
    with blame(f"mechanism {mechanism.plugin.name}: {what}"):
        return bool(of_options(mechanism.options))


def missing_packages(plugin: Mechanism | Task) -> list[str]:
    """Of the packages a mechanism or task needs, those that are not installed."""
    from importlib.util import find_spec

    def missing(name: str) -> bool:
        try:
            return find_spec(name) is None
        except ModuleNotFoundError:
            return True

    return [name for name in plugin.requires if missing(name)]


def check_packages(plugin: Plugin) -> None:
    """
    Raises:
        Unsupported: a package that the plugin needs is missing.
    """
    if missing := missing_packages(plugin.object):
        raise Unsupported(
            f"{plugin.name} needs the package {', '.join(missing)}, which is not installed: "
            f"pip install {' '.join(name.partition('.')[0] for name in missing)}"
        )
