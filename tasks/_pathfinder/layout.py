"""The folder layout in which Pathfinder is released, written and read.

    pathfinder32 / curv_contour_length_14 / imgs / 0 / sample_0.png ...       8-bit grey, 1,000 images a batch
                                          / metadata / 0.npy                  one row an image, blank between fields:
                                              imgs/0 sample_0.png 0 LABEL continuity N n L w m contrasts

Despite their names the metadata files of Long Range Arena's release (Tay et al. 2020) are plain text, while the
generator of Linsley et al. 2018 writes numpy files; both are read here, the first kind is written.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from attnbench.errors import AttnbenchError

from .generator import Batch, generate
from .geometry import Parameters
from .stamps import Levels

BATCH = 1000
"""Images of a batch; so the images' numbers run on over batches."""

FOLDERS = {"easy": "curv_baseline", "intermediate": "curv_contour_length_9", "hard": "curv_contour_length_14"}
_NUMPY = b"\x93NUMPY"
_LEAST_FIELDS = 4
#: Of all images; so many may be missing or empty, as sample_172.png of the released easy set at 32 pixels is.
_LOST_SHARE = 0.01


class Listed(NamedTuple):
    """An image of the metadata. `number` counts all rows of all batches, lost images included."""

    number: int
    path: Path
    label: int
    where: str


def write_batch(home: Path, batch: int, parameters: Parameters, seed: int, count: int) -> None:
    """Writes `count` images from number `batch * BATCH` on; the metadata last, so that they tell a whole batch."""
    images = home / "imgs" / str(batch)
    images.mkdir(parents=True, exist_ok=True)
    first = batch * BATCH
    drawn = generate(parameters, seed, range(first, first + count))
    for index, image in enumerate(drawn.images):
        Image.fromarray(image).save(images / f"sample_{index}.png")
    metadata = metadata_path(home, batch)
    metadata.parent.mkdir(exist_ok=True)
    partial = metadata.with_suffix(".partial")
    partial.write_text("".join(_rows(batch, parameters, drawn)), "ascii")
    partial.replace(metadata)


def metadata_path(home: Path, batch: int) -> Path:
    return home / "metadata" / f"{batch}.npy"


def _rows(batch: int, p: Parameters, drawn: Batch) -> Iterator[str]:
    for index, (label, margin) in enumerate(zip(drawn.labels.tolist(), drawn.margins.tolist(), strict=True)):
        yield (
            f"imgs/{batch} sample_{index}.png {index} {label} {p.continuity} {p.contour_length} {p.distractor_length} "
            f"{p.dash_length} {p.dash_thickness} {margin} 1\n"
        )


def claim(home: Path, parameters: Parameters, seed: int, count: int) -> None:
    """Makes the folder of an export, or finds that it holds the beginning of this very one.

    Raises:
        AttnbenchError: it holds something else.
    """
    note = home / "export.json"
    wanted = {"seed": seed, "images": count, "parameters": json.loads(json.dumps(asdict(parameters)))}
    if home.exists() and any(home.iterdir()):
        try:
            found = json.loads(note.read_text("utf-8"))
        except (OSError, ValueError):
            raise AttnbenchError(f"{home}: holds other files; choose another folder with --to") from None
        if found != wanted:
            raise AttnbenchError(f"{home}: holds an export with other options; choose another folder with --to")
    home.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(wanted, indent=1, sort_keys=True) + "\n", "utf-8")


def find(source: Path, resolution: int, level: str) -> Path:
    """The folder of a level, whether `source` is that folder, the release, or something between.

    Raises:
        AttnbenchError: there is none, or there are two.
    """
    if not source.is_dir():
        raise AttnbenchError(f"{source}: no such folder")
    name, size = FOLDERS[level], f"pathfinder{resolution}"
    outer = ("", "lra_release", "lra_release/lra_release")
    places = [source, source / name, *(source / part / size / name for part in outer)]
    found = [place for place in places if (place / "metadata").is_dir()]
    if not found:
        raise AttnbenchError(f"{source}: no {size}/{name} with a folder metadata in it; name the folder with --from")
    if len(found) > 1:
        raise AttnbenchError(f"{source}: two copies, {found[0]} and {found[1]}; name one of them with --from")
    return found[0]


def listed(home: Path) -> list[Listed]:
    """All images of the metadata, batch after batch.

    Raises:
        AttnbenchError: metadata that cannot be read, with file, row and reason.
    """
    files = [path for path in (home / "metadata").glob("*.npy") if not path.name.startswith("._")]
    batches = sorted((path for path in files if path.stem.isdecimal()), key=lambda path: int(path.stem))
    odd = [path for path in files if not path.stem.isdecimal() and path.stem != "combined"]
    if odd:
        raise AttnbenchError(f"{odd[0]}: the name of a metadata file is a number; take it out of the folder")
    if not batches:
        raise AttnbenchError(f"{home / 'metadata'}: no metadata files such as 0.npy")
    found: list[Listed] = []
    seen: dict[Path, str] = {}
    for path in batches:
        rows = _fields(path)
        if not rows:
            raise AttnbenchError(f"{path}: empty")
        for row, fields in enumerate(rows, 1):
            one = _listed(home, f"{path}, row {row}", len(found), fields)
            if one.path in seen:
                raise AttnbenchError(f"{one.where}: {one.path.name} is listed already in {seen[one.path]}")
            seen[one.path] = one.where
            found.append(one)
    return found


def _fields(path: Path) -> list[list[str]]:
    packed = path.read_bytes()
    if packed.startswith(_NUMPY):
        try:
            table = np.load(io.BytesIO(packed), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise AttnbenchError(f"{path}: not a plain numpy file ({error})") from None
        if table.ndim != 2:
            raise AttnbenchError(f"{path}: a numpy array of shape {table.shape}, expected rows and fields")
        return [[str(field) for field in row] for row in table.tolist()]
    if packed.startswith((b"version https://git-lfs", b"<!DOCTYPE", b"<html")):
        raise AttnbenchError(f"{path}: a git-LFS pointer or a web page in place of data; download the file itself")
    try:
        text = packed.decode("ascii")
    except UnicodeDecodeError as error:
        raise AttnbenchError(f"{path}: neither text nor a numpy file (byte {error.start})") from None
    return [line.split() for line in text.splitlines()]


def _listed(home: Path, where: str, number: int, fields: list[str]) -> Listed:
    if len(fields) < _LEAST_FIELDS:
        raise AttnbenchError(
            f"{where}: {len(fields)} fields, expected at least {_LEAST_FIELDS}: folder, file, number, label"
        )
    folder, name, _, label = fields[:_LEAST_FIELDS]
    if label not in ("0", "1"):
        raise AttnbenchError(f"{where}: label {label!r}, expected 0 or 1")
    path = home / folder / name
    if not path.resolve().is_relative_to(home.resolve()):
        raise AttnbenchError(f"{where}: {folder}/{name} leads out of the folder")
    return Listed(number, path, int(label), where)


def usable(rows: Sequence[Listed]) -> tuple[list[Listed], list[Listed]]:
    """Those whose file is there, and those whose file is missing or empty.

    Raises:
        AttnbenchError: too many are.
    """
    lost = [row for row in rows if not row.path.is_file() or not row.path.stat().st_size]
    if len(lost) > max(1, _LOST_SHARE * len(rows)):
        raise AttnbenchError(
            f"{lost[0].where}: {lost[0].path} is missing or empty, and so are {len(lost) - 1} more of {len(rows)} "
            "images; complete the folder"
        )
    gone = set(lost)
    return [row for row in rows if row not in gone], lost


def read_image(row: Listed, resolution: int) -> Levels:
    """(resolution, resolution) grey levels.

    Raises:
        AttnbenchError: no whole 8-bit grey picture of that size, or one without contrast.
    """
    where = f"{row.where}: {row.path}"
    try:
        with Image.open(row.path) as picture:
            if picture.size != (resolution, resolution):
                raise AttnbenchError(f"{where}: {picture.size[0]} x {picture.size[1]} pixels, expected {resolution}")
            if picture.mode != "L":
                raise AttnbenchError(f"{where}: mode {picture.mode}, expected 8-bit grey (L)")
            picture.load()
            levels = np.asarray(picture)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise AttnbenchError(f"{where}: no readable picture ({error})") from None
    if levels.min() == levels.max():
        raise AttnbenchError(f"{where}: all pixels are {levels.min()}")
    return levels
