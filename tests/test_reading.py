"""What is read of a results folder: every record once, and whatever is none is named, wherever records are read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from factories import make_record
from stage import HEAD, Play, Stage

from attnbench import load_records
from attnbench.errors import AttnbenchError
from attnbench.store import Store, read

Call = Callable[..., tuple[int, str, str]]


def test_records_come_sorted_by_path(tmp_path: Path) -> None:
    store = Store(tmp_path)
    wanted = [
        store.write(make_record(label=label, seed=seed, task=task))
        for task in ("b", "a")
        for label in ("local", "dense")
        for seed in (1, 0)
    ]
    records, problems = store.read_all()
    assert [path for path, _ in records] == sorted(wanted)
    assert problems == []
    assert store.read_all() == (records, problems)


GOOD = make_record().to_json()
MOVE = "delete it, or move it out of the results folder"
#: By name: the content of a file that is no record, what is said of it, and what is to be done.
DAMAGE: dict[str, tuple[bytes, str, str]] = {
    "truncated": (GOOD[:300].encode(), "cut off, or not valid JSON", MOVE),
    "empty": (b"", "cut off, or not valid JSON", MOVE),
    "text": (b"# Notes\n", "not valid JSON", MOVE),
    "binary": (b"\xff\xfe\x00\x01", "not valid JSON", MOVE),
    "deep": (b"[" * 100_000, "not valid JSON", MOVE),
    "long-number": (b'{"schema": ' + b"1" * 5000 + b"}", "not valid JSON", MOVE),
    "foreign": (b'{"hello": [1, 2]}', "no schema number", MOVE),
    "list": (b"[]", "no schema number", MOVE),
    "long": (b'{"schema": "' + b"x" * 9999 + b'"}', "no schema number", MOVE),
    "other-schema": (b'{"schema": 1, "dialect": "toml"}', "not a valid record: id", MOVE),
    "schema-0": (GOOD.replace('"schema": 1', '"schema": 0').encode(), "no schema number", MOVE),
    "newer": (GOOD.replace('"schema": 1', '"schema": 2').encode(), "newer attnbench (schema 2", "update attnbench"),
    "nan": (GOOD.replace('"pairs": 8', '"pairs": NaN').encode(), "not valid JSON", MOVE),
    "infinite": (GOOD.replace('"pairs": 8', '"pairs": 1e999').encode(), "not a valid record", MOVE),
    "infinite-machine": (GOOD.replace('"cpu": "test"', '"cpu": -1e999').encode(), "not a valid record", MOVE),
    "deep-surrogate": (
        GOOD.replace('"cpu": "test"', f'"cpu": {"[" * 400}"\\ud800"{"]" * 400}').encode(), "not valid JSON", MOVE,
    ),
    "other-name": (GOOD.encode(), "holds the record", "name it "),
}  # fmt: skip


def damage(folder: Path) -> dict[str, tuple[Path, str, str]]:
    """Puts a file of each kind among the records: its path, what is to be said of it, and what is to be done."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for name, (content, said, todo) in DAMAGE.items():
        (path := folder / f"{name}.json").write_bytes(content)
        made[name] = path, said, todo
    return made


def assert_named(lines: Iterable[str], made: dict[str, tuple[Path, str, str]]) -> None:
    """Each file on one line of its own: which, what was found, what to do."""
    listed = list(lines)
    assert len(listed) == len(made)
    for path, said, todo in made.values():
        (line,) = [line for line in listed if f"{path}: " in line]
        assert said in line and todo in line and len(line.replace(str(path), "")) < 400
        assert line.isprintable(), line


def test_files_that_are_no_records_are_named_and_the_others_are_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write(make_record(seed=5))
    made = damage(path.parent)
    records, problems = store.read_all()
    assert [found for found, _ in records] == [path]
    assert_named(problems, made)


def test_load_records_warns_of_what_it_cannot_read_where_it_was_called(tmp_path: Path) -> None:
    made = damage(Store(tmp_path).write(make_record()).parent)
    with pytest.warns(UserWarning, match=r"\.json: ") as caught:
        assert len(load_records(tmp_path)) == 1
    assert_named([str(warning.message) for warning in caught], made)
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("report",), "| dense |"),
        (("report", "--json"), '"label": "dense"'),
        (("list", "runs"), "0.8000"),
        (("list", "runs", "--json"), '"test": "0.8000"'),
    ],
)
def test_commands_name_what_they_cannot_read_and_show_the_rest(
    call: Call, tmp_path: Path, words: tuple[str, ...], shown: str
) -> None:
    made = damage(Store(tmp_path / "results").write(make_record()).parent)
    code, out, err = call(*words, "--results", str(tmp_path / "results"))
    assert code == 0 and shown in out
    assert_named([line for line in err.splitlines() if line.startswith("warning: ")], made)


def test_diff_refuses_by_name_what_is_no_record_and_compares_what_lies_beside_it(call: Call, tmp_path: Path) -> None:
    store = Store(tmp_path)
    ids = [read(store.write(make_record(seed=seed))).id for seed in (0, 1)]
    made = damage(store.folder_for(make_record()))
    code, out, err = call("diff", *ids, "--results", str(tmp_path))
    assert (code, err) == (0, "") and "seed" in out
    del made["other-name"]  # named as a file, it is what was asked for
    for name, (path, said, todo) in made.items():
        for reference in (str(path), name):
            code, out, err = call("diff", ids[0], reference, "--results", str(tmp_path))
            assert (code, out) == (2, "") and said in err and todo in err
            assert err.startswith(f"error: {path}: ") and err.count("\n") == 1


def test_merge_names_what_it_cannot_take_and_takes_the_rest(call: Call, tmp_path: Path) -> None:
    there = Store(tmp_path / "there")
    made = damage(there.write(make_record(), {"labels": np.arange(3)}).parent)
    here = damage(Store(tmp_path / "here").write(make_record(seed=1)).parent)
    code, out, err = call("merge", str(there.folder), "--results", str(tmp_path / "here"))
    assert (code, out) == (1, f"1 records taken, 0 here already, {len(made)} not taken\n")
    assert_named(err.splitlines(), made)
    records, problems = Store(tmp_path / "here").read_all()
    assert sorted(record.seed for _, record in records) == [0, 1]
    assert_named(problems, here)


def test_a_sweep_names_what_it_cannot_read_and_counts_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play = Play(tmp_path)
    play(HEAD)
    capsys.readouterr()
    made = damage(tmp_path / "results" / "runs" / "quick")
    sweep = play(HEAD, stage := Stage())
    assert {outcome.how for outcome in sweep.outcomes.values()} == {"done"} and stage.jobs == []
    assert_named(capsys.readouterr().err.splitlines(), made)


def test_what_is_no_file_is_named_and_never_opened(tmp_path: Path) -> None:
    """To read from a pipe would be to wait for ever."""
    store = Store(tmp_path / "results")
    path = store.write(make_record())
    os.mkfifo(path.with_name("pipe.json"))
    path.with_name("none.json").symlink_to("nowhere")
    path.with_name("device.json").symlink_to("/dev/zero")
    (store.runs / "linked").symlink_to(path.parent, target_is_directory=True)
    path.with_name("two\nlines.json").write_text("{}")
    records, problems = store.read_all()
    assert [found for found, _ in records] == [path]
    assert all("\n" not in problem for problem in problems)
    for name in ("pipe.json", "none.json", "device.json", "linked", "two\\nlines.json"):
        assert sum(f"{name}: " in problem for problem in problems) == 1, name
    assert len(problems) == 5


def test_a_folder_that_cannot_be_looked_into_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, scandir = Store(tmp_path), os.scandir
    kept, hidden = (store.write(make_record(task=task)) for task in ("a", "b"))

    def refusing(folder: Path) -> Any:
        if Path(folder) == hidden.parent:
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    records, problems = store.read_all()
    assert [path for path, _ in records] == [kept]
    assert problems == [f"{hidden.parent}: cannot be read (Permission denied)"]


def test_a_folder_may_be_named_like_a_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write(make_record(label="odd.json"))
    assert store.read_all() == ([(path, read(path))], [])
    assert store.find(path.stem)[0] == path


def test_a_copied_record_counts_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write(make_record(label="dense"))
    copy = tmp_path / "runs" / "quick" / "recall" / "other" / path.name
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    records, (problem,) = store.read_all()
    assert [found for found, _ in records] == [path]
    assert str(copy) in problem and str(path) in problem


def test_one_spec_run_under_two_labels_in_the_same_second_is_two_records(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for label in ("ernie_sparse", "hst+sar"):
        store.write(make_record(label=label))
    records, problems = store.read_all()
    assert [record.label for _, record in records] == ["ernie_sparse", "hst+sar"]
    assert problems == []


def test_a_results_folder_that_does_not_exist_is_an_error_and_an_empty_one_is_empty(tmp_path: Path) -> None:
    assert Store(tmp_path).read_all() == ([], [])
    with pytest.raises(AttnbenchError, match="no results folder"):
        Store(tmp_path / "typo").read_all()


# --- the table --------------------------------------------------------------------------------------------------


def test_load_records_has_a_row_per_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    good = make_record(label="hst+sar", mechanism="hst", regularizers=("sar",), seed=1, test=0.75, protocol_version=2)
    bad = make_record(label="dense", status="oom").model_copy(update={"cost": None})
    paths = [store.write(bad), store.write(good)]
    frame = load_records(tmp_path)
    assert list(frame["path"]) == [str(path) for path in paths]
    first, second = (row for _, row in frame.iterrows())
    assert (second["label"], second["mechanism"], second["regularizer"]) == ("hst+sar", "hst", "sar")
    assert (second["task"], second["protocol"], second["protocol_version"]) == ("recall", "quick", 2)
    assert (second["test"], second["low"], second["high"], second["validation"]) == (0.75, 0.73, 0.77, 0.81)
    assert (second["params"], second["params_mixer"], second["peak_bytes"]) == (150_000, 32768, 1 << 28)
    assert (second["spec_hash"], second["chance"], second["seed"]) == (good.spec.hash, 0.125, 1)
    assert (first["status"], first["regularizer"]) == ("oom", "none")
    assert frame.loc[0, ["test", "low", "high", "chance", "params", "peak_bytes"]].isna().all()
    assert frame["params"].dtype == "Int64" and frame["test"].dtype == "float64"


def test_no_records_give_an_empty_table_with_the_same_columns(tmp_path: Path) -> None:
    empty = load_records(tmp_path)
    Store(tmp_path).write(make_record())
    full = load_records(tmp_path)
    assert isinstance(empty, pd.DataFrame) and empty.empty
    assert list(empty.columns) == list(full.columns)
    assert (empty.dtypes == full.dtypes).all()
