"""Writes the record of a run: by the run itself, or by a sweep for one whose process died or never began."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from attnbench import machine
from attnbench.record import Cost, CurvePoint, Quality, Record, ShiftPoint, Spec, Status, Tuned
from attnbench.store import Store, read

if TYPE_CHECKING:
    import numpy as np


class Subject(BaseModel, frozen=True):
    """What is run: the question and where its plugins came from. `packages` are distributions of other people."""

    spec: Spec
    label: str
    seed: int
    trial: bool = False
    tuned: Tuned | None = None
    origin: dict[str, str]
    packages: list[str] = []

    @property
    def identity(self) -> str:
        """Of an unfinished run: what tells it apart from all others in a results folder."""
        return self.named(self.spec.hash, self.seed, self.trial)

    @staticmethod
    def named(spec_hash: str, seed: int, trial: bool) -> str:
        return f"{spec_hash}-s{seed}{'-trial' if trial else ''}"


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def store(
    results: Path, subject: Subject, status: Status, reason: str | None = None, *, started: str, command: str,
    numerics: Mapping[str, str] | None = None, curve: Sequence[CurvePoint] = (), cost: Cost | None = None,
    quality: Quality | None = None, shifts: Sequence[ShiftPoint] = (),
    predictions: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> tuple[Record, Path]:  # fmt: skip
    """Writes the record; one of a second that is taken already gets a suffix by chance, never the other's place."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    record = Record(
        id=f"{stamp}-{subject.spec.hash}-s{subject.seed}-{secrets.token_hex(2)}",
        kind="trial" if subject.trial else "train",
        label=subject.label,
        status=status,
        reason=reason,
        spec=subject.spec,
        seed=subject.seed,
        tuning=subject.tuned,
        quality=quality,
        shifts=list(shifts),
        curve=list(curve),
        cost=cost,
        machine=machine.describe_machine() | ({"numerics": dict(numerics)} if numerics else {}),
        software=machine.describe_software(tuple(subject.packages)),
        code={**machine.describe_code(), "origin": subject.origin},
        started=started,
        finished=now(),
        command=command,
    )
    path = Store(results).write(record, predictions)
    return read(path), path
