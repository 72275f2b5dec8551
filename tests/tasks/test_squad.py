"""SQuAD: what stands in the files is what is stored, by every way; who is held out; bad files named."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import qa_files
from attnbench.tasks import squad
from attnbench.tasks._qa import sources
from qa_files import change, decoded, options, prepared, refusal, rows

from attnbench import data, registry
from attnbench.errors import AttnbenchError
from attnbench.metrics import best_match
from attnbench.questions import question_of

SMALL = {"vocab_size": 300, "max_length": 120, "max_question": 20, "overlap": 20}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return qa_files.squad(tmp_path / "squad")


@pytest.fixture
def excerpt(tmp_path: Path, test_data: Path) -> Path:
    """The excerpt as the train file and as the dev file."""
    for name in ("train", "dev"):
        shutil.copyfile(test_data / "qa_samples" / "squad.json", tmp_path / f"{name}-v1.1.json")
    return tmp_path


def published(tree: Path, part: str) -> dict[str, tuple[str, str, str, list[str]]]:
    """By id: title, context, question, answers."""
    return {
        qa["id"]: (article["title"], one["context"], qa["question"], [answer["text"] for answer in qa["answers"]])
        for article in json.loads((tree / f"{part}-v1.1.json").read_text("utf-8"))["data"]
        for one in article["paragraphs"]
        for qa in one["qas"]
    }


def test_every_question_is_stored_once_with_its_answer(tree: Path) -> None:
    found = prepared("squad", tree, **SMALL)
    stored = {split: {row["id"]: row for row in rows(found, split)} for split in ("train", "validation", "test")}
    train, test = published(tree, "train"), published(tree, "dev")
    assert stored["test"].keys() == test.keys()
    assert stored["train"].keys() | stored["validation"].keys() == train.keys()
    assert not stored["train"].keys() & stored["validation"].keys()
    for split, known in {"train": train, "validation": train, "test": test}.items():
        for id_, row in stored[split].items():
            _, context, question, answers = known[id_]
            assert (row["context"], row["asked"], row["answers"]) == (context, question, answers)
            assert decoded(found, row["tokens"]) == f"[NONE]{question}[SEP]{context}"
            offsets = np.array(row["offsets"]).reshape(-1, 2)
            (span,) = np.array(row["spans"]).reshape(-1, 2)
            assert context[offsets[span[0], 0] : offsets[span[1], 1]] == answers[0]


def test_no_article_is_in_two_splits(tree: Path) -> None:
    found = prepared("squad", tree, **SMALL)
    titles = {id_: title for id_, (title, *_) in published(tree, "train").items()}
    of_split = [{titles[row["id"]] for row in rows(found, split)} for split in ("train", "validation")]
    assert [len(found) for found in of_split] == [11, 1] and not of_split[0] & of_split[1]
    again = prepared("squad", tree, data_seed=1, **SMALL)
    assert {titles[row["id"]] for row in rows(again, "validation")} != of_split[1]
    parts = prepared("squad", tree, held_out="paragraphs", **SMALL)
    contexts = [{row["context"] for row in rows(parts, split)} for split in ("train", "validation")]
    assert len(contexts[1]) == 3 and not contexts[0] & contexts[1]


def test_the_hub_has_the_same_set(tree: Path, tmp_path: Path) -> None:
    read = prepared("squad", tree, **SMALL)
    hub = qa_files.squad_on_the_hub(tree, tmp_path / "hub")
    stored = {split: rows(read, split) for split in ("train", "validation", "test")}
    shutil.rmtree(read.folder)
    of_hub = prepared("squad", hub, **SMALL)
    assert {split: rows(of_hub, split) for split in stored} == stored
    assert of_hub.card["sha256"] == read.card["sha256"]


def test_a_download_gives_the_same_set(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = qa_files.squad_on_the_hub(tree, tmp_path / "hub") / "plain_text"
    read = prepared("squad", tree, **SMALL)

    def fetch(repo: str, config: str) -> Any:
        assert (repo, config) == ("rajpurkar/squad", "plain_text")
        files = {split: sorted(map(str, hub.glob(f"{split}-*"))) for split in ("train", "validation")}
        return datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "fetched"))

    shutil.rmtree(read.folder)
    load = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: load(*a, **k) if a[0] == "parquet" else fetch(*a))
    assert prepared("squad", None, download=True, **SMALL).card["sha256"] == read.card["sha256"]


def test_without_data_it_is_said_where_they_are() -> None:
    with pytest.raises(
        AttnbenchError, match=r"squad: not read in yet; get train-v1\.1\.json .*attnbench data prepare squad"
    ):
        prepared("squad", None)


def test_the_excerpt(excerpt: Path) -> None:
    """One of its answers is the whole paragraph: 30 subwords do not hold it."""
    found = prepared("squad", excerpt, held_out="paragraphs", vocab_size=400)
    facts = found.card["facts"]
    assert facts["questions"] == {"train": 3, "validation": 2, "test": 5} or facts["questions"]["train"] == 2
    assert facts["share_exactly_answerable"]["test"] == 1 and facts["places_that_are_too_long"]["test"] == 1
    assert facts["paragraphs_shared_with_training"] == {"validation": 0.0, "test": 0.5}
    assert found.card["chance"] == 0 and 0 < found.card["trivial"]["most_frequent_name"] < 1
    assert refusal("squad", excerpt) == "1 articles are too few for train, validation; give more data"
    single = excerpt / "train-v1.1.json"
    assert "2 paragraphs are too few for train, validation, test" in refusal("squad", single, held_out="paragraphs")


def test_one_file_alone_is_divided(tree: Path) -> None:
    found = prepared("squad", tree / "train-v1.1.json", **SMALL)
    titles = {id_: title for id_, (title, *_) in published(tree, "train").items()}
    of_split = [{titles[row["id"]] for row in rows(found, split)} for split in ("train", "validation", "test")]
    assert [len(found) for found in of_split] == [10, 1, 1] and len(set.union(*of_split)) == 12


def test_the_right_spans_score_as_the_script_says(tree: Path) -> None:
    """Whoever says the taught span gets 1, whoever says the last word gets what the script gives for it."""
    found = prepared("squad", tree, **SMALL)
    question = question_of(registry.load("tasks", "squad").object.head(options("squad", **SMALL)))
    split, stored = found.splits["test"], rows(found, "test")
    of_last = [len(row["offsets"]) // 2 - 1 for row in stored]
    for right in (True, False):
        first, last = ([row["spans"][side] if right else end for row, end in zip(stored, of_last, strict=True)]
                       for side in (0, 1))  # fmt: skip
        said = {"example": np.arange(len(stored)), "first": np.array(first), "last": np.array(last)}
        verdict = question.judge(split, said | {"margin": np.ones(len(stored))}, 0.0)
        expected = []
        for row, begin, end in zip(stored, first, last, strict=True):
            text = row["context"][row["offsets"][2 * begin] : row["offsets"][2 * end + 1]]
            expected.append(best_match(text, row["answers"], squad.normalise)[1])
        assert verdict.scores.tolist() == expected and (min(expected) == 1) is right


CHANGED = {
    "max_length": 200, "max_question": 10, "examples": 5, "test_examples": 2, "vocab_size": 280, "data_seed": 3,
    "overlap": 10, "max_windows": 1, "empty_windows": 0, "longest_answer": 1, "held_out": "paragraphs",
}  # fmt: skip


def test_every_option_changes_the_key(tmp_path: Path, tree: Path) -> None:
    """And most of them what is stored of this set."""
    plugin = registry.load("tasks", "squad")
    plain = prepared("squad", tree, **SMALL)
    assert set(CHANGED) == {field.name for field in dataclasses.fields(plugin.object.options)} - {"tokenizer"}
    tokenizer = {"tokenizer": str(plain.folder / "kept" / "tokenizer.json")}
    keys = {data.data_key(plugin, options("squad", **{**SMALL, name: value})) for name, value in CHANGED.items()}
    own = {name: value for name, value in SMALL.items() if name != "vocab_size"}
    keys.add(data.data_key(plugin, options("squad", **own, **tokenizer)))
    assert len(keys) == len(CHANGED) + 1 and data.data_key(plugin, options("squad", **SMALL)) not in keys
    assert prepared("squad", tree, **own, **tokenizer).card["sha256"] == plain.card["sha256"]
    few = prepared("squad", tree, **{**SMALL, "examples": 5, "test_examples": 2})
    assert few.card["facts"]["questions"] == {"train": 5, "validation": 2, "test": 2}
    message = "validation, in questions, has 6 rows, 7 are asked for"
    assert message in refusal("squad", tree, **{**SMALL, "test_examples": 7})


FAULTS: list[tuple[tuple[Any, ...], Any, str]] = [
    (("data", 0, "title"), None, "item 1: no 'title', found paragraphs"),
    (("data", 0, "paragraphs"), None, "item 1: no 'context', found title"),
    (("data", 0, "paragraphs"), 5, "item 1: 'paragraphs' is a whole number, expected a list"),
    (("data", 1, "paragraphs", 2, "context"), " ", "item 2, paragraphs 3: 'context' is empty"),
    (("data", 1, "paragraphs", 2, "context"), None, "item 2, paragraphs 3: no 'context', found qas"),
    (("data", 1, "paragraphs", 0, "qas", 1, "question"), "", "item 2, paragraphs 1, qas 2: 'question' is empty"),
    (("data", 1, "paragraphs", 0, "qas", 1, "id"), 3, "qas 2: 'id' is a whole number, expected text"),
    (("data", 1, "paragraphs", 0, "qas", 1, "answers"), [], "qas 2: no answer; in SQuAD 1.1 every question has one"),
    (("data", 1, "paragraphs", 0, "qas", 1, "answers", 0, "text"), "\0", "answers 1: 'text' has a NUL character at 0"),
    (("data", 1, "paragraphs", 0, "qas", 1, "answers", 0, "text"), "a\ud800", "'text' has half a surrogate pair"),
    (("data", 1, "paragraphs", 0, "qas", 1, "answers", 0, "answer_start"), "3", "'answer_start' is text, expected"),
    (("data", 1, "paragraphs", 0, "qas", 1, "answers", 0, "answer_start"), True, "'answer_start' is true or false"),
    (("data", 0), "x", "item 1: text, expected an object"),
    (("data",), [], "an empty list of data"),
    (("data",), None, "no list 'data' in it, found version"),
]  # fmt: skip


@pytest.mark.parametrize("keys_to_message", FAULTS, ids=lambda fault: fault[2][:40])
def test_a_bad_record_is_refused_with_its_place(tree: Path, keys_to_message: tuple[tuple[Any, ...], Any, str]) -> None:
    keys, value, message = keys_to_message
    path = tree / "train-v1.1.json"
    change(path, *keys, to=value)
    found = refusal("squad", tree, **SMALL)
    assert message in found and str(path) in found


def test_answers_that_stand_elsewhere(tree: Path) -> None:
    """Refused where they are many, as in a file whose places count bytes; left out and told where they are few."""
    path = tree / "train-v1.1.json"
    for number in range(2):
        change(path, "data", 0, "paragraphs", 0, "qas", number, "answers", 0, "answer_start", to=0)
    found = refusal("squad", tree, **SMALL)
    assert "question 0-0-0-0: an answer does not stand at its answer_start" in found and "1 more of 108" in found
    qa_files.squad(tree, articles=60)
    change(path, "data", 0, "paragraphs", 0, "qas", 0, "answers", 0, "answer_start", to=-5)
    made = prepared("squad", tree, **SMALL)
    assert any("1 of 396 answers do not stand where the file says" in note for note in made.card["notes"])
    shares = made.card["facts"]["share_without_answer_in_a_window"]
    assert max(shares.values()) > 0 == shares["test"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda tree: (tree / "dev-v1.1.json").unlink(), "dev-v1.1.json: no such file; complete the folder"),
        (lambda tree: shutil.rmtree(tree), "no such folder"),
        (lambda tree: [path.unlink() for path in tree.iterdir()], "neither train-v1.1.json nor parquet files"),
        (lambda tree: qa_files.squad(tree / "squad"), "two copies"),
        (lambda tree: qa_files.squad_on_the_hub(tree, tree), "two copies"),
        (lambda tree: (tree / "train-v1.1.json").write_bytes(b""), "train-v1.1.json: empty"),
        (lambda tree: (tree / "train-v1.1.json").write_bytes(b"<html>"), "a git-LFS pointer or a web page"),
        (lambda tree: (tree / "train-v1.1.json").write_bytes(b'{"data": [{"title": "x'), "cut short"),
    ],
)  # fmt: skip
def test_a_folder_that_does_not_hold_the_set(tree: Path, spoil: Any, message: str) -> None:
    spoil(tree)
    assert message in refusal("squad", tree, **SMALL)


def test_a_bad_parquet_row_is_refused(tree: Path, tmp_path: Path) -> None:
    hub = qa_files.squad_on_the_hub(tree, tmp_path / "hub") / "plain_text" / "train-00001-of-00002.parquet"
    plain = datasets.Dataset.from_parquet(str(hub), cache_dir=str(tmp_path / "fetched"))
    for name, value, message in [
        ("answers", {"text": ["x"], "answer_start": []}, "row 2, answers: 1 answers and 0 places"),
        ("answers", {"text": [], "answer_start": []}, "row 2: no answer; in SQuAD 1.1"),
        ("context", None, "row 2: 'context' is nothing, expected text"),
        ("question", "", "row 2: 'question' is empty"),
    ]:
        found = plain.to_list()
        found[1][name] = value
        datasets.Dataset.from_list(found, features=plain.features).to_parquet(hub)
        assert f"{hub}, {message}" in refusal("squad", tmp_path / "hub", **SMALL)
    plain.remove_columns("question").to_parquet(hub)
    assert "row 1: no 'question', found id" in refusal("squad", tmp_path / "hub", **SMALL)
    hub.write_bytes(hub.read_bytes()[:-20])
    assert "cut short, damaged or no parquet file" in refusal("squad", tmp_path / "hub", **SMALL)


def test_questions_that_occur_again_are_told(tree: Path) -> None:
    shutil.copyfile(tree / "train-v1.1.json", tree / "dev-v1.1.json")
    found = prepared("squad", tree, **SMALL)
    assert found.card["facts"]["duplicates"] == {"in_train": 0, "in_test": 0, "of_test_also_in_train": 72}
    assert found.card["facts"]["paragraphs_shared_with_training"]["test"] == pytest.approx(33 / 36, abs=1e-4)


def test_who_is_held_out_depends_on_content_alone(tree: Path) -> None:
    """The order of the articles in the file changes nothing."""
    before = {row["id"] for row in rows(prepared("squad", tree, **SMALL), "validation")}
    whole = json.loads((tree / "train-v1.1.json").read_text("utf-8"))
    change(tree / "train-v1.1.json", "data", to=whole["data"][::-1])
    shutil.rmtree(data.folder_of(registry.load("tasks", "squad"), options("squad", **SMALL)))
    assert {row["id"] for row in rows(prepared("squad", tree, **SMALL), "validation")} == before


def test_a_tenth_of_the_units_is_held_out() -> None:
    units = np.random.default_rng(0).integers(0, 2**63, (95, 2)).astype(np.uint64)
    found = sources._carved("articles", np.repeat(units, 3, axis=0), ("validation", "test"))
    assert Counter(found.tolist()) == {"train": 77 * 3, "validation": 27, "test": 27}
    assert (found.reshape(-1, 3) == found.reshape(-1, 3)[:, :1]).all()
