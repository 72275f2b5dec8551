"""LRA's byte and pixel tasks end to end from an empty cache, and at the size of the published sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from published import AAN, aan, parquet, prepared

from attnbench import plan

Call = Callable[..., tuple[int, str, str]]
#: --set for a run that takes seconds.
TINY = {f"budget.{name}": 2 for name in ("steps", "batch", "eval_every")} | {"model.dim": 16, "model.layers": 1}
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
    home = tmp_path / "aan"
    home.mkdir()
    rows = [(b"%d" % (n % 2), b"b'first %d'" % n, b"b'second %d'" % n) for n in range(30)]
    for name in AAN.values():
        (home / name).write_bytes(aan(rows))
    return {"text": test_data / "imdb", "image": test_data / "cifar10_jpeg", "retrieval": home}


@pytest.mark.parametrize("task", SMALL)
def test_a_task_runs_from_an_empty_cache_with_dense_bigbird_and_ernie_sparse(
    task: str, sources: dict[str, Path], call: Call
) -> None:
    """As a user types it: prepare with the protocol's options and one's own, then run with the same."""
    if task in sources:
        small = words(SMALL[task])
        code, out, err = call("data", "prepare", task, "--from", str(sources[task]), "-p", "quick", *small, "--json")
        assert code == 0, err
    for mechanism in ("dense", "bigbird", "ernie_sparse"):
        code, out, err = call("run", "-m", mechanism, "-t", task, *words(SMALL[task]), *words(TINY), "--json")
        assert code == 0, err
        record = json.loads(out)
        assert record["status"] in ("ok", "not_above_chance", "trivial") and record["spec"]["task"]["name"] == task
        assert record["quality"]["examples"] == SMALL[task].get("task.test_examples", SMALL[task].get("task.test"))


def test_quick_fits_the_samples() -> None:
    """So that they can be run as they are; a subset larger than its split is refused."""
    for task, sizes in {"text": (2_000, 1_000), "image": (2_000, 500)}.items():
        asked = plan.make("dense", task).task.options
        assert (asked.examples, asked.test_examples) == sizes


@pytest.mark.slow
def test_imdb_of_the_published_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """25,000 + 25,000 rows with the lengths of the real set, sorted by label, in two parts; all of them arrive."""
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))
    generator = np.random.Generator(np.random.PCG64(0))
    letters = np.frombuffer(b"abcdefghij klmnopqrstuv wxyz ", np.uint8)
    pool = letters[generator.integers(0, len(letters), 2_000_000)].tobytes().decode()
    lengths: dict[str, np.ndarray] = {}
    for split in ("train", "test"):
        lengths[split] = generator.lognormal(np.log(970), 0.75, 25_000).astype(int).clip(32, 13_704)
        starts = generator.integers(0, len(pool) - 13_704, 25_000)
        texts = [pool[start : start + size] for start, size in zip(starts, lengths[split], strict=True)]
        for part, rows in enumerate((slice(0, 12_500), slice(12_500, 25_000))):
            table = pa.table({"text": [f"{part}{text}" for text in texts[rows]], "label": [part] * 12_500})
            parquet(tmp_path / "imdb" / "plain_text" / f"{split}-{part:05d}-of-00002.parquet", table)
    found = prepared("text", tmp_path / "imdb")
    sizes = {name: len(split) for name, split in found.splits.items()}
    assert sizes["test"] == 25_000 == sizes["train"] + sizes["validation"] and abs(sizes["validation"] - 2_500) < 200
    kept = sum(int(found.splits[name].documents[0].lengths().sum()) for name in ("train", "validation"))
    assert kept == np.minimum(lengths["train"] + 1, 4000).sum()
    assert found.card["facts"]["share_cut"]["test"] == round(float((lengths["test"] + 1 > 4000).mean()), 4)
    labels = np.concatenate([np.asarray(found.splits[name].targets) for name in ("train", "validation")])
    assert labels.sum() == 12_500 and abs(labels[:1000].mean() - 0.5) < 0.1
