"""LRA's Text: bytes of IMDB in every layout, splits that depend on content alone, faults named with their place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets as hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attnbench.tasks import _hub, _imdb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from published import REVIEWS, attempt, documents, options, parquet, plugin, prepared, reviews, silent

from attnbench import data
from attnbench.errors import AttnbenchError
from attnbench.options import as_json

Call = Callable[..., tuple[int, str, str]]
TRAIN, TEST = "train-00000-of-00001.parquet", "test-00000-of-00001.parquet"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """60 + 30 reviews in the hub's layout, sorted by label as there."""
    home = tmp_path / "imdb"
    by_label = sorted(REVIEWS, key=lambda review: review[1])
    reviews(home / "plain_text" / TRAIN, by_label)
    reviews(home / "plain_text" / TEST, [(f"{text} seen", label) for text, label in by_label[15:45]])
    return home


def folder(home: Path, rows: dict[str, list[tuple[str, int]]]) -> Path:
    """The classic folder."""
    for split, found in rows.items():
        for number, (text, label) in enumerate(found):
            path = home / "aclImdb" / split / ("neg", "pos")[label] / f"{number}_{9 * label + 1}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
    return home


def rows_of(source: Path) -> dict[str, list[tuple[str, int]]]:
    """Read by pyarrow alone."""
    found = {}
    for split in ("train", "test"):
        table = pq.read_table(source / "plain_text" / f"{split}-00000-of-00001.parquet")
        found[split] = list(zip(table["text"].to_pylist(), table["label"].to_pylist(), strict=True))
    return found


def pairs(found: data.TaskData, split: str) -> list[tuple[bytes, int]]:
    return list(zip(documents(found, split), np.asarray(found.splits[split].targets).tolist(), strict=True))


def test_ids_are_bytes_of_the_whole_text_plus_one_cut_at_max_length(source: Path) -> None:
    """Bytes, not characters; nothing lower-cased, tags kept; the length is an option."""
    truth = {name: [(text.encode()[:18], label) for text, label in rows] for name, rows in rows_of(source).items()}
    found = prepared("text", source, max_length=18)
    assert sorted(pairs(found, "train") + pairs(found, "validation")) == sorted(truth["train"])
    assert sorted(pairs(found, "test")) == sorted(truth["test"])
    assert any(text.endswith(b"\xe2\x80") for text, _ in truth["train"]), "a character is cut in two, as in LRA"
    assert found.card["facts"]["share_cut"] == {"train": 1.0, "validation": 1.0, "test": 1.0}
    assert plugin("text").object.vocab(options("text")) == 257 and options("text").max_length == 4000


def test_the_sample_of_real_reviews(test_data: Path) -> None:
    found = prepared("text", test_data / "imdb")
    truth = rows_of(test_data / "imdb")
    kept = sorted((text.encode()[:4000], label) for text, label in truth["train"])
    assert sorted(pairs(found, "train") + pairs(found, "validation")) == kept
    assert found.card["facts"]["rows"] == {"train": 2000, "test": 1000}
    texts = [text for text, _ in truth["test"]]
    assert found.card["facts"]["duplicates"] == {
        "in_train": 2000 - len({text for text, _ in truth["train"]}),
        "in_test": 1000 - len(set(texts)),
        "of_test_also_in_train": sum(text in {text for text, _ in truth["train"]} for text in texts),
    }
    over = np.mean([len(text.encode()) > 4000 for text in texts])
    assert found.card["facts"]["share_cut"]["test"] == round(float(over), 4)
    assert found.card["trivial"]["token_counts"] > 0.55


def test_all_layouts_give_the_same_set(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = prepared("text", source).card["sha256"]
    classic = folder(tmp_path / "classic", rows_of(source))
    (classic / "aclImdb" / "train" / "unsup").mkdir()
    for stray in ("unsup/0_0.txt", "urls_pos.txt", "pos/.DS_Store", "pos/._0_10.txt", "labeledBow.feat"):
        (classic / "aclImdb" / "train" / stray).write_bytes(b"\0 not a review")
    snapshot = tmp_path / "cached" / "datasets--stanfordnlp--imdb" / "snapshots" / "abc"
    shutil.copytree(source, snapshot)
    (snapshot.parent / "older").mkdir()
    shutil.copytree(source, snapshot.parent / "older" / "imdb")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    cached = [snapshot, snapshot.parents[1], snapshot.parents[2]]
    for number, place in enumerate([source / "plain_text", source.parent, classic, classic / "aclImdb", *cached]):
        monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / f"cache{number}"))
        assert prepared("text", place).card["sha256"] == wanted, place


def test_reviews_of_the_original_folder(test_data: Path, tmp_path: Path) -> None:
    """Real ones at their original places; the folder tells the label."""
    home = folder(tmp_path / "there", {"train": REVIEWS, "test": REVIEWS[:4]})
    lines = (test_data / "qa_samples" / "imdb_corpus.jsonl").read_text("utf-8").splitlines()
    originals = {row["orig"]: row["text"] for row in map(json.loads, lines)}
    for place, text in originals.items():
        (tmp_path / "there" / place).write_text(text, "utf-8")
    found = _imdb.read("text", options("text"), silent(tmp_path / "work", home))["train"]
    assert len(found.texts) == 60 + len(originals) == 63
    labels = dict(zip(found.texts, found.labels, strict=True))
    assert [labels[text.encode()] for text in originals.values()] == [0, 0, 0]


def test_the_order_of_the_files_does_not_matter_and_rows_are_shuffled(source: Path, tmp_path: Path) -> None:
    """The hub's rows are sorted by label; a subset of the first would have one class."""
    path = source / "plain_text" / TRAIN
    found = prepared("text", source, examples=30)
    assert 8 <= sum(np.asarray(found.splits["train"].targets)) <= 22
    assert list(found.splits["train"].targets) != sorted(found.splits["train"].targets)
    reviews(path, rows_of(source)["train"][::-1])
    assert prepared("text", source, examples=30, max_length=4001).card["sha256"] == found.card["sha256"]


def test_validation_is_carved_by_content_and_equal_texts_stay_together(source: Path) -> None:
    """No test review is in validation, unless asked for by name."""
    path = source / "plain_text" / TRAIN
    reviews(path, rows_of(source)["train"] * 3)
    found = prepared("text", source)
    train, validation = documents(found, "train"), documents(found, "validation")
    assert len(train) + len(validation) == 180 and 0 < len(validation) <= 45
    assert not set(train) & set(validation) and not set(validation) & set(documents(found, "test"))
    assert found.card["facts"]["duplicates"]["in_train"] == 120
    other = prepared("text", source, data_seed=1)
    assert set(documents(other, "validation")) != set(validation)


def test_lra_validates_on_test_by_name_only(source: Path) -> None:
    found = prepared("text", source, validation="test", max_length=1000)
    assert pairs(found, "validation") == pairs(found, "test") and len(found.splits["train"]) == 60
    assert "chosen on test" in " ".join(found.card["notes"])


def test_each_option_has_its_own_set() -> None:
    changed = {"max_length": 9, "validation": "test", "examples": 50, "test_examples": 5, "data_seed": 2}
    all_options = [options("text"), *(options("text", **{name: value}) for name, value in changed.items())]
    assert set(changed) == set(as_json(all_options[0]))
    assert len({data.data_key(plugin("text"), one) for one in all_options}) == 1 + len(changed)


@pytest.mark.parametrize("change", [{"examples": 50}, {"test_examples": 5}])
def test_subsets_have_the_size_asked_for(source: Path, change: dict[str, int]) -> None:
    sizes = {name: len(split) for name, split in prepared("text", source, **change).splits.items()}
    assert sizes["train"] + sizes["validation"] == change.get("examples", 60)
    assert sizes["test"] == change.get("test_examples", 30)


def rewrite(rows: Callable[[list[tuple[Any, Any]]], Any], split: str = "train") -> Callable[[Path], None]:
    """Spoils the rows of a parquet file."""

    def spoil(source: Path) -> None:
        found: list[tuple[Any, Any]] = rows_of(source)[split]
        rows(found)
        reviews(source / "plain_text" / f"{split}-00000-of-00001.parquet", found)

    return spoil


def setting(row: int, text: Any = ..., label: Any = ...) -> Callable[[Path], None]:
    def change(rows: list[tuple[Any, Any]]) -> None:
        old = rows[row]
        rows[row] = (old[0] if text is ... else text, old[1] if label is ... else label)

    return rewrite(change)


def columns(**table: Any) -> Callable[[Path], None]:
    return lambda source: parquet(source / "plain_text" / TRAIN, pa.table(table))


def replace(content: bytes | None, name: str = TRAIN, keep: int = 0) -> Callable[[Path], None]:
    def spoil(source: Path) -> None:
        path = source / "plain_text" / name
        old = path.read_bytes() if path.is_file() else b""
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(old[:keep] + content)

    return spoil


def invalid_utf8(source: Path) -> None:
    """Arrow trusts its writer: a string column may hold any bytes."""
    raw = pa.array([b"well", b"abc\xff"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    columns(text=text, label=pa.array([0, 1]))(source)


def named(*names: str) -> Callable[[Path], None]:
    def spoil(source: Path) -> None:
        path = source / "plain_text" / TRAIN
        parquet(path, pq.read_table(path).replace_schema_metadata(None), {"label": names})

    return spoil


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty text": (setting(7, text=" \n"), r"train-00000-of-00001\.parquet, row 8: empty text"),
    "no text": (setting(7, text=None), r"parquet, row 8: nothing in column 'text'"),
    "no label": (setting(7, label=None), r"parquet, row 8: nothing in column 'label'"),
    "NUL": (setting(7, text="a\0b"), r"parquet, row 8: byte 1 of the text is NUL"),
    "not UTF-8": (invalid_utf8, r"parquet, row 2: not UTF-8, byte 3 is 0xff"),
    "unsupervised": (setting(3, label=-1), r"row 4: label -1, which marks the unsupervised reviews; expected 0"),
    "label": (setting(3, label=2), r"row 4: label 2; expected 0 \(neg\) or 1 \(pos\)"),
    "one class": (rewrite(lambda rows: rows.__delitem__(slice(30, 60))), r"train: all labels are \{0\}; both are"),
    "no rows": (rewrite(lambda rows: rows.clear()), r"parquet: no rows"),
    "renamed": (columns(review=["a"], label=[0]), r"no column 'text', found review, label"),
    "twice": (lambda source: parquet(source / "plain_text" / TRAIN, pa.Table.from_arrays(
        [pa.array(["a"]), pa.array(["b"]), pa.array([0])], names=["text", "text", "label"])), "more than one column"),
    "text is numbers": (columns(text=[1, 2], label=[0, 1]), r"column 'text' holds int64, expected text"),
    "label is text": (columns(text=["a", "b"], label=["0", "1"]), r"column 'label' holds string, expected whole"),
    "label is a fraction": (columns(text=["a"], label=[0.0]), r"column 'label' holds double, expected whole numbers"),
    "classes the other way": (named("pos", "neg"), r"the classes of 'label' are pos, neg, expected neg, pos"),
    "cut short": (replace(b"", keep=400), r"train-00000-of-00001\.parquet: cut short, damaged or no parquet file"),
    "no parquet": (replace(b"PAR1 nonsense"), r"cut short, damaged or no parquet file"),
    "empty file": (replace(b""), r"train-00000-of-00001\.parquet: empty"),
    "git-LFS": (replace(LFS), r"a git-LFS pointer or a web page in place of data"),
    "web page": (replace(b"<!DOCTYPE html>403"), r"a git-LFS pointer or a web page in place of data"),
    "no test": (replace(None, TEST), r"no test-\*\.parquet there; complete the folder"),
    "a part missing": (lambda source: (source / "plain_text" / TRAIN).rename(
        source / "plain_text" / "train-00001-of-00003.parquet"), r"1 files of train, whose names speak of 3 parts"),
    "two copies": (lambda source: shutil.copytree(source / "plain_text", source / "data"),
                   r"two copies, .* name one of them with --from"),
    "two layouts": (lambda source: folder(source, {"train": REVIEWS}), r"both .*train and parquet files"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_named_with_its_place_on_one_line(source: Path, tmp_path: Path, kind: str) -> None:
    spoil, said = FAULTS[kind]
    spoil(source)
    with pytest.raises(AttnbenchError, match=said) as caught:
        prepared("text", source)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").rglob("*.arrow")) == []


def spoiled(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda home: (home / "aclImdb" / name).write_bytes(content) and None


FOLDER_FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty text": (spoiled("train/pos/1_10.txt", b""), r"train/pos/1_10\.txt: empty text"),
    "not UTF-8": (spoiled("train/pos/1_10.txt", b"caf\xe9"), r"pos/1_10\.txt: not UTF-8, byte 3 is 0xe9"),
    "NUL": (spoiled("train/pos/1_10.txt", b"a\0"), r"pos/1_10\.txt: byte 1 of the text is NUL"),
    "one class": (lambda home: shutil.rmtree(home / "aclImdb/train/pos"), r"train/pos: no such folder, or no \*\.txt"),
    "no test": (lambda home: shutil.rmtree(home / "aclImdb/test"), r"test/neg: no such folder"),
    "other files": (lambda home: shutil.rmtree(home / "aclImdb/train"), r"neither aclImdb/train nor plain_text"),
}


@pytest.mark.parametrize("kind", FOLDER_FAULTS)
def test_a_fault_of_the_classic_folder_is_named_with_its_file(tmp_path: Path, kind: str) -> None:
    home = folder(tmp_path / "there", {"train": REVIEWS, "test": REVIEWS[:4]})
    spoil, said = FOLDER_FAULTS[kind]
    spoil(home)
    with pytest.raises(AttnbenchError, match=said):
        prepared("text", home)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"examples": 61}, r"train of IMDB has 60 rows, 61 are asked for"),
        ({"test_examples": 31}, r"test of IMDB has 30 rows, 31 are asked for"),
        ({"examples": 1}, r"1 rows are too few to carve a validation set from"),
        ({"max_length": 0}, r"max_length"),
        ({"data_seed": "x"}, r"data_seed"),
        ({"validation": "tests"}, r"validation"),
    ],
)
def test_options_that_cannot_be_are_refused(source: Path, values: dict[str, Any], said: str) -> None:
    with pytest.raises(AttnbenchError, match=said):
        prepared("text", source, **values)


def test_without_data_one_line_says_where_to_get_them_and_what_to_type(call: Call, tmp_path: Path) -> None:
    code, out, err = call("run", "-m", "dense", "-t", "text", "--set", "text.max_length=77", "--set", "text.examples=9")
    command = "attnbench data prepare text --set max_length=77 --set examples=9"
    assert (code, out) == (2, "") and "aclImdb_v1.tar.gz" in err and command in err
    archive = tmp_path / "aclImdb_v1.tar.gz"
    archive.write_bytes(b"\x1f\x8b")
    for place, said in ((archive, "unpack it"), (tmp_path / "nowhere", "no such folder")):
        code, out, err = call("data", "prepare", "text", "--from", str(place))
        assert (code, out) == (2, "") and said in err and "Traceback" not in err


def test_a_download_is_asked_of_datasets_and_gives_the_same_set(
    source: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(repo: str, config: str) -> hub.DatasetDict:
        assert (repo, config) == ("stanfordnlp/imdb", "plain_text")
        found = {name: hub.Dataset.from_parquet(str(path)) for name, path in files.items()}
        return hub.DatasetDict({**found, "unsupervised": hub.Dataset.from_dict({"text": ["x"], "label": [-1]})})

    files = {split: source / "plain_text" / f"{split}-00000-of-00001.parquet" for split in ("train", "test")}
    monkeypatch.setattr(hub, "load_dataset", fetch)
    code, out, _ = call("data", "prepare", "text", "--download", "--json")
    assert code == 0 and json.loads(out)["sha256"] == prepared("text", source, max_length=4001).card["sha256"]


def test_a_download_that_fails_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(repo: str, config: str) -> None:
        raise RuntimeError("Dataset scripts are no longer supported,\nbut found imdb.py")

    monkeypatch.setattr(hub, "load_dataset", fetch)
    code, out, err = call("data", "prepare", "text", "--download")
    assert (code, out) == (2, "") and "stanfordnlp/imdb: could not be fetched (RuntimeError: Dataset scripts" in err
    assert err.strip().splitlines()[-1].startswith("error: ") and "--from" in err


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(cut=st.integers(0, 3000), flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=4))
def test_a_damaged_parquet_file_is_refused_or_gives_whole_rows(
    source: Path, tmp_path: Path, cut: int, flips: list[tuple[int, int]]
) -> None:
    content = bytearray((source / "plain_text" / TRAIN).read_bytes())
    if not flips:
        del content[min(cut, len(content) - 1) :]
    for place, flip in flips:
        content[place % len(content)] ^= flip
    path = tmp_path / "train.parquet"
    path.write_bytes(content)
    found = attempt(lambda: list(_hub.rows(_hub.read([path]), _imdb._COLUMNS)))
    if isinstance(found, AttnbenchError):
        assert str(path) in str(found)
    else:
        assert flips and len(found) == 60 and all(isinstance(label, int) and text for _, (text, label) in found)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60))
def test_any_file_as_a_review_is_refused_or_read_as_it_is(tmp_path: Path, content: bytes) -> None:
    home = folder(tmp_path / "any", {"train": REVIEWS[:2], "test": REVIEWS[:2]})
    (home / "aclImdb/train/pos/1_10.txt").write_bytes(content)
    found = attempt(lambda: _imdb.read("text", options("text"), silent(tmp_path / "work", home))["train"])
    if isinstance(found, AttnbenchError):
        assert "1_10.txt: " in str(found)
    else:
        assert found.texts[1] == content and content.strip() and content.decode() and b"\0" not in content
