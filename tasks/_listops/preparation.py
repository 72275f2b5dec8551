"""ListOps' preparation and export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa

from attnbench.contracts import Preparation
from attnbench.errors import AttnbenchError

from .. import _arrow
from .._parallel import in_parallel
from .options import SPLITS, Options

_CHANCE_CHUNKS = 10
_MANIFEST = Path(__file__).with_name("manifest.json")


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    """Pieces of a thousand expressions, each a file of its own until the set is whole."""
    if options.origin == "files":
        parts = _read(options, preparation)
    elif preparation.source is not None:
        raise AttnbenchError("--from reads files, so it goes with --set origin=files")
    else:
        parts = _generate(options, preparation)
    pieces: dict[str, list[Path]] = {name: [] for name in SPLITS}
    for number, (name, part) in enumerate(parts):
        if len(part):
            pieces[name].append(preparation.folder / f"{name}-{number:06d}.arrow")
            _write(pieces[name][-1], part)
    return datasets.DatasetDict({name: _arrow.joined(paths) for name, paths in pieces.items()})


def _write(path: Path, part: pa.Table) -> None:
    _arrow.write(path, dict(zip(part.column_names, part.columns, strict=True)))


def _read(options: Options, preparation: Preparation) -> Iterator[tuple[str, pa.Table]]:
    from . import files

    if preparation.source is None:
        raise AttnbenchError(
            "origin=files: not read in yet; run attnbench data prepare listops with these options and --from DIR"
        )
    shutil.rmtree(preparation.folder)  # what an interrupted reading left may be of other files
    preparation.folder.mkdir()
    return files.read(options, files.find(preparation.source, preparation), preparation)


def _generate(options: Options, preparation: Preparation) -> Iterator[tuple[str, pa.Table]]:
    """Draws all chunks in parallel, or what an interrupted preparation left of them; then drops repeats and splits."""
    from .distinct import chunks_of, distinct, drawn

    def stored(chunk: int) -> pa.Table:
        path = preparation.folder / f"drawn-{chunk:06d}.arrow"
        if not path.is_file():
            _write(path, drawn(options, chunk))
        return _arrow.joined([path]).data.table

    in_parallel(stored, chunks_of(options), preparation, "expressions, in thousands")
    for parts in distinct(options, stored):
        yield from parts.items()


def export(options: Options, preparation: Preparation) -> None:
    from . import files

    if options.origin == "files":
        raise AttnbenchError("origin=files: these expressions lie in the released form already")
    files.write(options, preparation)


def majority(options: Options) -> float:
    """Share of the most frequent value among the first 10,000 expressions of the set; of LRA's grammar for files."""
    from .distinct import distinct, drawn

    if options.origin == "files":
        options = Options()
    made = distinct(options, lambda chunk: drawn(options, chunk))
    labels = [part.column("label").to_numpy() for parts in islice(made, _CHANCE_CHUNKS) for part in parts.values()]
    counts = np.bincount(np.concatenate(labels))
    return float(counts.max() / counts.sum())


def pinned(options: Options) -> str | None:
    """The content hash this set had where it was first made, if it is one of those on record."""
    if options.origin == "files":
        return None
    for known in json.loads(_MANIFEST.read_text("utf-8")):
        if asdict(Options(**known["options"])) == asdict(options):
            return str(known["sha256"])
    return None
