"""Records of another results folder: validated, taken whole or not at all, and never from or to a place outside."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import make_record

from attnbench.files import NotWritten
from attnbench.merging import merge
from attnbench.predictions import pack
from attnbench.record import Record
from attnbench.store import Store, load_predictions, read

Call = Callable[..., tuple[int, str, str]]
ARRAYS = {"labels": np.arange(4)}


@pytest.fixture
def here(tmp_path: Path) -> Store:
    (tmp_path / "here").mkdir()
    return Store(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Store:
    return Store(tmp_path / "there" / "results")


def contents(store: Store) -> dict[str, bytes]:
    return {str(p.relative_to(store.folder)): p.read_bytes() for p in store.folder.rglob("*") if p.is_file()}


def of(machine: str, started: str = "2026-01-01T00:00:00Z", **changes: Any) -> Record:
    made = make_record(started=started, **changes)
    return made.model_copy(update={"machine": {"cpu": machine}, "id": f"{made.id}-{machine}"})


def test_a_cell_that_two_machines_ran_stays_two_runs(here: Store, there: Store) -> None:
    mine, theirs = here.write(of("a"), ARRAYS), there.write(of("b"), ARRAYS)
    before = contents(here)
    found = merge(here, there)
    assert (found.taken, found.known, found.problems) == ([mine.with_name(theirs.name)], 0, [])
    assert contents(here) == before | contents(there), "byte for byte, and nothing else"
    records, problems = here.read_all()
    assert problems == [] and [record.machine["cpu"] for _, record in records] == ["a", "b"]
    assert len({(record.spec.hash, record.seed) for _, record in records}) == 1


def test_again_and_in_any_order_it_changes_nothing(here: Store, there: Store, tmp_path: Path) -> None:
    third = Store(tmp_path / "third")
    for store, machine in ((here, "a"), (there, "b"), (third, "c")):
        for seed in range(3):
            store.write(of(machine, seed=seed, label=f"l{seed}"), ARRAYS if seed else None)
    merge(here, there)
    merge(third, there)
    assert [len(merge(here, third).taken), len(merge(third, here).taken)] == [3, 3]
    after = contents(here)
    assert contents(third) == after and len(after) == 9 + 6
    for store in (there, third, here):
        found = merge(here, store)
        assert (found.taken, found.problems) == ([], []) and found.known == len(store.read_all()[0])
    assert contents(here) == after


def test_predictions_come_as_they_are_whoever_packed_them(here: Store, there: Store) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, labels=np.arange(4))  # NumPy's own has other bytes than ours
    assert buffer.getvalue() != pack(ARRAYS)
    path = there.put(of("b"), buffer.getvalue())
    path.with_name("other.npz").write_bytes(path.with_name(read(path).predictions or "").read_bytes())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"predictions": "other.npz"}))
    (taken,) = merge(here, there).taken
    assert read(taken).predictions == f"{taken.stem}.predictions.npz"
    assert read(taken).predictions_sha == hashlib.sha256(buffer.getvalue()).hexdigest()
    assert load_predictions(taken)["labels"].tolist() == [0, 1, 2, 3]
    assert (merge(here, there).known, merge(here, there).problems) == (1, [])


def _packed(**arrays: Any) -> bytes:
    np.savez_compressed(buffer := io.BytesIO(), **arrays)
    return buffer.getvalue()


def _objects() -> bytes:
    np.savez(buffer := io.BytesIO(), allow_pickle=True, labels=np.array([{}], dtype=object))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not plain arrays"),
        (b"PK\x03\x04", "not plain arrays"),
        (pack(ARRAYS)[:-9], "not plain arrays"),
        (pack(ARRAYS).replace(b"(4,)", b"(9,)"), "not plain arrays"),
        (_packed(labels=np.zeros(10_000_000)), "compressed"),  # 10 kB that would fill 80 MB
        (_objects(), "not plain arrays"),
    ],
    ids=["empty", "head", "cut", "too long", "bomb", "pickle"],
)
def test_predictions_that_cannot_be_read_are_named_and_not_taken(
    here: Store, there: Store, content: bytes, said: str
) -> None:
    bad, good = there.put(of("b"), content), there.write(of("c"), ARRAYS)
    found = merge(here, there)
    assert found.taken == [here.runs / good.relative_to(there.runs)]
    (problem,) = found.problems
    assert problem.startswith(str(bad.with_suffix(".predictions.npz"))) and said in problem and "\n" not in problem
    assert len(contents(here)) == 2


@pytest.mark.parametrize("how", ["changed", "missing", "a folder"])
def test_predictions_that_are_not_the_records_are_named_and_not_taken(here: Store, there: Store, how: str) -> None:
    beside = there.write(of("b"), ARRAYS).with_suffix(".predictions.npz")
    beside.unlink()
    if how == "changed":
        beside.write_bytes(pack({"labels": np.arange(5)}))
    elif how == "a folder":
        beside.mkdir()
    found = merge(here, there)
    assert found.taken == [] and [problem.startswith(str(beside)) for problem in found.problems] == [True]
    assert contents(here) == {}


@pytest.mark.parametrize("how", ["name", "absolute", "link", "record", "folder"])
def test_nothing_is_taken_from_outside_the_folder(here: Store, there: Store, tmp_path: Path, how: str) -> None:
    path = there.write(of("b"), ARRAYS)
    beside, secret = path.with_suffix(".predictions.npz"), tmp_path / "secret.npz"
    shut = path if how == "record" else path.parent if how == "folder" else beside
    shut.rename(secret)
    if how in ("name", "absolute"):
        name = str(secret) if how == "absolute" else os.path.relpath(secret, path.parent)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"predictions": name}))
    else:
        shut.symlink_to(secret)
    found = merge(here, there)
    assert (found.taken, len(found.problems), contents(here)) == ([], 1, {})
    assert any(word in found.problems[0] for word in ("outside its folder", "leads out of", "is not followed"))


def test_a_link_inside_the_folder_is_a_file_like_any_other(here: Store, there: Store) -> None:
    beside = there.write(of("b"), ARRAYS).with_suffix(".predictions.npz")
    beside.rename(there.folder / "kept.npz")
    beside.symlink_to(there.folder / "kept.npz")
    assert len(merge(here, there).taken) == 1
    assert not any(path.is_symlink() for path in here.folder.rglob("*"))


@pytest.mark.parametrize("name", ["../../../evil", "/etc/evil", "..", "~"])
def test_nothing_is_written_outside_the_folder(here: Store, there: Store, tmp_path: Path, name: str) -> None:
    there.write(of("b", label=name, task=name, protocol=name), ARRAYS)
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(here.folder)}
    (taken,) = merge(here, there).taken
    assert taken.resolve().is_relative_to(here.runs.resolve())
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(here.folder)} == before


def test_what_another_merge_brought_meanwhile_is_known(
    here: Store, there: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        there.write(of("b", seed=seed), ARRAYS)
    put, calls = Store.put, []

    def overtaken(store: Store, record: Record, packed: bytes | None) -> Path:
        calls.append(record)
        if len(calls) == 1:
            merge(here, there)
            return put(store, of("c"), packed)
        return put(store, record, packed)

    monkeypatch.setattr(Store, "put", overtaken)
    found = merge(here, there)
    assert (len(found.taken), found.known, found.problems) == (1, 2, [])


def test_a_record_that_differs_is_named_and_neither_is_changed(here: Store, there: Store) -> None:
    mine = here.write(of("a"), ARRAYS)
    there.write(of("a").model_copy(update={"command": "another"}), ARRAYS)
    before = contents(here)
    found = merge(here, there)
    assert (found.taken, found.known) == ([], 0) and str(mine) in found.problems[0]
    assert contents(here) == before


@pytest.mark.parametrize("moment", range(1, 12))
def test_a_merge_that_is_killed_leaves_nothing_half_and_goes_on(here: Store, there: Store, moment: int) -> None:
    for seed in range(4):
        there.write(of("b", seed=seed), ARRAYS)
    if (child := os.fork()) == 0:
        link, sync, calls = os.link, os.fsync, []

        def dying(call: Callable[..., None]) -> Callable[..., None]:
            def counted(*arguments: Any) -> None:
                calls.append(call)
                if len(calls) == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                call(*arguments)

            return counted

        os.link, os.fsync = dying(link), dying(sync)
        try:
            merge(here, there)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    records, problems = here.read_all()
    assert problems == [] and len(records) < 4
    assert all(load_predictions(path)["labels"].tolist() == [0, 1, 2, 3] for path, _ in records)
    found = merge(here, there)
    assert (found.known, len(found.taken), found.problems) == (len(records), 4 - len(records), [])
    shown = {name: data for name, data in contents(here).items() if not name.endswith(".tmp")}
    assert shown == contents(there)


def test_a_full_disk_ends_it_with_one_line_and_it_goes_on_later(
    call: Call, here: Store, there: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(5):
        there.write(of("b", seed=seed), ARRAYS)
    sync, seen = os.fsync, []

    def filling(descriptor: int) -> None:
        seen.append(descriptor)
        if len(seen) > 9:  # four a record, two of them of the folder
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    words = ("merge", str(there.folder), "--results", str(here.folder))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", filling)
        code, out, err = call(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {here.folder}") and "No space left on device" in err and "make room" in err
    assert len(here.read_all()[0]) == 2 and len(contents(here)) == 4
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", filling)
        with pytest.raises(NotWritten):
            merge(here, there)
    assert call(*words)[1] == "3 records taken, 2 here already, 0 not taken\n"


def test_a_folder_without_records_is_told_from_one_that_is_no_results_folder(
    call: Call, here: Store, there: Store
) -> None:
    there.write(of("b"), ARRAYS)
    words = ("--results", str(here.folder))
    for wrong in (there.folder.parent, there.runs):
        code, out, err = call("merge", str(wrong), *words)
        assert (code, out, err.count("\n")) == (2, "", 1) and "holds no runs/" in err
    assert call("merge", str(there.folder), *words)[0] == 0
    assert call("merge", str(here.folder), *words)[1] == "0 records taken, 1 here already, 0 not taken\n"
