"""Preparing, exporting and reading Pathfinder: same pixels by every way, and bad files named."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnbench.tasks._pathfinder import generate, layout, parameters, preparation
from PIL import Image, PngImagePlugin

import attnbench
from attnbench import data, registry
from attnbench.columns import Ragged
from attnbench.errors import AttnbenchError
from attnbench.options import parse
from attnbench.verification import verify

COUNT = 60
MANIFEST = json.loads((Path(layout.__file__).parent / "manifest.json").read_text("utf-8"))
#: The larger ones are compared by `attnbench data verify`.
SMALL = [known for known in MANIFEST if known["examples"] * known["resolution"] ** 2 <= 4_000_000]


def options(name: str = "pathfinder", **values: Any) -> Any:
    return parse(f"task {name}", registry.load("tasks", name).object.options, values)


def prepared(source: Path | None = None, name: str = "pathfinder", workers: int = 1, **values: Any) -> data.TaskData:
    return data.load(registry.load("tasks", name), options(name, **values), source, workers)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    data.export(registry.load("tasks", "pathfinder"), options(examples=COUNT, data_seed=7), folder, 2)
    return folder


@pytest.fixture
def files(exported: Path, tmp_path: Path) -> Path:
    """A copy to spoil: the folder of the level."""
    shutil.copytree(exported, tmp_path / "copy")
    return tmp_path / "copy" / "pathfinder32" / "curv_contour_length_14"


def rows(files: Path) -> list[list[str]]:
    return [line.split() for line in (files / "metadata" / "0.npy").read_text().splitlines()]


def set_field(files: Path, row: int, field: int, value: str) -> None:
    changed = rows(files)
    changed[row][field] = value
    (files / "metadata" / "0.npy").write_text("".join(" ".join(fields) + "\n" for fields in changed))


def image(files: Path, index: int) -> Path:
    return files / "imgs" / "0" / f"sample_{index}.png"


@pytest.mark.parametrize(("name", "values"), [("pathfinder", {}), ("pathfinder", {"resolution": 64}), ("pathx", {})])
def test_each_split_holds_the_images_of_its_numbers(cache: Path, name: str, values: dict[str, Any]) -> None:
    found = prepared(name=name, examples=40, data_seed=3, **values)
    side = values.get("resolution", 128 if name == "pathx" else 32)
    drawn = generate(parameters(side, "hard"), 3, range(40))
    for split, remainders in {"train": range(8), "validation": [8], "test": [9]}.items():
        numbers = [n for n in range(40) if n % 10 in remainders]
        pixels, labels = found.splits[split].documents[0], found.splits[split].targets
        assert isinstance(labels, np.ndarray)
        np.testing.assert_array_equal(np.stack(list(pixels)), drawn.images[numbers].reshape(len(numbers), -1))
        np.testing.assert_array_equal(labels, drawn.labels[numbers])


def test_the_split_depends_on_the_number_alone() -> None:
    assert preparation.split_of(np.array([0, 7, 8, 9, 10, 18, 1999])).tolist() == [
        "train", "train", "validation", "test", "train", "validation", "test",
    ]  # fmt: skip


def test_workers_do_not_matter_and_nothing_is_left_over(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = prepared(examples=2500)
    assert sorted(path.name for path in one.folder.iterdir()) == ["card.json", "test", "train", "validation"]
    monkeypatch.setenv("ATTNBENCH_DATA", str(cache / "other"))
    assert prepared(examples=2500, workers=3).card["sha256"] == one.card["sha256"]


@pytest.mark.parametrize("known", SMALL, ids=lambda known: "-".join(map(str, list(known.values())[:-1])))
def test_the_manifest_holds(cache: Path, known: dict[str, Any]) -> None:
    asked = {key: value for key, value in known.items() if key != "sha256"}
    assert prepared(**asked).card["sha256"] == known["sha256"]
    assert verify(prepared(**asked), registry.load("tasks", "pathfinder"), options(**asked))["on record"] == "the same"


def test_a_set_that_differs_from_the_record_is_refused(cache: Path) -> None:
    found = prepared(examples=1000)
    plugin = registry.load("tasks", "pathfinder")
    card = found.folder / "card.json"
    card.write_text(card.read_text().replace(found.card["sha256"], "0" * 64))
    with pytest.raises(
        AttnbenchError, match=f"damaged: sha256 {found.card['sha256']}, was 0000.*remove .* and prepare"
    ):
        verify(prepared(examples=1000), plugin, options(examples=1000))
    assert plugin.object.pinned is not None and plugin.object.pinned(options(examples=1000)) == found.card["sha256"]
    assert plugin.object.pinned(options(examples=1000, distractors=3)) is None


def test_an_interrupted_generation_goes_on_where_it_stopped(cache: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "attnbench", "data", "prepare", "pathfinder", "--set", "examples=40000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "--workers", "1"], env=environment, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while len(done := list(cache.rglob("*-test.arrow"))) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.communicate()
    (folder,) = {path.parent for path in done}
    others = generate(parameters(32, "hard"), 1, range(1000))  # shows that a chunk is not drawn again
    paths = {name: folder / f"000000000-{name}.arrow" for name in preparation.SPLITS}
    preparation._write(preparation.Chunk(others.images, others.labels, np.arange(1000)), paths)
    subprocess.run(command, check=True, env=environment, capture_output=True)
    whole = prepared(examples=40000)
    kept = np.stack([whole.splits["train"].documents[0][index] for index in range(800)])
    numbers = [n for n in range(1000) if n % 10 < 8]
    np.testing.assert_array_equal(kept, others.images[numbers].reshape(800, -1))
    rest = whole.splits["test"].documents[0]
    drawn = generate(parameters(32, "hard"), 0, range(39_000, 40_000)).images[9::10].reshape(100, -1)
    np.testing.assert_array_equal(np.stack([rest[index] for index in range(3900, 4000)]), drawn)


def test_exported_files_are_the_released_layout(exported: Path) -> None:
    home = exported / "pathfinder32" / "curv_contour_length_14"
    drawn = generate(parameters(32, "hard"), 7, range(COUNT))
    for index, (fields, label) in enumerate(zip(rows(home), drawn.labels, strict=True)):
        assert fields == [
            "imgs/0",
            f"sample_{index}.png",
            str(index),
            str(label),
            *["1.0", "14", "4", "2", "0.5", "1", "1"],
        ]
        with Image.open(image(home, index)) as picture:
            assert picture.mode == "L"
            np.testing.assert_array_equal(np.asarray(picture), drawn.images[index])


@pytest.mark.parametrize("resolution", [32, 128])
def test_metadata_tell_the_settings_of_the_original(tmp_path: Path, resolution: int) -> None:
    """Its files hold the same fields; compared with rows that the original program wrote."""
    reference = os.environ.get("ATTNBENCH_TEST_DATA")
    if not reference:
        pytest.skip("ATTNBENCH_TEST_DATA names no folder with images of the original generator")
    with np.load(Path(reference) / f"pathfinder{resolution}_hard_reference.npz") as archive:
        theirs = archive["meta"][:, 4:].astype(float)
    values = options(resolution=resolution, examples=30)
    data.export(registry.load("tasks", "pathfinder"), values, tmp_path, 1)
    ours = np.array(rows(tmp_path / f"pathfinder{resolution}" / "curv_contour_length_14"))[:, 4:].astype(float)
    margin = 5
    for field in range(7):
        assert set(np.unique(ours[:, field])) == set(np.unique(theirs[:, field])), field
    assert len(np.unique(ours[:, margin])) == (2 if resolution == 128 else 1)


def test_reading_an_export_gives_the_generated_set(cache: Path, exported: Path) -> None:
    generated = prepared(examples=COUNT, data_seed=7)
    read = prepared(exported, origin="files", examples=COUNT)
    assert read.card["sha256"] == generated.card["sha256"]
    assert read.key.endswith(read.card["sha256"][:12]) and generated.key == data.data_key(
        registry.load("tasks", "pathfinder"), options(examples=COUNT, data_seed=7)
    )


def test_an_interrupted_export_goes_on_and_another_is_refused(tmp_path: Path) -> None:
    plugin = registry.load("tasks", "pathfinder")
    data.export(plugin, options(examples=2100), tmp_path, 1)
    home = tmp_path / "pathfinder32" / "curv_contour_length_14"
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*.png")}
    (home / "metadata" / "1.npy").unlink()
    image(home, 5).write_bytes(b"kept")
    data.export(plugin, options(examples=2100), tmp_path, 1)
    assert image(home, 5).read_bytes() == b"kept"
    again = {path.parent.name for path, when in before.items() if path.stat().st_mtime_ns != when}
    assert again == {"0", "1"} and len(before) == 2100
    with pytest.raises(AttnbenchError, match="holds an export with other options"):
        data.export(plugin, options(examples=2100, data_seed=1), tmp_path, 1)
    (home / "export.json").unlink()
    with pytest.raises(AttnbenchError, match="holds other files"):
        data.export(plugin, options(examples=2100), tmp_path, 1)


@pytest.mark.parametrize("kind", ["text", "numpy"])
def test_the_sample_of_the_original_is_read_with_both_kinds_of_metadata(cache: Path, tmp_path: Path, kind: str) -> None:
    folder = os.environ.get("ATTNBENCH_TEST_DATA")
    if not folder:
        pytest.skip("ATTNBENCH_TEST_DATA names no folder with images of the original generator")
    source = Path(folder) / "pathfinder32-sample"
    home = tmp_path / "curv_contour_length_14"
    shutil.copytree(source / "curv_contour_length_14", home, copy_function=shutil.copyfile)
    home.chmod(0o755)
    for part in home.rglob("*"):
        part.chmod(0o755)
    if kind == "numpy":
        for path in (source / "curv_contour_length_14_binary_metadata").iterdir():
            shutil.copyfile(path, home / "metadata" / path.name)
    found = prepared(tmp_path, origin="files")
    listing = [line.split() for n in (0, 1) for line in
               (source / "curv_contour_length_14" / "metadata" / f"{n}.npy").read_text().splitlines()]  # fmt: skip
    numbers = [n for n in range(len(listing)) if n % 10 == 9]
    for row, number in enumerate(numbers):
        with Image.open(source / "curv_contour_length_14" / listing[number][0] / listing[number][1]) as picture:
            pixels = np.asarray(picture).reshape(-1)
        np.testing.assert_array_equal(found.splits["test"].documents[0][row], pixels)
    assert list(found.splits["test"].targets) == [int(listing[number][3]) for number in numbers]
    assert found.card["notes"] == ["24 images found, 200,000 asked for"]


@pytest.mark.parametrize("depth", ["", "lra_release", "lra_release/lra_release"])
def test_the_release_is_found_at_any_depth(exported: Path, tmp_path: Path, depth: str) -> None:
    shutil.copytree(exported, tmp_path / depth, dirs_exist_ok=True)
    wanted = tmp_path / depth / "pathfinder32" / "curv_contour_length_14"
    for source in {tmp_path, wanted, wanted.parent}:
        assert layout.find(source, 32, "hard") == wanted


def test_two_copies_and_no_copy_are_refused(exported: Path, tmp_path: Path) -> None:
    for depth in ("lra_release", "lra_release/lra_release"):
        shutil.copytree(exported, tmp_path / depth)
    with pytest.raises(AttnbenchError, match=r"two copies, .*lra_release.* name one of them with --from"):
        layout.find(tmp_path, 32, "hard")
    with pytest.raises(AttnbenchError, match="no pathfinder32/curv_baseline with a folder metadata"):
        layout.find(tmp_path, 32, "easy")
    with pytest.raises(AttnbenchError, match="no such folder"):
        layout.find(tmp_path / "nowhere", 32, "easy")


@pytest.mark.parametrize("how", ["empty", "missing"])
def test_a_lost_image_is_counted_and_the_others_keep_their_split(cache: Path, files: Path, how: str) -> None:
    whole = prepared(files, origin="files", examples=COUNT - 1)
    image(files, 17).write_bytes(b"") if how == "empty" else image(files, 17).unlink()
    found = prepared(files, origin="files", examples=COUNT)
    assert found.card["notes"] == [f"1 of {COUNT} images are missing or empty, such as sample_17.png: left out"]
    assert found.card["splits"]["train"]["examples"] == 47
    assert [bytes(row) for row in found.splits["validation"].documents[0]] == [
        bytes(row) for row in whole.splits["validation"].documents[0]
    ]


def test_stray_files_are_no_metadata(cache: Path, files: Path) -> None:
    for name in ("combined.npy", "._0.npy"):
        shutil.copy(files / "metadata" / "0.npy", files / "metadata" / name)
    (files / "metadata" / ".DS_Store").write_bytes(b"\0")
    assert len(layout.listed(files)) == COUNT


def test_metadata_files_are_read_in_the_order_of_their_numbers(files: Path) -> None:
    """Not 0, 10, 2: the number of an image is its place in this order, and its split follows from it."""
    whole = layout.listed(files)
    lines = (files / "metadata" / "0.npy").read_text().splitlines(keepends=True)
    for start, number in ((40, 10), (20, 2), (0, 0)):
        (files / "metadata" / f"{number}.npy").write_text("".join(lines[start : start + 20]))
    assert [one.path for one in layout.listed(files)] == [one.path for one in whole]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def save(path: Path, mode: str = "L", side: int = 32, constant: bool = False) -> None:
    levels = np.zeros((side, side), np.uint8) if constant else np.arange(side * side, dtype=np.int64) % 251
    Image.fromarray(levels.reshape(side, side).astype(np.uint8)).convert(mode).save(path)


def bomb(path: Path) -> None:
    """A text chunk that unpacks to far more than it takes."""
    info = PngImagePlugin.PngInfo()
    info.add_text("a", "b" * (1 << 27), zip=True)
    Image.fromarray(np.arange(1024, dtype=np.uint8).reshape(32, 32)).save(path, pnginfo=info)


BAD_IMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (truncate, "no readable picture"),
    "no picture": (lambda path: path.write_bytes(b"GIF nonsense"), "no readable picture"),
    "bomb": (bomb, "no readable picture"),
    "rgb": (lambda path: save(path, "RGB"), r"mode RGB, expected 8-bit grey"),
    "palette": (lambda path: save(path, "P"), r"mode P, expected 8-bit grey"),
    "16 bits": (lambda path: save(path, "I;16"), r"mode I;16, expected 8-bit grey"),
    "size": (lambda path: save(path, side=31), r"31 x 31 pixels, expected 32"),
    "constant": (lambda path: save(path, constant=True), r"all pixels are 0"),
}


@pytest.mark.parametrize("kind", BAD_IMAGES)
def test_a_bad_image_is_named_with_file_row_and_reason(cache: Path, files: Path, kind: str) -> None:
    spoil, reason = BAD_IMAGES[kind]
    spoil(image(files, 23))
    with pytest.raises(AttnbenchError, match=rf"0\.npy, row 24: .*sample_23\.png: {reason}"):
        prepared(files, origin="files", examples=COUNT)


def metadata(content: bytes) -> Callable[[Path], Any]:
    return lambda files: (files / "metadata" / "0.npy").write_bytes(content)


def pickled(files: Path) -> None:
    np.save(files / "metadata" / "0.npy", np.array([[print]], dtype=object), allow_pickle=True)


BAD_METADATA: dict[str, tuple[Callable[[Path], Any], str]] = {
    "few fields": (metadata(b"imgs/0 sample_0.png 0\n"), r"0\.npy, row 1: 3 fields"),
    "label": (lambda files: set_field(files, 4, 3, "2"), r"0\.npy, row 5: label '2', expected 0 or 1"),
    "label in words": (lambda files: set_field(files, 4, 3, "yes"), r"0\.npy, row 5: label 'yes'"),
    "way out": (lambda files: set_field(files, 4, 0, "../../../imgs"), r"row 5: .* leads out of the folder"),
    "absolute": (lambda files: set_field(files, 4, 0, "/etc"), r"row 5: .* leads out of the folder"),
    "twice": (lambda files: set_field(files, 4, 1, "sample_3.png"), r"row 5: sample_3\.png is listed .*row 4"),
    "empty": (metadata(b""), r"0\.npy: empty"),
    "pickled": (pickled, r"0\.npy: not a plain numpy file"),
    "cut numpy": (metadata(b"\x93NUMPY\x01\x00"), r"0\.npy: not a plain numpy file"),
    "git-LFS": (metadata(b"version https://git-lfs.github.com/spec/v1\n"), r"a git-LFS pointer or a web page"),
    "web page": (metadata(b"<!DOCTYPE html><title>403</title>"), r"a git-LFS pointer or a web page"),
    "bytes": (metadata(b"imgs/0 \xff"), r"0\.npy: neither text nor a numpy file \(byte 7\)"),
    "name": (lambda files: (files / "metadata" / "0.npy").rename(files / "metadata" / "x.npy"), "is a number"),
    "none": (lambda files: (files / "metadata" / "0.npy").unlink(), "no metadata files"),
    "many lost": (lambda files: [image(files, n).unlink() for n in (4, 9)],
                  r"row 5: .*sample_4\.png is missing or empty, and so are 1 more of 60"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_METADATA)
def test_bad_metadata_are_named_with_file_row_and_reason(cache: Path, files: Path, kind: str) -> None:
    spoil, reason = BAD_METADATA[kind]
    spoil(files)
    with pytest.raises(AttnbenchError, match=reason):
        prepared(files, origin="files", examples=COUNT)
    assert list(cache.rglob("*.arrow")) == []


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"origin": "files", "data_seed": 1}, "leave them out with origin=files"),
        ({"origin": "files", "distractors": 1}, "leave them out with origin=files"),
        ({"resolution": 48}, "resolution"),
        ({"examples": 9}, "examples"),
        ({"level": "harder"}, "level"),
    ],
)
def test_options_that_cannot_be_are_refused(values: dict[str, Any], what: str) -> None:
    with pytest.raises(AttnbenchError, match=what):
        options(**values)


def test_files_are_asked_for_where_there_are_none(cache: Path, exported: Path) -> None:
    with pytest.raises(AttnbenchError, match="not read in yet; run attnbench data prepare"):
        prepared(origin="files")
    with pytest.raises(AttnbenchError, match="--from reads files"):
        prepared(exported, examples=20)


def test_the_number_of_distractors_is_an_option(cache: Path) -> None:
    """Two readers of the released Path-X counted more than its documentation says."""
    usual, many = (generate(parameters(128, "hard", **more), 0, range(20)) for more in ({}, {"distractors": 20}))
    assert usual.distractors_placed.max() == 8 < many.distractors_placed.min()
    stored = prepared(name="pathx", examples=20, distractors=20).splits["test"].documents[0]
    np.testing.assert_array_equal(stored[0], many.images[9].reshape(-1))


def test_the_content_hash_sees_every_number_and_no_storage() -> None:
    import pyarrow as pa

    def column(rows: list[list[int]], chunk: int) -> Ragged:
        parts = [pa.array(rows[i : i + chunk], pa.list_(pa.uint8())) for i in range(0, len(rows), chunk)]
        return Ragged(pa.chunked_array(parts))

    def digest(column: Ragged) -> str:
        return hashlib.sha256(b"".join(part.tobytes() for part in column.parts())).hexdigest()

    rows = [[n % 7, n % 5][: 1 + n % 2] for n in range(2500)]
    assert digest(column(rows, 2500)) == digest(column(rows, 300))
    moved = [*rows[:10], [*rows[10], *rows[11]], [], *rows[12:]]
    changed = [*rows[:-1], [9]]
    assert len({digest(column(r, 2500)) for r in (rows, moved, changed)}) == 3


def test_build_task_gives_the_same_set(cache: Path) -> None:
    assert attnbench.build_task("pathfinder", examples=30).card["sha256"] == prepared(examples=30).card["sha256"]
