"""Reading ListOps' released files: found wherever they lie, every fault named with file and row, nothing guessed."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import listops_truth
import pytest
from attnbench.tasks._listops import files
from listops_sets import SHORT, options, plugin, prepared, rows, stub

from attnbench import data
from attnbench.errors import AttnbenchError


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


def test_the_sample_of_the_original_is_read(cache: Path, test_data: Path) -> None:
    source = test_data / "listops-1000-sample"
    found = prepared(source, origin="files")
    for split, name in files.NAMES.items():
        told = [
            (bytes(map(listops_truth.IDS.get, w)), label)
            for w, label in listops_truth.rows((source / name).read_bytes())
        ]
        assert told == list(zip(rows(found, split), found.splits[split].targets, strict=True))
    assert [len(rows(found, split)) for split in data.SPLITS] == [150, 25, 25]
    assert [len(rows(prepared(source, origin="files", examples=100), split)) for split in data.SPLITS] == [96, 2, 2]


PLACES = ["listops-1000", "lra_release/listops-1000", "lra_release/lra_release/listops-1000", "listops"]


@pytest.mark.parametrize("place", PLACES)
def test_the_files_are_found_from_any_folder_around_them(exported: Path, tmp_path: Path, place: str) -> None:
    home = shutil.copytree(exported, tmp_path / place)
    for source in {tmp_path, home, home.parent, home.parent.parent} if "lra" in place else {tmp_path, home}:
        if source.is_relative_to(tmp_path):
            assert files.find(source, stub(tmp_path))["train"] == home / "basic_train.tsv"


@pytest.mark.parametrize("equal", [True, False])
def test_two_copies_are_told_and_two_that_differ_refused(
    cache: Path, exported: Path, tmp_path: Path, equal: bool
) -> None:
    """Also two of the same size and time, as they come out of an archive."""
    one, two = (shutil.copytree(exported, tmp_path / "lra" / place) for place in PLACES[:2])
    if equal:
        notes = prepared(tmp_path / "lra", origin="files").card["notes"]
        assert f"{one} and {two} hold the same; the first is read" in notes
        return
    test = two / "basic_test.tsv"
    before = test.stat()
    test.write_bytes(test.read_bytes().replace(b"3", b"4", 1))
    os.utime(test, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(AttnbenchError, match=rf"two copies that differ, {one} and {two}; name one of them with --from"):
        prepared(tmp_path / "lra", origin="files")


def test_compressed_files_are_read(exported: Path, copy: Path) -> None:
    for path in copy.glob("*.tsv"):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    one, other = (
        [
            (name, part.to_pydict())
            for name, part in files.read(options(origin="files"), files.find(home, stub(home)), stub(home))
        ]
        for home in (exported, copy)
    )
    assert one == other


GOOD = b"( ( ( [MAX 2 ) 9 ) ] )\t9\r\n"


def row(content: bytes) -> Callable[[Path], Any]:
    """Puts a row in place of the third."""

    def spoil(home: Path) -> None:
        path = home / "basic_train.tsv"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:2], content, *lines[3:]]))

    return spoil


def source(text: bytes, label: bytes = b"2") -> Callable[[Path], Any]:
    return row(text + b"\t" + label + b"\r\n")


def whole(content: bytes, name: str = "basic_train.tsv") -> Callable[[Path], Any]:
    return lambda home: (home / name).write_bytes(content)


def tail(home: Path) -> None:
    path = home / "basic_train.tsv"
    path.write_bytes(path.read_bytes()[:-9])


def cut_gzip(home: Path) -> None:
    path = home / "basic_train.tsv"
    path.write_bytes(gzip.compress(path.read_bytes())[:-500])


HEAD = b"Source\tTarget\r\n"
BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    # any text file
    "not UTF-8": (source(b"( ( ( [MAX 2 ) \xff ) ] )"), r"train\.tsv, row 3: not UTF-8, byte 15 is 0xff"),
    "NUL": (source(b"( ( ( [MAX 2 ) \0 ) ] )"), r"train\.tsv, row 3: a NUL byte at column 16"),
    "field too many": (row(b"1\t" + GOOD), r"row 3: 3 fields between tabs, expected 2"),
    "field too few": (row(GOOD.replace(b"\t", b" ")), r"row 3: 1 fields between tabs, expected 2"),
    "blank row": (row(b"\r\n"), r"row 3: 1 fields between tabs"),
    "cut row": (tail, r"row 145: (1 fields|unbalanced|label '')"),
    "renamed column": (whole(b"Text\tTarget\r\n" + GOOD), r"train\.tsv, row 1: columns 'Text', 'Target'; expected"),
    "swapped columns": (whole(b"Target\tSource\r\n9\t( 9 )\r\n"), r"columns 'Target', 'Source'; expected Source and"),
    "missing column": (whole(b"Source\r\n" + GOOD), r"row 1: columns 'Source'; expected"),
    "index column": (whole(b"\tSource\tTarget\r\n0\t" + GOOD), r"row 1: columns '', 'Source', 'Target'; expected"),
    "no names": (whole(GOOD), r"row 1: columns '.* \[MAX 2 \) 9 .*', '9'; expected Source and Target"),
    "quoted": (row(b'"' + GOOD.replace(b"\t", b'"\t')), r"row 3: unknown token '\"\('"),
    "empty file": (whole(b""), r"basic_train\.tsv: empty"),
    "names alone": (whole(HEAD, "basic_val.tsv"), r"basic_val\.tsv: no row below the names of the columns"),
    "git-LFS": (whole(b"version https://git-lfs.github.com/spec/v1\n"), "a git-LFS pointer or a web page in place"),
    "web page": (whole(b"<!DOCTYPE html><title>403</title>"), "a git-LFS pointer or a web page in place of data"),
    "cut gzip": (cut_gzip, r"basic_train\.tsv: cut short or damaged after row \d+"),
    # ListOps
    "unknown token": (source(b"( ( ( [MAX 2 ) 10 ) ] )"), r"row 3: unknown token '10'"),
    "unused operator": (source(b"( ( ( [FIRST 2 ) 3 ) ] )"), r"row 3: unknown token '\[FIRST'"),
    "operator without [": (source(b"( ( ( MAX 2 ) 3 ) ] )"), r"row 3: unknown token 'MAX'"),
    "the pipeline's token": (source(b"( ( ( [MAX 2 ) 3 ) X )"), r"row 3: unknown token 'X'"),
    "long token": (source(b"9" * 99), r"row 3: unknown token '9{20}'$"),
    "no blank": (source(b"( ( ( [MAX2 ) 3 ) ] )"), r"row 3: unknown token '\[MAX2'"),
    "open bracket": (source(b"( ( ( [MAX 2 ) 2 ) )"), r"unbalanced brackets: 1 of \[ stay open, the last is \[MAX"),
    "bracket too many": (source(b"( ( ( [MAX 2 ) 2 ) ] ] )"), r"row 3: unbalanced brackets: a \] without operator"),
    "open parenthesis": (source(b"( ( ( [MAX 2 ) 2 ) ]"), r"row 3: unbalanced parentheses: 1 of \( stay open"),
    "parenthesis too many": (source(b"( ( [MAX 2 ) 2 ) ] )"), r"row 3: unbalanced parentheses: a \) too many"),
    "no argument": (source(b"( ( ( [MAX 2 ) ( [SM ] ) ) ] )"), r"row 3: operator \[SM without argument"),
    "no expression": (source(b""), r"row 3: empty expression"),
    "parentheses alone": (source(b"( )"), r"row 3: empty expression"),
    "two expressions": (source(b"2 2"), r"row 3: 2 expressions, expected one"),
    "label 10": (source(GOOD[:-4], b"10"), r"row 3: label '10', expected a digit"),
    "label -1": (source(GOOD[:-4], b"-1"), r"row 3: label '-1', expected a digit"),
    "label 9.0": (source(GOOD[:-4], b"9.0"), r"row 3: label '9\.0', expected a digit"),
    "label in words": (source(GOOD[:-4], b"nine"), r"row 3: label 'nine'"),
    "label in other digits": (source(GOOD[:-4], "٩".encode()), r"row 3: label '٩'"),
    "no label": (source(GOOD[:-4], b""), r"row 3: label '', expected a digit"),
    "wrong label": (source(GOOD[:-4], b"2"), r"row 3: label 2, but the expression is worth 9"),
    "too long": (source(b"[MAX " + b"2 " * 1999 + b"]"),
                 r"row 3: 2001 tokens, more than max_length=2000, as in 1 of 144 rows; --set max_length=2001 reads"),
    # the folder
    "file missing": (lambda home: (home / "basic_val.tsv").unlink(), r"no basic_val\.tsv; complete the folder"),
    "nothing there": (lambda home: [path.unlink() for path in home.glob("*.tsv")], r"no basic_train\.tsv, .* below"),
    "both forms": (lambda home: shutil.copy(home / "basic_test.tsv", home / "basic_test.tsv.gz"), r"two copies; take"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_named_with_file_row_and_reason(cache: Path, copy: Path, kind: str) -> None:
    spoil, reason = BAD[kind]
    spoil(copy)
    with pytest.raises(AttnbenchError, match=reason) as caught:
        prepared(copy, origin="files")
    assert len(str(caught.value).splitlines()) == 1 and list(cache.rglob("*.arrow")) == []


def test_a_row_with_byte_order_mark_plain_line_ends_or_no_parentheses_is_the_same(exported: Path, copy: Path) -> None:
    for change in (lambda c: b"\xef\xbb\xbf" + c, lambda c: c.replace(b"\r\n", b"\n"), lambda c: c.rstrip(),
                   lambda c: c.replace(b"( ", b"").replace(b" )", b"")):  # fmt: skip
        content = (exported / "basic_train.tsv").read_bytes()
        (copy / "basic_train.tsv").write_bytes(change(content))
        told = [(row.tokens, row.label) for row in files._rows(copy / "basic_train.tsv")]
        assert told == [(row.tokens, row.label) for row in files._rows(exported / "basic_train.tsv")]


def test_overlong_expressions_are_counted_and_cut_on_request(cache: Path, exported: Path) -> None:
    full = prepared(exported, origin="files")
    train = [len(row) for row in rows(full, "train")]
    many, longest = sum(length > 20 for length in train), max(train)
    with pytest.raises(AttnbenchError, match=rf"in {many} of 144 rows; --set max_length={longest} reads all"):
        prepared(exported, origin="files", max_length=20)
    cut = prepared(exported, origin="files", max_length=20, overlong="cut")
    for split in data.SPLITS:
        assert rows(cut, split) == [row[:20] for row in rows(full, split)]
    assert list(cut.splits["train"].targets) == list(full.splits["train"].targets)
    assert cut.card["facts"]["share_cut"]["train"] == round(many / 144, 4)
    assert f"train: {many} of 144 expressions are cut to 20 tokens" in cut.card["notes"]


def test_repeats_are_counted_within_and_across_splits(copy: Path, tmp_path: Path) -> None:
    train, test = copy / "basic_train.tsv", copy / "basic_test.tsv"
    second = train.read_bytes().splitlines(keepends=True)[2]
    train.write_bytes(train.read_bytes() + second)
    test.write_bytes(HEAD + second)
    notes: list[str] = []
    list(files.read(options(origin="files"), files.find(copy, stub(copy)), stub(tmp_path, notes)))
    assert notes[-1].startswith("expressions that occur more than once, kept as they are: 1 in train, 0 in validation")
    assert notes[-1].endswith("0 of validation also in train, 1 of test also in train")


def test_more_than_the_files_hold_is_refused(cache: Path, exported: Path) -> None:
    with pytest.raises(AttnbenchError, match=r"train\.tsv: 144 expressions, and examples=200 takes 192 of this split"):
        prepared(exported, origin="files", examples=200)


def test_files_are_asked_for_where_there_are_none(cache: Path, exported: Path) -> None:
    with pytest.raises(AttnbenchError, match="not read in yet; run attnbench data prepare listops"):
        prepared(origin="files")
    with pytest.raises(AttnbenchError, match="--from reads files, so it goes with --set origin=files"):
        prepared(exported, examples=50)
    with pytest.raises(AttnbenchError, match="nowhere: no such folder"):
        prepared(exported / "nowhere", origin="files")
    with pytest.raises(AttnbenchError, match=r"basic_val\.tsv: a file, not a folder; unpack it and name the folder"):
        prepared(exported / "basic_val.tsv", origin="files")


mutations = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 40), st.binary(max_size=12) | st.sampled_from(
        [b"\t", b"\r\n", b'"', b"]", b"( ", b" )", b"[SM ", b"\xef\xbb\xbf", b"\x1f\x8b", b"7", b"\n\t3\r\n"])),
    min_size=1, max_size=4,
)  # fmt: skip


@hypothesis.settings(max_examples=300, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(changes=mutations)
def test_changed_bytes_give_what_stands_there_or_one_clear_error(
    exported: Path, tmp_path: Path, changes: list[tuple[int, int, bytes]]
) -> None:
    """Bytes cut out, replaced or put in: what is read is what the naive pipeline finds in each row, with its value."""
    content = (exported / "basic_val.tsv").read_bytes()
    for place, length, new in changes:
        place %= len(content) + 1
        content = content[:place] + new + content[place + length :]
    path = tmp_path / "basic_val.tsv"
    path.write_bytes(content)
    try:
        found = [(list(row.tokens), row.label) for row in files._rows(path)]
    except AttnbenchError as error:
        fault = str(error)
    else:
        fault = ""
    if fault:
        assert fault.startswith(str(path)) and len(fault.splitlines()) == 1
        return
    expected = listops_truth.rows(content.removeprefix(b"\xef\xbb\xbf"))
    assert found == [([listops_truth.IDS[word] for word in words], label) for words, label in expected]
    assert [listops_truth.value(words) for words, _ in expected] == [label for _, label in expected]
