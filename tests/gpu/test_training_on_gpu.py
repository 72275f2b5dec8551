"""Pathfinder in bfloat16 on CUDA learns as it does on the CPU: the two loss curves, point by point.

The same run in float32 and in bfloat16 on a CPU differs by up to 2e-4 in any loss.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attnbench
from attnbench.record import Record

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device"),
]

OPTIONS: dict[str, Any] = {
    "task.examples": 1000,
    "budget.steps": 40,
    "budget.eval_every": 10,
    "budget.warmup": 10,
    "model.dropout": 0.0,
    "numerics.dtype": "bf16",
}
BOUND = 5e-3


def losses(record: Record) -> list[float]:
    assert record.quality is not None, record.reason
    return [loss for point in record.curve for loss in (point.loss, point.validation_loss)]


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return losses(
        attnbench.run("hst", "pathfinder", results=tmp_path_factory.mktemp("cpu"), options=OPTIONS, device="cpu")
    )


@pytest.mark.parametrize("path", ["gather", "flex"])
def test_pathfinder(
    record_property: Callable[[str, object], None], tmp_path: Path, on_cpu: list[float], path: str
) -> None:
    record = attnbench.run("hst", "pathfinder", results=tmp_path, options=OPTIONS | {"path": path}, device="cuda")
    assert record.spec.mechanism.implementation == {"gather": "reference", "flex": "kernel"}[path]
    error = max(abs(a - b) for a, b in zip(losses(record), on_cpu, strict=True))
    record_property("error", error)
    assert error < BOUND
