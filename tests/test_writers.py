"""Processes that write into one results folder at the same time, and others that read it meanwhile."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from factories import make_record

from attnbench import load_records
from attnbench.errors import AttnbenchError
from attnbench.record import Record
from attnbench.store import Store, load_predictions

WRITERS = 8
#: Records that all writers try to write under the same id.
SHARED = 5


def forked(work: Callable[[], object]) -> int:
    """A child of this process that does the work and ends with 0, or with 1 where it failed."""
    if child := os.fork():
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def still_at_work(children: set[int]) -> bool:
    for child in list(children):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            children.remove(child)
    return bool(children)


def record_of(writer: int, number: int, record_id: str) -> Record:
    """Cells and folders are those of all writers; the command tells who wrote it."""
    made = make_record(id=record_id, label=f"label{number % 3}", seed=number)
    return made.model_copy(update={"command": f"writer {writer}"})


def write(folder: Path, writer: int, count: int) -> None:
    """Notes in a file beside the folder what it was told is written."""
    store, told = Store(folder), []
    for number in range(count):
        own = record_of(writer, number, f"w{writer}-{number}")
        shared = [record_of(writer, number, f"shared-{number}")] if number < SHARED else []
        for record in (*shared, own):
            try:
                store.write(record, {"labels": np.full(3, number)})
            except AttnbenchError as error:
                if record is own or "exists already" not in str(error):
                    raise
            else:
                told.append(record.id)
    folder.with_name(f"told{writer}").write_text("\n".join(told))


def read_meanwhile(folder: Path, children: set[int]) -> int:
    """Until all writers are done: whatever can be seen is whole, and nothing that was seen goes away."""
    seen: set[Path] = set()
    scans = 0
    while still_at_work(children):
        if not folder.is_dir():
            continue
        records, problems = Store(folder).read_all()
        assert problems == []
        found = {path for path, _ in records}
        assert seen <= found
        for path in sorted(found - seen)[:20]:
            assert len(load_predictions(path)["labels"]) == 3
        assert len(load_records(folder)) >= len(found)
        seen, scans = found, scans + 1
    return scans


def all_are_kept(folder: Path, each: int) -> None:
    children = {forked(lambda writer=writer: write(folder, writer, each)) for writer in range(WRITERS)}  # type: ignore[misc]
    assert read_meanwhile(folder, children) > 0
    told = [
        (name, writer) for writer in range(WRITERS) for name in folder.with_name(f"told{writer}").read_text().split()
    ]
    wanted = {f"w{writer}-{number}" for writer in range(WRITERS) for number in range(each)}
    wanted |= {f"shared-{number}" for number in range(SHARED)}
    assert len(told) == len(wanted) and {name for name, _ in told} == wanted, "of writers of one id one wins"
    records, problems = Store(folder).read_all()
    assert problems == []
    assert {(record.id, record.command) for _, record in records} == {(name, f"writer {w}") for name, w in told}
    for path, record in records:
        assert load_predictions(path)["labels"].tolist() == [record.seed] * 3
    there = [name for _, _, names in os.walk(folder) for name in names]
    assert sorted(there) == sorted(f"{name}{end}" for name in wanted for end in (".json", ".predictions.npz"))


def test_eight_writers_lose_nothing_and_leave_nothing_behind(tmp_path: Path) -> None:
    all_are_kept(tmp_path / "results", each=50)


@pytest.mark.slow
def test_eight_writers_of_ten_thousand_records_lose_nothing(tmp_path: Path) -> None:
    all_are_kept(tmp_path / "results", each=10_000 // WRITERS)
