"""10,000 records as a DataFrame, beside the least it can cost: `json.loads` of the same bytes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from benchmarks import paired
from pytest_benchmark.fixture import BenchmarkFixture

import attnbench
from attnbench.store import read

RECORDS = 10_000
OWN = Path(__file__).parents[2] / "results" / "runs"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of this repository, over and over under ids of their own; without predictions, which nobody reads."""
    folder = tmp_path_factory.mktemp("many")
    own = [read(path) for path in sorted(OWN.rglob("*.json"))]
    for number, record in enumerate(itertools.islice(itertools.cycle(own), RECORDS)):
        record = record.model_copy(update={"id": f"r{number}", "predictions": None, "predictions_sha": None})
        path = folder / "runs" / "quick" / record.spec.task.name / record.label / f"r{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(record.to_json(), "utf-8")
    return folder


def test_ten_thousand_records(benchmark: BenchmarkFixture, results: Path) -> None:
    """The issue's bound is 3 s."""
    paths = sorted((results / "runs").rglob("*.json"))
    texts = [path.read_bytes() for path in paths]

    def load() -> None:
        assert len(attnbench.load_records(results)) == RECORDS

    candidates = {
        "load_records": load,
        "json.loads": lambda: [json.loads(text) for text in texts],
        "read and json.loads": lambda: [json.loads(path.read_bytes()) for path in paths],
    }
    found: list[paired.Comparison] = []
    benchmark.pedantic(lambda: found.append(paired.compare(candidates, rounds=7, seconds=40)), rounds=1)
    times = {f"times {name}": round(1 / ratio, 2) for name, ratio in found[0].times_faster.items()}
    code = f"import attnbench\nimport pandas\nrun = lambda: attnbench.load_records({str(results)!r})"
    benchmark.extra_info.update(found[0].info() | times | {"bytes a record": sum(map(len, texts)) // RECORDS})
    benchmark.extra_info["peak extra MiB"] = round(paired.peak_extra_mib(code), 1)
    print("\n ", benchmark.name, benchmark.extra_info)
