"""Pathfinder (Linsley et al. 2018), as Long Range Arena sets it (Tay et al. 2020): do two discs lie on one contour?

32 x 32 grey pixels, row by row, as ids 0..255; pixels carry no padding mask. Images are generated here, with the
semantics of the original generator (docs/tasks/pathfinder.md); image i is a function of (data_seed, level, i). The
split depends on the number alone: of every ten images in a row the ninth is for validation and the tenth for test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import datasets
import numpy as np
from pydantic import Field, NonNegativeInt

from attnbench.contracts import Classify, Preparation, Source, Task

RESOLUTION = 32
_CHUNK = 500


@dataclass(frozen=True, kw_only=True)
class Options:
    """level: easy, intermediate or hard (contours of 6, 9 or 14 dashes). examples: of all splits together, 80/10/10;
    the released set has 200,000. data_seed: of the whole set.
    """

    level: Literal["easy", "intermediate", "hard"] = "hard"
    examples: Annotated[int, Field(ge=10)] = 200_000
    data_seed: NonNegativeInt = 0


def split_of(index: np.ndarray) -> np.ndarray:
    """Name of the split of each image number."""
    names = np.array(["train"] * 8 + ["validation", "test"])
    return names.take(index % 10)


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    from concurrent.futures import ThreadPoolExecutor

    from ._pathfinder.generator import generate
    from ._pathfinder.geometry import parameters

    chosen = parameters(RESOLUTION, options.level)
    images = np.empty((options.examples, RESOLUTION * RESOLUTION), dtype=np.uint8)
    labels = np.empty(options.examples, dtype=np.int64)
    starts = range(0, options.examples, _CHUNK)

    def fill(start: int) -> None:
        numbers = range(start, min(start + _CHUNK, options.examples))
        batch = generate(chosen, options.data_seed, numbers)
        images[numbers.start : numbers.stop] = batch.images.reshape(len(numbers), -1)
        labels[numbers.start : numbers.stop] = batch.labels

    with ThreadPoolExecutor(preparation.workers) as pool:
        done = pool.map(fill, starts)
        for _ in preparation.progress(starts, "drawing images"):
            next(done)
    where = split_of(np.arange(options.examples))
    features = datasets.Features(tokens=datasets.List(datasets.Value("uint8")), label=datasets.Value("int64"))
    return datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict(
                {"tokens": images[where == name], "label": labels[where == name]}, features=features
            )
            for name in ("train", "validation", "test")
        }
    )


TASK = Task(
    summary="Do two discs lie on the same dashed contour? LRA's Pathfinder, 32 x 32 pixels",
    source=Source(
        citation="Linsley et al. 2018, Learning long-range spatial dependencies with horizontal gated recurrent units; "
        "Tay et al. 2020, Long Range Arena",
        licence="generated",
    ),
    head=lambda options: Classify(2),
    vocab=lambda options: 256,
    max_length=lambda options: RESOLUTION * RESOLUTION,
    prepare=prepare,
    options=Options,
)
