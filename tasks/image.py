"""Grey CIFAR-10 (Krizhevsky 2009) read pixel by pixel: LRA's Image (Tay et al. 2020).

32 x 32 grey levels, row by row, as ids 0..255: 1,024 tokens, no padding mask (in LRA's code black pixels, id 0, count
as padding). Grey by TensorFlow's formula, as LRA has it, or by Pillow's, as most re-implementations have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

import datasets
import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from attnbench.contracts import Classify, Preparation, Task

from . import _arrow, _carving, _cifar

_AT_ONCE = 1000
_GREY: dict[str, Callable[[np.ndarray], np.ndarray]] = {"tf": _cifar.grey_tf, "pil": _cifar.grey_pil}


@dataclass(frozen=True, kw_only=True)
class Options:
    """grey: tf or pil, the formula that makes one level of three; they differ by one level for 26 % of all colours.
    validation: carved (about a tenth of train, by a hash of data_seed and the picture), or last: the last tenth of the
    training files, LRA's rule (which it applies to the order of TensorFlow's copy, so its pictures are others).
    examples, test_examples: that many of train (validation included) and of test, drawn with data_seed; none: all.
    data_seed: of the order, the subsets and the carved rows.
    image_column, label_column: names in parquet files that are not the hub's own.
    """

    grey: Literal["tf", "pil"] = "tf"
    validation: Literal["carved", "last"] = "carved"
    examples: PositiveInt | None = None
    test_examples: PositiveInt | None = None
    data_seed: NonNegativeInt = 0
    image_column: str = "img"
    label_column: str = "label"

    def __post_init__(self) -> None:
        if self.image_column == self.label_column:
            raise ValueError(f"image_column and label_column are both {self.label_column!r}")


class Pictures(NamedTuple):
    """grey (n, 1024) uint8, labels (n,) int64, draws of the coloured pictures (n, 2) uint64."""

    grey: np.ndarray
    labels: np.ndarray
    drawn: np.ndarray


def _read(options: Options, rows: _cifar.Rows) -> Pictures:
    parts = []
    while some := list(islice(rows, _AT_ONCE)):
        colours = np.stack([colours for _, colours, _ in some])
        grey = _GREY[options.grey](colours).reshape(len(some), -1)
        drawn = _carving.digests(options.data_seed, [colour.tobytes() for colour in colours])
        parts.append(Pictures(grey, np.array([label for *_, label in some]), drawn))
    return Pictures(*map(np.concatenate, zip(*parts, strict=True)))


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    opened = _cifar.rows("image", options, preparation, options.image_column, options.label_column)
    found = {name: _read(options, opened[name]) for name in preparation.progress(_cifar.SPLITS, "files read")}
    preparation.fact("rows", {name: len(pictures.labels) for name, pictures in found.items()})
    _carving.tell_duplicates(preparation, "pictures", {name: pictures.drawn for name, pictures in found.items()})
    counts = {"train": options.examples, "test": options.test_examples}
    taken = {
        name: _carving.shuffled(f"{name} of CIFAR-10", pictures.drawn, pictures.labels, counts[name])
        for name, pictures in found.items()
    }
    train, validation = _carving.carved(taken["train"], _held_out(options, found["train"])[taken["train"]])
    origin = {"train": ("train", train), "validation": ("train", validation), "test": ("test", taken["test"])}
    return datasets.DatasetDict({name: _split(found[of], rows) for name, (of, rows) in origin.items()})


def _held_out(options: Options, train: Pictures) -> np.ndarray:
    """(rows,) bool: which pictures of the training files are for validation."""
    if options.validation == "carved":
        return _carving.for_validation(train.drawn)
    held_out: np.ndarray = np.arange(len(train.labels)) >= len(train.labels) * 9 // 10
    return held_out


def _split(pictures: Pictures, rows: np.ndarray) -> datasets.Dataset:
    pixels = pictures.grey[rows]
    tokens = _arrow.rows(pixels.reshape(-1), np.full(len(rows), pixels.shape[1]))
    return _arrow.dataset({"tokens": tokens, "label": pictures.labels[rows]})


def small_cnn(options: Options, made: datasets.DatasetDict) -> dict[str, float]:
    """What a small convolutional network reaches in 300 steps (about 15 s of one core).

    No trivial level: it sees a picture, not a row of pixels. Near chance it tells that labels do not fit the pictures.
    """
    from . import _small_cnn

    return {"small_cnn": _small_cnn.score(made, side=_cifar.SIDE, classes=10, steps=300)}


TASK = Task(
    summary="Ten kinds of small photographs, grey, pixel by pixel: LRA's Image, on CIFAR-10",
    source=_cifar.SOURCE,
    head=lambda options: Classify(10),
    vocab=lambda options: 256,
    max_length=lambda options: _cifar.SIDE**2,
    prepare=prepare,
    options=Options,
    levels=small_cnn,
)
