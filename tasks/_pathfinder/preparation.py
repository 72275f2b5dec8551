"""What the tasks pathfinder and pathx share: options, preparation, export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
from pydantic import Field, NonNegativeInt

from attnbench.contracts import Classify, Controls, Preparation, Source, Task
from attnbench.errors import AttnbenchError

from .._parallel import in_parallel
from .geometry import Ints, Parameters, parameters

if TYPE_CHECKING:
    from .stamps import Levels

SPLITS = ("train", "validation", "test")
_CHUNK = 1000
_MANIFEST = Path(__file__).with_name("manifest.json")


@dataclass(frozen=True, kw_only=True)
class Options:
    """resolution: pixels of a side. level: easy, intermediate or hard (contours of 6, 9 or 14 dashes).
    examples: of all splits together, 80/10/10; the released sets have 200,000.
    data_seed: of the whole set.
    distractors: contours that are attempted; left out, as in the generator's own settings.
    origin: generated, or files of the released layout, read by `attnbench data prepare TASK --from DIR`.
    """

    resolution: int = 32
    level: Literal["easy", "intermediate", "hard"] = "hard"
    examples: Annotated[int, Field(ge=10)] = 200_000
    data_seed: NonNegativeInt = 0
    distractors: NonNegativeInt | None = None
    origin: Literal["generated", "files"] = "generated"

    def __post_init__(self) -> None:
        if self.origin == "files" and (self.data_seed or self.distractors is not None):
            raise ValueError("data_seed and distractors shape generated images; leave them out with origin=files")


class Chunk(NamedTuple):
    """Images (n, R, R), their labels (n,) and numbers (n,)."""

    images: Levels
    labels: np.ndarray
    numbers: Ints


def split_of(number: np.ndarray) -> np.ndarray:
    """Name of the split of each image number: of ten in a row the ninth is for validation, the tenth for test."""
    return np.array([SPLITS[0]] * 8 + list(SPLITS[1:])).take(number % 10)


def shape(options: Options) -> Parameters:
    chosen = {} if options.distractors is None else {"distractors": options.distractors}
    return parameters(options.resolution, options.level, **chosen)


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    """Images in chunks of 1,000, each a file of its own until the set is whole; memory holds a chunk a worker."""
    if options.origin == "files":
        make, count = _reader(options, preparation)
        shutil.rmtree(preparation.folder)  # chunks of an interrupted reading may be of other files
        preparation.folder.mkdir()
    elif preparation.source is not None:
        raise AttnbenchError("--from reads files, so it goes with --set origin=files")
    else:
        make, count = _drawer(options), options.examples
    starts = range(0, count, _CHUNK)

    def fill(start: int) -> None:
        paths = {name: preparation.folder / f"{start:09d}-{name}.arrow" for name in SPLITS}
        if not all(path.is_file() for path in paths.values()):
            _write(make(range(start, min(start + _CHUNK, count))), paths)

    in_parallel(fill, starts, preparation, "images, in thousands")
    return datasets.DatasetDict(
        {
            name: datasets.concatenate_datasets(
                [datasets.Dataset.from_file(str(preparation.folder / f"{start:09d}-{name}.arrow")) for start in starts]
            )
            for name in SPLITS
        }
    )


def _drawer(options: Options) -> Callable[[range], Chunk]:
    from .generator import generate

    chosen = shape(options)

    def draw(numbers: range) -> Chunk:
        drawn = generate(chosen, options.data_seed, numbers)
        return Chunk(drawn.images, drawn.labels.astype(np.int64), np.arange(numbers.start, numbers.stop))

    return draw


def _reader(options: Options, preparation: Preparation) -> tuple[Callable[[range], Chunk], int]:
    from . import layout

    if preparation.source is None:
        raise AttnbenchError(
            "origin=files: not read in yet; run attnbench data prepare with these options and --from DIR"
        )
    rows = layout.listed(layout.find(preparation.source, options.resolution, options.level))[: options.examples]
    there, lost = layout.usable(rows)
    if lost:
        preparation.note(
            f"{len(lost)} of {len(rows)} images are missing or empty, such as {lost[0].path.name}: left out"
        )
    if len(rows) < options.examples:
        preparation.note(f"{len(rows):,} images found, {options.examples:,} asked for")
    present = dict.fromkeys(SPLITS, 0) | dict(
        zip(*np.unique(split_of(np.array([row.number for row in there])), return_counts=True), strict=True)
    )
    if not all(present.values()):
        raise AttnbenchError(f"{preparation.source}: {len(there)} images are too few for three splits")

    def read(which: range) -> Chunk:
        chosen = there[which.start : which.stop]
        images = np.stack([layout.read_image(row, options.resolution) for row in chosen])
        return Chunk(images, np.array([row.label for row in chosen]), np.array([row.number for row in chosen]))

    return read, len(there)


def _write(chunk: Chunk, paths: dict[str, Path]) -> None:
    """Each split's rows as an Arrow stream, which `datasets` maps into memory. A file appears when it is complete."""
    where = split_of(chunk.numbers)
    for name, path in paths.items():
        images = chunk.images[where == name].reshape(int((where == name).sum()), -1)
        offsets = np.arange(0, images.size + 1, images.shape[1], dtype=np.int32)
        tokens = pa.ListArray.from_arrays(pa.array(offsets), pa.array(images.reshape(-1)))
        table = pa.table({"tokens": tokens, "label": pa.array(chunk.labels[where == name], pa.int64())})
        partial = path.with_suffix(".partial")
        with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        partial.replace(path)


def export(options: Options, preparation: Preparation) -> None:
    """Draws the images into the released layout below `preparation.folder`; batches that are whole already stay."""
    from . import layout

    if options.origin == "files":
        raise AttnbenchError("origin=files: these images lie in the released layout already")
    chosen, size = shape(options), f"pathfinder{options.resolution}"
    home = preparation.folder / size / layout.FOLDERS[options.level]
    layout.claim(home, chosen, options.data_seed, options.examples)

    def write(batch: int) -> None:
        if not layout.metadata_path(home, batch).is_file():
            count = min(layout.BATCH, options.examples - batch * layout.BATCH)
            layout.write_batch(home, batch, chosen, options.data_seed, count)

    in_parallel(write, range(-(-options.examples // layout.BATCH)), preparation, "images, in thousands")


def pinned(options: Options) -> str | None:
    """The content hash this set had where it was first made, if it is one of those on record."""
    if options.origin == "files":
        return None
    wanted = {**asdict(shape(options)), "data_seed": options.data_seed, "examples": options.examples}
    for known in json.loads(_MANIFEST.read_text("utf-8")):
        like = asdict(parameters(known["resolution"], known["level"]))
        if {**like, "data_seed": known["data_seed"], "examples": known["examples"]} == wanted:
            return str(known["sha256"])
    return None


def task(*, summary: str, options: type[Options]) -> Task:
    return Task(
        summary=summary,
        source=Source(
            citation="Linsley et al. 2018, Learning long-range spatial dependencies with horizontal gated recurrent "
            "units; Tay et al. 2020, Long Range Arena",
            licence="generated",
        ),
        head=lambda options: Classify(2),
        vocab=lambda options: 256,
        max_length=lambda options: options.resolution**2,
        prepare=prepare,
        export=export,
        pinned=pinned,
        options=options,
        controls=Controls(positive="dense", negative="local"),
    )
