"""One run = one record = one JSON file: what was asked, what came out, what it cost, where. Never edited.

`spec` is everything that decides the numbers except the seed; its hash names the table cell. `quality`, `curve` and the
predictions hold no clock, so two runs can be compared for identity.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, model_validator

from attnbench.errors import AttnbenchError

SCHEMA = 1
#: Raise it when the engine itself (encoder, training, sparse core) changes numbers.
ENGINE_VERSION = 4

Status = Literal["ok", "not_above_chance", "trivial", "diverged", "oom", "timeout", "unsupported", "failed"]
#: Statuses of a run that trained to the end and has a test score.
FINISHED: tuple[Status, ...] = ("ok", "not_above_chance", "trivial")
#: Statuses of a trial that says what its values are worth: one that diverged has lost, any other was cut off.
DECIDED: tuple[Status, ...] = (*FINISHED, "diverged")


def as_words(values: Mapping[str, Any]) -> str:
    """Such as `budget.lr=0.1 budget.clip=1.0`."""
    return " ".join(f"{key}={value}" for key, value in values.items())


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PluginSpec(_Frozen):
    """A plugin as it ran; `options` holds every value, defaults included."""

    name: str
    version: int
    source_sha: str
    options: dict[str, Any]


class TaskSpec(PluginSpec):
    data_key: str
    max_length: int
    vocab: int


class MechanismSpec(PluginSpec):
    implementation: str = "reference"


class ProtocolSpec(_Frozen):
    """What a table is made of.

    Attributes:
        changes: values the user set otherwise; the name then carries their hash, for it is another protocol.
        seeds: at least so many it asks for in each cell.
        parameters_within: share by which it allows a model to be larger or smaller than with plain attention.
    """

    name: str
    version: int
    changes: dict[str, Any] = {}
    seeds: int = 1
    parameters_within: float | None = None


class Spec(_Frozen):
    """What decides the numbers. `model`, `budget`, `numerics` and `padding` are the resolved protocol."""

    task: TaskSpec
    mechanism: MechanismSpec
    regularizer: list[PluginSpec]
    model: dict[str, Any]
    budget: dict[str, Any]
    numerics: dict[str, Any]
    padding: dict[str, Any]
    protocol: ProtocolSpec
    engine: int = ENGINE_VERSION

    @property
    def hash(self) -> str:
        """12 hex digits of the canonical JSON."""
        return hashlib.sha256(canonical(self.model_dump(mode="json")).encode()).hexdigest()[:12]


class Tuning(_Frozen):
    """The same for every cell of a column: all values of the grid, by key such as `budget.lr`, tried on these seeds.

    Cells that differ in the options `share` only have the trials and the choice of one of them.
    """

    grid: dict[str, list[Any]]
    seeds: list[int]
    share: list[str] = []

    @property
    def points(self) -> list[dict[str, Any]]:
        """Every combination of the grid's values, in the grid's order."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]


class Tuned(Tuning):
    """How many trials the cell had, and what was chosen by their validation scores; of a trial, what it tried."""

    trials: int
    chosen: dict[str, Any]

    @property
    def asked(self) -> Tuning:
        """What all cells of the column have in common."""
        return Tuning(grid=self.grid, seeds=self.seeds, share=self.share)


class Quality(_Frozen):
    """The test split is read once, with the weights of step `best_step`: the best by validation, unless `selected_on`
    says that the last step was taken.

    `trivial` holds the scores of trivial predictors on the test split by name; `interval` is the 95 % interval of
    `test` over test examples, for this trained model only; `more` holds further metrics; `controls` are the mechanisms
    that must solve the task and cannot, in this order.
    """

    metric: str
    selected_on: str = "validation"
    best_step: int
    validation: float
    test: float
    interval: tuple[float, float]
    examples: int
    predictions: int
    chance: float
    trivial: dict[str, float]
    p_above_chance: float
    more: dict[str, float] = {}
    controls: list[str] = []


class CurvePoint(_Frozen):
    """`loss` is the mean training loss since the point before; `parts` its terms."""

    step: int
    examples: int
    loss: float
    validation: float
    validation_loss: float


class ShiftPoint(_Frozen):
    """The same weights on the test split moved right by `shift` masked rows.

    `flips` is the share of predictions whose most likely class is another than unmoved; `kl` the mean over predictions
    of both Kullback-Leibler divergences between moved and unmoved, averaged, in nats.
    """

    shift: int = Field(ge=0)
    test: float
    flips: float = Field(ge=0, le=1)
    kl: float = Field(ge=0)

    @property
    def text(self) -> str:
        return f"{self.test:.4f}; {self.flips:.2%} of the predictions flip, KL {self.kl:.2g}"


class Cost(_Frozen):
    """Seconds are a log line, never a speed claim: on shared machines equal runs differ tenfold.

    `params_plain` is the total if the mixers were plain attention. A step ran in so many `micro_batches`.
    """

    params_total: int
    params_mixer: int
    params_plain: int | None = None
    micro_batches: int | None = None
    train_seconds: float
    samples_per_second: float
    peak_bytes: int
    peak_how: str


class Record(_Frozen):
    """`kind` trial: a run that only validates, to choose values by; it has no score and counts in no table.

    `shifts` 1, 2, ... were asked for beside the score; without any, the field is left out of the JSON.
    """

    schema_: int = Field(default=SCHEMA, alias="schema")
    id: str
    kind: Literal["train", "trial"] = "train"
    label: str
    status: Status
    reason: str | None = None
    spec: Spec
    seed: int
    tuning: Tuned | None = None
    quality: Quality | None = None
    shifts: list[ShiftPoint] = []
    curve: list[CurvePoint] = []
    predictions: str | None = None
    predictions_sha: str | None = None
    cost: Cost | None = None
    machine: dict[str, Any]
    software: dict[str, str]
    code: dict[str, Any]
    started: str
    finished: str
    command: str

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _scored_when_finished(self) -> Record:
        if (self.quality is not None) != (self.status in FINISHED and self.kind != "trial"):
            what = f"{self.kind} of status {self.status}"
            raise ValueError(f"{what} {'without' if self.quality is None else 'with'} a quality")
        if self.kind == "trial" and self.tuning is None:
            raise ValueError("a trial that belongs to no tuning")
        if self.shifts and self.quality is None:
            raise ValueError("a test with shifts, and no quality")
        if [point.shift for point in self.shifts] != [*range(1, len(self.shifts) + 1)]:
            raise ValueError("shifts are 1, 2, 3 and so on")
        return self

    @model_validator(mode="after")
    def _is_json(self) -> Record:
        """Fields of any content hold finite numbers; parsers take 1e999 for infinity."""
        spec, tuned = self.spec, self.tuning
        plugins = (spec.task, spec.mechanism, *spec.regularizer)
        sections = (spec.model, spec.budget, spec.numerics, spec.padding, spec.protocol.changes)
        tuning = (tuned.grid, tuned.chosen) if tuned else ()
        canonical([[plugin.options for plugin in plugins], sections, tuning, self.machine, self.code])
        return self

    def plain(self) -> dict[str, Any]:
        """What stands in the file. A record without shifts is as it was before there were any."""
        return self.model_dump(mode="json", by_alias=True, exclude=None if self.shifts else {"shifts"})

    def to_json(self) -> str:
        """Readable, stable JSON: same record, same bytes."""
        return json.dumps(self.plain(), indent=1, sort_keys=True, allow_nan=False) + "\n"


def canonical(value: Any) -> str:
    """JSON in one form: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


#: MIGRATIONS[n] turns the JSON of schema n into schema n + 1.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


#: What to do about a file that is no record.
ELSEWHERE = "delete it, or move it out of the results folder"


def from_json(text: str | bytes, where: str) -> Record:
    """Reads a record of this or an older schema.

    Raises:
        AttnbenchError: not JSON, a newer schema, or a field that does not fit; names `where` and what was found.
    """
    try:
        data = _parse(text.encode() if isinstance(text, str) else text)
    except (ValueError, RecursionError) as error:
        raise AttnbenchError(f"{where}: cut off, or not valid JSON ({error}); {ELSEWHERE}") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if type(schema) is not int or schema < 1:
        raise AttnbenchError(f"{where}: not a record (no schema number, found {schema!r:.40}); {ELSEWHERE}")
    if schema > SCHEMA:
        what = f"written by a newer attnbench (schema {schema}, this one reads up to {SCHEMA})"
        raise AttnbenchError(f"{where}: {what}; update attnbench")
    for version in range(schema, SCHEMA):
        data = MIGRATIONS[version](data)
    try:
        return Record.model_validate(data)
    except ValueError as error:
        what = " ".join(line.strip() for line in str(error).splitlines()[1:3])
        raise AttnbenchError(f"{where}: not a valid record: {what}; {ELSEWHERE}") from None


def _parse(text: bytes) -> Any:
    """JSON to Python, three times as fast as the standard library's parser."""
    try:
        return pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError:
        if b"\\ud" not in text:
            raise
    # half of a surrogate pair, from a name that is not UTF-8: only Python's parser takes it
    return pydantic_core.to_jsonable_python(json.loads(text.decode(), parse_constant=_refuse_constant))
