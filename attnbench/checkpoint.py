"""The state of an unfinished run: one safetensors file, values in its header, replaced atomically."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from attnbench.errors import AttnbenchError

_VALUES = "attnbench"


@dataclass(frozen=True)
class Checkpoint:
    """`path` is the file; `identity` (spec hash and seed) must fit when it is read. `resume` = read it at all."""

    path: Path
    identity: str
    resume: bool = False

    def write(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(f".{secrets.token_hex(4)}.partial")
        header = json.dumps({"identity": self.identity, **values})
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, {_VALUES: header})
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(self.path)

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and values; None without `resume`.

        Raises:
            AttnbenchError: nothing to resume, damaged, or of another run.
        """
        if not self.resume:
            return None
        if not self.path.is_file():
            raise AttnbenchError(f"nothing to resume: {self.path} does not exist; run again without --resume")
        try:
            with safe_open(self.path, framework="pt") as file:
                values = dict(json.loads(file.metadata()[_VALUES]))
                identity = values.pop("identity")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise AttnbenchError(f"{self.path}: damaged ({error}); run again without --resume") from None
        if identity != self.identity:
            raise AttnbenchError(f"{self.path}: belongs to another run; run again without --resume")
        return tensors, values

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from running the same cell and seed into the same results folder.

        Raises:
            AttnbenchError: one is doing so.
        """
        lock = self.path.with_suffix(".lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AttnbenchError(f"this run is going on already (lock {lock}); wait for it or stop it") from None
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)

    def set_aside(self) -> Path | None:
        """Moves a checkpoint that is not to be resumed to a name of its own; returns that, or None if there is none."""
        if self.resume or not self.path.exists():
            return None
        aside = self.path.with_suffix(f".{secrets.token_hex(4)}.safetensors")
        self.path.rename(aside)
        return aside

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
