"""ListOps' preparation and export, and what a guess without evaluation scores."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from functools import lru_cache
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from attnbench.contracts import Preparation
from attnbench.errors import AttnbenchError

from .. import _chunks
from .expressions import VOCAB
from .options import SPLITS, Options

_CHANCE_CHUNKS = 10
_MANIFEST = Path(__file__).with_name("manifest.json")


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    """Chunks, each a file of its own until all are there; then repeats are dropped and the rest is split."""
    paths = {name: preparation.folder / f"{name}.arrow" for name in SPLITS}
    if options.origin == "files":
        from . import files

        if preparation.source is None:
            raise AttnbenchError(
                "origin=files: not read in yet; run attnbench data prepare listops with these options and --from DIR"
            )
        shutil.rmtree(preparation.folder)  # what an interrupted reading left may be of other files
        preparation.folder.mkdir()
        _chunks.write(files.read(options, files.find(preparation.source, preparation), preparation), paths)
    elif preparation.source is not None:
        raise AttnbenchError("--from reads files, so it goes with --set origin=files")
    else:
        _generate(options, preparation, paths)
    return datasets.DatasetDict({name: datasets.Dataset.from_file(str(path)) for name, path in paths.items()})


def _generate(options: Options, preparation: Preparation, paths: dict[str, Path]) -> None:
    from .distinct import chunks_of, distinct, drawn

    def filled(chunk: int) -> Path:
        path = preparation.folder / f"chunk-{chunk:06d}.arrow"
        if not path.is_file():
            _chunks.write([("", drawn(options, chunk))], {"": path})
        return path

    _chunks.in_parallel(filled, chunks_of(options), preparation, "expressions, in thousands")
    made = distinct(options, lambda chunk: _chunks.read(filled(chunk)))
    _chunks.write((part for parts in made for part in parts.items()), paths)


def export(options: Options, preparation: Preparation) -> None:
    from . import files

    if options.origin == "files":
        raise AttnbenchError("origin=files: these expressions lie in the released form already")
    files.write(options, preparation)


@lru_cache(maxsize=8)
def majority(options: Options) -> float:
    """Share of the most frequent value among the first 10,000 expressions of the set; of LRA's grammar for files."""
    from .distinct import distinct, drawn

    if options.origin == "files":
        options = Options()
    made = distinct(options, lambda chunk: drawn(options, chunk))
    labels = [part.column("label").to_numpy() for parts in islice(made, _CHANCE_CHUNKS) for part in parts.values()]
    counts = np.bincount(np.concatenate(labels))
    return float(counts.max() / counts.sum())


def root_operator(options: Options, made: datasets.DatasetDict) -> dict[str, float]:
    """Accuracy on the test split of a guess by the first token alone: the value it most often had in training.

    Of LRA's set 37 %, which is where most published Transformers are.
    """
    first, labels = _first_tokens(made["train"])
    seen = np.zeros((VOCAB, 10), np.int64)
    np.add.at(seen, (first, labels), 1)
    guess = np.where(seen.any(1), seen.argmax(1), seen.sum(0).argmax())
    first, labels = _first_tokens(made["test"])
    return {"root_operator": float((guess[first] == labels).mean())}


def _first_tokens(split: datasets.Dataset) -> tuple[np.ndarray, np.ndarray]:
    found: pa.Table = split.data.table
    return pc.list_element(found.column("tokens"), 0).to_numpy(), found.column("label").to_numpy()


def pinned(options: Options) -> str | None:
    """The content hash this set had where it was first made, if it is one of those on record."""
    if options.origin == "files":
        return None
    for known in json.loads(_MANIFEST.read_text("utf-8")):
        if asdict(Options(**known["options"])) == asdict(options):
            return str(known["sha256"])
    return None
