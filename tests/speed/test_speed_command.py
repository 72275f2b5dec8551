"""`attnbench speed` as it is called."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from speed.speed_data import cell, grown, result, samples

from attnbench.speed.result import SpeedResult, read, read_all

Call = Callable[..., tuple[int, str, str]]
Write = Callable[..., str]


def stored(path: Path, factor: float = 1.0, seed: int = 0, **more: Any) -> SpeedResult:
    """Dense and mine at three lengths, times of mine by `factor`."""
    cells = grown("dense", lambda n: 1e-8 * n**2, [256, 512, 1024])
    cells += [cell("mine", n, samples(1e-6 * n * factor, noise=0.02, seed=seed + n)) for n in (256, 512)]
    cells.append(cell("mine", 1024, reason="oh"))
    found = result(cells, samples(0.02, noise=0.02, seed=seed), **more)
    path.write_text(found.to_json())
    return found


def test_real_cells_are_measured_shown_and_stored(call: Call, plugin: Write, tmp_path: Path) -> None:
    """One sound mechanism, and one that runs out of memory and prints: a result, no failure."""
    full = plugin("full", "print('noise'); raise torch.OutOfMemoryError('CUDA out of memory')", "complexity='n'")
    words = ["speed", "-m", "dense", "-m", full, "--lengths", "64", "--dim", "16", "--heads", "2"]
    code, out, err = call(
        *words, "--threads", "1", "--rounds", "2", "--device", "cpu", "--mode", "fwd", "--results", "results"
    )
    assert code == 0, err
    ((path, found),), problems = read_all(tmp_path / "results")
    assert problems == [] and out.splitlines()[-1] == f"result: {path.relative_to(tmp_path)}"
    dense, other = found.cells
    assert (dense.status, len(dense.samples), dense.flops) == ("ok", 2, dense.flops_formula)
    assert (other.status, other.samples) == ("oom", [])
    assert "full at 64: out of memory: OutOfMemoryError: CUDA out of memory" in out
    assert found.yardstick is not None and len(found.yardstick.samples) == 2
    assert found.conditions["numerics"] and found.clock == "CPU time of the process"
    assert found.command.startswith("attnbench speed -m dense") and found.interleaved
    assert len(out.splitlines()[1].split()) >= 9  # all figures of dense


def test_a_dry_run_measures_nothing(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("speed", "-m", "hst", "-m", "dense", "--lengths", "256,1k", "--dry-run", "--json")
    found = json.loads(out)
    assert code == 0 and found["processes"] == 5 and found["lengths"] == [256, 1024]
    assert found["groups of cells that take turns"][0][-1] == "dense at 1024"
    assert not (tmp_path / "results").exists()


REFUSED = {
    "no mechanism": ([], "name at least one mechanism"),
    "unknown": (["-m", "dens"], "did you mean dense"),
    "heads": (["-m", "dense", "--heads", "3"], "heads=3 does not divide dim=256"),
    "block": (["-m", "local", "--lengths", "32"], "block_size=64 is more than the shortest length 32"),
    "lengths": (["-m", "dense", "--lengths", "a"], "--lengths takes whole numbers"),
    "time": (["-m", "dense", "--max-time", "soon"], "--max-time takes a time"),
    "baseline": (["-m", "dense", "--baseline", "hst"], "unknown --baseline 'hst'"),
    "second file": (["a.json"], "goes with --compare BASE"),
    "from and more": (["--from", "a.json", "-m", "dense"], "-m would have no effect"),
    "no file": (["--from", "a.json"], "a.json: cannot be read"),
    "plots": (["--compare", "a.json", "b.json", "--plots", "out"], "--plots would have no effect"),
    "option": (["-m", "dense", "--set", "x"], "--set takes key=value"),
    "target": (["-m", "dense", "--to", "there.json"], "there.json: exists already"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_one_line(name: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("{}")
    words, message = REFUSED[name]
    code, out, err = call("speed", *words, "--device", "cpu")
    assert code == 2 and out == "" and err.count("\n") == 1
    assert err.startswith("error: ") and message in err


def test_no_gpu_is_one_line(call: Call) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    code, _, err = call("speed", "-m", "dense", "--device", "cuda")
    assert code == 2 and "no CUDA device" in err


def test_a_stored_result_is_shown_again(call: Call, tmp_path: Path) -> None:
    stored(tmp_path / "a.json")
    code, out, err = call("speed", "--from", "a.json")
    assert (code, err) == (0, "")
    assert "mine at 1024: out of memory: oh" in out and "n^2.00" in out
    code, out, _ = call("speed", "--from", "a.json", "--json", "--baseline", "mine")
    assert code == 0 and json.loads(out)["figures"]["baseline"] == "mine"


def test_a_stored_result_is_drawn(call: Call, tmp_path: Path) -> None:
    """Against the baseline that was named; where nothing was timed there is nothing to draw."""
    name = f"speed-{stored(tmp_path / 'a.json').folder}-scaling"
    code, out, err = call("speed", "--from", "a.json", "--plots", "out", "--baseline", "mine")
    assert (code, err) == (0, "")
    assert out.splitlines()[-2:] == [f"plot: out/{name}.png", f"plot: out/{name}.svg"]
    first = Path("out", f"{name}.svg").read_bytes()
    assert json.loads(call("speed", "--from", "a.json", "--plots", "out", "--json")[1])["plots"][0].endswith(".png")
    assert Path("out", f"{name}.svg").read_bytes() != first
    (tmp_path / "b.json").write_text(result([cell("dense", 256)]).to_json())
    assert call("speed", "--from", "b.json", "--plots", "none")[0] == 0
    assert not Path("none").exists()


def test_two_results_are_compared(call: Call, tmp_path: Path) -> None:
    stored(tmp_path / "a.json")
    stored(tmp_path / "b.json", factor=1.3, seed=50, machine={"id": "babe", "cpu": "y"})
    code, out, err = call("speed", "--compare", "a.json", "b.json")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines() if line.startswith(("dense", "mine"))]
    assert [line[-1] for line in lines] == ["same"] * 3 + ["slower"] * 2 + ["same"]
    assert "note: two machines" in out and "commits abc and abc" in out
    changes = json.loads(call("speed", "--compare", "a.json", "b.json", "--json")[1])["changes"]
    assert changes[3]["time"]["low"] < 1.3 < changes[3]["time"]["high"]


def test_compare_with_one_file_would_measure_its_cells(call: Call, tmp_path: Path) -> None:
    cells = grown("dense", lambda n: 1e-8 * n**2, [64, 128]) + grown("local", lambda n: 1e-6 * n, [64, 128])
    cells = [c if c.mechanism == "dense" else c.model_copy(update={"options": {"block_size": 32}}) for c in cells]
    (tmp_path / "a.json").write_text(result(cells).to_json())
    code, out, err = call("speed", "--compare", "a.json", "--dry-run", "--json")
    found = json.loads(out)
    assert code == 0, err
    assert found["lengths"] == [64, 128] and found["mechanisms"]["local"]["block_size"] == 32
    assert found["setting"] == result(cells).setting.model_dump()
    code, _, err = call("speed", "--compare", "a.json", "-m", "hst")
    assert code == 2 and "has no hst" in err


def benchmark_file(path: Path, **fact: Any) -> None:
    """As pytest-benchmark writes it, of one cell."""
    facts = {
        "setting": {"dim": 16, "heads": 2, "threads": 1},
        "cell": cell("dense", 64).model_dump() | {"status": "ok", "flops": 5},
        "machine": {"id": "cafe"}, "software": {}, "code": {"commit": "abc"}, **fact,
    }  # fmt: skip
    one = {"name": "x", "extra_info": {"attnbench": facts}, "stats": {"data": [0.1, 0.2, 0.4], "iterations": 7}}
    other = {"name": "y", "extra_info": {}, "stats": {"data": [1.0], "iterations": 1}}
    path.write_text(json.dumps({"benchmarks": [one, other], "datetime": "then"}))


def test_a_file_of_pytest_benchmark_is_read_stored_and_compared(call: Call, tmp_path: Path) -> None:
    benchmark_file(tmp_path / "b.json")
    code, out, err = call("speed", "--from", "b.json", "--to", "r.json")
    assert code == 0, err
    found = read(tmp_path / "r.json")
    assert [sample.seconds for sample in found.cells[0].samples] == [0.1, 0.2, 0.4]
    assert found.cells[0].calls == 7 and not found.interleaved and "one cell after the other" in out
    code, out, _ = call("speed", "--compare", "b.json", "r.json")
    assert code == 0 and "cells were not interleaved" in out and "commits abc and abc" in out
    code, _, err = call("speed", "--compare", "b.json")
    assert code == 2 and "comes from pytest-benchmark" in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"benchmarks": []}', "holds no cell of attnbench speed"),
        ('{"benchmarks": [{"extra_info": {"attnbench": 1}}]}', "not a JSON file of pytest-benchmark"),
        ('{"benchmarks": [3]}', "not a JSON file of pytest-benchmark"),
        ('{"benchmarks": [{"extra_info": {"attnbench": {"setting": {"dim": 0}}}}]}', "setting|dim: Input"),
        ("{", "cut off"),
    ],
)
def test_a_damaged_file_of_benchmarks_is_one_line(text: str, words: str, call: Call, tmp_path: Path) -> None:
    import re

    (tmp_path / "b.json").write_text(text)
    code, _, err = call("speed", "--from", "b.json")
    assert code == 2 and err.startswith("error: b.json: ") and re.search(words, err) and err.count("\n") == 1
