"""What a measurement leaves: one JSON file with every sample. Not a record of a run, and never among them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, model_validator

from attnbench.errors import AttnbenchError, one_line
from attnbench.files import exists, publish, writing
from attnbench.options import first_fault

SCHEMA = 1

Mode = Literal["fwd", "fwdbwd", "step"]
Device = Literal["cpu", "cuda"]
#: ok: timed. emulation: computes all pairs whatever its pattern, so it gets no score. wrong: failed its check, so it
#: was not timed. skipped: a shorter input was too much already.
Status = Literal["ok", "emulation", "wrong", "oom", "timeout", "unsupported", "failed", "skipped"]

# Bounds that no machine reaches, so that figures of a damaged file are numbers still.
Count = Annotated[int, Field(ge=1, lt=2**63)]
Amount = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(gt=1e-12, lt=1e12)]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Setting(_Frozen):
    """What all cells of a measurement have in common; only equal settings can be compared.

    Attributes:
        layers: of the encoder, in mode `step`; other modes time one mixer by itself.
        warmup: calls of each cell before its first sample; one more opens every turn.
        rounds: turns of each cell, one sample each.
        numerics: see `attnbench.numerics`; on CUDA always stock.
    """

    mode: Mode = "fwdbwd"
    device: Device = "cpu"
    batch: Count = 1
    dim: Count = 256
    heads: Count = 4
    dtype: Literal["fp32", "bf16"] = "fp32"
    layers: Count = 2
    threads: Count = 1
    numerics: Literal["fast", "stock"] = "fast"
    warmup: Count = 3
    rounds: Count = 10

    @property
    def shape(self) -> dict[str, Any]:
        """What must be equal for times to be of the same thing."""
        return self.model_dump(exclude={"warmup", "rounds"} | (set() if self.mode == "step" else {"layers"}))

    @property
    def slug(self) -> str:
        layers = f"-l{self.layers}" if self.mode == "step" else ""
        shape = f"b{self.batch}-c{self.dim}-h{self.heads}{layers}"
        return f"{self.device}-t{self.threads}-{self.mode}-{shape}-{self.dtype}-{self.numerics}"


class Sample(_Frozen):
    """Of one call, as the mean over the `calls` of the sample. `waited`: share of its time for which threads of the
    process were ready and had no core.
    """

    round: Amount
    seconds: Seconds
    wall: Seconds
    waited: float = 0.0


class Checked(_Frozen):
    """The check before timing: relative error against `reference`, of the output and of the gradient of the input."""

    reference: str
    error: float
    gradient_error: float | None = None
    allowed: float


class CellResult(_Frozen):
    """A mechanism at a length.

    Attributes:
        implementation: the path that computed: kernel, reference or dense emulation.
        calls: in one sample.
        peak_bytes: by which a call raises the memory in use over what is resident: weights, inputs, tables.
        flops: of a call, counted; products only.
        flops_formula: of a call, in closed form, where there is one.
    """

    mechanism: str
    version: int
    source_sha: str
    options: dict[str, Any]
    complexity: str
    exact: bool
    block: Count = 1
    length: Count
    implementation: str = ""
    status: Status
    reason: str | None = None
    check: Checked | None = None
    calls: Count = 1
    samples: list[Sample] = []
    peak_bytes: Amount | None = None
    resident_bytes: Amount | None = None
    flops: Amount | None = None
    flops_formula: Amount | None = None

    @model_validator(mode="after")
    def _timed_when_ok(self) -> CellResult:
        if self.status == "ok" and not self.samples:
            raise ValueError("ok without a sample")
        return self


class Yardstick(_Frozen):
    """A product of square matrices that takes its turn in every round: what the machine can do, and how it drifts."""

    size: Count
    flops: Count
    samples: list[Sample]


class SpeedResult(_Frozen):
    """One measurement. `clock` says what `seconds` of a sample are, `conditions` what was so before and after."""

    schema_: int = Field(default=SCHEMA, alias="schema")
    kind: Literal["speed"] = "speed"
    id: str
    setting: Setting
    interleaved: bool
    clock: str
    cells: list[CellResult]
    yardstick: Yardstick | None = None
    peak_how: str = ""
    conditions: dict[str, Any] = {}
    machine: dict[str, Any]
    software: dict[str, str]
    code: dict[str, Any]
    started: str
    finished: str
    command: str

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)

    @property
    def folder(self) -> str:
        """Of the machine and the shape."""
        return f"{self.machine.get('id', 'unknown')}-{self.setting.slug}"

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json", by_alias=True), indent=1, sort_keys=True, allow_nan=False) + "\n"


def from_json(text: bytes, where: str) -> SpeedResult:
    """
    Raises:
        AttnbenchError: not JSON, another kind of file, a newer schema, or a field that does not fit; names `where`.
    """
    try:
        data = pydantic_core.from_json(text, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        raise AttnbenchError(f"{where}: cut off, or not valid JSON ({error})") from None
    if not isinstance(data, dict) or data.get("kind") != "speed":
        raise AttnbenchError(f"{where}: not a result of attnbench speed")
    schema = data.get("schema")
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        raise AttnbenchError(f"{where}: schema {schema!r:.20}, this attnbench reads up to {SCHEMA}; update attnbench")
    try:
        return SpeedResult.model_validate(data)
    except pydantic_core.ValidationError as error:
        raise AttnbenchError(f"{where}: not a valid result of attnbench speed: {first_fault(error)}") from None


def read(path: Path) -> SpeedResult:
    """
    Raises:
        AttnbenchError: unreadable or no result; names the file.
    """
    return from_json(read_bytes(path), str(path))


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AttnbenchError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_all(results: Path) -> tuple[list[tuple[Path, SpeedResult]], list[str]]:
    """Every result below `speed/` of a results folder, sorted by path, and one line for each file that is none."""
    found, problems = [], []
    if not (results / "speed").is_dir():
        return [], []

    def unreadable(error: OSError) -> None:
        problems.append(f"{error.filename}: cannot be read ({error.strerror or error})")

    for folder, below, files in os.walk(results / "speed", onerror=unreadable):
        below.sort()
        for name in sorted(files):
            if not name.endswith(".json"):
                continue
            path = Path(folder, name)
            try:
                result = read(path)
            except AttnbenchError as error:
                problems.append(str(error))
                continue
            if result.id != path.stem:
                problems.append(f"{path}: holds the result {result.id}; not counted, name it {result.id}.json")
            else:
                found.append((path, result))
    return found, problems


def write(result: SpeedResult, results: Path, to: Path | None = None) -> Path:
    """Stores a result below `speed/` of the results folder, or as the file `to`; never over another file.

    Raises:
        NotWritten: the disk refuses.
        AttnbenchError: the file exists, or a number is not finite.
    """
    path = to or results / "speed" / result.folder / f"{result.id}.json"
    try:
        data = result.to_json().encode()
    except ValueError as error:
        raise AttnbenchError(f"{path}: cannot be written as JSON ({one_line(error)})") from None
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            raise exists(path)
        publish(path, data, {})
    return path
