"""IMDB reviews (Maas et al. 2011) as bytes, from the layouts in which they are passed on.

The hub's parquet files, the hub's cache, and the classic folder:

    aclImdb / {train, test} / {neg, pos} / 0_3.txt ...        the number and the rating; train / unsup is passed over
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnbench.contracts import Preparation, Source
from attnbench.errors import AttnbenchError

from . import _hub

SOURCE = Source(
    citation="Maas et al. 2011, Learning Word Vectors for Sentiment Analysis, ACL",
    licence="none stated by the authors; do not redistribute",
    url="https://ai.stanford.edu/~amaas/data/sentiment/",
)
SPLITS = ("train", "test")
LABELS = ("neg", "pos")
HUB = _hub.Hub("stanfordnlp/imdb", "plain_text", SPLITS)
WHERE = f"IMDB: {SOURCE.url} (aclImdb_v1.tar.gz, unpacked) or the data set {HUB.repo} of the Hugging Face hub"
_COLUMNS = (_hub.Column("text", "text"), _hub.Column("label", "number", LABELS))


@dataclass
class Reviews:
    """Texts as they are in the files, UTF-8 that was checked, and labels: 0 = neg, 1 = pos."""

    texts: list[bytes] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)


def read(task: str, options: Any, preparation: Preparation) -> dict[str, Reviews]:
    """The splits train and test, in the order of the files. The unsupervised reviews are not read.

    Raises:
        AttnbenchError: no data and no leave to fetch them, or a fault in them, with file, row and reason.
    """
    begun = _hub.begin(task, options, preparation, HUB, WHERE)
    found = {name: Reviews() for name in SPLITS}
    for name, rows in (_located(begun) if isinstance(begun, Path) else _of_hub(begun)).items():
        for where, text, label in rows:
            if label not in (0, 1):
                hint = ", which marks the unsupervised reviews" if label == -1 else ""
                raise AttnbenchError(f"{where}: label {label}{hint}; expected 0 (neg) or 1 (pos)")
            found[name].texts.append(text)
            found[name].labels.append(label)
        if len(kinds := set(found[name].labels)) < 2:
            raise AttnbenchError(f"{preparation.source or HUB.repo}, {name}: all labels are {kinds}; both are needed")
    return found


Rows = Iterator[tuple[str, bytes, int]]


def _of_hub(parts: dict[str, list[_hub.Batches]]) -> dict[str, Rows]:
    return {name: ((where, *values) for where, values in _hub.rows(parts[name], _COLUMNS)) for name in SPLITS}


def _located(source: Path) -> dict[str, Rows]:
    if source.is_file():
        raise AttnbenchError(f"{source}: a file; unpack it where it is an archive, and name the folder with --from")
    homes = [home for home in (source, source / "aclImdb") if any((home / "train" / kind).is_dir() for kind in LABELS)]
    files = HUB.find(source)
    if homes and files:
        raise AttnbenchError(f"{source}: both {homes[0]}/train and parquet files; name one of the folders with --from")
    if files:
        return {
            name: ((where, *values) for where, values in _hub.rows(_hub.read(files[name]), _COLUMNS)) for name in SPLITS
        }
    if homes:
        return {name: _of_folder(homes[0] / name) for name in SPLITS}
    raise AttnbenchError(f"{source}: neither aclImdb/train nor plain_text/train-*.parquet there; get {WHERE}")


def _of_folder(home: Path) -> Rows:
    for label, kind in enumerate(LABELS):
        paths = sorted(path for path in (home / kind).glob("*.txt") if not path.name.startswith("."))
        if not paths:
            raise AttnbenchError(f"{home / kind}: no such folder, or no *.txt in it; complete the folder")
        for path in paths:
            text = path.read_bytes()
            _hub.check_text(str(path), text)
            yield str(path), text, label
