"""The state of an unfinished run: safetensors files with their values in the header, two deep, replaced atomically."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, uint8

from attnbench.difference import unlike
from attnbench.errors import AttnbenchError
from attnbench.files import writing

_VALUES = "attnbench"


@dataclass(frozen=True)
class Checkpoint:
    """Of one run: `identity` (spec hash and seed) must fit when it is read.

    Attributes:
        path: the newest file; the one before it lies beside it as `*.older.safetensors`.
        question: what the run asks (spec and seed), so that a run that asks something else can be told what differs.
        resume: read it at all; `older`: read the one before the newest.
    """

    path: Path
    identity: str
    question: dict[str, Any] = field(default_factory=dict)
    resume: bool = False
    older: bool = False

    @property
    def before(self) -> Path:
        return self.path.with_suffix(".older.safetensors")

    def write(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """At every moment of this the newest whole file, or the one before it, is there.

        Raises:
            NotWritten: the disk refuses; what was there is kept.
        """
        partial = self.path.with_suffix(f".{secrets.token_hex(4)}.partial")
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        header = {"identity": self.identity, "question": self.question, "sha256": _sha(tensors), **values}
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                _save(tensors, partial, {_VALUES: json.dumps(header)})
                if self.path.exists():
                    self.path.replace(self.before)
                partial.replace(self.path)
            finally:
                partial.unlink(missing_ok=True)

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and values; None without `resume`.

        Raises:
            AttnbenchError: nothing to resume, damaged, or of another run.
        """
        if not self.resume:
            return None
        # a process that was killed between two renames leaves the older one alone
        path = self.before if self.older or not self.path.exists() else self.path
        if not path.is_file():
            raise AttnbenchError(f"nothing to resume: {path} does not exist{self._others()}; run without --resume")
        try:
            with safe_open(path, framework="pt") as file:
                values = dict(json.loads(file.metadata()[_VALUES]))
                identity, sha = values.pop("identity"), values.pop("sha256")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if _sha(tensors) != sha:
                raise ValueError("its content has changed")
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise AttnbenchError(f"{path}: damaged ({error}); {self.way_out}") from None
        if identity != self.identity:
            raise AttnbenchError(f"{path}: belongs to another run; run again without --resume")
        return tensors, values

    @property
    def way_out(self) -> str:
        """What to do about a damaged file."""
        if self.older or not self.before.exists():
            return "run again without --resume"
        return f"the one before it is there ({self.before.name}): --resume-older goes on from it"

    def _others(self) -> str:
        """In what way the nearest unfinished run in this folder asks another question, or nothing."""
        found = []
        for path in sorted(self.path.parent.glob("*.safetensors")):
            try:
                with safe_open(path, framework="pt") as file:
                    question = json.loads(file.metadata()[_VALUES])["question"]
                if question["mechanism"]["name"] == self.question["mechanism"]["name"]:
                    found.append(unlike(question, self.question))
            except (SafetensorError, OSError, KeyError, TypeError, ValueError):
                continue
        if not found:
            return ""
        nearest = min(found, key=len)
        return (
            ", and the unfinished run that is here has "
            + ", ".join(f"{name}={a}, not {b}" for name, a, b in nearest[:3])
            + (f" and {len(nearest) - 3} more" if len(nearest) > 3 else "")
        )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from running the same cell and seed into the same results folder.

        Raises:
            NotWritten: the disk refuses.
            AttnbenchError: one is doing so.
        """
        lock = self.path.with_suffix(".lock")
        with writing(lock):
            lock.parent.mkdir(parents=True, exist_ok=True)
            held = lock.open("w")
        with held as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AttnbenchError(f"this run is going on already (lock {lock}); wait for it or stop it") from None
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)

    def set_aside(self) -> Path | None:
        """Moves files that are not to be resumed to names of their own; returns the newest one's, or None if there are
        none.
        """
        if self.resume:
            return None
        mark, aside = secrets.token_hex(4), None
        for path in (self.before, self.path):
            if path.exists():
                aside = path.with_name(f"{self.path.stem}.{mark}{path.name.removeprefix(self.path.stem)}")
                path.rename(aside)
        return aside

    @property
    def kept(self) -> str:
        """What to say of it when the run cannot go on."""
        if not (self.path.exists() or self.before.exists()):
            return ""
        return (
            "; what was trained until the last checkpoint is kept, and the same command with --resume goes on from it"
        )

    def remove(self) -> None:
        for path in (self.path, self.before):
            path.unlink(missing_ok=True)


def _save(tensors: dict[str, Tensor], path: Path, header: dict[str, str]) -> None:
    """
    Raises:
        OSError: the disk refuses; safetensors has an error of its own for it, with the number in its text.
    """
    try:
        save_file(tensors, path, header)
    except SafetensorError as error:
        if not (number := re.search(r"\(os error (\d+)\)", str(error))):
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from None
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sha(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(uint8).numpy().data)
    return digest.hexdigest()
