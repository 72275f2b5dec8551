"""`diff`, `reproduce` and `merge`: records compared, run again, and taken in from elsewhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., tuple[int, str, str]]
SMALL = [
    word
    for pair in (
        "task.train=60", "task.validation=20", "task.test=20", "model.dim=8", "model.layers=1", "budget.steps=4",
        "budget.batch=4", "budget.eval_every=2",
    )
    for word in ("--set", pair)
]  # fmt: skip


@pytest.fixture(autouse=True)
def results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_RESULTS", "results")


@pytest.fixture
def run(call: Call) -> Callable[..., dict[str, Any]]:
    def one(*more: str, mechanism: str = "local", results: str = "results") -> dict[str, Any]:
        code, out, err = call("run", "-m", mechanism, "-t", "recall", *SMALL, "--results", results, "--json", *more)
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    return one


Runner = Callable[..., dict[str, Any]]


def test_a_run_is_found_again_to_the_last_bit(call: Call, run: Runner) -> None:
    cell = ("--regularizer", "sar", "--set", "sar.shift=1..3", "--set", "block_size=8", "--seed", "3")
    made = run(*cell, "--set", "model.dropout=0.1")
    code, out, _ = call("reproduce", made["id"][:-3], "--json")
    found = json.loads(out)
    assert (code, found["equal"], found["answer"]) == (0, True, [])
    again = json.loads(Path(found["again"]).read_text("utf-8"))
    assert again["spec"] == made["spec"] and again["seed"] == 3 and again["id"] != made["id"]
    assert again["command"].startswith("attnbench reproduce ")
    assert call("reproduce", made["path"])[1].startswith("equal: score ")


@pytest.mark.parametrize("changed", ["predictions", "curve", "test"])
def test_a_record_that_tells_another_story_is_not_equal(call: Call, run: Runner, changed: str) -> None:
    made = run()
    path = Path(made["path"])
    told = json.loads(path.read_text("utf-8"))
    if changed == "predictions":
        told["predictions_sha"] = "0" * 64
    elif changed == "curve":
        told["curve"][0]["loss"] += 1e-12
    else:
        told["quality"]["test"] = 0.999
    path.write_text(json.dumps(told), "utf-8")
    code, out, _ = call("reproduce", made["id"])
    assert code == 1 and {"predictions": "predictions", "curve": "curve.0.loss", "test": "quality.test"}[changed] in out


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"status": "timeout", "quality": None, "reason": "x"}, "ended as timeout"),
        ({"code": {"origin": {"mechanism": "file mine.py"}}}, "mechanism local came from the file mine.py"),
    ],
)
def test_what_cannot_be_run_again_is_one_line(call: Call, run: Runner, fields: dict[str, Any], said: str) -> None:
    path = Path(run()["path"])
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | fields), "utf-8")
    code, out, err = call("reproduce", str(path))
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1


def test_a_plugin_of_the_users_is_run_again_from_the_file_that_is_named(call: Call, run: Runner) -> None:
    assert call("new", "mechanism", "mine")[0] == 0
    made = run(mechanism="./mine.py")
    code, _, err = call("reproduce", made["id"])
    assert code == 2 and "--mechanism" in err
    assert call("reproduce", made["id"], "-m", "./mine.py")[0] == 0


def test_diff_tells_question_answer_and_circumstances_apart(call: Call, run: Runner) -> None:
    first, second = run("--set", "block_size=8"), run("--set", "block_size=16", "--seed", "1")
    found = json.loads(call("diff", first["id"], second["id"], "--json")[1])
    assert ["spec", "hash"] not in found["question"]
    assert {name for name, _, _ in found["question"]} == {"mechanism.options.block_size", "seed"}
    assert {name.partition(".")[0] for name, _, _ in found["answer"]} <= {"quality", "curve", "predictions", "status"}
    assert found["answer"] and found["circumstances"] == []
    out = call("diff", first["id"], second["path"])[1]
    assert out.index("question") < out.index("block_size") < out.index("answer") < out.index("circumstances: equal")
    assert call("diff", first["id"], first["id"])[1].splitlines() == [
        "question: equal", "answer: equal", "circumstances: equal",
    ]  # fmt: skip


def test_a_name_that_fits_none_or_several_is_one_line(call: Call, run: Runner) -> None:
    ids = [run()["id"] for _ in range(2)]
    for reference, said in (("nothing", "no record"), (ids[0][:4], "2 records whose id begins with")):
        code, out, err = call("diff", reference, ids[1])
        assert (code, out) == (2, "") and said in err and err.count("\n") == 1


def test_records_of_another_machine_are_taken_in_once_and_nothing_else_changes(call: Call, run: Runner) -> None:
    here, there = run(), run(results="other")
    same = Path("results", Path(there["path"]).relative_to("other")).parent / f"{here['id']}.json"
    before = same.read_bytes()
    code, out, _ = call("merge", "other")
    assert (code, out) == (0, "1 records taken, 0 here already, 0 not taken\n")
    assert call("merge", "other")[1] == "0 records taken, 1 here already, 0 not taken\n"
    assert same.read_bytes() == before
    taken = Path("results", Path(there["path"]).relative_to("other"))
    for suffix in (".json", ".predictions.npz"):
        a, b = (path.with_name(path.stem + suffix) for path in (taken, Path(there["path"])))
        assert a.read_bytes() == b.read_bytes()
    assert len(json.loads(call("list", "runs", "--json")[1])) == 2


def test_what_is_damaged_there_is_named_and_the_rest_is_taken(call: Call, run: Runner) -> None:
    run()
    good, cut, torn, changed = (run("--seed", str(seed), results="other") for seed in range(4))
    Path(cut["path"]).write_text("{", "utf-8")
    predictions = Path(torn["path"]).with_name(torn["predictions"])
    predictions.write_bytes(predictions.read_bytes()[:-9])
    assert call("merge", "other")[0] == 1
    shutil.rmtree("results")
    code, out, err = call("merge", "other", "--json")
    assert code == 1 and len(json.loads(out)["taken"]) == 2
    assert cut["id"] in err and torn["id"] in err and good["id"] not in err and err.count("\n") == 2
    told = json.loads(Path(changed["path"]).read_text("utf-8"))
    Path(changed["path"]).write_text(json.dumps(told | {"started": "2020-01-01T00:00:00.0Z"}), "utf-8")
    code, out, err = call("merge", "other")
    assert code == 1 and "differs from the record of that id here" in err and "1 here already, 3 not taken" in out


def test_merging_a_folder_that_is_not_there_is_one_line(call: Call) -> None:
    assert call("merge", "nowhere") == (2, "", "error: nowhere: no such folder\n")
