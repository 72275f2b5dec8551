"""What is measured, and in which order: mechanisms x lengths, in groups whose processes take turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.choice import Choice, choose_mechanism, load_mechanism
from attnbench.errors import AttnbenchError, blame
from attnbench.options import field_names
from attnbench.settings import divide
from attnbench.speed.result import CellResult, Setting, SpeedResult, Status

#: Processes that are alive at a time, the yardstick aside, unless one length alone has more mechanisms.
TOGETHER = 12


@dataclass(frozen=True, eq=False)
class Candidate:
    """A mechanism as the user named it, with its options as given and as resolved."""

    reference: str
    values: dict[str, Any]
    choice: Choice

    @property
    def name(self) -> str:
        return self.choice.plugin.name


@dataclass(frozen=True, eq=False)
class Cell:
    """A candidate at a length."""

    candidate: Candidate
    length: int

    def __str__(self) -> str:
        return f"{self.candidate.name} at {self.length}"

    def request(self, setting: Setting) -> dict[str, Any]:
        """What its process is told."""
        return {
            "mechanism": self.candidate.reference,
            "values": self.candidate.values,
            "length": self.length,
            "setting": setting.model_dump(),
        }

    def result(self, status: Status, reason: str | None = None, **found: Any) -> CellResult:
        choice = self.candidate.choice
        mechanism = choice.plugin.object
        with blame(f"mechanism {choice.plugin.name}: tokens"):
            block = max(1, mechanism.tokens(choice.options).block_size)
        return CellResult(
            mechanism=choice.plugin.name, **{k: v for k, v in choice.spec().items() if k != "name"},
            complexity=mechanism.complexity, exact=mechanism.exact, block=block, length=self.length,
            status=status, reason=reason, **found,
        )  # fmt: skip


def candidates(references: Sequence[str], settings: Mapping[str, Any]) -> list[Candidate]:
    """The mechanisms with the options that `settings` holds for them: `block_size` for the only one that has it,
    `hst.block_size` for one of several.

    Raises:
        AttnbenchError: a mechanism named twice; an unknown mechanism, option or value.
        Unsupported: a package one needs is missing.
    """
    plugins = {reference: load_mechanism(reference) for reference in references}
    if len({plugin.name for plugin in plugins.values()}) < len(references):
        raise AttnbenchError(
            f"a mechanism is named twice: {', '.join(references)}; a regularizer changes nothing in a single call, so "
            "a cell such as mechanism x regularizer is the mechanism itself here"
        )
    names = {plugin.name: [*field_names(plugin.object.options), "preset"] for plugin in plugins.values()}
    divided = divide(settings, names)
    return [
        Candidate(reference, divided[plugin.name], choose_mechanism(reference, divided[plugin.name]))
        for reference, plugin in plugins.items()
    ]


def lengths_of(text: str) -> list[int]:
    """`256,512,1k` -> sorted numbers.

    Raises:
        AttnbenchError: no list of whole numbers from 1 on, or one twice.
    """
    found = []
    for word in text.split(","):
        number, unit = (word[:-1], 1024) if word[-1:] in ("k", "K") else (word, 1)
        if not number.strip().isdecimal() or not int(number):
            raise AttnbenchError(f"--lengths takes whole numbers such as 256,1024,4k, got {word!r}")
        found.append(int(number) * unit)
    if len(set(found)) < len(found):
        raise AttnbenchError(f"--lengths has a number twice: {text}")
    return sorted(found)


def again(result: SpeedResult, references: Sequence[str] = ()) -> list[Candidate]:
    """The mechanisms of a result with the options they had; `references` say where those live that no name finds.

    Raises:
        AttnbenchError: a mechanism, or an option of it, that is no longer there; a reference to another one.
    """
    homes = {load_mechanism(reference).name: reference for reference in references}
    options = {cell.mechanism: cell.options for cell in result.cells}
    if strange := homes.keys() - options.keys():
        raise AttnbenchError(f"the result to compare with has no {', '.join(sorted(strange))}")
    named = {name: homes.get(name, name) for name in options}
    return [Candidate(named[name], values, choose_mechanism(named[name], values)) for name, values in options.items()]


def groups(chosen: Sequence[Candidate], lengths: Sequence[int], together: int = TOGETHER) -> Iterator[list[Cell]]:
    """Whole lengths, from short to long, so that the mechanisms of a length always take turns."""
    step = max(1, together // max(1, len(chosen)))
    for first in range(0, len(lengths), step):
        yield [Cell(candidate, length) for length in lengths[first : first + step] for candidate in chosen]


def turns(count: int, round_: int) -> list[int]:
    """The order of a round: there and back again, so that a steady drift meets all alike."""
    order = list(range(count))
    return order[::-1] if round_ % 2 else order


def check_shape(chosen: Sequence[Candidate], setting: Setting, lengths: Sequence[int]) -> None:
    """
    Raises:
        AttnbenchError: heads that do not divide dim, or blocks larger than the shortest input.
    """
    from attnbench.model import mixer_shape

    for candidate in chosen:
        with blame(f"mechanism {candidate.name}"):
            contract, options = candidate.choice.plugin.object, candidate.choice.options
            shape = mixer_shape(contract, options, dim=setting.dim, heads=setting.heads, length=lengths[0])
        if shape.tokens.block_size > lengths[0]:
            raise AttnbenchError(
                f"{candidate.name}: block_size={shape.tokens.block_size} is more than the shortest length "
                f"{lengths[0]}: one block would hold all rows; longer --lengths, or a smaller --set "
                f"{candidate.name}.block_size=..."
            )
