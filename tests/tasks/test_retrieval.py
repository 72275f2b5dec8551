"""LRA's Retrieval: rows of the released files as they stand, in bounded memory, resumed; faults with file and row."""

from __future__ import annotations

import ast
import gzip
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnbench.tasks import _aan, _arrow, retrieval
from hypothesis import given, settings
from hypothesis import strategies as st
from published import AAN, aan, attempt, documents, options, plugin, prepared, silent

from attnbench import data
from attnbench.contracts import Match, Preparation
from attnbench.errors import AttnbenchError
from attnbench.options import as_json

Call = Callable[..., tuple[int, str, str]]
Row = tuple[bytes, bytes, bytes]


def rows(count: int, start: int = 0) -> list[Row]:
    """label and two texts in the form of the release, with what readers that guess fall over."""
    odd = [b'"quoted', b"NA", b"12", b"a, b\\tc", 'it\u2019s "x'.encode(), b"\\xe2\\x80\\x99"]
    return [
        (b"%d.0" % (n % 2), b"b'paper %d %s'" % (n, odd[n % 6]), b"b'paper %d %s'" % (n // 2, odd[(n + 3) % 6]))
        for n in range(start, start + count)
    ]


ROWS = {"train": rows(40), "validation": rows(12, 100), "test": rows(14, 30)}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    home = tmp_path / "tsv_data"
    home.mkdir()
    for split, found in ROWS.items():
        (home / AAN[split]).write_bytes(aan(found))
    return home


def triples(found: data.TaskData, split: str) -> list[tuple[int, bytes, bytes]]:
    labels = np.asarray(found.splits[split].targets).tolist()
    return list(zip(labels, documents(found, split), documents(found, split, 1), strict=True))


def truth(split: str, cut: int = 4000) -> list[tuple[int, bytes, bytes]]:
    return [(int(label[:1]), a[:cut], b[:cut]) for label, a, b in ROWS[split]]


def test_both_texts_are_read_as_they_stand_and_cut(source: Path) -> None:
    """A quote is a character; NA and digits are text; no row is dropped; the three files are the splits."""
    for cut in (4000, 9):
        found = prepared("retrieval", source, max_length=cut)
        for split in AAN:
            assert triples(found, split) == truth(split, cut)
    assert found.card["facts"]["rows"] == {"train": 40, "validation": 12, "test": 14}
    assert found.card["facts"]["share_cut"] == {"train": 1.0, "validation": 1.0, "test": 1.0}
    assert "132 of 132 texts have Python's form b'...': kept" in found.card["notes"]
    assert plugin("retrieval").object.head(options("retrieval")) == Match(2)


def test_shared_rows_and_documents_are_counted(source: Path) -> None:
    facts = prepared("retrieval", source).card["facts"]
    known = {text for _, *texts in ROWS["train"] for text in texts}
    asked = {text for _, *texts in ROWS["test"] for text in texts}
    assert facts["share_of_documents_of_test_also_in_train"] == round(len(asked & known) / len(asked), 4) > 0
    pairs = {(a, b) for _, a, b in ROWS["train"]}
    assert facts["duplicates"]["of_test_also_in_train"] == sum((a, b) in pairs for _, a, b in ROWS["test"]) == 10
    assert facts["duplicates"]["in_train"] == facts["duplicates"]["of_validation_also_in_train"] == 0


def test_escapes_are_undone_when_asked_to(source: Path) -> None:
    for name in AAN.values():  # Python writes ASCII
        (source / name).write_bytes((source / name).read_bytes().decode().encode("ascii", "ignore"))
    found = prepared("retrieval", source, escapes="decoded")
    for split in AAN:
        rows_there = [line.split("\t") for line in (source / AAN[split]).read_text().splitlines()]
        wanted = [[ast.literal_eval(first), ast.literal_eval(second)] for *_, first, second in rows_there]
        assert [texts for _, *texts in triples(found, split)] == wanted


@given(st.binary(max_size=40))
def test_what_python_writes_is_undone(raw: bytes) -> None:
    assert _aan.decoded("here", repr(raw).encode()) == raw


@pytest.mark.parametrize(
    "text", [b"plain", b"b'a' b'c'", b"b'a", b"b'a\"", b"b'a'b'", b"u'a'", b"b'a\\q'", b"b'a\\x4'", b"b'\xe9'"]
)
def test_what_python_does_not_write_is_not_undone(text: bytes) -> None:
    with pytest.raises(AttnbenchError, match=r"here: .*escapes=kept"):
        _aan.decoded("here", text)


@pytest.mark.parametrize("place", ["", "aan", "tsv_data", "lra_release/tsv_data", "lra_release/lra_release/tsv_data"])
def test_the_layouts_and_packed_files_are_found(tmp_path: Path, place: str) -> None:
    home = tmp_path / "there" / place
    home.mkdir(parents=True)
    for split, found in ROWS.items():
        windows = b"\xef\xbb\xbf" + aan(found).replace(b"\n", b"\r\n")
        ending, content = (".gz", gzip.compress(windows)) if split == "train" else ("", windows)
        (home / (AAN[split] + ending)).write_bytes(content)
    found = prepared("retrieval", tmp_path / "there")
    assert all(triples(found, split) == truth(split) for split in AAN)


def test_a_subset_is_drawn_from_the_whole_file(source: Path) -> None:
    """Never the first rows."""
    found = prepared("retrieval", source, examples=20, test_examples=14)
    taken = triples(found, "train")
    assert len(taken) == 20 and taken != truth("train")[:20]
    assert [row for row in truth("train") if row in taken] == taken
    assert triples(found, "test") == truth("test") and triples(found, "validation") == truth("validation")
    assert triples(prepared("retrieval", source, examples=20, data_seed=1), "train") != taken
    with pytest.raises(AttnbenchError, match=r"train\.tsv: 40 rows, 41 are asked for"):
        prepared("retrieval", source, examples=41)
    left_out = next(n for n, row in enumerate(truth("train"), 1) if row not in taken)
    changed(left_out, field(0, b"2"))(source)
    with pytest.raises(AttnbenchError, match=rf"train\.tsv, row {left_out}: label '2'"):
        prepared("retrieval", source, examples=20, max_length=99)


def test_each_option_has_its_own_set() -> None:
    changed = {"max_length": 9, "escapes": "decoded", "examples": 5, "validation_examples": 5, "test_examples": 5}
    all_options = [options("retrieval"), *(options("retrieval", **{name: value}) for name, value in changed.items())]
    all_options.append(options("retrieval", examples=5, data_seed=1))
    assert {*changed, "data_seed"} == set(as_json(all_options[0]))
    assert len({data.data_key(plugin("retrieval"), one) for one in all_options}) == len(all_options)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"data_seed": 1}, "data_seed draws subsets, and none is asked for"),
        ({"max_length": 10_001}, "max_length"),
        ({"max_length": 0}, "max_length"),
        ({"escapes": "gone"}, "escapes"),
        ({"examples": 0}, "examples"),
    ],
)
def test_options_that_cannot_be_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(AttnbenchError, match=said):
        options("retrieval", **values)


def test_without_files_one_line_says_what_is_needed_and_nothing_is_fetched(call: Call) -> None:
    for more in ([], ["--download"]):
        code, out, err = call("data", "prepare", "retrieval", "--set", "examples=9", *more)
        assert (code, out) == (2, "") and "no open licence, so nothing fetches them" in err
        assert err.rstrip().endswith("attnbench data prepare retrieval --set examples=9 --from DIR")


def changed(row: int, line: Callable[[bytes], bytes], split: str = "train") -> Callable[[Path], None]:
    """Spoils one row of a file."""

    def spoil(source: Path) -> None:
        path = source / AAN[split]
        found = path.read_bytes().splitlines(keepends=True)
        found[row - 1] = line(found[row - 1])
        path.write_bytes(b"".join(found))

    return spoil


def field(number: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda line: b"\t".join([*line.split(b"\t")[:number], value, *line.split(b"\t")[number + 1 :]])


def whole(content: bytes | None, split: str = "train") -> Callable[[Path], None]:
    def spoil(source: Path) -> None:
        path = source / AAN[split]
        path.unlink() if content is None else path.write_bytes(content)

    return spoil


def only_ids(source: Path) -> None:
    for name in AAN.values():
        (source / name).rename(source / name.replace(".tsv", ".only_ids.tsv"))


def two_copies(source: Path) -> None:
    (source / "aan").mkdir()
    (source / "aan" / AAN["test"]).write_bytes(b"1\tA\tB\tx\ty\n")


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "label": (changed(3, field(0, b"2")), r"train\.tsv, row 3: label '2', expected 0, 1, 0\.0 or 1\.0"),
    "label in words": (changed(3, field(0, b"yes")), r"row 3: label 'yes'"),
    "fraction": (changed(3, field(0, b"0.5")), r"row 3: label '0\.5'"),
    "no label": (changed(3, field(0, b"")), r"row 3: label ''"),
    "header": (changed(1, lambda line: b"label\tid1\tid2\ttext1\ttext2\n" + line), r"row 1: label 'label', .*a header"),
    "field too many": (changed(3, lambda line: b"0\t" + line), r"row 3: 6 fields between tabs, expected 5"),
    "field too few": (changed(3, lambda line: b"0\tA\tB\tx\n"), r"row 3: 4 fields between tabs, expected 5"),
    "blank row": (changed(3, lambda line: b"\n" + line), r"row 3: 1 fields between tabs"),
    "ids in a row": (changed(3, lambda line: b"0\tA\tB\n"), r"row 3: 3 fields, the ids without the texts"),
    "empty text": (changed(3, field(3, b"")), r"row 3: field 4 holds no text"),
    "empty literal": (changed(3, field(4, b"b''\n")), r"row 3: field 5 holds no text"),
    "blank text": (changed(3, field(3, b"  ")), r"row 3: field 4 holds no text"),
    "not UTF-8": (changed(3, field(3, b"caf\xe9")), r"row 3: not UTF-8, byte 13 is 0xe9"),
    "NUL": (changed(3, field(3, b"a\0")), r"row 3: a NUL byte at column"),
    "other file": (changed(2, field(0, b"7"), "test"), r"new_aan_pairs\.test\.tsv, row 2: label '7'"),
    "empty file": (whole(b"", "validation"), r"new_aan_pairs\.eval\.tsv: empty"),
    "missing file": (whole(None, "test"), r"new_aan_pairs\.test\.tsv: no such file; complete the folder"),
    "git-LFS": (whole(b"version https://git-lfs.github.com/spec/v1\n"), "a git-LFS pointer or a web page"),
    "web page": (whole(b"<!DOCTYPE html>\n<title>403</title>"), "a git-LFS pointer or a web page"),
    "cut gzip": (whole(gzip.compress(aan(rows(4000)))[:2000]), r"train\.tsv: cut short or damaged after row \d+"),
    "only ids": (only_ids, r"only_ids\.tsv: the ids of the pairs without their texts"),
    "two copies": (two_copies, r"two copies, in .* name one of them with --from"),
    "packed and plain": (lambda source: (source / (AAN["train"] + ".gz")).write_bytes(b"") and None, "take one out"),
    "nothing": (lambda source: [(source / name).unlink() for name in AAN.values()] and None, "no new_aan_pairs"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_named_with_file_and_row_on_one_line(source: Path, tmp_path: Path, kind: str) -> None:
    spoil, said = FAULTS[kind]
    spoil(source)
    with pytest.raises(AttnbenchError, match=said) as caught:
        prepared("retrieval", source)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").rglob("*.arrow")) == []


@settings(max_examples=300)
@given(
    st.lists(st.lists(st.sampled_from([b"0", b"1.0", b"x", b'"', b"b'\"'", b"\xff", b"", b"\r", "\u2019".encode()]),
                      min_size=4, max_size=6), max_size=5),
    st.sampled_from([b"\n", b"\r\n"]), st.binary(max_size=3),
)  # fmt: skip
def test_any_file_is_refused_or_read_row_by_row(
    tmp_path_factory: pytest.TempPathFactory, table: list[list[bytes]], end: bytes, tail: bytes
) -> None:
    """Against the plainest reading there is: no row may be merged, dropped or shifted."""
    from attnbench.tasks._files import lines as read_lines

    path = tmp_path_factory.mktemp("any") / "new_aan_pairs.train.tsv"
    content = b"".join(b"\t".join(row) + end for row in table) + tail
    path.write_bytes(content)
    found = attempt(lambda: [_aan.parse(path, row, line) for row, line in read_lines(path)])
    if isinstance(found, AttnbenchError):
        assert str(path) in str(found)
        return
    plain = [line.removesuffix(b"\r").split(b"\t") for line in content.removesuffix(b"\n").split(b"\n")]
    assert [(pair.label, *pair.texts) for pair in found] == [(int(float(r[0])), r[3], r[4]) for r in plain]


def chunks(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.arrow")}


def test_an_interrupted_reading_goes_on_unless_the_files_changed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = _arrow.write, [5]

    def full_disk(path: Path, columns: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        write(path, columns)

    monkeypatch.setattr(retrieval, "_CHUNK", 6)
    monkeypatch.setattr(_arrow, "write", full_disk)
    with pytest.raises(OSError, match="No space left"):
        prepared("retrieval", source)
    (folder,) = (tmp_path / "cache").rglob("files")
    before = chunks(folder)
    assert len(before) == 5
    left[0] = 2
    with pytest.raises(OSError, match="No space left"):
        prepared("retrieval", source)
    assert len(now := chunks(folder)) == 7 and before.items() <= now.items()
    os.utime(source / AAN["test"], (1, 1))
    left[0] = 100
    assert all(triples(prepared("retrieval", source), split) == truth(split) for split in AAN)
    assert left[0] == 100 - 7 - 2 - 3, "all chunks were written again"


def test_the_progress_of_a_file_goes_to_its_end(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[int]] = {}

    def progress(items: Sequence[int], title: str) -> Any:
        for item in items:
            seen.setdefault(title.partition(",")[0], []).append(item)
            yield item

    monkeypatch.setattr(retrieval, "_PIECE", 500)
    work = silent(tmp_path / "work")
    retrieval.prepare(options("retrieval"), Preparation(work.folder, source, progress, work.note))
    assert seen == {name: list(range((source / name).stat().st_size // 500 + 1)) for name in AAN.values()}


def peak_of_private_memory(command: list[str], environment: dict[str, str]) -> int:
    """Bytes that belong to the process alone; what is mapped from files the system takes back when it needs it."""
    peak = 0
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            found = Path(f"/proc/{process.pid}/status").read_text().partition("RssAnon:")[2].split()
            peak = max(peak, 1024 * int(found[0])) if found else peak
            time.sleep(0.02)
    assert process.returncode == 0
    return peak


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_files_of_realistic_size_are_read_in_bounded_memory(tmp_path: Path) -> None:
    """20,000 + 2,500 + 2,500 rows of 58 KB: 1.4 GB, in a process that itself takes a quarter of one."""
    generator = np.random.Generator(np.random.PCG64(0))
    words = [bytes(generator.integers(97, 123, size, dtype=np.uint8)) for size in generator.integers(2, 10, 5000)]
    pool = b" ".join(words[index] for index in generator.integers(0, 5000, 400_000))
    source = tmp_path / "aan"
    source.mkdir()
    for split, count in {"train": 20_000, "validation": 2_500, "test": 2_500}.items():
        starts = generator.integers(0, len(pool) - 200_000, (count, 2))
        sizes = generator.gamma(4, 7_250, (count, 2)).astype(int).clip(50, 200_000)
        with open(source / AAN[split], "wb") as file:
            for row, ((a, b), (m, n)) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
                file.write(b"%d.0\tA\tB\tb'%s'\tb'%s'\n" % (row % 2, pool[a : a + m], pool[b : b + n]))
    size = sum(path.stat().st_size for path in source.iterdir())
    command = [sys.executable, "-m", "attnbench", "data", "prepare", "retrieval", "--from", str(source)]
    peak = peak_of_private_memory(command, {**os.environ, "OMP_NUM_THREADS": "1"})
    assert size > 1_300_000_000 and 100_000_000 < peak < 450_000_000
    found = prepared("retrieval", None)
    assert {name: len(split) for name, split in found.splits.items()} == {
        "train": 20_000, "validation": 2_500, "test": 2_500,
    }  # fmt: skip
    first = pool[starts[2_499, 0] :][: sizes[2_499, 0]]
    assert documents(found, "test")[-1] == (b"b'%s'" % first)[:4000]
