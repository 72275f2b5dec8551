"""The state of an unfinished run: one safetensors file, values in its header, replaced atomically."""

from __future__ import annotations

import json
import os
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
        partial = self.path.with_suffix(".partial")
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

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
