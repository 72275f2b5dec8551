"""`attnbench show`: what a plugin or a protocol is, or what a mechanism sees."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench import protocol as protocols
from attnbench import registry, screen
from attnbench.commands.shared import Json, print_json
from attnbench.contracts import Cell
from attnbench.errors import AttnbenchError, UnknownName, blame
from attnbench.options import as_json, parse

EXAMPLES = (
    "Examples:  attnbench show hst   |   attnbench show protocol lra-2021   |   attnbench show ./mine.py   |   "
    "attnbench show bigbird --plot --set block_size=16 --length 256 --to bigbird.png"
)
#: What `attnbench check` holds a mechanism to.
PROMISES = ("causal", "exact", "length_bound", "honours_masks", "complexity", "requires")
_KINDS = {kind.removesuffix("s"): kind for kind in (*registry.KINDS, "protocols")}


def show(
    what: Annotated[
        list[str],
        typer.Argument(metavar="[KIND] NAME", help="A mechanism, task, regularizer or protocol; or a plugin's file."),
    ],
    plot: Annotated[bool, typer.Option("--plot", help="Draw what a sparse mechanism sees.")] = False,
    set_: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="With --plot: an option, or model.heads.")
    ] = [],  # noqa: B006  typer copies it
    length: Annotated[int | None, typer.Option(help="With --plot: content rows.", show_default="256")] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="With --plot: the picture's file.", show_default="./NAME.png")
    ] = None,
    as_json_: Json = False,
) -> None:
    """Show a plugin or protocol: options with their defaults, paper, version, where it comes from; or what it sees."""
    *kinds, name = what
    if len(what) > 2 or (kinds and kinds[0] not in _KINDS):
        raise AttnbenchError(
            f"show takes a name, or a kind and a name; kinds: {', '.join(_KINDS)}; got {' '.join(what)}"
        )
    if not plot and (set_ or length is not None or to):
        raise AttnbenchError("--set, --length and --to go with --plot")
    if plot:
        from attnbench.settings import parse_pairs
        from attnbench.sight import show as draw

        facts: dict[str, Any] = draw(name, parse_pairs(set_), 256 if length is None else length, to)
    else:
        facts = _found(name, _KINDS[kinds[0]] if kinds else None)
    if as_json_:
        print_json(facts)
    else:
        screen.put(screen.pairs(screen.flat(facts)))


def _found(name: str, kind: str | None) -> dict[str, Any]:
    """What is known of a name, of this kind or of whichever has it."""
    known = {one: protocols.names() if one == "protocols" else registry.names(one) for one in _KINDS.values()}
    looked = [kind] if kind else list(known)
    is_file = name.endswith((".py", ".toml")) or ":" in name or os.sep in name
    home = next((one for one in looked if name in known[one]), None)
    if home == "protocols" or (is_file and name.endswith(".toml")):
        protocol = protocols.load(name)
        rules = protocol.model_dump(mode="json", exclude_defaults=True)
        return {"name": protocol.name, "version": protocol.version, "summary": protocol.summary, **rules}
    if home is None and not is_file:
        words = [one.removesuffix("s") for one in looked]
        every = [each for one in looked for each in known[one]]
        raise UnknownName(" or ".join(filter(None, (", ".join(words[:-1]), words[-1]))), name, every)
    return _facts(registry.load(home or kind or registry.kind_of_file(Path(name)), name))


def _facts(plugin: registry.Plugin) -> dict[str, Any]:
    thing = plugin.object
    facts: dict[str, Any] = {"name": plugin.name, "kind": plugin.kind.removesuffix("s"), "summary": thing.summary}
    for field in ("paper", "mechanism", "regularizer", *PROMISES):
        if hasattr(thing, field):
            facts[field] = getattr(thing, field)
    if hasattr(thing, "source"):
        facts["source"] = {k: getattr(thing.source, k) for k in ("citation", "licence", "url")}
    if getattr(thing, "controls", None):
        facts["controls"] = {"solves it": thing.controls.positive, "cannot": thing.controls.negative}
    if not isinstance(thing, Cell):
        defaults = parse(f"{facts['kind']} {plugin.name}", thing.options, {})
        facts |= {"version": thing.version, "options": as_json(defaults)}
        if doc := (thing.options.__doc__ or "").strip():
            facts["about the options"] = " ".join(doc.split())
        if plugin.kind == "tasks":
            with blame(f"task {plugin.name}"):
                head = thing.head(defaults)
                facts |= {"head": type(head).__name__, "vocab": thing.vocab(defaults)}
                facts |= {"max_length": thing.max_length(defaults), "metric": thing.metric}
            facts["prepared"] = _card(plugin, defaults)
    if getattr(thing, "presets", None):
        facts["presets"] = {preset: dict(values) for preset, values in thing.presets.items()}
    return facts | {"home": str(plugin.home), "source_sha": plugin.source_sha}


def _card(plugin: registry.Plugin, options: Any) -> dict[str, Any] | str:
    """Sizes, levels and lengths of the set of these options, once it is there."""
    from attnbench import data

    card = data.card(plugin, options)
    if card is None:
        return f"not yet: attnbench data prepare {plugin.name}"
    return {name: card[name] for name in ("splits", "chance", "trivial", "facts", "notes")}
