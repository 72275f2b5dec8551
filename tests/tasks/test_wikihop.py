"""WikiHop: marks stand for candidates, documents are cut evenly, mentions are counted; bad files named."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import qa_files
from attnbench.tasks import wikihop
from attnbench.tasks._subwords import CANDIDATE, QUESTION, SEPARATOR
from hypothesis import given
from hypothesis import strategies as st
from qa_files import change, decoded, options, prepared, refusal, rows

from attnbench import data, registry

SMALL = {"vocab_size": 300, "max_length": 300}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return qa_files.hop(tmp_path / "wikihop")


@pytest.fixture
def sample(tmp_path: Path, test_data: Path) -> Path:
    for name in ("train", "dev"):
        shutil.copyfile(test_data / "qa_samples" / "qangaroo.json", tmp_path / f"{name}.json")
    return tmp_path


def published(tree: Path, part: str) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in json.loads((tree / f"{part}.json").read_text("utf-8"))}


def test_every_question_is_stored_once_with_its_candidates(tree: Path) -> None:
    found = prepared("wikihop", tree, **SMALL)
    known = published(tree, "train") | published(tree, "dev")
    stored = {split: {row["id"]: row for row in rows(found, split)} for split in ("train", "validation", "test")}
    assert stored["test"].keys() == published(tree, "dev").keys()
    assert [len(found) for found in stored.values()] == [22, 2, 6]
    assert stored["train"].keys() | stored["validation"].keys() == published(tree, "train").keys()
    for one in (row for split in stored.values() for row in split.values()):
        original = known[one["id"]]
        text = "[Q]" + original["query"] + "".join(f"[CAND]{c}" for c in original["candidates"])
        assert decoded(found, one["tokens"]) == text + "".join(f"[SEP]{support}" for support in original["supports"])
        assert original["candidates"][one["label"]] == original["answer"]
        assert one["marks"] == np.flatnonzero(np.array(one["tokens"]) == CANDIDATE).tolist()
        assert one["tokens"][0] == QUESTION


def test_the_sample(sample: Path) -> None:
    found = prepared("wikihop", sample, vocab_size=1000, max_length=4096)
    facts = found.card["facts"]
    assert facts["questions"] == {"train": 1, "validation": 1, "test": 2}
    assert facts["duplicates"] == {"in_train": 0, "in_test": 0, "of_test_also_in_train": 2}
    assert found.card["chance"] == pytest.approx((1 / 18 + 1 / 4) / 2)
    assert found.card["trivial"].keys() == {"majority", "most_mentioned", "first_candidate"}
    for row in rows(found, "test"):
        one = published(sample, "dev")[row["id"]]
        text = "\n".join(one["supports"]).lower()
        assert row["mentions"] == [len(re.findall(rf"(?<!\w){re.escape(c)}(?!\w)", text)) for c in one["candidates"]]


def test_the_hub_has_the_same_set(tree: Path, tmp_path: Path) -> None:
    read = prepared("wikihop", tree, **SMALL)
    hub = qa_files.hop_on_the_hub(tree, tmp_path / "hub")
    shutil.rmtree(read.folder)
    assert prepared("wikihop", hub, **SMALL).card["sha256"] == read.card["sha256"]


def test_masked_names_are_another_release(tree: Path) -> None:
    assert "train.masked.json" in refusal("wikihop", tree, masked=True, **SMALL)
    qa_files.hop(tree, questions=12, kind=".masked")
    assert len(prepared("wikihop", tree, masked=True, **SMALL).splits["train"]) == 11
    assert len(prepared("wikihop", tree, **SMALL).splits["train"]) == 22


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 120))
def test_even_shares_are_those_of_filling_one_by_one(lengths: list[int], room: int) -> None:
    """One subword more for each that is not whole, in turn, until nothing is left; who gets the last few may differ."""
    expected, left = [0] * len(lengths), room
    while left and expected != lengths:
        for index in range(len(lengths)):
            if expected[index] < lengths[index] and left:
                expected[index] += 1
                left -= 1
    found = wikihop.even_shares(np.array(lengths), room)
    assert found.sum() == sum(expected) and (found <= lengths).all()
    assert np.abs(found - expected).max() <= 1


@pytest.mark.parametrize("cut", ["even", "end"])
def test_documents_that_are_too_long_are_cut_and_told(tree: Path, cut: str) -> None:
    whole = {row["id"]: row for row in rows(prepared("wikihop", tree, vocab_size=300), "test")}
    found = prepared("wikihop", tree, vocab_size=300, max_length=100, cut=cut)
    kept = lost = 0
    for row in rows(found, "test"):
        long, short = np.array(whole[row["id"]]["tokens"]), np.array(row["tokens"])
        assert len(short) == min(100, len(long)) and row["marks"] == whole[row["id"]]["marks"]
        if cut == "end":
            np.testing.assert_array_equal(short, long[:100])
        documents, before = (np.split(one, np.flatnonzero(one == SEPARATOR))[1:] for one in (short, long))
        for one, other in zip(documents, before, strict=False):
            np.testing.assert_array_equal(one, other[: len(one)])
        if cut == "even":
            sizes = [len(one) for one, other in zip(documents, before, strict=True) if len(one) < len(other)]
            assert len(documents) == 3 and max(sizes) - min(sizes) <= 1
        kept += sum(len(one) - 1 for one in documents)
        lost += sum(len(one) - 1 for one in before)
    assert found.card["facts"]["share_of_documents_cut"]["test"] == pytest.approx(1 - kept / lost, abs=1e-4)
    assert found.card["facts"]["share_of_examples_cut"]["test"] == 1
    assert any("cut from documents that are too long together" in note for note in found.card["notes"])


def test_a_question_without_room_is_refused(tree: Path) -> None:
    assert re.search(
        r"item 1: the question, 4 candidates and marks alone are longer than max_length=20; it is at least \d\d$",
        refusal("wikihop", tree, vocab_size=300, max_length=20),
    )
    assert prepared("wikihop", tree, vocab_size=300, max_length=60).card["facts"]["share_of_documents_cut"]["test"] > 0


@pytest.mark.parametrize(
    ("candidate", "count"), [("rome", 4), ("new york", 2), ("york", 3), ("a a", 1), ("ro", 0), ("!", 0), ("o'neill", 1)]
)
def test_mentions_are_whole_words_in_any_case(candidate: str, count: int) -> None:
    supports = ["Rome, ROME rome. Romeo! New York new-york", "rome York. A a a", "O'Neill"]
    assert wikihop.mentions(wikihop.Hop("x", "x", "x", [candidate, "x"], supports, 0, 0)) == [count, 0]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("answer", "nobody", "the answer 'nobody' is none of the"),
        ("answer", None, "no 'answer', found"),
        ("candidates", ["a"], "1 candidates; a choice needs two"),
        ("candidates", [], "0 candidates; a choice needs two"),
        ("candidates", ["a", "b", "a"], "the candidate 'a' stands there twice"),
        ("candidates", ["a", ""], "'candidates', number 2 is empty"),
        ("candidates", "a", "'candidates' is text, expected a list"),
        ("supports", [], "no supports"),
        ("supports", ["", " "], "no supports"),
        ("supports", None, "no 'supports', found"),
        ("supports", [None, "x"], "'supports', number 1 is nothing, expected text"),
        ("query", "", "'query' is empty"),
        ("id", 5, "'id' is a whole number, expected text"),
    ],
)
def test_a_bad_record_is_refused_with_its_place(tree: Path, name: str, value: Any, message: str) -> None:
    change(tree / "dev.json", 4, name, to=value)
    found = refusal("wikihop", tree, **SMALL)
    assert f"{tree / 'dev.json'}, item 5: {message}" in found


def test_documents_without_text_are_counted(tree: Path) -> None:
    supports = published(tree, "dev")["WH_dev_4"]["supports"]
    change(tree / "dev.json", 4, "supports", to=["", *supports, " "])
    found = prepared("wikihop", tree, **SMALL)
    assert found.card["facts"]["documents_without_text"]["test"] == 2


def test_a_bad_parquet_row_is_refused(tree: Path, tmp_path: Path) -> None:
    hub = qa_files.hop_on_the_hub(tree, tmp_path / "hub") / "wikihop" / "validation-00001-of-00002.parquet"
    plain = datasets.Dataset.from_parquet(str(hub), cache_dir=str(tmp_path / "fetched"))
    found = plain.to_list()
    found[2]["answer"] = "nobody"
    datasets.Dataset.from_list(found, features=plain.features).to_parquet(hub)
    assert f"{hub}, row 3: the answer 'nobody' is none of" in refusal("wikihop", tmp_path / "hub", **SMALL)


def test_trivial_levels_are_those_of_a_loop(tree: Path) -> None:
    found = prepared("wikihop", tree, **SMALL)
    right = first = 0
    for one in published(tree, "dev").values():
        text = " ".join(one["supports"]).lower()
        counts = [text.count(candidate) for candidate in one["candidates"]]
        right += one["candidates"][counts.index(max(counts))] == one["answer"]
        first += one["candidates"][0] == one["answer"]
    assert (
        found.card["trivial"]["most_mentioned"] == right / 6 and found.card["trivial"]["first_candidate"] == first / 6
    )


CHANGED = {
    "max_length": 90, "max_question": 3, "examples": 5, "test_examples": 2, "vocab_size": 280, "data_seed": 3,
    "masked": True, "cut": "end", "max_candidate": 1,
}  # fmt: skip


def test_every_option_changes_the_key_and_what_is_stored(tree: Path) -> None:
    plugin, tight = registry.load("tasks", "wikihop"), {**SMALL, "max_length": 100}
    assert set(CHANGED) == {field.name for field in dataclasses.fields(plugin.object.options)} - {"tokenizer"}
    qa_files.hop(tree, kind=".masked", documents=4)
    made = {"": tight} | {name: {**tight, name: value} for name, value in CHANGED.items()}
    keys = {data.data_key(plugin, options("wikihop", **values)) for values in made.values()}
    hashes = {prepared("wikihop", tree, **values).card["sha256"] for values in made.values()}
    assert len(keys) == len(hashes) == len(made)
