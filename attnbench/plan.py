"""From what the user asked to a plan in which every value is decided: plugins, options, protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from attnbench import cells, registry
from attnbench import protocol as protocols
from attnbench.contracts import Cell, Classify, Head, Match, Mechanism, NoOptions, Regularizer, Task, Tokens
from attnbench.errors import AttnbenchError, UnknownName, Unsupported, blame, resembles
from attnbench.options import as_json, field_names, parse
from attnbench.protocol import SECTIONS, Resolved
from attnbench.record import PluginSpec, Tuned, Tuning
from attnbench.registry import Plugin
from attnbench.settings import divide


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
        name = self.mechanism.plugin.name
        if self.rules.model.causal and self.mechanism.plugin.object.causal == "no":
            return f"{name} has no causal form, and model.causal=true asks for one"
        if self.masked and (reason := self._padding_refusal):
            return f"{name} {reason}"
        return next(filter(None, (shift_refusal(self.mechanism, choice) for choice in self.regularizers)), None)

    @property
    def _padding_refusal(self) -> str | None:
        """Why this mechanism cannot be given masked rows, or None."""
        task, padded, padding = self.task.plugin.name, self.task.plugin.object.padded, self.rules.padding
        to_max = "--set padding.rule=max"
        if not honours(self.mechanism):
            if padding.unmasked:
                return None
            why = (
                f"the examples of {task} differ in length" if padded else "padding.mask_zeros=true masks tokens of id 0"
            )
            return (
                f"ignores masks and {why}; {to_max} --set padding.unmasked=true runs it all the same, with padding for "
                "content"
            )
        if padded and is_bound(self.mechanism) and padding.rule != "max":
            return (
                f"depends on the padded length, and with padding.rule={padding.rule} an example of {task} is padded to "
                f"the longest of its batch; {to_max} pads all alike"
            )
        return None


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
    _check_names(rules, base, task_plugin)
    tuning = tuning and protocols.check_tuning(rules, task_plugin.name, base.name, tuning)
    changes = {section: divided[section] for section in SECTIONS}
    resolved = protocols.resolve(rules, task_plugin.name, base.name, changes, tuning)
    plan = Plan(
        label=label,
        mechanism=_choose("mechanism", base, _attention(rules, task_plugin.name, base, divided["mechanism"])),
        task=_choose("task", task_plugin, {**rules.rules(task_plugin.name).task, **divided["task"]}),
        regularizers=[_choose("regularizer", plugin, divided[plugin.name]) for plugin in loaded.regularizers],
        rules=resolved,
        seed=seed,
        tuned=None if tuning is None else _tuned(tuning, divided, resolved),
    )
    _refuse_dead(plan)
    return plan


def _attention(rules: protocols.Protocol, task: str, mechanism: Plugin, asked: Mapping[str, Any]) -> dict[str, Any]:
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


def _tuned(tuning: Tuning, divided: Mapping[str, Mapping[str, Any]], resolved: Resolved) -> Tuned:
    chosen = {}
    for name, values in tuning.grid.items():
        section, _, key = name.partition(".")
        value = getattr(resolved, section).model_dump(mode="json")[key]
        if key not in divided[section] or value not in values:
            raise AttnbenchError(f"tuning {name}: give one of {values} with --set {name}=...")
        chosen[name] = value
    return Tuned(grid=tuning.grid, seeds=tuning.seeds, trials=len(tuning.points) * len(tuning.seeds), chosen=chosen)


def _check_names(rules: protocols.Protocol, mechanism: Plugin, task: Plugin) -> None:
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


def _refuse_dead(plan: Plan) -> None:
    """Combinations in which something that was asked for could change nothing."""
    (head, length), model = _described(plan.task), plan.rules.model
    if not isinstance(head, Classify | Match) and model.pooling != "mean":
        raise AttnbenchError(
            f"{plan.task.plugin.name} asks at single tokens, so model.pooling={model.pooling} pools "
            "nothing; leave it out, or --set model.pooling=mean"
        )
    if not isinstance(head, Match) and model.match != "products":
        raise AttnbenchError(
            f"{plan.task.plugin.name} is not about two documents, so model.match={model.match} joins "
            "nothing; leave it out"
        )
    if plan.tokens.block_size > length:
        raise AttnbenchError(
            f"block_size={plan.tokens.block_size} is more than the {length} tokens of {plan.task.plugin.name}: one "
            f"block would hold all of them; --set block_size=... up to {length}"
        )
    for choice in plan.regularizers:
        if reason := idle(plan.mechanism, choice, max(model.dropout, model.attention_dropout)):
            raise AttnbenchError(f"{choice.plugin.name}: {reason}")


def idle(mechanism: Choice, regularizer: Choice, dropout: float) -> str | None:
    """Why this regularizer, or an option of it, changes nothing at this dropout of the model, or None."""
    contract, options = regularizer.plugin.object, regularizer.options
    with blame(f"regularizer {regularizer.plugin.name}: idle"):
        if reason := contract.idle(options, dropout):
            return str(reason)
        unmoved = contract.idle_unmoved(options, dropout)
    if unmoved and _declared(mechanism, "shift_invariant", mechanism.plugin.object.shift_invariant):
        return f"a shift of the input changes nothing in {mechanism.plugin.name}, and {unmoved}"
    return None


def _described(choice: Choice) -> tuple[Head, int]:
    """The head and the longest input of a task."""
    task: Task = choice.plugin.object
    name, options = choice.plugin.name, choice.options
    with blame(f"task {name}"):
        head, vocab, length = task.head(options), task.vocab(options), task.max_length(options)
    if not isinstance(head, Head):
        raise AttnbenchError(f"task {name}: head returned a {type(head).__name__}, not one of attnbench.contracts")
    for what, count in {"vocab": vocab, "max_length": length}.items():
        if not isinstance(count, Integral) or count < 1:  # of numpy too
            raise AttnbenchError(f"task {name}: {what} returned {count!r}, not a whole number from 1 on")
    return head, length


def _choose(kind: str, plugin: Plugin, values: Mapping[str, Any]) -> Choice:
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
    return _choose("mechanism", load_mechanism(reference), values)


def honours(mechanism: Choice) -> bool:
    """Padding changes nothing in this mechanism with its options."""
    return _declared(mechanism, "ignores_masks", mechanism.plugin.object.honours)


def is_bound(mechanism: Choice) -> bool:
    """The output of this mechanism with its options depends on the padded length."""
    return _declared(mechanism, "counts_length", mechanism.plugin.object.is_bound)


def _declared(mechanism: Choice, what: str, of_options: Callable[[Any], bool]) -> bool:
    with blame(f"mechanism {mechanism.plugin.name}: {what}"):
        return bool(of_options(mechanism.options))


def shift_refusal(mechanism: Choice, regularizer: Choice) -> str | None:
    """Why this regularizer cannot move the input of this mechanism, or None."""
    name = mechanism.plugin.name
    if not regularizer.plugin.object.max_shift(regularizer.options):
        return None
    if not honours(mechanism):
        return f"{regularizer.plugin.name} shifts the input behind masked rows, and {name} ignores masks"
    if is_bound(mechanism):
        return f"{regularizer.plugin.name} shifts the input, and the output of {name} depends on the padded length"
    return None


def missing_packages(plugin: Mechanism | Task) -> list[str]:
    """Of the packages a mechanism or task needs, those that are not installed."""
    from importlib.util import find_spec

    def missing(name: str) -> bool:
        try:
            return find_spec(name) is None
        except ModuleNotFoundError:
            return True

    return [name for name in plugin.requires if missing(name)]


def check_runnable(plan: Plan) -> None:
    """
    Raises:
        Unsupported: the cell cannot run, with the reason.
    """
    for choice in (plan.mechanism, plan.task):
        check_packages(choice.plugin)
    if plan.refusal:
        raise Unsupported(plan.refusal)


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


def regularizer_of(choice: Choice) -> tuple[Regularizer, Any]:
    return choice.plugin.object, choice.options
