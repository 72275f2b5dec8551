"""Does one paper cite the other? Pairs of documents, byte by byte: LRA's Retrieval (Tay et al. 2020), from its files.

id = byte + 1, each document cut behind `max_length` bytes. The two go through one encoder; only their pooled vectors
meet. The texts have no open licence, so there is no download: `retrieval_synthetic` is a stand-in of another name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import datasets
import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from attnbench.contracts import Match, Preparation, Task
from attnbench.errors import AttnbenchError

from . import _aan, _arrow, _carving, _files, _hub, _matching

_CHUNK = 1000
#: Bytes of a file between two steps of the progress bar.
_PIECE = 1 << 26
#: LRA cuts every text behind so many bytes before anything else, so no document can be longer.
_LONGEST = 10_000


@dataclass(frozen=True, kw_only=True)
class Options:
    """max_length: bytes of each document that are kept.
    escapes: kept, the texts as they stand in the files, b'...' with escapes, as in all published figures; or decoded.
    examples, validation_examples, test_examples: that many pairs of each file, drawn with data_seed; none: all.
    data_seed: of the subsets.
    """

    max_length: Annotated[int, Field(ge=1, le=_LONGEST)] = 4000
    escapes: Literal["kept", "decoded"] = "kept"
    examples: PositiveInt | None = None
    validation_examples: PositiveInt | None = None
    test_examples: PositiveInt | None = None
    data_seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.data_seed and not any(self.counts().values()):
            raise ValueError("data_seed draws subsets, and none is asked for; leave it out")

    def counts(self) -> dict[str, int | None]:
        return {"train": self.examples, "validation": self.validation_examples, "test": self.test_examples}


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    """Pairs in chunks of 1,000, each a file of its own until the set is whole, so memory holds one chunk."""
    if preparation.source is None:
        raise _hub.missing("retrieval", options, _aan.WHERE, downloads=False)
    files = _aan.find(preparation.source)
    _claim(preparation.folder, files)
    made = {name: _arrow.joined(_chunks(options, preparation, name, path)) for name, path in files.items()}
    _tell(options, preparation, made)
    wanted = ["tokens", "tokens_b", "label"]
    return datasets.DatasetDict({name: split.select_columns(wanted) for name, split in made.items()})


def _claim(folder: Path, files: dict[str, Path]) -> None:
    """Clears chunks that an interrupted reading made of other files."""
    state = {name: [str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for name, path in files.items()}
    note = folder / "files.json"
    if note.is_file() and note.read_text("utf-8") == json.dumps(state):
        return
    shutil.rmtree(folder)
    folder.mkdir()
    note.write_text(json.dumps(state), "utf-8")


def _chunks(options: Options, preparation: Preparation, name: str, path: Path) -> list[Path]:
    """Writes the chunks of a file that are not there yet."""
    rows = _ticked(preparation, path)
    if (count := options.counts()[name]) is not None:
        total = sum(
            1 for row, line in _files.lines(path) if _aan.parse(path, row, line)
        )  # faults are found all the same
        if count > total:
            raise AttnbenchError(f"{path}: {total:,} rows, {count:,} are asked for; ask for fewer")
        generator = np.random.Generator(np.random.PCG64([options.data_seed, *name.encode()]))
        wanted = frozenset(generator.permutation(total)[:count].tolist())
        rows = ((row, line) for row, line in rows if row - 1 in wanted)
    written: list[Path] = []
    while some := list(islice(rows, _CHUNK)):
        chunk = preparation.folder / f"{name}-{len(written):06d}.arrow"
        if not chunk.is_file():
            _arrow.write(chunk, _columns(options, [_aan.parse(path, row, line) for row, line in some]))
        written.append(chunk)
    return written


def _ticked(preparation: Preparation, path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file under a progress bar that counts what was read of it."""
    ticks = preparation.progress(range(path.stat().st_size // _PIECE + 1), f"{path.name}, in pieces of 64 MiB")
    read = passed = 0
    for row, line in _files.lines(path):
        yield row, line
        read += len(line) + 1
        if read // _PIECE > passed:
            passed += 1
            next(ticks, None)
    for _ in ticks:
        pass


def _columns(options: Options, pairs: list[_aan.Pair]) -> dict[str, Any]:
    """Tokens and labels; and what the facts are made of: lengths before the cut and hashes of texts."""
    columns: dict[str, Any] = {"label": np.array([pair.label for pair in pairs])}
    for side, name in enumerate(("tokens", "tokens_b")):
        texts = [_text(options, pair, side) for pair in pairs]
        columns[name] = _arrow.byte_ids([text[: options.max_length] for text in texts])
        columns[f"length_{side}"] = np.array([len(text) for text in texts])
        columns[f"text_{side}"] = np.array([_hash(text) for text in texts], dtype=np.uint64)
    columns["literals"] = np.array([sum(map(_aan.is_literal, pair.texts)) for pair in pairs])
    return columns


def _text(options: Options, pair: _aan.Pair, side: int) -> bytes:
    text = pair.texts[side]
    if options.escapes == "kept":
        return text
    text = _aan.decoded(pair.where, text)
    if not text.strip():
        raise AttnbenchError(f"{pair.where}: field {4 + side} holds no text")
    return text


def _hash(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def _tell(options: Options, preparation: Preparation, made: dict[str, datasets.Dataset]) -> None:
    """Facts about the rows that were taken."""

    def both(split: datasets.Dataset, column: str) -> np.ndarray:
        table = split.data.table
        return np.stack([table.column(f"{column}_{side}").to_numpy() for side in (0, 1)], axis=1)

    texts = {name: both(split, "text") for name, split in made.items()}
    cut = {name: (both(split, "length") > options.max_length).mean() for name, split in made.items()}
    literals = sum(int(split.data.table.column("literals").to_numpy().sum()) for split in made.values())
    preparation.fact("rows", {name: len(split) for name, split in made.items()})
    preparation.fact("share_cut", {name: round(float(share), 4) for name, share in cut.items()})
    for name in ("validation", "test"):
        known = np.isin(np.unique(texts[name]), texts["train"])
        preparation.fact(f"share_of_documents_of_{name}_also_in_train", round(float(known.mean()), 4))
    preparation.note(
        f"{literals:,} of {2 * sum(map(len, made.values())):,} texts have Python's form b'...': {options.escapes}"
    )
    _carving.tell_duplicates(preparation, "pairs", texts)


TASK = Task(
    summary="Does one paper cite the other? Pairs of documents, byte by byte: LRA's Retrieval, on AAN",
    source=_aan.SOURCE,
    head=lambda options: Match(2),
    vocab=lambda options: _arrow.BYTE_IDS,
    max_length=lambda options: options.max_length,
    prepare=prepare,
    options=Options,
    baselines=_matching.byte_counts,
    padded=True,
)
