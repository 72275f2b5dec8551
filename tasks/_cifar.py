"""CIFAR-10 (Krizhevsky 2009) from the hub's parquet files or the binary batches; grey by TensorFlow or by Pillow.

    cifar-10-batches-bin / data_batch_1.bin ... data_batch_5.bin, test_batch.bin

A record of the binary batches is a label, then 1,024 levels of red, of green and of blue.

The batches "for Python" are pickles, which run code when they are opened; they are refused.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.contracts import Preparation, Source
from attnbench.errors import AttnbenchError

from . import _hub
from ._files import refuse_stand_in

SOURCE = Source(
    citation="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images",
    licence="none stated by the authors; do not redistribute",
    url="https://www.cs.toronto.edu/~kriz/cifar.html",
)
SPLITS = ("train", "test")
SIDE = 32
LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
HUB = _hub.Hub("uoft-cs/cifar10", "plain_text", SPLITS)
WHERE = f"CIFAR-10: {SOURCE.url} (the binary version, unpacked) or the data set {HUB.repo} of the Hugging Face hub"
_BATCHES = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
_RECORD = 1 + 3 * SIDE * SIDE
_OF_A_BATCH = 10_000
_JPEG = b"\xff\xd8"

Rows = Iterator[tuple[str, np.ndarray, int]]


def rows(task: str, options: Any, preparation: Preparation, image: str, label: str) -> dict[str, Rows]:
    """Per split, in the order of the files: where a picture stands, its colours (32, 32, 3) uint8, its label 0..9.

    Raises:
        AttnbenchError: at once or on the way: no data and no leave to fetch them, or a fault, with file and row.
    """
    begun = _hub.begin(task, options, preparation, HUB, WHERE)
    columns = (_hub.Column(image, "picture"), _hub.Column(label, "number", LABELS))
    if not isinstance(begun, Path):
        return {name: _of_hub(name, _hub.rows(begun[name], columns), preparation) for name in SPLITS}
    homes = [home for home in (begun, begun / "cifar-10-batches-bin") if (home / "test_batch.bin").is_file()]
    files = HUB.find(begun)
    if homes and files:
        raise AttnbenchError(f"{begun}: both {homes[0]} and parquet files; name one of the folders with --from")
    if files:
        return {name: _of_hub(name, _hub.rows(_hub.read(files[name]), columns), preparation) for name in SPLITS}
    if homes:
        return {name: _of_batches(homes[0], _BATCHES[name], preparation) for name in SPLITS}
    for home in (begun, begun / "cifar-10-batches-py"):
        if (home / "test_batch").is_file() or (home / "data_batch_1").is_file():
            raise AttnbenchError(
                f"{home}: the batches for Python are pickles, and opening a pickle runs what stands in it; get {WHERE}"
            )
    raise AttnbenchError(f"{begun}: neither plain_text/train-*.parquet nor test_batch.bin there; get {WHERE}")


def _of_hub(name: str, found: Iterator[tuple[str, list[Any]]], preparation: Preparation) -> Rows:
    lossy = 0
    for where, (packed, label) in found:
        lossy += packed.startswith(_JPEG)
        yield where, picture(where, packed), _label(where, label)
    if lossy:
        preparation.note(f"{lossy:,} pictures of {name} are JPEG, which loses detail; CIFAR-10 is published as PNG")


def _label(where: str, label: int) -> int:
    if not 0 <= label < len(LABELS):
        raise AttnbenchError(f"{where}: label {label}, expected 0 to 9")
    return label


def _of_batches(home: Path, names: list[str], preparation: Preparation) -> Rows:
    for name in names:
        path = home / name
        if not path.is_file():
            raise AttnbenchError(f"{path}: no such file; complete the folder")
        packed = path.read_bytes()
        refuse_stand_in(path, packed[:64])
        if len(packed) % _RECORD:
            raise AttnbenchError(
                f"{path}: {len(packed):,} bytes are no whole number of records of {_RECORD:,}; get it again"
            )
        records = np.frombuffer(packed, np.uint8).reshape(-1, _RECORD)
        if len(records) != _OF_A_BATCH:
            preparation.note(f"{name} holds {len(records):,} pictures; the released file has {_OF_A_BATCH:,}")
        colours = records[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        for row, (label, colour) in enumerate(zip(records[:, 0].tolist(), colours, strict=True), 1):
            where = f"{path}, row {row}"
            yield where, colour, _label(where, label)


def picture(where: str, packed: bytes) -> np.ndarray:
    """(32, 32, 3) uint8.

    Raises:
        AttnbenchError: no whole PNG or JPEG of 32 x 32 pixels in 8-bit RGB.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(packed), formats=("PNG", "JPEG")) as opened:
            if opened.size != (SIDE, SIDE):
                raise AttnbenchError(f"{where}: {opened.size[0]} x {opened.size[1]} pixels, expected {SIDE} x {SIDE}")
            if opened.mode != "RGB":
                raise AttnbenchError(f"{where}: a picture of mode {opened.mode}, expected 8-bit RGB")
            opened.load()
            return np.asarray(opened)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise AttnbenchError(f"{where}: no readable picture ({error})") from None


def grey_tf(colours: np.ndarray) -> np.ndarray:
    """(..., 3) uint8 -> (...) uint8, as `tf.image.rgb_to_grayscale`: float32 all the way, the fraction dropped.

    LRA's pictures. The levels are one lower than Pillow's for 26 % of all colours and equal for the others.
    """
    red, green, blue = np.moveaxis(colours.astype(np.float32) * np.float32(1 / 255), -1, 0)
    grey = red * np.float32(0.2989) + green * np.float32(0.5870) + blue * np.float32(0.1140)
    levels: np.ndarray = (grey * np.float32(255.5)).astype(np.uint8)
    return levels


def grey_pil(colours: np.ndarray) -> np.ndarray:
    """(..., 3) uint8 -> (...) uint8, as `PIL.Image.convert("L")` and torchvision's `Grayscale`: integers, rounded."""
    red, green, blue = np.moveaxis(colours.astype(np.uint32), -1, 0)
    levels: np.ndarray = ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).astype(np.uint8)
    return levels
