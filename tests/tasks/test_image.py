"""LRA's Image: grey by both formulas, every layout, splits by content, no mask, and faults named with their place."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from attnbench.tasks import _cifar, image
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from published import attempt, colours, options, parquet, pictures, plugin, png, prepared

from attnbench import data
from attnbench.batches import Batches
from attnbench.config import Padding
from attnbench.errors import AttnbenchError
from attnbench.options import as_json
from attnbench.questions import question_of
from attnbench.verification import verify

Call = Callable[..., tuple[int, str, str]]
COLOURS, LABELS = colours(60), [number % 10 for number in range(60)]
TEST_COLOURS, TEST_LABELS = colours(20, seed=1), [number % 10 for number in range(20)]
TRAIN, TEST = "train-00000-of-00001.parquet", "test-00000-of-00001.parquet"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """60 + 20 pictures in the hub's layout."""
    home = tmp_path / "cifar10"
    pictures(home / "plain_text" / TRAIN, [png(one) for one in COLOURS], LABELS)
    pictures(home / "plain_text" / TEST, [png(one) for one in TEST_COLOURS], TEST_LABELS)
    return home


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """The same in the binary batches, 12 pictures each."""
    home = tmp_path / "classic" / "cifar-10-batches-bin"
    home.mkdir(parents=True)
    for number in range(5):
        rows = range(12 * number, 12 * number + 12)
        (home / f"data_batch_{number + 1}.bin").write_bytes(b"".join(record(COLOURS[r], LABELS[r]) for r in rows))
    (home / "test_batch.bin").write_bytes(b"".join(map(record, TEST_COLOURS, TEST_LABELS)))
    return home


def record(picture: np.ndarray, label: int) -> bytes:
    return bytes([label]) + b"".join(picture[:, :, channel].tobytes() for channel in range(3))


def pixels(found: data.TaskData, split: str) -> list[tuple[bytes, int]]:
    rows = zip(found.splits[split].documents[0], np.asarray(found.splits[split].targets).tolist(), strict=True)
    return [(row.astype(np.uint8).tobytes(), label) for row, label in rows]


def by_pillow(picture: np.ndarray) -> bytes:
    return Image.fromarray(picture).convert("L").tobytes()


def planes() -> Any:
    """All 2^24 colours, 2^16 at a time."""
    green, blue = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8), indexing="ij")
    for red in range(256):
        yield np.stack([np.full_like(green, red), green, blue], axis=-1)


def test_the_two_greys_differ_by_one_level_for_a_quarter_of_all_colours() -> None:
    """Over all 16.7 million: Pillow's is Pillow's own; TensorFlow's is the floor of the exact sum, but where that
    is a whole number within float32's rounding.
    """
    lower = rounded = 0
    for plane in planes():
        tf, pil = _cifar.grey_tf(plane).astype(np.int64), _cifar.grey_pil(plane)
        np.testing.assert_array_equal(pil, np.asarray(Image.fromarray(plane).convert("L")))
        below = pil.astype(np.int64) - tf
        assert below.min() >= 0 and below.max() <= 1
        lower += int(below.sum())
        exact = plane.astype(np.int64) @ np.array([2989, 5870, 1140]) * 511  # times 10,000 * 510
        off = tf != exact // 5_100_000
        rounded += int(off.sum())
        assert (np.abs((exact + 2_550_000) % 5_100_000 - 2_550_000)[off] < 2000).all()
    assert round(lower / 2**24, 2) == 0.26 and rounded < 1000


def test_pixels_lie_row_by_row_and_none_is_masked(source: Path) -> None:
    """Ids 0..255 are levels, black included."""
    truth = sorted((by_pillow(picture), label) for picture, label in zip(COLOURS, LABELS, strict=True))
    found = prepared("image", source, grey="pil")
    assert sorted(pixels(found, "train") + pixels(found, "validation")) == truth
    assert len(pixels(found, "test")) == 20 and found.card["facts"]["rows"] == {"train": 60, "test": 20}
    task = plugin("image").object
    assert (task.padded, task.vocab(options("image")), task.max_length(options("image"))) == (False, 256, 1024)
    question = question_of(task.head(options("image")))
    batch = Batches(found.splits["test"], question, Padding(), task.padded, 1024).collate([0, 1])
    assert batch.documents[0][1] is None


@pytest.mark.parametrize("mechanism", ["dense", "bigbird", "ernie_sparse"])
def test_a_black_picture_is_a_picture(mechanism: str) -> None:
    """In LRA's code all of it is padding."""
    from attnbench import assembly, plan

    model = assembly.build(plan.make(mechanism, "image")).eval()
    black = torch.zeros(1, 1024, dtype=torch.int64)
    with torch.no_grad():
        one, other = (model([(tokens, None)], None) for tokens in (black, black + (torch.arange(1024) == 9)))
    assert torch.isfinite(one).all() and not torch.equal(one, other)


def test_the_layouts_give_the_same_set(
    source: Path, binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = prepared("image", source).card["sha256"]
    for number, place in enumerate([source / "plain_text", source.parent, binary, binary.parent]):
        monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / f"cache{number}"))
        found = prepared("image", place)
        assert found.card["sha256"] == wanted, place
    assert found.card["notes"][0] == "data_batch_1.bin holds 12 pictures; the released file has 10,000"


def test_validation_is_carved_by_content_or_the_last_tenth(source: Path) -> None:
    """Of train in both variants; rows are shuffled, and a subset is drawn from all of them."""
    found = prepared("image", source)
    train, validation = (dict(pixels(found, name)) for name in ("train", "validation"))
    assert 0 < len(validation) < 20 and len(train) + len(validation) == 60 and not set(train) & set(validation)
    last = prepared("image", source, validation="last", grey="pil")
    assert sorted(pixels(last, "validation")) == sorted((by_pillow(COLOURS[n]), LABELS[n]) for n in range(54, 60))
    some = prepared("image", source, examples=20, test_examples=7)
    taken = pixels(some, "train") + pixels(some, "validation")
    assert len(taken) == 20 and len(some.splits["test"]) == 7
    assert [train | validation | {one: label} == train | validation for one, label in taken] == [True] * 20
    first = {picture for picture, _ in pixels(found, "train")} & {_cifar.grey_tf(one).tobytes() for one in COLOURS[:20]}
    assert {picture for picture, _ in taken} != first
    other = prepared("image", source, data_seed=1)
    assert {one for one, _ in pixels(other, "validation")} != set(validation)


def test_each_option_has_its_own_set() -> None:
    changed = {"grey": "pil", "validation": "last", "examples": 50, "test_examples": 5, "data_seed": 2,
               "image_column": "image", "label_column": "labels"}  # fmt: skip
    all_options = [options("image"), *(options("image", **{name: value}) for name, value in changed.items())]
    assert set(changed) == set(as_json(all_options[0]))
    assert len({data.data_key(plugin("image"), one) for one in all_options}) == 1 + len(changed)


def test_duplicates_are_counted(source: Path) -> None:
    rows = [*COLOURS[:30], *COLOURS[:3]]
    pictures(source / "plain_text" / TRAIN, [png(one) for one in rows], LABELS[:33])
    pictures(source / "plain_text" / TEST, [png(one) for one in COLOURS[2:12]], LABELS[2:12])
    assert prepared("image", source).card["facts"]["duplicates"] == {
        "in_train": 3, "in_test": 0, "of_test_also_in_train": 10,
    }  # fmt: skip


def test_the_sample_of_real_pictures(test_data: Path) -> None:
    found = prepared("image", test_data / "cifar10_jpeg", grey="pil")
    table = pq.read_table(test_data / "cifar10_jpeg" / "plain_text" / TEST)
    truth = [
        (Image.open(io.BytesIO(one["bytes"])).convert("L").tobytes(), label)
        for one, label in zip(table["img"].to_pylist(), table["label"].to_pylist(), strict=True)
    ]
    assert sorted(pixels(found, "test")) == sorted(truth)
    assert found.card["notes"][0].startswith("2,000 pictures of train are JPEG, which loses detail")
    assert found.card["trivial"]["token_counts"] < 0.25


@pytest.mark.slow
def test_a_small_convolutional_network_tells_whether_labels_fit_the_pictures(test_data: Path) -> None:
    found = prepared("image", test_data / "cifar10_jpeg")
    assert 0.35 < verify(found, plugin("image"), options("image"))["trivial"]["small_cnn"] < 0.7
    made = {name: datasets.load_from_disk(str(found.folder / name)) for name in ("train", "test")}
    shuffled = np.random.Generator(np.random.PCG64(0)).permutation(np.asarray(found.splits["train"].targets))
    made["train"] = made["train"].remove_columns("label").add_column("label", shuffled)
    assert image.small_cnn(options("image"), datasets.DatasetDict(made))["small_cnn"] < 0.25


def spoil(row: int = 7, packed: Any = ..., label: Any = ..., **more: Any) -> Callable[[Path], None]:
    """Writes the training file again with one row changed."""

    def change(source: Path) -> None:
        kept, labels = [png(one) for one in COLOURS], list(LABELS)
        kept[row] = kept[row] if packed is ... else packed
        labels[row] = labels[row] if label is ... else label
        pictures(source / "plain_text" / TRAIN, kept, labels, **more)

    return change


def columns(**table: Any) -> Callable[[Path], None]:
    return lambda source: parquet(source / "plain_text" / TRAIN, pa.table(table))


def named(*names: str) -> Callable[[Path], None]:
    def change(source: Path) -> None:
        path = source / "plain_text" / TRAIN
        parquet(path, pq.read_table(path).replace_schema_metadata(None), {"label": names})

    return change


RAW = np.zeros((32, 32), np.uint8)
FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "size": (spoil(packed=png(COLOURS[0][:31])), r"parquet, row 8: 32 x 31 pixels, expected 32 x 32"),
    "channels first": (spoil(packed=png(COLOURS[0].transpose(2, 0, 1).reshape(3, 1024)[:, :32].repeat(1, 0))),
                       r"row 8: 32 x 3 pixels, expected 32 x 32"),
    "grey": (spoil(packed=png(RAW)), r"row 8: a picture of mode L, expected 8-bit RGB"),
    "four channels": (spoil(packed=png(np.zeros((32, 32, 4), np.uint8))), r"row 8: a picture of mode RGBA"),
    "16 bits": (spoil(packed=png(RAW.astype(np.uint16))), r"row 8: a picture of mode I;16"),
    "half": (spoil(packed=png(COLOURS[0])[:1500]), r"row 8: no readable picture"),
    "nonsense": (spoil(packed=b"\x89PNG nonsense"), r"row 8: no readable picture"),
    "another kind": (spoil(packed=b"GIF89a" + bytes(50)), r"row 8: no readable picture"),
    "no bytes": (spoil(packed=b""), r"row 8: no readable picture"),
    "no picture": (spoil(packed=None), r"row 8: nothing in column 'img'"),
    "label": (spoil(label=10), r"row 8: label 10, expected 0 to 9"),
    "negative label": (spoil(label=-1), r"row 8: label -1, expected 0 to 9"),
    "no label": (spoil(label=None), r"row 8: nothing in column 'label'"),
    "renamed": (spoil(names=("image", "label")), r"no column 'img', found image, label"),
    "renamed labels": (spoil(names=("img", "labels")), r"no column 'label', found img, labels"),
    "arrays": (columns(img=[[[1, 2]]], label=[0]), r"column 'img' holds list.*, expected pictures"),
    "paths": (columns(img=["0.png"], label=[0]), r"column 'img' holds string, expected pictures"),
    "label is text": (columns(img=[{"bytes": b"a"}], label=["cat"]), r"column 'label' holds string, expected whole"),
    "other classes": (named(*"abcdefghij"), r"the classes of 'label' are a, b, .* expected airplane, automobile"),
    "cut short": (lambda source: (source / "plain_text" / TRAIN).write_bytes(b"PAR1"), r"cut short, damaged"),
    "no test": (lambda source: (source / "plain_text" / TEST).unlink(), r"no test-\*\.parquet there"),
    "nothing": (lambda source: shutil.rmtree(source / "plain_text"), r"neither plain_text/train-\*\.parquet nor"),
    "pickles": (lambda source: (shutil.rmtree(source / "plain_text"), (source / "data_batch_1").write_bytes(b"\x80")),
                r"the batches for Python are pickles, and opening a pickle runs what stands in it; get .*binary"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_named_with_its_place_on_one_line(source: Path, tmp_path: Path, kind: str) -> None:
    change, said = FAULTS[kind]
    change(source)
    with pytest.raises(AttnbenchError, match=said) as caught:
        prepared("image", source)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").rglob("*.arrow")) == []


BINARY_FAULTS: dict[str, tuple[str, Callable[[bytes], bytes | None], str]] = {
    "cut short": ("data_batch_2.bin", lambda old: old[:-1], r"data_batch_2\.bin: 36,875 bytes are no whole number"),
    "empty": ("data_batch_2.bin", lambda old: b"", r"data_batch_2\.bin: empty"),
    "missing": ("data_batch_2.bin", lambda old: None, r"data_batch_2\.bin: no such file; complete the folder"),
    "label": ("test_batch.bin", lambda old: old[:3073] + b"\x0a" + old[3074:], r"test_batch\.bin, row 2: label 10"),
    "web page": ("test_batch.bin", lambda old: b"<!doctype html>", r"a git-LFS pointer or a web page"),
    "CIFAR-100": ("test_batch.bin", lambda old: b"\0" + old, r"test_batch\.bin: 61,461 bytes are no whole number"),
}


@pytest.mark.parametrize("kind", BINARY_FAULTS)
def test_a_fault_of_the_binary_batches_is_named_with_its_place(binary: Path, kind: str) -> None:
    name, change, said = BINARY_FAULTS[kind]
    content = change((binary / name).read_bytes())
    (binary / name).unlink() if content is None else (binary / name).write_bytes(content)
    with pytest.raises(AttnbenchError, match=said):
        prepared("image", binary)


def test_other_column_names_are_read_when_they_are_given(source: Path) -> None:
    wanted = prepared("image", source).card["sha256"]
    for name, packed, labels in ((TRAIN, COLOURS, LABELS), (TEST, TEST_COLOURS, TEST_LABELS)):
        pictures(source / "plain_text" / name, [png(one) for one in packed], labels, ("image", "labels"))
    assert prepared("image", source, image_column="image", label_column="labels").card["sha256"] == wanted


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"examples": 61}, r"train of CIFAR-10 has 60 rows, 61 are asked for"),
        ({"examples": 1}, r"too few to carve"),
        ({"grey": "tv"}, r"grey"),
        ({"image_column": "label"}, r"image_column and label_column are both 'label'"),
    ],
)
def test_options_that_cannot_be_are_refused(source: Path, values: dict[str, Any], said: str) -> None:
    with pytest.raises(AttnbenchError, match=said):
        prepared("image", source, **values)


def test_without_data_one_line_says_where_to_get_them_and_what_to_type(call: Call) -> None:
    code, out, err = call("data", "prepare", "image", "--set", "grey=pil")
    assert (code, out) == (2, "") and "attnbench data prepare image --set grey=pil --from DIR (or --download)" in err


PNG = png(COLOURS[0])


@settings(max_examples=300)
@given(
    cut=st.one_of(st.none(), st.integers(0, len(PNG))),
    flips=st.lists(st.tuples(st.integers(0, len(PNG) - 1), st.integers(1, 255)), max_size=3),
    head=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3),
)
def test_a_damaged_picture_is_refused_or_whole(
    cut: int | None, flips: list[tuple[int, int]], head: list[tuple[int, int]]
) -> None:
    content = bytearray(PNG[:cut])
    for place, flip in [*flips, *head]:
        if place < len(content):
            content[place] ^= flip
    found = attempt(lambda: _cifar.picture("here, row 1", bytes(content)))
    if isinstance(found, AttnbenchError):
        assert str(found).startswith("here, row 1: ")
    else:
        assert found.shape == (32, 32, 3) and found.dtype == np.uint8
