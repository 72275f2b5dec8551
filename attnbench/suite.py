"""Suites: files that say which cells of a table are to be filled. `docs/sweeps.md` describes every key.

Expanding one needs its plugins, since a setting holds for the cells that know it.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from attnbench import protocol as protocols
from attnbench import registry
from attnbench.cells import keys_of
from attnbench.contracts import Cell
from attnbench.errors import AttnbenchError, UnknownName, Unsupported
from attnbench.options import dotted, first_fault
from attnbench.record import Tuning


def _different(values: list[Any]) -> list[Any]:
    if twice := [value for place, value in enumerate(values) if value in values[:place]]:
        raise ValueError(f"{twice[0]} is given twice")
    return values


def _plain(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise ValueError("a number, a text, true or false")
    return value


def _seeds(value: Any) -> Any:
    """A list of seeds; a number says how many, from 0 on."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return list(range(value))
    if not isinstance(value, list) or not value or not all(type(one) is int and one >= 0 for one in value):
        raise ValueError("how many (from 1 on), or a list of whole numbers from 0 on")
    return value


Text = Annotated[str, Field(min_length=1, strict=True)]
Value = Annotated[Any, BeforeValidator(_plain)]
Names = Annotated[list[Text], AfterValidator(_different)]
Values = Annotated[dict[str, Value], BeforeValidator(dotted)]
Choices = Annotated[
    dict[str, Annotated[list[Value], Field(min_length=1), AfterValidator(_different)]], BeforeValidator(dotted)
]
Seeds = Annotated[list[int], BeforeValidator(_seeds), AfterValidator(_different)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Single(_Part):
    """One more cell, not crossed with anything but its tasks."""

    mechanism: Text
    regularizer: Text | None = None
    tasks: Names | None = None
    set: Values = {}


class Tune(BaseModel):
    """`grid` holds the keys beside the others. Without seeds the suite's first is taken. Cells that differ in the keys
    of `share` only have one choice, by the trials of the first of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    seeds: Seeds | None = None
    share: Names = []
    grid: Choices = {}

    @model_validator(mode="before")
    @classmethod
    def _beside_the_seeds(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not value:
            return value
        grid = {key: values for key, values in value.items() if key not in ("seeds", "share")}
        if not grid:
            raise ValueError('names no value to choose, such as "budget.lr" = [0.001, 0.003]')
        return {"grid": grid, "seeds": value.get("seeds"), "share": value.get("share", [])}


class Suite(_Part):
    """A suite file. `folder` is where it lies: the plugin files and protocols it names are relative to that.
    `test_shifts`: as of `attnbench run`.
    """

    name: Text
    summary: str = ""
    protocol: Text = "quick"
    seeds: Seeds = [0, 1, 2]
    tasks: Names = []
    mechanisms: Names = []
    regularizers: Names = []
    set: Values = {}
    options: Choices = {}
    cells: list[Single] = []
    tune: Tune = Tune()
    values: dict[str, Value] = {}
    under: dict[str, dict[str, Any]] = {}
    test_shifts: Annotated[int, Field(ge=0, strict=True)] = 0
    folder: Path = Field(default=Path(), exclude=True)

    @model_validator(mode="after")
    def _something_to_do(self) -> Suite:
        if not self.mechanisms and not self.cells:
            raise ValueError("names no mechanism: give mechanisms = [...] or [[cells]]")
        if lacking := [cell.mechanism for cell in self.cells if not (cell.tasks or self.tasks)]:
            raise ValueError(f"no task for {lacking[0]}: give tasks = [...]")
        if self.mechanisms and not self.tasks:
            raise ValueError("names no task: give tasks = [...]")
        _different([*self.set, *self.options, *self.tune.grid])
        for cell in self.cells:
            _different([*self.tune.grid, *cell.set])
        return self

    @property
    def tuning(self) -> Tuning | None:
        """The suite's own, or that of its protocol."""
        grid = self.tune.grid
        if not grid:
            found = protocols.load(self.where(self.protocol)).tuning
            given = {*self.set, *self.options, *(key for cell in self.cells for key in cell.set)}
            if twice := sorted(given & found.grid.keys()) if found else []:
                raise AttnbenchError(f"{twice[0]} is set, and protocol {self.protocol} chooses it by validation")
            return found
        return Tuning(grid=grid, seeds=self.tune.seeds or self.seeds[:1], share=self.tune.share)

    def where(self, reference: str) -> str:
        """A file is looked for beside the suite; a name or a class is itself."""
        is_file = reference.endswith((".py", ".toml"))
        return str(self.folder / reference) if is_file and not Path(reference).is_absolute() else reference


@dataclass(frozen=True)
class Asked:
    """A cell as `attnbench run` is asked for it, but for the seed. Settings are text, as `--set` takes them.

    `own` are those that not all cells have: the choice of options, or what a single cell sets.
    """

    mechanism: str
    task: str
    regularizer: str | None
    settings: tuple[tuple[str, str], ...] = ()
    own: tuple[tuple[str, str], ...] = ()
    refusal: str | None = None

    @property
    def title(self) -> str:
        parts = [self.mechanism, *([f"with {self.regularizer}"] if self.regularizer else []), f"on {self.task}"]
        return " ".join([*parts, *(f"{key}={value}" for key, value in self.own)])


def packaged() -> list[str]:
    """Names of the suites that come with attnbench."""
    return sorted(Path(file.name).stem for file in resources.files("attnbench.suites").iterdir() if _is_suite(file))


def _is_suite(file: Any) -> bool:
    return str(file.name).endswith(".toml")


def load(reference: str, protocol: str | None = None) -> Suite:
    """A suite from a `.toml` file, or by the name of one that comes with attnbench; under a protocol that is not its
    own, with the keys that its table `under.PROTOCOL` has in place of the others.

    Raises:
        AttnbenchError: no such file, name or protocol in it, no TOML, or a key or value that no suite has.
    """
    if not reference.endswith(".toml"):
        if reference not in packaged():
            raise UnknownName("suite", reference, packaged())
        reference = str(resources.files("attnbench.suites") / f"{reference}.toml")
    path = Path(reference).expanduser()
    try:
        found = tomllib.loads(path.read_text("utf-8"))
        if "folder" in found:
            raise UnknownName("key", "folder", _keys(Suite))
        suite = Suite.model_validate({**_filled(found), "folder": path.parent})
        if protocol is None or protocol == suite.protocol:
            return suite
        if protocol not in suite.under:
            raise UnknownName(f"protocol that {suite.name} has sizes for", protocol, [suite.protocol, *suite.under])
        other = {key: value for key, value in found.items() if key != "under"} | found["under"][protocol]
        return Suite.model_validate({**_filled(other), "protocol": protocol, "folder": path.parent})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AttnbenchError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise AttnbenchError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValidationError as error:
        raise AttnbenchError(f"{path}: {_fault(error)}") from None
    except AttnbenchError as error:
        raise AttnbenchError(f"{path}: {error}") from None


def _filled(found: dict[str, Any]) -> dict[str, Any]:
    """With the value of `values` in place of every text such as "$steps"."""
    values = found.get("values", {})

    def fill(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: fill(value) for key, value in part.items()}
        if isinstance(part, list):
            return [fill(value) for value in part]
        if isinstance(part, str) and part.startswith("$"):
            if not isinstance(values, dict) or part[1:] not in values:
                raise UnknownName("value", part, [f"${name}" for name in values])
            return values[part[1:]]
        return part

    return {key: value if key in ("values", "under") else fill(value) for key, value in found.items()}


def _keys(kind: type[BaseModel]) -> list[str]:
    return [key for key in kind.model_fields if key != "folder"]


def _fault(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["type"] != "extra_forbidden":
        return first_fault(error)
    *where, key = map(str, first["loc"])
    return str(UnknownName(f"key in {'.'.join(where)}" if where else "key", key, _keys(Single if where else Suite)))


def expand(suite: Suite, at: Callable[[str], None] = lambda where: None) -> list[Asked]:
    """The cells in the file's order: task by task the mechanisms with each regularizer and each choice of options,
    then the single cells. One whose plugin needs a package that is missing is kept with that reason. `at` is told
    what is about to be loaded.

    Raises:
        AttnbenchError: a plugin or a setting that no cell has.
    """
    used: set[str] = set()
    known: set[str] = set()
    asked: list[Asked] = []
    for task in suite.tasks:
        for mechanism in suite.mechanisms:
            at(f"loading {mechanism} and {task}")
            for regularizer in _regularizers(suite, mechanism):
                asked += _crossed(suite, mechanism, task, regularizer, used, known)
    for cell in suite.cells:
        for task in cell.tasks or suite.tasks:
            at(f"loading {cell.mechanism} and {task}")
            asked.append(_single(suite, cell, task, used, known))
    for key in (*suite.set, *suite.options):
        if key not in used and known:
            raise UnknownName("setting of any cell", key, known)
    return asked


def _regularizers(suite: Suite, mechanism: str) -> list[str | None]:
    """A cell that is a mechanism with its regularizer takes no other."""
    try:
        own = isinstance(registry.load("mechanisms", suite.where(mechanism)).object, Cell)
    except Unsupported:
        own = False
    return [None] if own or not suite.regularizers else list(suite.regularizers)


def _crossed(
    suite: Suite, mechanism: str, task: str, regularizer: str | None, used: set[str], known: set[str]
) -> Iterator[Asked]:
    where = suite.where(mechanism), suite.where(task), regularizer
    try:
        keys = keys_of(*where)
    except Unsupported as refusal:
        yield Asked(*where, refusal=str(refusal))
        return
    known |= keys
    used |= keys
    choices = {key: values for key, values in suite.options.items() if key in keys}
    for values in itertools.product(*choices.values()):
        yield _asked(suite, where, keys, dict(zip(choices, values, strict=True)))


def _single(suite: Suite, cell: Single, task: str, used: set[str], known: set[str]) -> Asked:
    where = suite.where(cell.mechanism), suite.where(task), cell.regularizer
    try:
        keys = keys_of(*where)
    except Unsupported as refusal:
        return Asked(*where, refusal=str(refusal))
    known |= keys
    used |= keys & suite.set.keys()
    return _asked(suite, where, keys, cell.set)


def _asked(suite: Suite, where: tuple[str, str, str | None], keys: set[str], own: Mapping[str, Any]) -> Asked:
    shared = {key: value for key, value in suite.set.items() if key in keys}
    return Asked(*where, settings=as_text(shared | dict(own)), own=as_text(own))


def as_text(settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (key, str(value).lower() if isinstance(value, bool) else str(value)) for key, value in settings.items()
    )
