"""The results folder: complete files or none, nothing overwritten, nothing outside, nothing silently left out."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import make_quality, make_record
from hypothesis import given
from hypothesis import strategies as st

from attnbench.errors import AttnbenchError
from attnbench.store import Store, load_predictions, read

PREDICTIONS: dict[str, np.ndarray[Any, Any]] = {
    "labels": np.array([1, 0, 2], dtype=np.int64),
    "scores": np.array([1.0, 0.0, 0.5], dtype=np.float32),
}


class Killed(BaseException):
    """What no `except Exception` catches."""


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_record_returns_as_written_with_its_predictions(tmp_path: Path) -> None:
    record = make_record(label="hst+sar", protocol="quick", task="recall")
    path = Store(tmp_path).write(record, PREDICTIONS)
    assert path == tmp_path / "runs" / "quick" / "recall" / "hst+sar" / f"{record.id}.json"
    back = read(path)
    beside = path.with_name(f"{record.id}.predictions.npz")
    assert back.predictions == beside.name
    assert back.predictions_sha == hashlib.sha256(beside.read_bytes()).hexdigest()
    assert back.model_copy(update={"predictions": None, "predictions_sha": None}) == record
    found = load_predictions(path)
    assert list(found) == ["labels", "scores"]
    for name, array in PREDICTIONS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_a_record_without_predictions_says_so(tmp_path: Path) -> None:
    record = make_record().model_copy(update={"predictions": "stale.npz", "predictions_sha": "00"})
    path = Store(tmp_path).write(record)
    assert read(path).predictions is None
    with pytest.raises(AttnbenchError, match="no predictions"):
        load_predictions(path)


def test_equal_arrays_give_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record()
    one = Store(tmp_path / "a").write(record, PREDICTIONS)
    monkeypatch.setattr("time.time", lambda: 2e9)
    monkeypatch.setattr("time.localtime", lambda *_: (2033, 5, 18, 3, 33, 20, 2, 138, 0))
    turned = {name: np.asfortranarray(PREDICTIONS[name]) for name in reversed(PREDICTIONS)}
    other = Store(tmp_path / "b").write(record, turned)
    assert one.with_name(f"{record.id}.predictions.npz").read_bytes() == (
        other.with_name(f"{record.id}.predictions.npz").read_bytes()
    )
    assert one.read_bytes() == other.read_bytes()


def test_a_matrix_in_column_order_gives_the_bytes_of_the_same_matrix(tmp_path: Path) -> None:
    matrix = np.arange(12.0).reshape(3, 4)
    shas = set()
    for number, array in enumerate([matrix, np.asfortranarray(matrix), np.repeat(matrix, 2, axis=0)[::2]]):
        path = Store(tmp_path / str(number)).write(make_record(), {"logits": array})
        shas.add(read(path).predictions_sha)
        np.testing.assert_array_equal(load_predictions(path)["logits"], matrix)
    assert len(shas) == 1


def test_python_objects_are_no_predictions(tmp_path: Path) -> None:
    with pytest.raises(AttnbenchError, match="Python objects"):
        Store(tmp_path).write(make_record(), {"labels": np.array([{}, None])})
    assert files(tmp_path) == []


def test_a_nan_in_the_record_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    nowhere = make_record().model_copy(update={"quality": make_quality().model_copy(update={"test": float("nan")})})
    with pytest.raises(AttnbenchError, match="cannot be written as JSON"):
        Store(tmp_path).write(nowhere, PREDICTIONS)
    assert files(tmp_path) == []


# --- never overwritten ------------------------------------------------------------------------------------------


def test_a_second_write_of_an_id_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store, record = Store(tmp_path), make_record()
    path = store.write(record, PREDICTIONS)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    for again in (record, record.model_copy(update={"seed": 9})):
        with pytest.raises(AttnbenchError, match=r"exists already"):
            store.write(again, {"labels": np.zeros(3)})
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before
    assert read(path) == store.read_all()[0][0][1]


def test_foreign_predictions_under_the_same_id_are_kept(tmp_path: Path) -> None:
    store, record = Store(tmp_path), make_record()
    beside = store.folder_for(record) / f"{record.id}.predictions.npz"
    beside.parent.mkdir(parents=True)
    beside.write_bytes(b"precious")
    with pytest.raises(AttnbenchError, match=r"predictions\.npz: exists already"):
        store.write(record, PREDICTIONS)
    assert beside.read_bytes() == b"precious"
    assert store.read_all() == ([], [])


def test_of_writers_at_the_same_time_exactly_one_wins(tmp_path: Path) -> None:
    store = Store(tmp_path)
    versions = [make_record(id="same").model_copy(update={"command": f"writer {n}"}) for n in range(16)]

    def attempt(record: Any) -> str | None:
        try:
            store.write(record, PREDICTIONS)
        except AttnbenchError:
            return None
        return str(record.command)

    with ThreadPoolExecutor(8) as pool:
        winners = [command for command in pool.map(attempt, versions) if command]
    ((_, stored),) = store.read_all()[0]
    assert winners == [stored.command]
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_works_and_still_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    store, record = Store(tmp_path), make_record()
    path = store.write(record, PREDICTIONS)
    text = path.read_bytes()
    np.testing.assert_array_equal(load_predictions(path)["labels"], PREDICTIONS["labels"])
    monkeypatch.setattr(Path, "exists", lambda _: False)  # as if the other writer came just after the look
    with pytest.raises(AttnbenchError, match="exists already"):
        store.write(record, PREDICTIONS)
    assert path.read_bytes() == text
    assert len(files(tmp_path)) == 2


# --- cut off in the middle --------------------------------------------------------------------------------------


@pytest.mark.parametrize("links_before", [0, 1])
@pytest.mark.parametrize("failure", [Killed(), OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_no_record_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, links_before: int
) -> None:
    store, record, link, calls = Store(tmp_path), make_record(), os.link, []

    def failing(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > links_before:
            raise failure
        link(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", failing)
        with pytest.raises(AttnbenchError if isinstance(failure, OSError) else type(failure)):
            store.write(record, PREDICTIONS)
    assert store.read_all() == ([], [])
    assert not any(name.endswith((".json", ".tmp")) for name in files(tmp_path))
    path = store.write(record, PREDICTIONS)
    assert read(path).id == record.id
    assert len(load_predictions(path)) == 2


@pytest.mark.parametrize("moment", ["before link 1", "after link 1", "before link 2", "half a file"])
def test_a_real_kill_leaves_no_record_that_is_read(tmp_path: Path, moment: str) -> None:
    program = textwrap.dedent("""
        import os, signal, sys
        sys.path.insert(0, sys.argv[1])
        import numpy as np
        from factories import make_record
        from attnbench.store import Store
        folder, moment, link, sync, calls = sys.argv[2], sys.argv[3], os.link, os.fsync, []
        die = lambda: os.kill(os.getpid(), signal.SIGKILL)
        def dying_link(*arguments):
            calls.append(arguments)
            if moment == f"before link {len(calls)}":
                die()
            link(*arguments)
            if moment == f"after link {len(calls)}":
                die()
        def dying_sync(descriptor):
            if moment == "half a file":
                os.ftruncate(descriptor, 40)
                die()
            sync(descriptor)
        os.link, os.fsync = dying_link, dying_sync
        Store(folder).write(make_record(), {"labels": np.arange(3)})
    """)
    command = [sys.executable, "-c", program, str(Path(__file__).parent), str(tmp_path), moment]
    assert subprocess.run(command, timeout=120).returncode == -signal.SIGKILL
    store = Store(tmp_path)
    assert not list(tmp_path.rglob("*.json"))
    assert store.read_all() == ([], [])
    path = store.write(make_record(), {"labels": np.arange(3)})
    assert [found for found, _ in store.read_all()[0]] == [path]
    np.testing.assert_array_equal(load_predictions(path)["labels"], [0, 1, 2])


# --- nothing leaves the folder ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "part"),
    [("dense", "dense"), ("hst+sar", "hst+sar"), ("quick.v2", "quick.v2"), ("Linformer_k-64", "Linformer_k-64")],
)
def test_plain_names_stay_as_they_are(tmp_path: Path, label: str, part: str) -> None:
    assert Store(tmp_path).folder_for(make_record(label=label)).name == part


NASTY = [
    "../x",
    "..",
    ".",
    "",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "<script>",
    "x\0y",
    "-rf",
    "~",
    "C:\\x",
    "é" * 300,
    ".git",
    "a.",
]


@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("field", ["label", "task", "protocol"])
def test_nasty_names_become_safe_folders(tmp_path: Path, name: str, field: str) -> None:
    inside = tmp_path / "results"
    path = Store(inside).write(make_record(**{field: name}))  # type: ignore[arg-type]
    assert path.resolve().is_relative_to((inside / "runs").resolve())
    assert len(path.relative_to(inside).parts) == 5
    assert files(tmp_path) == [str(path.relative_to(tmp_path))]


@given(st.text(st.characters(), max_size=200), st.text(st.sampled_from("./\\~-+ab\0 "), max_size=12))
def test_any_label_and_task_stay_inside(label: str, task: str) -> None:
    folder = Path("base")
    found = Store(folder).folder_for(make_record(label=label, task=task))
    parts = found.relative_to(folder / "runs").parts
    assert len(parts) == 3
    for part in parts:
        assert part not in ("", ".", "..")
        assert not set(part) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.+-")
        assert len(part) <= 100
        assert part[0] not in ".-+"


@given(st.lists(st.text(max_size=5), min_size=2, max_size=2, unique=True))
def test_different_labels_have_different_folders(labels: list[str]) -> None:
    one, other = (Store(Path("base")).folder_for(make_record(label=label)) for label in labels)
    assert one != other


@pytest.mark.parametrize("bad", ["../../x", "a/b", "", ".hidden", "x" * 300])
def test_an_id_must_be_a_file_name(tmp_path: Path, bad: str) -> None:
    with pytest.raises(AttnbenchError, match="cannot be a file name"):
        Store(tmp_path / "results").write(make_record(id=bad))
    assert files(tmp_path) == []


def test_a_file_where_a_folder_should_be_is_a_plain_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("not a folder")
    with pytest.raises(AttnbenchError, match="cannot be written"):
        Store(tmp_path).write(make_record())


# --- predictions ------------------------------------------------------------------------------------------------


def test_changed_or_missing_predictions_are_refused(tmp_path: Path) -> None:
    path = Store(tmp_path).write(make_record(), PREDICTIONS)
    beside = path.with_name(read(path).predictions or "")
    data = bytearray(beside.read_bytes())
    data[-300] ^= 1
    beside.write_bytes(data)
    with pytest.raises(AttnbenchError, match="sha256 differs"):
        load_predictions(path)
    beside.unlink()
    with pytest.raises(AttnbenchError, match="cannot be read"):
        load_predictions(path)


def _with_predictions(tmp_path: Path, name: str, content: bytes) -> Path:
    path = Store(tmp_path).write(make_record())
    data = json.loads(path.read_text())
    data |= {"predictions": name, "predictions_sha": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(data))
    path.parent.joinpath(name).write_bytes(content)
    return path


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def _zip(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("labels.npy", content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 nonsense",
        b"no archive",
        _npy(np.arange(3)),
        _zip(_npy(np.array([{"run": "me"}], dtype=object))),
    ],
    ids=["empty", "half a zip", "text", "one array", "pickle"],
)
def test_only_plain_arrays_are_loaded(tmp_path: Path, content: bytes) -> None:
    path = _with_predictions(tmp_path, "made.npz", content)
    with pytest.raises(AttnbenchError, match="not plain arrays"):
        load_predictions(path)


def test_a_record_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    path = _with_predictions(tmp_path, "../../secret.npz", b"x")
    with pytest.raises(AttnbenchError, match="outside its folder"):
        load_predictions(path)


def test_records_are_read_without_torch() -> None:
    modules = ("store", "report", "frame", "merging")
    program = f"import sys, attnbench.{', attnbench.'.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0
