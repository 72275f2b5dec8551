"""From what the user asked to a plan in which every value is decided: plugins, options, protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnbench import cells, refusals
from attnbench import protocol as protocols
from attnbench.attention_rules import check_names, options_for
from attnbench.choice import Choice, choose
from attnbench.contracts import Tokens
from attnbench.errors import AttnbenchError, blame
from attnbench.protocol import SECTIONS, Resolved
from attnbench.record import PluginSpec, Tuned, Tuning
from attnbench.settings import divide


@dataclass(frozen=True)
class Plan:
    """One cell of a table and a seed. `label` is the name the user knows the cell by."""

    label: str
    mechanism: Choice
    task: Choice
    regularizers: list[Choice]
    rules: Resolved
    seed: int
    tuned: Tuned | None = None

    def as_json(self) -> dict[str, Any]:
        """Every value, as `run --dry-run` prints it."""
        return {
            "label": self.label,
            "seed": self.seed,
            **({"tuning": self.tuned.model_dump(mode="json")} if self.tuned else {}),
            "protocol": self.rules.spec.model_dump(mode="json"),
            "task": self.task.spec(),
            "mechanism": self.mechanism.spec(),
            "regularizer": [PluginSpec(**choice.spec()).model_dump(mode="json") for choice in self.regularizers],
            **{section: getattr(self.rules, section).model_dump(mode="json") for section in SECTIONS},
        }

    @property
    def tokens(self) -> Tokens:
        """The special rows of the mechanism."""
        name = self.mechanism.plugin.name
        with blame(f"mechanism {name}: tokens"):
            found = self.mechanism.plugin.object.tokens(self.mechanism.options)
        if not isinstance(found, Tokens):
            raise AttnbenchError(f"mechanism {name}: tokens returned a {type(found).__name__}, not Tokens")
        return found

    @property
    def masked(self) -> bool:
        """Mechanisms see masks: examples differ in length, or the protocol masks tokens of id 0."""
        return self.task.plugin.object.padded or self.rules.padding.mask_zeros

    @property
    def refusal(self) -> str | None:
        """Why this mechanism cannot run this task with this model and these regularizers, or None."""
        return refusals.of(self)


def make(
    mechanism: str,
    task: str,
    *,
    seed: int = 0,
    regularizer: str | None = None,
    protocol: str = "quick",
    settings: Mapping[str, Any] | None = None,
    tuning: Tuning | None = None,
) -> Plan:
    """Resolves names, presets, protocol and settings. With `tuning`, the settings hold a value of its grid.

    Raises:
        AttnbenchError: any name, key, value or combination that cannot be (one line, with what to do).
        Unsupported: a plugin needs a package that is not installed.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise AttnbenchError(f"seed is a whole number from 0 on, got {seed!r}")
    if odd := [key for key in settings or {} if not isinstance(key, str)]:
        raise AttnbenchError(f"the names of options are text, got {odd[0]!r}")
    if not isinstance(regularizer, str | None):
        raise AttnbenchError(f'a regularizer is named by text such as "sar" or "sar+rdrop", got {regularizer!r}')
    loaded = cells.load(mechanism, task, regularizer)
    base, task_plugin, label = loaded.mechanism, loaded.task, loaded.label
    rules = protocols.load(protocol)
    divided = divide(settings or {}, loaded.parts, loaded.aliases)
    check_names(rules, base, task_plugin)
    tuning = tuning and protocols.check_tuning(rules, task_plugin.name, base.name, tuning)
    changes = {section: divided[section] for section in SECTIONS}
    resolved = protocols.resolve(rules, task_plugin.name, base.name, changes, tuning)
    plan = Plan(
        label=label,
        mechanism=choose("mechanism", base, options_for(rules, task_plugin.name, base, divided["mechanism"])),
        task=choose("task", task_plugin, {**rules.rules(task_plugin.name).task, **divided["task"]}),
        regularizers=[choose("regularizer", plugin, divided[plugin.name]) for plugin in loaded.regularizers],
        rules=resolved,
        seed=seed,
        tuned=None if tuning is None else _tuned(tuning, divided, resolved),
    )
    refusals.refuse_dead(plan)
    return plan


def _tuned(tuning: Tuning, divided: Mapping[str, Mapping[str, Any]], resolved: Resolved) -> Tuned:
    chosen = {}
    for name, values in tuning.grid.items():
        section, _, key = name.partition(".")
        value = getattr(resolved, section).model_dump(mode="json")[key]
        if key not in divided[section] or value not in values:
            raise AttnbenchError(f"tuning {name}: give one of {values} with --set {name}=...")
        chosen[name] = value
    return Tuned(**tuning.model_dump(), trials=len(tuning.points) * len(tuning.seeds), chosen=chosen)
