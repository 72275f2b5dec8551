"""`attnbench compare`: two mechanisms, or two results folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import make_quality, make_record

from attnbench.comparison import OVER_SEEDS, TWO_MODELS
from attnbench.store import Store

Call = Callable[..., tuple[int, str, str]]
SIZE = 100


def add(
    label: str, share: float, *, seeds: int = 3, folder: str = "results", first_unit: int = 0, **changes: Any
) -> None:
    mechanism, *regularizers = label.split("+")
    for seed in range(seeds):
        right = np.arange(SIZE) < round(share * SIZE)
        scores = np.random.default_rng([seed, *label.encode()]).permutation(right).astype(np.float64)
        record = make_record(
            label=label, seed=seed, quality=make_quality(share),
            **{"mechanism": mechanism, "regularizers": tuple(regularizers)} | changes,
        )  # fmt: skip
        Store(Path(folder)).write(record, {"unit": np.arange(SIZE) + first_unit, "score": scores})


@pytest.fixture(autouse=True)
def _own_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTNBENCH_RESULTS", raising=False)


@pytest.fixture
def call_there(call: Call) -> Call:
    """In a folder with four mechanisms of two tasks."""
    for task in ("digits", "recall"):
        add("dense", 0.9, task=task)
        add("local", 0.4, task=task)
    add("ernie_sparse", 0.85)
    add("bigbird+sar", 0.6, seeds=1)
    return call


def rows(call: Call, *words: str) -> list[dict[str, Any]]:
    code, out, err = call("compare", *words, "--json")
    assert (code, err) == (0, ""), err
    found: list[dict[str, Any]] = json.loads(out)
    return found


def refused(call: Call, *words: str) -> str:
    code, out, err = call("compare", *words)
    assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1
    return err.removeprefix("error: ").rstrip()


def test_two_mechanisms_task_by_task(call_there: Call) -> None:
    code, out, err = call_there("compare", "dense", "local")
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert " ".join(head.split()) == ("protocol task A B A - B 95 % interval p adjusted seeds examples what shows")
    assert [line.split()[:5] for line in lines] == [
        ["quick@1", "digits", "dense", "local", "+0.5000"],
        ["quick@1", "recall", "dense", "local", "+0.5000"],
    ]
    assert all(" ".join(line.split()).endswith(f" 3 100 A ahead ({OVER_SEEDS})") for line in lines)


def test_the_same_as_json_and_turned(call_there: Call) -> None:
    one_way, other = rows(call_there, "dense", "local"), rows(call_there, "local", "dense")
    assert [row["task"] for row in one_way] == ["digits", "recall"]
    for row, turned in zip(one_way, other, strict=True):
        assert (row["protocol"], row["version"], row["changes"], row["tuning"]) == ("quick", 1, "", "")
        assert (row["first"], row["second"], row["seeds"], row["examples"]) == ("dense", "local", 3, SIZE)
        assert (turned["first"], turned["second"]) == ("local", "dense")
        assert [-turned["mean"], -turned["high"], -turned["low"]] == [row["mean"], row["low"], row["high"]]
        assert 0 < row["low"] < row["mean"] < row["high"] and row["mean"] == pytest.approx(0.5)
        assert turned["p"] == row["p"] <= row["adjusted"] < 0.05
    assert "B ahead" in call_there("compare", "local", "dense")[1]


@pytest.mark.parametrize(
    ("names", "seeds", "scope", "shows"),
    [
        (("dense", "ernie_sparse"), "3", OVER_SEEDS, "no difference shows"),
        (("bigbird+sar", "dense"), "1", TWO_MODELS, "B ahead"),
    ],
)
def test_labels_of_cells(call_there: Call, names: tuple[str, str], seeds: str, scope: str, shows: str) -> None:
    code, out, _ = call_there("compare", *names)
    _, line = out.splitlines()
    assert code == 0 and line.split()[2:4] == list(names)
    assert " ".join(line.split()).endswith(f" {seeds} 100 {shows} ({scope})")


def test_rows_of_one_label_with_other_options(call: Call) -> None:
    add("dense", 0.9)
    add("local", 0.8, options={"window": 8})
    add("local", 0.3, options={"window": 16})
    wide, narrow = "local (mechanism.window=16)", "local (mechanism.window=8)"
    pairs = {(row["first"], row["second"]) for row in rows(call, "dense", "local")}
    assert pairs == {("dense", wide), ("dense", narrow)}
    for names in ((wide, narrow), ("local", narrow), (wide, "local")):
        assert [(row["first"], row["second"]) for row in rows(call, *names)] == [(wide, narrow)]
    assert len(rows(call, "local", "local")) == 1


def test_protocols_that_the_user_changed_are_told_apart(call: Call) -> None:
    for changes in ({}, {"budget.steps": 9}):
        add("dense", 0.9, protocol_changes=changes)
        add("local", 0.3, protocol_changes=changes)
    assert {row["changes"] for row in rows(call, "dense", "local")} == {"budget.steps=9", ""}
    lines = call("compare", "dense", "local")[1].splitlines()[1:]
    assert {line.split("  ")[0] for line in lines} == {"quick@1", "quick@1 (budget.steps=9)"}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("dense", "dense"), "dense is one row; name two mechanisms, two rows of the report, or two results folders"),
        (("dense", "lcal"), "unknown mechanism in results: 'lcal'; did you mean local?"),
        (("bigbird", "dense"), "unknown mechanism in results: 'bigbird'; did you mean bigbird+sar?"),
        (("dense", "zzz"), "known: bigbird+sar, dense, ernie_sparse, local"),
        (("dense", "empty"), "empty is a folder; name two results folders, each with runs/ in it, or two mechanisms"),
        (("results", "dense"), "results is a folder; name two results folders, each"),
        (("results", "./results"), "results and results are the same folder"),
        (("dense", "local", "--results", "none"), "none: no such folder; run something first"),
        (("dense", "local", "--results", "empty"), "unknown mechanism in empty: 'dense'; there are none"),
    ],
)
def test_what_cannot_be_compared_is_one_line(call_there: Call, names: tuple[str, ...], message: str) -> None:
    Path("empty").mkdir()
    assert message in refused(call_there, *names)


def test_rows_that_share_nothing_or_are_stale(call: Call) -> None:
    add("dense", 0.9)
    add("local", 0.9, task="digits")
    add("hst", 0.9, mechanism_sha="00" * 32, started="2025-01-01T00:00:00Z")
    add("hst", 0.9, task="digits", mechanism_sha="11" * 32)
    assert refused(call, "dense", "local") == (
        "results: no task on which dense and local have scores of the same seed under one protocol; "
        "attnbench report shows what there is"
    )
    assert "no task on which dense and hst have scores" in refused(call, "dense", "hst")
    add("sliding", 0.9, task_sha="00" * 32, started="2025-01-01T00:00:00Z")
    assert refused(call, "dense", "sliding") == (
        "sliding in results is stale: of older code or data than the newest run; run it again"
    )


def test_runs_without_scores_are_noted(call: Call) -> None:
    add("dense", 0.9)
    Store(Path("results")).write(make_record(label="local", mechanism="local"))
    code, out, err = call("compare", "dense", "local")
    note, error = err.splitlines()
    assert code == 2 and out == "" and note.startswith("note: the run ") and "without scores of single" in note
    assert error.startswith("error: results: no task on which")


# --- two folders ------------------------------------------------------------------------------------------------


def test_two_folders(call: Call) -> None:
    """Before and after a change of a mechanism: other sources, same data. Holm over the rows of a task."""
    for folder, sha, shares in (("before", "00", (0.9, 0.5)), ("after", "11", (0.3, 0.5))):
        for label, share in zip(("dense", "local"), shares, strict=True):
            add(label, share, folder=folder, mechanism_sha=sha * 32)
    add("hst", 0.5, folder="before")
    dense, local = rows(call, "before", "after/")
    assert (dense["first"], dense["second"]) == ("dense in before", "dense in after")
    assert (
        dense["mean"] == pytest.approx(0.6) and dense["adjusted"] == pytest.approx(2 * dense["p"]) and dense["low"] > 0
    )
    assert (local["first"], local["mean"], local["p"]) == ("local in before", 0.0, 1.0)
    assert "A ahead" in call("compare", "before", "after")[1]


@pytest.mark.parametrize("changes", [{"data_key": "d1" * 32}, {"protocol": "lra-2021"}, {"protocol_version": 2}])
def test_folders_with_other_data_or_rules_are_not_compared(call: Call, changes: dict[str, Any]) -> None:
    add("dense", 0.9, folder="before")
    add("dense", 0.9, folder="after", **changes)
    assert refused(call, "before", "after") == (
        "before and after share no protocol, mechanism and data with scores of the same seed; "
        "attnbench report shows what there is"
    )


def test_tasks_of_two_folders_are_matched_by_their_data(call: Call) -> None:
    """One folder has a task with two settings, which its titles tell apart; the other with one, which needs no name."""
    for pairs, key in ((4, "44"), (8, "88")):
        add("dense", 0.9, folder="before", task_options={"pairs": pairs}, data_key=key * 32)
    add("dense", 0.5, folder="after", task_options={"pairs": 8}, data_key="88" * 32)
    (row,) = rows(call, "before", "after")
    assert row["task"] == "recall (pairs=8)" and row["mean"] == pytest.approx(0.4)
    assert rows(call, "after", "before")[0]["task"] == "recall"


def test_other_examples_in_the_other_folder_are_noted(call: Call) -> None:
    add("dense", 0.9, seeds=1, folder="before")
    add("dense", 0.9, seeds=1, folder="after", first_unit=1)
    code, _, err = call("compare", "before", "after")
    note, error = err.splitlines()
    assert (
        code == 2
        and note == "note: recall: dense in after, seed 0, was tested on other examples: no differences with it"
    )
    assert "share no" in error
