"""First files of a new plugin, for `attnbench new`."""

from __future__ import annotations

import keyword
from pathlib import Path

from attnbench.errors import AttnbenchError, UnknownName

MECHANISM = '''"""NAME: say here what attends to what, and where it was published."""

from torch import Tensor

from attnbench.contracts import Mechanism
from attnbench.layers import QKVMixer


class Mixer(QKVMixer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q, k, v: (batch, heads, rows, head width); mask: (batch, rows) bool, True = a real row."""
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -1e30)
        return scores.softmax(-1) @ v


MECHANISM = Mechanism(
    summary="One line for lists",
    paper="Authors year, title",
    build=lambda shape, options: Mixer(shape),
)
'''

TASK = '''"""NAME: say here what is asked, and where the data come from."""

from dataclasses import dataclass

import datasets
import numpy as np
from pydantic import PositiveInt

from attnbench.contracts import Classify, Preparation, Source, Task


@dataclass(frozen=True, kw_only=True)
class Options:
    length: PositiveInt = 32
    data_seed: int = 0


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    """Example: is the first token seen again?"""
    made = {}
    for number, (split, count) in enumerate({"train": 5000, "validation": 500, "test": 500}.items()):
        generator = np.random.default_rng([options.data_seed, number])
        tokens = generator.integers(1, 64, (count, options.length))
        label = (tokens[:, 1:] == tokens[:, :1]).any(1).astype(int)
        made[split] = datasets.Dataset.from_dict({"tokens": tokens, "label": label})
    return datasets.DatasetDict(made)


TASK = Task(
    summary="One line for lists",
    source=Source(citation="Authors year, title", licence="generated"),
    head=lambda options: Classify(2),
    vocab=lambda options: 64,
    max_length=lambda options: options.length,
    prepare=prepare,
    options=Options,
)
'''

TEMPLATES = {"mechanism": MECHANISM, "task": TASK}


def create(kind: str, name: str, folder: Path) -> Path:
    """Writes NAME.py into the folder.

    Raises:
        AttnbenchError: unknown kind, a name that is no module name, or a file that exists.
    """
    if kind not in TEMPLATES:
        raise UnknownName("kind of plugin", kind, TEMPLATES)
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise AttnbenchError(
            f"{name!r} cannot be a plugin's name: use letters, digits and _, not starting with a digit or _"
        )
    path = folder / f"{name}.py"
    if path.exists():
        raise AttnbenchError(f"{path} exists already; choose another name or remove it")
    if not folder.is_dir():
        raise AttnbenchError(f"{folder}: no such folder")
    path.write_text(TEMPLATES[kind].replace("NAME", name), "utf-8")
    return path
