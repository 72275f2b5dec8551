"""imdb, hyperpartisan and arxiv: what is read is what is stored, every option counts, bad files named, end to end."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attnbench.tasks import _documents
from attnbench.tasks._subwords import FIRST, Subwords
from attnbench.tasks.arxiv import CLASSES

import attnbench
from attnbench import data, registry
from attnbench.errors import AttnbenchError, Unsupported
from attnbench.options import parse

TASKS = ("imdb", "hyperpartisan", "arxiv")
COUNTS = {"train": 60, "validation": 15, "test": 20}
FEATURES = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=list(CLASSES)))


def text(split: str, i: int) -> str:
    return f"{split} paper {i} on " + " ".join(f"lemma{(i * k) % 13}é" for k in range(1 + (i * 7) % 40))


def write(home: Path, folder: str = "data", shards: int = 3, mark: str = "") -> Path:
    """The released form, sorted by label; train in several files."""
    (home / folder).mkdir(parents=True, exist_ok=True)
    for split, count in COUNTS.items():
        rows = {"text": [mark + text(split, i) for i in range(count)], "label": sorted(i % 11 for i in range(count))}
        made = datasets.Dataset.from_dict(rows, features=FEATURES)
        parts = shards if split == "train" else 1
        for part in range(parts):
            made.shard(parts, part, contiguous=True).to_parquet(
                home / folder / f"{split}-{part:05d}-of-{parts:05d}.parquet"
            )
    return home


def options(task: str, **values: Any) -> Any:
    return parse(f"task {task}", registry.load("tasks", task).object.options, values)


def prepared(
    task: str, source: Path | None, *, workers: int = 1, download: bool = False, **values: Any
) -> data.TaskData:
    return data.load(registry.load("tasks", task), options(task, **values), source, workers, download)


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*arguments: Any) -> Any:
        raise error

    return fail


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def arxiv(tmp_path: Path) -> Path:
    return write(tmp_path / "arxiv")


def decoded(found: data.TaskData, split: str) -> list[tuple[str, int]]:
    subwords = Subwords.load(found.folder / "kept" / "tokenizer.json")
    part = found.splits[split]
    return [
        (subwords.decode(row), int(label))
        for row, label in zip(part.documents[0], np.asarray(part.targets), strict=True)
    ]


def test_every_document_is_stored_once_whole_and_shuffled(arxiv: Path) -> None:
    found = prepared("arxiv", arxiv)
    for split, count in COUNTS.items():
        wanted = [(text(split, i), label) for i, label in enumerate(sorted(i % 11 for i in range(count)))]
        assert Counter(decoded(found, split)) == Counter(wanted)
        assert decoded(found, split) != wanted
    first = [label for _, label in decoded(found, "train")[:20]]
    assert len(set(first)) > 4, "sorted by label, the first twenty would be of four classes"


def test_reviews_are_stored_whole_and_none_is_lost(test_data: Path) -> None:
    found = prepared("imdb", test_data / "imdb")
    parts = {name: decoded(found, name) for name in COUNTS}
    published = {
        split: pq.read_table(test_data / "imdb" / "plain_text" / f"{split}-00000-of-00001.parquet").to_pylist()
        for split in ("train", "test")
    }
    wanted = {split: Counter((row["text"], row["label"]) for row in rows) for split, rows in published.items()}
    assert Counter(parts["test"]) == wanted["test"]
    assert Counter(parts["train"] + parts["validation"]) == wanted["train"]
    assert not {one for one, _ in parts["train"]} & {one for one, _ in parts["validation"]}
    assert len(parts["validation"]) == pytest.approx(200, abs=40)


@pytest.mark.parametrize("limit", [1, 7, 30, None])
def test_what_was_cut_is_told(arxiv: Path, limit: int | None) -> None:
    if limit is None:  # that of the longest paper, which is then not cut
        limit = max(one["max"] for one in prepared("arxiv", arxiv).card["facts"]["subwords_before_the_cut"].values())
    found = prepared("arxiv", arxiv, max_length=limit)
    subwords = Subwords.load(found.folder / "kept" / "tokenizer.json")
    for split, count in COUNTS.items():
        whole = {one: len(subwords.ids([one])[0]) for one in (text(split, i) for i in range(count))}
        assert found.card["facts"]["share_cut"][split] == pytest.approx(
            np.mean(np.array(list(whole.values())) > limit), abs=1e-4
        )
        assert found.card["facts"]["subwords_before_the_cut"][split]["max"] == max(whole.values())
        beginnings = Counter(subwords.decode(subwords.ids([one])[0][:limit]) for one in whole)
        assert Counter(one for one, _ in decoded(found, split)) == beginnings
    cut = any(found.card["facts"]["share_cut"].values())
    assert any("longer than" in note for note in found.card["notes"]) == cut == (limit <= 30)


def test_the_vocabulary_sees_training_documents_alone(arxiv: Path, tmp_path: Path) -> None:
    one = prepared("arxiv", arxiv, vocab_size=300)
    for split in ("validation", "test"):
        path = arxiv / "data" / f"{split}-00000-of-00001.parquet"
        table = pq.read_table(path)
        other = pa.array([f"{row} othertext othertext" for row in table["text"].to_pylist()])
        pq.write_table(table.set_column(0, "text", other), path)
    kept = (one.folder / "kept" / "tokenizer.json").read_bytes()
    other = prepared("arxiv", arxiv, vocab_size=300, max_length=4000)
    assert (other.folder / "kept" / "tokenizer.json").read_bytes() == kept
    fewer = prepared("arxiv", arxiv, vocab_size=300, examples=20)
    assert (fewer.folder / "kept" / "tokenizer.json").read_bytes() != kept
    assert len(fewer.splits["train"]) == 20 and len(fewer.splits["test"]) == 20


def test_subsets_are_drawn_from_all_classes(arxiv: Path) -> None:
    found = prepared("arxiv", arxiv, examples=30, test_examples=10)
    assert [len(found.splits[name]) for name in COUNTS] == [30, 10, 10]
    assert len({label for _, label in decoded(found, "train")}) > 6
    everything = prepared("arxiv", arxiv)
    assert all(set(decoded(found, name)) < set(decoded(everything, name)) for name in COUNTS)
    again = prepared("arxiv", arxiv, examples=30, test_examples=10, data_seed=1)
    assert set(decoded(again, "train")) != set(decoded(found, "train"))


def test_a_tokenizer_of_the_users_is_used(arxiv: Path, tmp_path: Path) -> None:
    Subwords.train([text("train", 3)] * 4, 280).save(tmp_path / "mine.json")
    mine = Subwords.load(tmp_path / "mine.json")
    found = prepared("arxiv", arxiv, tokenizer=str(tmp_path / "mine.json"))
    assert decoded(found, "test")[0][0].startswith("test paper")
    assert max(row.max() for row in found.splits["train"].documents[0]) < FIRST + mine.size
    assert found.card["options"]["tokenizer"] == found.card["facts"]["vocabulary"]["from"]
    assert str(tmp_path) not in json.dumps(found.card["options"])
    (tmp_path / "mine.json").rename(tmp_path / "moved.json")
    assert prepared("arxiv", None, tokenizer=str(tmp_path / "moved.json")).folder == found.folder
    assert prepared("arxiv", None, tokenizer=found.card["options"]["tokenizer"]).folder == found.folder


def test_neither_workers_layout_nor_an_interruption_change_the_set(
    arxiv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {prepared("arxiv", arxiv).card["sha256"]}
    one_file = write(tmp_path / "one", shards=1)
    cached = tmp_path / "hub" / "datasets--ccdv--arxiv-classification" / "snapshots" / "0a1b"
    cached.parent.mkdir(parents=True)
    write(cached, shards=2)
    write(arxiv, folder="no_ref", mark="without ")
    layouts: list[tuple[Path, int]] = [
        (arxiv / "data", 1), (arxiv, 3), (one_file, 2), (tmp_path / "hub", 1), (cached.parent.parent, 1),
    ]  # fmt: skip
    for number, (source, workers) in enumerate(layouts):
        monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / f"cache{number}"))
        found.add(prepared("arxiv", source, workers=workers).card["sha256"])
    assert len(found) == 1
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "interrupted"))
    with monkeypatch.context() as patch:
        patch.setattr(_documents, "_tell", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            prepared("arxiv", one_file)
    assert prepared("arxiv", arxiv).card["sha256"] in found


def test_the_configuration_says_which_folder(arxiv: Path) -> None:
    write(arxiv, folder="no_ref", mark="without ")
    for config, start in {"default": "test", "no_ref": "without test"}.items():
        assert all(one.startswith(start) for one, _ in decoded(prepared("arxiv", arxiv, config=config), "test"))
    with pytest.raises(AttnbenchError, match="the files of config=no_ref, but config=default is asked for"):
        prepared("arxiv", arxiv / "no_ref", max_length=9)


def test_repeated_documents_are_counted(arxiv: Path) -> None:
    path = arxiv / "data" / "test-00000-of-00001.parquet"
    table = pq.read_table(path).to_pandas()
    table.loc[3, "text"], table.loc[4, "text"], table.loc[5, "text"] = (
        text("train", 8),
        text("train", 9),
        text("test", 0),
    )
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), path)
    found = prepared("arxiv", arxiv).card["facts"]["duplicates"]
    assert {name: count for name, count in found.items() if count} == {"in_test": 1, "of_test_also_in_train": 2}


OTHER: dict[str, Any] = {
    "max_length": 100, "vocab_size": 500, "data_seed": 1, "examples": 50, "test_examples": 9, "config": "no_ref",
    "fold": 1, "title": True, "tokenizer": "sha256-0123456789abcdef-300",
}  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_each_option_is_part_of_the_key(task: str) -> None:
    plugin = registry.load("tasks", task)
    names = [field.name for field in dataclasses.fields(plugin.object.options)]
    keys = [data.data_key(plugin, options(task, **values)) for values in ({}, *({n: OTHER[n]} for n in names))]
    assert len(set(keys)) == len(keys) > 4


def column(arxiv: Path, name: str, values: Callable[[list[Any]], Any], split: str = "train") -> None:
    """Changes a column of the first file of a split."""
    path = sorted((arxiv / "data").glob(f"{split}-00000-*.parquet"))[0]
    table = pq.read_table(path)
    changed = values(table[name].to_pylist())
    pq.write_table(
        table.set_column(
            table.column_names.index(name), name, changed if isinstance(changed, pa.Array) else pa.array(changed)
        ),
        path,
    )


def put(at: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda rows: [*rows[:at], value, *rows[at + 1 :]]


def no_utf8(rows: list[Any]) -> pa.Array:
    """Arrow takes the word of whoever makes such an array."""
    raw = pa.array([row.encode() for row in rows[:-1]] + [b"caf\xe9"], pa.binary())
    return pa.StringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2])


def file(arxiv: Path, split: str = "train") -> Path:
    return sorted((arxiv / "data").glob(f"{split}-*.parquet"))[0]


def spoil(change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    return lambda arxiv: file(arxiv).write_bytes(change(file(arxiv).read_bytes()))


def renamed_classes(arxiv: Path) -> None:
    rows = pq.read_table(file(arxiv)).to_pydict()
    names = [*CLASSES[1:], CLASSES[0]]
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=names))
    datasets.Dataset.from_dict(rows, features=features).to_parquet(file(arxiv))


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no text": (lambda a: column(a, "text", put(4, None)), r"train-00000.*row 5: nothing in column 'text'"),
    "no label": (lambda a: column(a, "label", put(4, None)), r"train-00000.*row 5: nothing in column 'label'"),
    "label 11": (lambda a: column(a, "label", put(4, 11)), r"train-00000.*row 5: label 11, expected 0 to 10"),
    "label -1": (lambda a: column(a, "label", put(0, -1), "test"), r"test-00000.*row 1: label -1"),
    "label in words": (lambda a: column(a, "label", lambda rows: ["cs.CV"] * len(rows)), "'label' holds string"),
    "label a float": (lambda a: column(a, "label", lambda rows: [float(row) for row in rows]), "'label' holds double"),
    "empty text": (lambda a: column(a, "text", put(2, " \n")), r"row 3: empty text"),
    "NUL": (lambda a: column(a, "text", put(2, "a\0b")), r"row 3: .*NUL"),
    "no UTF-8": (lambda a: column(a, "text", no_utf8), r"row 20: not UTF-8, byte 3 is 0xe9"),
    "text a number": (lambda a: column(a, "text", lambda rows: list(range(len(rows)))), "'text' holds int64"),
    "renamed column": (lambda a: pq.write_table(pq.read_table(file(a)).rename_columns(["body", "label"]), file(a)),
                       "no column 'text', found body, label"),
    "classes in another order": (renamed_classes, "the classes of 'label' are cs.CV"),
    "cut short": (spoil(lambda raw: raw[: len(raw) // 2]), "train-00000.*cut short, damaged"),
    "damaged": (spoil(lambda raw: raw[:40] + b"\xff" * 200 + raw[240:]), "train-00000.*(cut short, damaged|row|holds)"),
    "empty": (spoil(lambda raw: b""), "train-00000.*: empty"),
    "page": (spoil(lambda raw: b"<!doctype html>"), "a git-LFS pointer or a web page"),
    "pointer": (spoil(lambda raw: b"version https://git-lfs.github.com/spec/v1\noid sha256:0"), "a git-LFS pointer"),
    "a file lost": (lambda a: file(a).unlink(), "complete the folder"),
    "a split lost": (lambda a: file(a, "test").unlink(), r"no test-\*\.parquet"),
    "two copies": (lambda a: write(a / "arxiv-classification"), "two copies"),
    "nothing": (lambda a: [path.unlink() for path in (a / "data").iterdir()], r"no train-\*\.parquet there"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_named_in_one_line(
    arxiv: Path, cache: Path, call: Callable[..., tuple[int, str, str]], kind: str
) -> None:
    change, reason = BAD[kind]
    change(arxiv)
    code, out, err = call("data", "prepare", "arxiv", "--from", str(arxiv))
    assert (code, out) == (2, "")
    assert re.search(reason, err.splitlines()[-1])
    assert "Traceback" not in err and not list(cache.rglob("card.json"))


BAD_REVIEWS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda a: (a / "test" / "neg" / "7_1.txt").write_bytes(b" "), r"test/neg/7_1\.txt: empty text"),
    "no UTF-8": (lambda a: (a / "train" / "pos" / "7_9.txt").write_bytes(b"\xff"), r"train/pos/7_9\.txt: not UTF-8"),
    "one class": (lambda a: [path.unlink() for path in (a / "train" / "pos").iterdir()], "train/pos"),
}


@pytest.mark.parametrize("kind", BAD_REVIEWS)
def test_bad_reviews_are_named(tmp_path: Path, kind: str) -> None:
    """tests/tasks/test_text.py has the other faults: the reader is the same."""
    home = tmp_path / "aclImdb"
    for split in ("train", "test"):
        for rating, name in enumerate(("neg", "pos")):
            (home / split / name).mkdir(parents=True)
            for i in range(30):
                (home / split / name / f"{i}_{1 + 8 * rating}.txt").write_text(f"{split} {name} film {i}")
    assert len(prepared("imdb", tmp_path).splits["test"]) == 60
    change, reason = BAD_REVIEWS[kind]
    change(home)
    with pytest.raises(AttnbenchError, match=reason):
        prepared("imdb", tmp_path, max_length=99)


@pytest.mark.parametrize("values", [{"examples": 61}, {"test_examples": 16}], ids=str)
def test_a_subset_larger_than_the_split_is_refused(arxiv: Path, values: dict[str, Any]) -> None:
    with pytest.raises(AttnbenchError, match=r"of arXiv has (60|15) rows, .* are asked for"):
        prepared("arxiv", arxiv, **values)


def test_without_files_the_whole_command_is_said(call: Callable[..., tuple[int, str, str]]) -> None:
    for task in ("imdb", "arxiv"):
        code, _, err = call("run", "-m", "dense", "-t", task, "--set", "max_length=99")
        assert code == 2
        assert re.search(rf"attnbench data prepare {task} .*--set max_length=99.* --from DIR \(or --download\)", err)


def test_a_download_gives_the_same_set(arxiv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = prepared("arxiv", arxiv).card["sha256"]
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "downloaded"))

    def fetch(repository: str, config: str) -> datasets.DatasetDict:
        assert (repository, config) == ("ccdv/arxiv-classification", "default")
        files = {split: sorted(map(str, (arxiv / "data").glob(f"{split}-*"))) for split in COUNTS}
        return datasets.DatasetDict({name: datasets.Dataset.from_parquet(paths) for name, paths in files.items()})

    monkeypatch.setattr(datasets, "load_dataset", fetch)
    assert prepared("arxiv", None, download=True).card["sha256"] == wanted
    monkeypatch.setattr(datasets, "load_dataset", raising(ConnectionError("no\nnet")))
    with pytest.raises(AttnbenchError, match=r"ccdv/arxiv-classification: could not be fetched .*no net"):
        prepared("arxiv", None, download=True, max_length=5)


def test_the_missing_package_is_named(
    arxiv: Path, call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tokenizers" else there(name))
    said = "arxiv needs the package tokenizers, which is not installed: pip install tokenizers"
    code, out, err = call("data", "prepare", "arxiv", "--from", str(arxiv))
    assert (code, out, err.splitlines()[-1].partition("arxiv")[1:]) == (2, "", ("arxiv", said.removeprefix("arxiv")))
    code, out, _ = call("run", "-m", "dense", "-t", "arxiv", "--json")
    record = json.loads(out)
    assert (code, record["status"], record["reason"]) == (1, "unsupported", said)
    with pytest.raises(Unsupported, match=said):
        attnbench.build_task("arxiv")


@pytest.mark.parametrize("task", TASKS)
def test_from_an_empty_cache_to_a_record(
    task: str, request: pytest.FixtureRequest, cache: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    source = request.getfixturevalue("arxiv") if task == "arxiv" else request.getfixturevalue("test_data") / task
    small = ["--set", "max_length=128", "--set", "vocab_size=600"]
    if task != "hyperpartisan":
        small += ["--set", f"examples={50 if task == 'arxiv' else 200}", "--set", "test_examples=15"]
    code, out, err = call("data", "prepare", task, "--from", str(source), *small, "--json")
    assert code == 0, err
    card = json.loads(out)
    assert card["splits"]["test"]["examples"] == (129 if task == "hyperpartisan" else 15)
    assert card["chance"] == pytest.approx(1 / 11 if task == "arxiv" else 1 / 2)
    budget = ["budget.steps=2", "budget.batch=4", "budget.eval_every=2"]
    for mechanism, more in {"dense": [], "bigbird": ["block_size=32"], "ernie_sparse": ["block_size=32"]}.items():
        words = [word for one in budget + more for word in ("--set", one)]
        code, out, err = call("run", "-m", mechanism, "-t", task, *small, *words, "--json")
        assert code == 0, err
        record = json.loads(out)
        assert record["status"] in ("ok", "not_above_chance", "trivial")
        assert record["quality"]["examples"] == card["splits"]["test"]["examples"]
