"""What is stored, read again, and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from speed.speed_data import cell, result, samples

from attnbench.errors import AttnbenchError
from attnbench.speed.result import SpeedResult, from_json, read, read_all, write
from attnbench.store import Store


def some() -> SpeedResult:
    return result([cell("dense", 256, samples(0.1, noise=0.1)), cell("dense", 512)], samples(0.2))


def test_a_result_comes_back_as_it_was_and_is_stored_once(tmp_path: Path) -> None:
    path = write(some(), tmp_path)
    assert path == tmp_path / "speed" / "cafe-cpu-t1-fwdbwd-b1-c256-h4-fp32-fast" / "20261130T120000Z-beef.json"
    assert read(path) == some()
    assert read(path).to_json() == path.read_text()
    before = path.read_bytes()
    with pytest.raises(AttnbenchError, match="exists already"):
        write(some(), tmp_path)
    assert path.read_bytes() == before


def test_results_of_speed_and_records_of_runs_do_not_meet(tmp_path: Path) -> None:
    write(some(), tmp_path)
    assert Store(tmp_path).read_all() == ([], [])
    assert [one for _, one in read_all(tmp_path)[0]] == [some()]


def test_there_may_be_no_results(tmp_path: Path) -> None:
    assert read_all(tmp_path / "nowhere") == ([], [])


def _changed(change: Callable[[dict[str, object]], object]) -> bytes:
    data = json.loads(some().to_json())
    change(data)
    return json.dumps(data).encode()


DAMAGED = {
    "cut off": (some().to_json().encode()[:200], "cut off"),
    "empty": (b"", "cut off"),
    "not json": (b"\x89PNG", "cut off"),
    "deep": (b"[" * 100_000, "cut off"),
    "a list": (b"[]", "not a result of attnbench speed"),
    "a record": (b'{"schema": 1, "kind": "train"}', "not a result of attnbench speed"),
    "newer": (_changed(lambda data: data.update(schema=99)), "schema 99"),
    "no schema": (_changed(lambda data: data.pop("schema")), "schema None"),
    "unknown field": (_changed(lambda data: data.update(more=1)), "more"),
    "no cells": (_changed(lambda data: data.pop("cells")), "cells"),
    "negative time": (
        _changed(lambda data: data["cells"][0]["samples"][0].update(seconds=-1)),  # type: ignore[index]
        "cells.0.samples.0.seconds",
    ),
    "a length of a thousand digits": (
        _changed(lambda data: data["cells"][0].update(length=10**1000)),  # type: ignore[index]
        "cells.0.length",
    ),
    "infinite time": (
        some().to_json().replace('"seconds": 0.', '"seconds": 1e999, "x": 0.', 1).encode(),
        "JSON|finite",
    ),
    "ok without samples": (_changed(lambda data: data["cells"][0].update(samples=[])), "ok without a sample"),  # type: ignore[index]
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named_with_what_is_wrong(name: str, tmp_path: Path) -> None:
    content, words = DAMAGED[name]
    with pytest.raises(AttnbenchError, match=words) as caught:
        from_json(content, "there.json")
    assert str(caught.value).startswith("there.json: ") and "\n" not in str(caught.value)


def test_damaged_files_hide_no_others(tmp_path: Path) -> None:
    good = write(some(), tmp_path)
    (tmp_path / "speed" / "a.json").write_bytes(b"{")
    copy = good.with_name("copy.json")
    copy.write_bytes(good.read_bytes())
    (tmp_path / "speed" / "notes.txt").write_text("not looked at")
    (tmp_path / "speed" / "folder.json").mkdir()
    found, problems = read_all(tmp_path)
    assert [path for path, _ in found] == [good]
    assert [problem.partition(": ")[0] for problem in problems] == [str(tmp_path / "speed" / "a.json"), str(copy)]
