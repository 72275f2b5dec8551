"""A disk that is full or cannot be written: one clear line, nothing half written, and what was trained is not lost."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import make_record
from stage import HEAD, Play, Stage

import attnbench
from attnbench.files import NotWritten
from attnbench.record import Record
from attnbench.store import Store, load_predictions
from attnbench.train import Trainer

Call = Callable[..., tuple[int, str, str]]
STEPS = 12
TINY: dict[str, Any] = {
    "task.train": 60, "task.validation": 20, "task.test": 20, "model.dim": 8, "model.layers": 1,
    "budget.steps": STEPS, "budget.batch": 4, "budget.eval_every": 2,
}  # fmt: skip


def run(folder: Path, resume: bool = False) -> Record:
    return attnbench.run("dense", "recall", options=TINY, results=folder, resume=resume)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, code: int, after: int = 0) -> None:
    """No file with this in its name reaches the disk, once `after` of them have."""
    sync, seen = os.fsync, []

    def refusing(descriptor: int) -> None:
        if name in os.readlink(f"/proc/self/fd/{descriptor}"):
            seen.append(descriptor)
            if len(seen) > after:
                raise OSError(code, os.strerror(code))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refusing)


# --- runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize(("name", "after", "trained"), [(".partial", 3, 6), (".npz.", 0, STEPS), (".json.", 0, STEPS)])
def test_a_run_that_cannot_be_written_goes_on_from_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: int, trained: int, code: int
) -> None:
    whole = run(tmp_path / "whole")
    cut = tmp_path / "cut"
    with monkeypatch.context() as patch:
        refuse(patch, name, code, after)
        with pytest.raises(NotWritten) as caught:
            run(cut)
    said = str(caught.value)
    assert said.startswith(str(cut)) and os.strerror(code) in said and "\n" not in said
    assert ("make room" if code == errno.ENOSPC else "can be written, or name another") in said
    assert "--resume goes on" in said
    assert not (cut / "runs").exists() or files(cut / "runs") == set()
    assert all(left.endswith(".safetensors") for left in files(cut)) and len(files(cut)) == 2
    steps, step = [], Trainer._train_step
    monkeypatch.setattr(Trainer, "_train_step", lambda trainer: (steps.append(1), step(trainer))[1])
    found = run(cut, resume=True)
    assert len(steps) == STEPS - trained, "all that was trained and validated is kept"
    assert (found.quality, found.curve, found.predictions_sha) == (whole.quality, whole.curve, whole.predictions_sha)
    assert len(files(cut)) == 2


def test_the_command_says_it_in_one_line(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "-m", "dense", "-t", "recall", "--results", "results"]
    words += [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
    with monkeypatch.context() as patch:
        refuse(patch, ".json.", errno.ENOSPC)
        code, out, err = call(*words)
    assert (code, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("error: results/runs/") and "No space left on device" in last and "--resume" in last
    assert err.count("error") == 1
    assert call(*words, "--resume")[0] == 0


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_cannot_be_made_or_written_is_refused_before_training(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setattr(Trainer, "_train_step", lambda trainer: pytest.fail("trained for nothing"))
    (tmp_path / "file").write_text("")
    if there:
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "unfinished").symlink_to(tmp_path / "file" / "below")
    results = "results" if there else "file/results"
    code, out, err = call("run", "-m", "dense", "-t", "recall", "--set", "task.train=60", "--results", results)
    assert (code, out) == (2, "") and f"error: {results}" in err and "cannot be written" in err


def test_a_sweep_ends_with_one_line_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(tmp_path)
    with monkeypatch.context() as patch:
        refuse(patch, ".json.", errno.ENOSPC, after=2)
        with pytest.raises(NotWritten, match="No space left on device"):
            play(HEAD, stage := Stage(lambda subject: 1 if subject.seed else ("ok", 0.5)))
    assert stage.killed
    records, problems = Store(tmp_path / "results").read_all()
    assert problems == [] and len(records) == 2
    again = play(HEAD)
    assert [again.outcomes[run].how for run in again.runs] == ["done", "done", "ran", "ran"]


# --- records ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "limit"), [(50_000, 4096), (10, 512)], ids=["predictions", "record"])
def test_a_write_that_ends_in_the_middle_leaves_nothing(tmp_path: Path, size: int, limit: int) -> None:
    """The kernel takes the first `limit` bytes of a file and refuses the rest, as a full disk would."""
    store, record, arrays = Store(tmp_path), make_record(), {"scores": np.arange(size, dtype=np.uint8)}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(NotWritten, match=r"\.json: cannot be written \(File too large\); make room"):
            store.write(record, arrays)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files(tmp_path) == set() and store.read_all() == ([], [])
    assert len(load_predictions(store.write(record, arrays))["scores"]) == size


def test_a_small_disk_that_is_filled_and_one_that_is_read_only(tmp_path: Path) -> None:
    """In a namespace of its own, where anybody may mount."""
    command = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    program = textwrap.dedent("""
        import os, subprocess, sys
        from pathlib import Path
        import numpy as np
        sys.path.insert(0, sys.argv[1])
        from factories import make_record
        from attnbench.files import NotWritten
        from attnbench.store import Store, load_predictions
        disk = Path(sys.argv[2])
        def mount(*words):
            subprocess.run(["mount", *words, str(disk)], check=True)
        def files():
            return sorted(path.name for path in disk.rglob("*") if path.is_file())
        def refused(record, *said):
            try:
                store.write(record, {"scores": np.zeros(3000)})
            except NotWritten as fault:
                assert all(part in str(fault) for part in said), fault
            else:
                raise AssertionError("it was written")
        mount("-t", "tmpfs", "-o", "size=256k", "none")
        store, count = Store(disk / "results"), 0
        try:
            while count < 100:
                store.write(make_record(seed=count), {"scores": np.zeros(3000)})
                count += 1
        except NotWritten as fault:
            assert "No space left on device" in str(fault) and "make room" in str(fault), fault
        assert 0 < count < 100
        there = files()
        def whole():
            records, problems = store.read_all()
            assert problems == [] and len(records) == count and files() == there and len(there) == 2 * count
            for path, _ in records:
                assert len(load_predictions(path)["scores"]) == 3000
        whole()
        mount("-o", "remount,ro")
        refused(make_record(seed=count), "Read-only file system", "name another")
        whole()
        mount("-o", "remount,rw,size=1m")
        store.write(make_record(seed=count), {"scores": np.zeros(3000)})
        count, there = count + 1, files()
        whole()
        print("all of it")
    """)
    done = subprocess.run(
        [*command, sys.executable, "-c", program, str(Path(__file__).parent), str(tmp_path)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "all of it\n"), done.stderr
    assert files(tmp_path) == set(), "the small disk is gone"


def test_a_report_replaces_the_one_before_it_whole_or_not_at_all(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {"unit": np.arange(5), "score": np.ones(5)}
    Store(tmp_path / "results").write(make_record(), scores)
    words = ("report", "--results", "results", "--to", "pages")
    assert call(*words) == (0, "pages/report.md\n", "")
    before = (tmp_path / "pages" / "report.md").read_bytes()
    Store(tmp_path / "results").write(make_record(label="local"), scores)
    with monkeypatch.context() as patch:
        refuse(patch, "report.md", errno.ENOSPC)
        code, out, err = call(*words)
    assert (code, out) == (2, "") and err.startswith("error: pages/report.md: cannot be written (No space left")
    assert files(tmp_path / "pages") == {"report.md"} and (tmp_path / "pages" / "report.md").read_bytes() == before
    assert call(*words)[0] == 0 and b"local" in (tmp_path / "pages" / "report.md").read_bytes()
