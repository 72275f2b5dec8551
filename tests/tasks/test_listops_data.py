"""Preparing and exporting ListOps: same expressions by every way, all different, and what a trivial guess scores."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import listops_truth
import numpy as np
import pytest
from attnbench.tasks._listops import distinct, preparation
from attnbench.tasks._listops.levels import root_and_its_digits
from attnbench.tasks._listops.options import Options, splits_of
from listops_sets import SHORT, options, plugin, prepared, rows
from scipy import stats

from attnbench import data
from attnbench.errors import AttnbenchError
from attnbench.verification import verify

MANIFEST = json.loads((Path(preparation.__file__).parent / "manifest.json").read_text("utf-8"))
#: The larger ones are compared by `attnbench data verify`.
SMALL = [known for known in MANIFEST if known["options"].get("examples", 100_000) <= 4000]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    data.export(plugin(), options(examples=150, data_seed=7, **SHORT), folder, 2)
    return folder / "listops-1000"


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    """To spoil."""
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def test_splits_depend_on_the_number_alone_and_a_larger_set_holds_the_smaller(cache: Path) -> None:
    assert [splits_of(np.array([n]))[0] for n in (0, 47, 48, 49, 50, 98, 99)] == [
        "train", "train", "validation", "test", "train", "validation", "test",
    ]  # fmt: skip
    small, large = prepared(examples=150, **SHORT), prepared(examples=1500, **SHORT)
    for split, count in {"train": 144, "validation": 3, "test": 3}.items():
        assert rows(small, split) == rows(large, split)[:count] and len(rows(large, split)) == 10 * count
    assert {name: n["examples"] for name, n in prepared(examples=50, **SHORT).card["splits"].items()} == {
        "train": 48, "validation": 1, "test": 1,
    }  # fmt: skip


def test_stored_labels_are_the_values(cache: Path) -> None:
    found = prepared(examples=1500, **SHORT)
    for split in data.SPLITS:
        for row, label in zip(rows(found, split), found.splits[split].targets, strict=True):
            assert 7 < len(row) < 33 and listops_truth.value([listops_truth.WORDS[token] for token in row]) == label


def test_workers_and_hash_seeds_do_not_matter_and_nothing_is_left_over(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = prepared(examples=2500, **SHORT)
    assert sorted(path.name for path in one.folder.iterdir()) == ["card.json", "test", "train", "validation"]
    command = [sys.executable, "-m", "attnbench", "data", "prepare", "listops", "--json", "--set", "examples=2500"]
    command += [word for name, value in SHORT.items() for word in ("--set", f"{name}={value}")]
    for salt, workers in (("0", "3"), ("1", "1")):
        environment = {**os.environ, "PYTHONHASHSEED": salt, "ATTNBENCH_DATA": str(cache / salt)}
        done = subprocess.run([*command, "--workers", workers], env=environment, capture_output=True, check=True)
        assert json.loads(done.stdout)["sha256"] == one.card["sha256"]


def test_expressions_differ_within_and_across_splits(cache: Path) -> None:
    """Of the 400 with two digits and one operator all are asked for: most draws are repeats."""
    tiny = {"min_length": 3, "max_length": 5, "max_depth": 2, "max_args": 2}
    found = prepared(examples=400, **tiny)
    everything = [row for split in data.SPLITS for row in rows(found, split)]
    assert len(everything) == len(set(everything)) == 400
    drawn = [distinct.draw(options(**tiny).grammar, 0, chunk) for chunk in range(10)]
    first = [trees.tokens[a : a + 4].tobytes() for trees in drawn for a in trees.offsets[:-1]]
    numbered = list(dict.fromkeys(first))[:400]
    for split, numbers in {"train": range(48), "validation": [48], "test": [49]}.items():
        assert rows(found, split) == [row for number, row in enumerate(numbered) if number % 50 in numbers]
    with pytest.raises(AttnbenchError, match="examples=450: only 400 different expressions among 11000 drawn; ask for"):
        prepared(examples=450, **tiny)


def test_expressions_that_hardly_occur_are_refused_before_any_is_drawn(cache: Path) -> None:
    with pytest.raises(AttnbenchError, match="more than 40 and fewer than 50 tokens has less than one in 10,000 expr"):
        prepared(min_length=40, max_length=50, max_depth=2)
    with pytest.raises(AttnbenchError, match="too few to draw; change min_length, max_length, max_depth or max_args"):
        data.export(plugin(), options(min_length=15_000, max_length=15_010), cache, 1)


@pytest.mark.parametrize("known", SMALL, ids=lambda known: str(known["options"]))
def test_content_is_pinned(cache: Path, known: dict[str, Any]) -> None:
    found = prepared(**known["options"])
    assert found.card["sha256"] == known["sha256"]
    assert verify(found, plugin(), options(**known["options"]))["on record"] == "the same"
    assert preparation.pinned(Options(**{**known["options"], "data_seed": 9})) is None


def test_every_option_changes_the_key_and_the_expressions(cache: Path) -> None:
    base = {"examples": 100, **SHORT}
    first = prepared(**base)
    changes = {"examples": 150, "min_length": 8, "max_length": 34, "max_depth": 4, "max_args": 6, "data_seed": 1}
    for name, value in changes.items():
        other = prepared(**{**base, name: value})
        assert other.key != first.key and other.card["sha256"] != first.card["sha256"], name


def test_rows_stand_in_no_order(cache: Path) -> None:
    """A subset from the front is a fair one: labels of both halves agree, and so do lengths."""
    train = prepared(examples=4000, **SHORT).splits["train"]
    labels, lengths = np.asarray(train.targets), train.documents[0].lengths()
    halves = [np.bincount(half, minlength=10) for half in np.array_split(labels, 2)]
    assert stats.chi2_contingency(halves).pvalue > 0.01
    assert stats.ks_2samp(*np.array_split(lengths, 2)).pvalue > 0.01
    assert abs(np.corrcoef(labels[:-1], labels[1:])[0, 1]) < 0.05


def test_an_interrupted_generation_goes_on_where_it_stopped(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def draw(*arguments: Any, stop: bool) -> Any:
        drawn.append(arguments[2])
        if stop and len(drawn) == 4:
            raise KeyboardInterrupt
        return original(*arguments)

    original = distinct.draw
    monkeypatch.setattr(distinct, "draw", partial(draw, stop=True))
    with pytest.raises(KeyboardInterrupt):
        prepared(examples=6000, **SHORT)
    assert drawn[:4] == [0, 1, 2, 3] and not list(cache.rglob("card.json"))
    drawn.clear()
    monkeypatch.setattr(distinct, "draw", partial(draw, stop=False))
    found = prepared(examples=6000, **SHORT)
    again = drawn[: drawn.index(0)]  # then the level of chance is found, from chunk 0 on
    assert {3, 5} <= set(again) <= {3, 4, 5}  # the fourth may have been under way
    monkeypatch.setenv("ATTNBENCH_DATA", str(cache / "other"))
    assert prepared(examples=6000, **SHORT).card["sha256"] == found.card["sha256"]


def test_the_export_is_the_released_form_and_is_read_back(cache: Path, exported: Path) -> None:
    generated = prepared(examples=150, data_seed=7, **SHORT)
    for split, name in {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}.items():
        content = (exported / name).read_bytes()
        assert content.startswith(b"Source\tTarget\r\n( ") and content.endswith(b"\r\n")
        assert content.count(b"\n") == content.count(b"\r\n") == content.count(b"\t")
        told = [(bytes(map(listops_truth.IDS.get, words)), label) for words, label in listops_truth.rows(content)]
        assert told == list(zip(rows(generated, split), generated.splits[split].targets, strict=True))
    for values in ({"examples": 150}, {}):
        read = prepared(exported, origin="files", **values)
        assert read.card["sha256"] == generated.card["sha256"]
    assert read.card["notes"] == ["150 expressions found, 100,000 asked for, 150 read"]
    assert set(read.card["facts"]["share_cut"].values()) == {0.0} == set(read.card["facts"]["duplicates"].values())
    assert read.key.endswith(read.card["sha256"][:12])


def test_an_export_goes_on_file_by_file_and_another_is_refused(exported: Path, copy: Path) -> None:
    write = partial(data.export, plugin(), workers=1)
    home = copy.rename(copy.with_name("listops-1000"))
    (home / "basic_train.tsv").unlink()
    (home / "basic_val.tsv").write_bytes(b"kept")
    write(options(examples=150, data_seed=7, **SHORT), home.parent)
    assert (home / "basic_val.tsv").read_bytes() == b"kept"
    assert (home / "basic_train.tsv").read_bytes() == (exported / "basic_train.tsv").read_bytes()
    assert not list(home.glob("*.partial"))
    with pytest.raises(AttnbenchError, match="holds an export with other options; choose another folder"):
        write(options(examples=150, data_seed=8, **SHORT), home.parent)
    (home / "export.json").unlink()
    with pytest.raises(AttnbenchError, match="holds other files; choose another folder with --to"):
        write(options(examples=150, data_seed=7, **SHORT), home.parent)
    with pytest.raises(AttnbenchError, match="in the released form already"):
        write(options(origin="files"), home.parent)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"origin": "files", "data_seed": 1}, "data_seed shapes generated expressions; with origin=files set data"),
        ({"origin": "files", "min_length": 1}, "min_length shapes generated"),
        ({"origin": "files", "max_args": 3}, "max_args shapes generated"),
        ({"overlong": "cut"}, "leave overlong out"),
        ({"min_length": 99, "max_length": 100}, "no length lies between min_length=99 and max_length=100"),
        ({"examples": 49}, "examples"),
        ({"max_depth": 1}, "max_depth"),
        ({"max_args": 1}, "max_args"),
        ({"data_seed": -1}, "data_seed"),
        ({"data_seed": "x"}, "data_seed"),
    ],
)
def test_options_that_cannot_be_are_refused(values: dict[str, Any], what: str) -> None:
    with pytest.raises(AttnbenchError, match=what):
        options(**values)


def test_a_guess_by_the_root_and_its_own_digits() -> None:
    """Fitted on train: MAX (12) over its digits 1 and 3 meant 3 twice; MED (13) without one meant 5; others nothing."""
    once = [12, 2, 4, 11, 1, 1, 15, 15]
    nested = [13, *once, *once, 15]
    made = {
        "train": ([once, [12, 4, 11, 10, 9, 15, 2, 15], once, nested], [3, 3, 8, 5]),
        "test": ([once, [12, 2, 4, 15], nested, nested, [12, 9, 15]], [3, 3, 5, 6, 8]),
    }
    as_sets = {
        name: datasets.Dataset.from_dict(
            {"tokens": rows, "label": labels},
            features=datasets.Features(tokens=datasets.List(datasets.Value("uint8")), label=datasets.Value("int64")),
        )
        for name, (rows, labels) in made.items()
    }
    assert root_and_its_digits(Options(), datasets.DatasetDict(as_sets)) == {"root_and_its_digits": 3 / 5}


def test_trivial_levels_are_the_measured_ones(cache: Path) -> None:
    """By the first token 36.6 %, for the majority 17.3 %, measured on 4,000 trees of the original program; the test
    split has 600.
    """
    found = prepared(examples=30_000)
    assert found.card["trivial"]["first_token"] == pytest.approx(0.366, abs=3 * np.sqrt(0.366 * 0.634 / 600))
    assert found.card["chance"] == pytest.approx(0.173, abs=3 * np.sqrt(0.173 * 0.827 / 4000))
    assert found.card["trivial"]["token_counts"] < found.card["trivial"]["first_token"] - 0.1
    further = verify(found, plugin(), options(examples=30_000))["trivial"]
    assert further["root_and_its_digits"] > found.card["trivial"]["first_token"] + 0.05


@pytest.mark.parametrize("mechanism", ["dense", "bigbird", "ernie_sparse"])
def test_it_runs_from_an_empty_cache(mechanism: str, call: Callable[..., tuple[int, str, str]]) -> None:
    small = {"examples": 200, "budget.steps": 2, "budget.batch": 2, "model.dim": 16, "model.layers": 1}
    settings = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    code, out, err = call("run", "-m", mechanism, "-t", "listops", *settings, "--json")
    assert code == 0 and "preparing listops" in err
    record = json.loads(out)
    assert record["quality"]["examples"] == 4 and record["spec"]["task"]["max_length"] == SHORT["max_length"]


def test_the_first_expression_of_a_set(cache: Path) -> None:
    """Written out: a change of vocabulary, grammar or seeding shows here in words."""
    words = [listops_truth.WORDS[token] for token in rows(prepared(examples=50, **SHORT), "train")[0]]
    assert " ".join(words) == "[MAX 4 6 8 [SM 5 6 X X"
