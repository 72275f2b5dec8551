"""LRA's byte and pixel tasks end to end from an empty cache, and at the size of the published sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from published import parquet, prepared, retrieval_files

Call = Callable[..., tuple[int, str, str]]
#: --set for a run that takes seconds.
TINY = {"budget.steps": 2, "budget.batch": 2, "budget.eval_every": 2, "model.dim": 16, "model.layers": 1, "model.mlp": 16}
SMALL = {
    "text": {"task.max_length": 200, "task.examples": 60, "task.test_examples": 8},
    "image": {"task.examples": 60, "task.test_examples": 8},
    "retrieval": {"task.max_length": 150, "task.examples": 20, "task.validation_examples": 4, "task.test_examples": 6},
    "retrieval_synthetic": {"task.max_length": 100, "task.train": 20, "task.validation": 4, "task.test": 6},
}


def words(settings: dict[str, int]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture
def sources(test_data: Path, tmp_path: Path) -> dict[str, Path]:
    return {
        "text": test_data / "imdb",
        "image": test_data / "cifar10_jpeg",
        "retrieval": retrieval_files(tmp_path / "aan", 30),
    }


@pytest.mark.parametrize("task", SMALL)
def test_a_task_runs_from_an_empty_cache_with_dense_bigbird_and_ernie_sparse(
    task: str, sources: dict[str, Path], call: Call
) -> None:
    """As a user types it: prepare with the protocol's options and one's own, then run with the same."""
    if task in sources:
        small = [word.replace("task.", "") for word in words(SMALL[task])]
        code, _, err = call("data", "prepare", task, "--from", str(sources[task]), "--protocol", "quick", *small)
        assert code == 0, err
    for mechanism in ("dense", "bigbird", "ernie_sparse"):
        code, out, err = call("run", "-m", mechanism, "-t", task, *words(SMALL[task]), *words(TINY), "--json")
        assert code == 0, err
        record = json.loads(out)
        assert record["spec"]["task"]["name"] == task and record["quality"]["examples"] == len(set(range(record["quality"]["examples"])))
