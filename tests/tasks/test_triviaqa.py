"""TriviaQA: the original tree and the hub's rows give the same set; distant supervision by hand; bad files named."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import qa_files
from attnbench.tasks._qa.official import triviaqa as normalise
from qa_files import change, decoded, options, prepared, refusal, rows

from attnbench import data, registry

SMALL = {"vocab_size": 300, "max_length": 120, "max_question": 40, "overlap": 16}
SAMPLE = {"vocab_size": 1000, "max_length": 512, "overlap": 32}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return qa_files.trivia(tmp_path / "triviaqa")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory, test_data: Path) -> Path:
    """The original's tree, a stray editor file included."""
    folder = tmp_path_factory.mktemp("sample")
    with tarfile.open(test_data / "qa_samples" / "triviaqa-sample.tgz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def said(row: dict[str, Any]) -> list[str]:
    offsets, spans = np.array(row["offsets"]).reshape(-1, 2), np.array(row["spans"]).reshape(-1, 2)
    return [row["context"][offsets[first, 0] : offsets[last, 1]] for first, last in spans]


def published(tree: Path, part: str, domain: str = "wikipedia") -> dict[str, dict[str, Any]]:
    whole = json.loads((tree / "qa" / f"{domain}-{part}.json").read_text("utf-8"))
    return {one["QuestionId"]: one for one in whole["Data"]}


def test_the_sample_is_read_as_it_was_released(sample: Path) -> None:
    found = prepared("triviaqa", sample, max_windows=100, **SAMPLE)
    assert found.card["facts"]["questions"] == {"train": 3, "validation": 1, "test": 2}
    assert found.card["facts"]["documents"] == 10 and "documents_missing" not in found.card["notes"]
    known = published(sample, "train") | published(sample, "dev")
    for split in ("train", "validation", "test"):
        for row in rows(found, split):
            one = known[row["id"]]
            assert row["asked"] == one["Question"] and row["answers"] == one["Answer"]["NormalizedAliases"]
            front, context = decoded(found, row["tokens"]).split("[SEP]")
            assert front == f"[NONE]{row['asked']}"
            inner = context.removeprefix(" ").strip("\ufffd")  # a window may part the bytes of a character
            assert inner in row["context"] and len(row["context"]) - len(inner) <= 2
            assert {normalise(text) for text in said(row)} <= set(row["answers"])
    assert sum(bool(row["spans"]) for row in rows(found, "test")) > 3


def test_windows_of_the_sample_cover_all_evidence_in_order(sample: Path) -> None:
    found = prepared("triviaqa", sample, max_windows=100, **SAMPLE)
    assert found.card["facts"]["share_of_evidence_cut"]["test"] == 0
    (one,) = (one for one in published(sample, "dev").values() if one["QuestionId"] == "tc_33")
    text = (sample / "evidence" / "wikipedia" / one["EntityPages"][0]["Filename"]).read_text("utf-8")
    contexts = [row["context"] for row in rows(found, "test") if row["id"] == "tc_33"]
    reached = 0
    for context in contexts:
        start = text.index(context, max(0, reached - len(context)))
        assert start <= reached < start + len(context)
        reached = start + len(context)
    assert reached == len(text.rstrip()) or reached == len(text)
    places = sum(text.count(word) for word in ("Sunset Boulevard", "Sunset Blvd"))
    assert found.card["facts"]["places_of_answers"]["test"] >= places > 5


def test_the_web_asks_each_document_by_itself(sample: Path) -> None:
    found = prepared("triviaqa", sample, domain="web", **SAMPLE)
    ids = {split: {row["id"] for row in rows(found, split)} for split in ("train", "validation", "test")}
    assert ids["test"] == {"tc_2--61/61_97.txt", "tc_2--10/10_99.txt", "tc_33--Andrew_Lloyd_Webber.txt",
                           "tc_33--35/35_995.txt", "tc_33--46/46_996.txt"}  # fmt: skip
    asked = [{id_.partition("--")[0] for id_ in ids[split]} for split in ("train", "validation")]
    assert not asked[0] & asked[1]
    facts = found.card["facts"]
    assert facts["questions"]["train"] + facts["questions"]["validation"] == 7 and facts["documents"] == 12


@pytest.mark.parametrize("domain", ["wikipedia", "web"])
def test_the_hub_has_the_same_set(tree: Path, tmp_path: Path, domain: str) -> None:
    read = prepared("triviaqa", tree, domain=domain, **SMALL)
    hub = qa_files.trivia_on_the_hub(tree, tmp_path / "hub", domain)
    stored = {split: rows(read, split) for split in ("train", "validation", "test")}
    shutil.rmtree(read.folder)
    assert {split: rows(prepared("triviaqa", hub, domain=domain, **SMALL), split) for split in stored} == stored


def test_questions_that_no_window_answers_are_counted_and_kept_in_the_test(tree: Path) -> None:
    """Each fourth: their answer stands nowhere."""
    found = prepared("triviaqa", tree, **SMALL)
    facts = found.card["facts"]
    assert facts["share_without_answer_in_a_window"]["test"] == pytest.approx(1 / 6, abs=1e-4)
    stored = {split: {row["id"]: row for row in rows(found, split)} for split in ("train", "validation", "test")}
    assert len(stored["test"]) == 6 and "tc_1_3" in stored["test"]
    nowhere = {f"tc_0_{number}" for number in range(3, 24, 4)}
    assert not stored["train"].keys() & nowhere
    assert stored["train"].keys() | stored["validation"].keys() | nowhere == {f"tc_0_{i}" for i in range(24)}
    assert any("no window holds an answer" in note for note in found.card["notes"])
    assert found.card["splits"]["test"]["examples"] == len(found.splits["test"])


def test_every_place_of_every_alias_is_taught(tmp_path: Path, tree: Path) -> None:
    alone = tree / "evidence" / "wikipedia" / "train page 0 0.txt"
    alone.write_text("Rome, the ROME; Romeo. The Rome-on-Sea and rome_on_sea! " + "x " * 300, "utf-8")
    for path in (tree / "qa").glob("wikipedia-train.json"):
        change(path, "Data", 0, "EntityPages", 1, to=None)
        change(path, "Data", 0, "Answer", "NormalizedAliases", to=["rome", "rome on sea"])
    for seed in range(9):  # whichever split it is in
        found = prepared("triviaqa", tree, data_seed=seed, **SMALL)
        taught = [row for row in rows(found, "train") if row["id"] == "tc_0_0"]
        if taught:
            break
    assert said(taught[0]) == ["Rome", "ROME", "Rome", "Rome-on-Sea", "rome", "rome_on_sea"]
    assert [len(said(row)) for row in taught] == [6, 0]
    assert found.card["facts"]["places_of_answers"]["train"] >= 6


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda one: one.pop("Answer"), "no answer; the files of TriviaQA's own test set are published without"),
        (lambda one: one["Answer"].update(NormalizedAliases=[]), "no answer; the files of TriviaQA's own test set"),
        (lambda one: one["Answer"].update(NormalizedAliases=["", " "]), "no answer; the files of TriviaQA's own"),
        (lambda one: one["Answer"].pop("NormalizedAliases"), "item 3, Answer: no 'NormalizedAliases', found Value"),
        (lambda one: one["Answer"].update(NormalizedAliases="x"), "'NormalizedAliases' is text, expected a list"),
        (lambda one: one["Answer"].update(NormalizedAliases=["x", 3]), "number 2 is a whole number, expected text"),
        (lambda one: one.pop("Question"), "item 3: no 'Question', found"),
        (lambda one: one.update(Question="\t"), "item 3: 'Question' is empty"),
        (lambda one: one.pop("QuestionId"), "item 3: no 'QuestionId', found"),
        (lambda one: one.update(EntityPages={}), "'EntityPages' is an object, expected a list"),
        (lambda one: one.update(EntityPages=["x"]), "item 3, EntityPages 1: text, expected an object"),
        (lambda one: one["EntityPages"][1].update(Filename=5), "EntityPages 2: 'Filename' is a whole number"),
        (lambda one: one["EntityPages"][1].update(Filename="../../qa/x"), "2: the file name '../../qa/x' leads out"),
        (lambda one: one["EntityPages"][1].update(Filename="/etc/passwd"), "'/etc/passwd' leads out of"),
        (lambda one: one["EntityPages"][1].update(Filename="a\0"), "'Filename' has a NUL character at 1"),
    ],
)  # fmt: skip
def test_a_bad_record_is_refused_with_its_place(tree: Path, spoil: Any, message: str) -> None:
    path = tree / "qa" / "wikipedia-train.json"
    whole = json.loads(path.read_text("utf-8"))
    spoil(whole["Data"][2])
    path.write_text(json.dumps(whole))
    found = refusal("triviaqa", tree, **SMALL)
    assert message in found and f"{path}, item 3" in found


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda tree: shutil.rmtree(tree / "evidence"), "evidence: no such folder; it holds the documents"),
        (lambda tree: shutil.rmtree(tree / "evidence" / "wikipedia"), "60 of 60 documents are missing, such as"),
        (lambda tree: (tree / "qa" / "wikipedia-dev.json").unlink(), "wikipedia-dev.json: no such file; complete"),
        (lambda tree: shutil.rmtree(tree / "qa"), "neither wikipedia-train.json nor parquet files"),
        (lambda tree: (tree / "qa" / "wikipedia-dev.json").write_bytes(b'{"data": []}'), "no list 'Data' in it"),
        (lambda tree: document(tree).write_bytes(b"ab\xffc"), "train page 5 1.txt: not UTF-8, byte 2 is 0xff"),
        (lambda tree: document(tree).write_bytes(b"ab\0c"), "train page 5 1.txt: byte 2 is NUL"),
        (lambda tree: (document(tree).unlink(), document(tree).symlink_to("/etc/passwd")), "leads out of"),
    ],
)  # fmt: skip
def test_a_bad_tree_is_refused(tree: Path, spoil: Any, message: str) -> None:
    spoil(tree)
    assert message in refusal("triviaqa", tree, **SMALL)


def document(tree: Path) -> Path:
    return tree / "evidence" / "wikipedia" / "train page 5 1.txt"


def test_missing_and_empty_documents_are_counted_and_left_out(tree: Path) -> None:
    """A question that loses both its documents stays in the test with a window that holds nothing."""
    home = tree / "evidence" / "wikipedia"
    (home / "dev page 1 0.txt").unlink()
    (home / "dev page 1 1.txt").write_bytes(b"")
    change(tree / "qa" / "wikipedia-dev.json", "Data", 2, "EntityPages", to=[])
    change(tree / "qa" / "wikipedia-dev.json", "Data", 4, "EntityPages", 0, "Filename", to=None)
    change(tree / "qa" / "wikipedia-dev.json", "Data", 5, "EntityPages", 0, "Filename", to="x" * 300 + ".txt")
    found = prepared("triviaqa", tree, **SMALL)
    facts, stored = found.card["facts"], {row["id"]: row for row in rows(found, "test")}
    assert (facts["documents"], facts["documents_missing"], facts["documents_without_a_name"]) == (57, 2, 1)
    assert any("2 documents are missing, such as dev page 1 0.txt" in note for note in found.card["notes"])
    assert facts["share_without_evidence"]["test"] == pytest.approx(2 / 6, abs=1e-4) and len(stored) == 6
    for id_ in ("tc_1_1", "tc_1_2"):
        assert stored[id_]["context"] == "" and stored[id_]["spans"] == []
    assert decoded(found, stored["tc_1_2"]["tokens"]) == f"[NONE]{stored['tc_1_2']['asked']}[SEP]"


def test_documents_that_training_has_too_are_told(tree: Path) -> None:
    path = tree / "qa" / "wikipedia-dev.json"
    for number in range(3):
        change(path, "Data", number, "EntityPages", 0, "Filename", to="train page 1 0.txt")
    for seed in range(5):
        shares = prepared("triviaqa", tree, data_seed=seed, **SMALL).card["facts"]["documents_shared_with_training"]
        if shares["test"]:
            break
    assert shares == {"validation": 0.0, "test": 0.1}  # one of the ten that the test has


def test_a_bad_parquet_row_is_refused(tree: Path, tmp_path: Path) -> None:
    hub = qa_files.trivia_on_the_hub(tree, tmp_path / "hub") / "rc.wikipedia" / "train-00000-of-00002.parquet"
    plain = datasets.Dataset.from_parquet(str(hub), cache_dir=str(tmp_path / "fetched"))
    for name, value, message in [
        ("entity_pages", {"filename": ["a", "b"], "wiki_context": ["c"]}, "entity_pages: lists of [1, 2] values"),
        ("answer", {"normalized_aliases": [], "value": "<unk>"}, "no answer; the files of TriviaQA's own test set"),
        ("question", None, "'question' is nothing, expected text"),
    ]:
        found = plain.to_list()
        found[1][name] = value
        datasets.Dataset.from_list(found, features=plain.features).to_parquet(hub)
        said_ = refusal("triviaqa", tmp_path / "hub", **SMALL)
        assert f"{hub}, row 2" in said_ and message in said_


CHANGED = {
    "max_length": 200, "max_question": 20, "examples": 5, "test_examples": 2, "vocab_size": 280, "data_seed": 3,
    "overlap": 10, "max_windows": 1, "empty_windows": 0, "longest_answer": 1, "domain": "web", "max_places": 1,
}  # fmt: skip


def test_every_option_changes_the_key_and_what_is_stored(tree: Path) -> None:
    plugin = registry.load("tasks", "triviaqa")
    assert set(CHANGED) == {field.name for field in dataclasses.fields(plugin.object.options)} - {"tokenizer"}
    many = tree / "evidence" / "wikipedia" / "train page 0 0.txt"
    many.write_text("Rome Rome Rome Rome York Rome York-on-Sea " * 30, "utf-8")
    for path in (tree / "qa").glob("w*-train.json"):
        change(path, "Data", 0, "Answer", "NormalizedAliases", to=["rome", "york on sea"])
    made = {"": SMALL} | {name: {**SMALL, name: value} for name, value in CHANGED.items()}
    keys = {data.data_key(plugin, options("triviaqa", **values)) for values in made.values()}
    hashes = {prepared("triviaqa", tree, **values).card["sha256"] for values in made.values()}
    assert len(keys) == len(hashes) == len(made)
