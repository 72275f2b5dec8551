"""One task of Long Range Arena and one of question answering on CUDA in bfloat16, from their files to a record; their
losses follow those of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attnbench
from attnbench import data, registry
from attnbench.options import parse

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device"),
]

BUDGET: dict[str, Any] = {
    "budget.steps": 30, "budget.eval_every": 10, "budget.warmup": 5, "model.dropout": 0.0, "numerics.dtype": "bf16",
}  # fmt: skip
BOUND = 5e-3

Note = Callable[[str, object], None]


def follow(record_property: Note, folder: Path, task: str, options: dict[str, Any]) -> None:
    """Trains on both devices and compares every point of the two curves."""
    curves = []
    for device in ("cpu", "cuda"):
        record = attnbench.run("ernie_sparse", task, results=folder / device, options=BUDGET | options, device=device)
        assert record.quality is not None, record.reason
        curves.append([loss for point in record.curve for loss in (point.loss, point.validation_loss)])
    error = max(abs(a - b) for a, b in zip(*curves, strict=True))
    record_property("error", error)
    assert error < BOUND


def test_listops(record_property: Note, tmp_path: Path) -> None:
    follow(record_property, tmp_path, "listops", {"task.examples": 1000})


def test_squad(record_property: Note, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed; it comes with the extra hf")
    import qa_files

    plugin = registry.load("tasks", "squad")
    small = {"vocab_size": 300, "max_length": 96, "max_question": 24, "overlap": 8, "held_out": "paragraphs"}
    data.load(plugin, parse("task squad", plugin.object.options, small), qa_files.squad(tmp_path / "squad"))
    settings = {f"task.{name}": value for name, value in small.items()}
    follow(record_property, tmp_path, "squad", settings | {"block_size": 16, "budget.batch": 8})
