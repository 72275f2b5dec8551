"""Where the questions of a task come from, and which split each of them goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from attnbench.contracts import Preparation
from attnbench.errors import AttnbenchError, one_line

from .. import _carving, _hub
from .json_lists import elements
from .options import Shared
from .pieces import SPLITS, Part, identity_of
from .records import Record

Q = TypeVar("Q")
_NONE = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class Home:
    """How a set is published.

    Attributes:
        hub: as parquet files; its first split is for training, its second for the test.
        files: as JSON files, the first for training, the second for the test; they lie in one of `folders`.
        key: of the list in a JSON file; None = the file is the list.
        where: what to get, for messages.
    """

    hub: _hub.Hub
    files: tuple[str, str]
    folders: tuple[str, ...]
    key: str | None
    where: str


@dataclass(frozen=True)
class Found:
    """records: gives those of the training and of the test part, anew at each call; one part alone is to be divided.
    identity: what tells these files from others. folder: where the JSON files lie.
    """

    records: Mapping[str, Callable[[], Iterator[Record]]]
    identity: Any
    folder: Path | None = None


def find(task: str, options: Any, preparation: Preparation, home: Home) -> Found:
    """The files below the folder the user names, or that file alone, or what the hub has.

    Raises:
        AttnbenchError: nothing there, two copies, or a part is missing.
    """
    begun = _hub.begin(task, options, preparation, home.hub, home.where)
    if not isinstance(begun, Path):
        rows = {split: sum(batch.num_rows for one in begun[split] for batch in one.batches) for split in begun}
        return _of_hub({split: partial(begun.__getitem__, split) for split in begun}, [home.hub.repo, rows])
    if begun.is_file():
        return Found({"train": partial(_of_json, begun, home.key)}, identity_of([begun]), begun.parent)
    places = [begun / folder for folder in ("", *home.folders)]
    holding = [place for place in places if any((place / name).is_file() for name in home.files)]
    files = home.hub.find(begun)
    if len(holding) + bool(files) > 1:
        other = holding[1] if len(holding) > 1 else "parquet files"
        raise AttnbenchError(f"{begun}: two copies, {holding[0]} and {other}; name one of them with --from")
    if files:
        readers = {split: partial(_hub.read, files[split]) for split in home.hub.splits}
        return _of_hub(readers, identity_of(path for split in home.hub.splits for path in files[split]))
    if not holding:
        raise AttnbenchError(f"{begun}: neither {home.files[0]} nor parquet files there; get {home.where}")
    paths = [holding[0] / name for name in home.files]
    for path in paths:
        if not path.is_file():
            raise AttnbenchError(f"{path}: no such file; complete the folder")
    parts = dict(zip(("train", "test"), paths, strict=True))
    return Found(
        {name: partial(_of_json, path, home.key) for name, path in parts.items()}, identity_of(paths), holding[0]
    )


def _of_json(path: Path, key: str | None) -> Iterator[Record]:
    return (Record.of(where, element) for where, element in elements(path, key))


def _of_hub(readers: Mapping[str, Callable[[], Iterable[_hub.Batches]]], identity: Any) -> Found:
    names = zip(("train", "test"), readers.values(), strict=True)
    return Found({name: partial(_of_parquet, reader) for name, reader in names}, identity)


def _of_parquet(reader: Callable[[], Iterable[_hub.Batches]]) -> Iterator[Record]:
    for where, _, batches in reader():
        row = 0
        try:
            for batch in batches:
                for index in range(batch.num_rows):
                    row += 1
                    yield Record(f"{where}, row {row}", batch.slice(index, 1).to_pylist()[0])
        except UnicodeDecodeError as error:
            raise AttnbenchError(f"{where}, row {row}: not UTF-8 at byte {error.start} of a text") from None
        except (pa.ArrowException, OSError) as error:
            raise AttnbenchError(f"{where}: damaged after row {row} ({one_line(error)}); get it again") from None
        if not row:
            raise AttnbenchError(f"{where}: no rows")


class Described(NamedTuple):
    """Of a question: what must not be in two splits, what it is, and its documents, by name or text."""

    unit: str
    question: str
    documents: Sequence[str]


class _Survey(NamedTuple):
    """Draws of the units and questions of a part, (questions, 2) each, and the documents of each, uint64 digests."""

    units: np.ndarray
    questions: np.ndarray
    documents: list[np.ndarray]


def parts(
    options: Shared,
    preparation: Preparation,
    readers: Mapping[str, Callable[[], Iterator[Q]]],
    describe: Callable[[Q], Described],
    units: str,
    documents: str,
) -> list[Part[Q]]:
    """Reads every question once, which finds its faults, and says where each goes; tells what occurs more than once.
    `units`, `documents`: what these are called.

    A tenth of the training part's units is for validation, and without a test part another tenth is for the test; which
    ones is a function of the seed and their content. Of each split as many questions are taken as are asked for.

    Raises:
        AttnbenchError: a fault of a record, or too few units or questions.
    """
    surveys = {name: _survey(options.data_seed, map(describe, read())) for name, read in readers.items()}
    _carving.tell_duplicates(preparation, "questions", {name: found.questions for name, found in surveys.items()})
    others = ("validation",) if "test" in surveys else ("validation", "test")
    splits = {name: np.full(len(found.questions), name, dtype="<U10") for name, found in surveys.items()}
    splits["train"] = _carved(units, surveys["train"].units, others)
    asked = {"train": options.examples, "validation": options.test_examples, "test": options.test_examples}
    for split, count in asked.items():
        if count is not None:
            _limit(split, count, splits, surveys)
    _tell_shared(preparation, documents, splits, surveys)
    return [Part(name, read, splits[name].tolist()) for name, read in readers.items()]


def _survey(seed: int, described: Iterable[Described]) -> _Survey:
    units, questions, documents = [], [], []
    for one in described:
        units.append(_carving.digests(seed, [one.unit.encode()]))
        questions.append(_carving.digests(seed, [one.question.encode()]))
        documents.append(_carving.digests(seed, [text.encode() for text in one.documents])[:, 0])
    return _Survey(np.concatenate(units), np.concatenate(questions), documents)


def _carved(what: str, units: np.ndarray, others: Sequence[str]) -> np.ndarray:
    distinct, unit_of = np.unique(units, axis=0, return_inverse=True)
    share = max(1, len(distinct) // _carving.ONE_IN)
    if len(distinct) <= share * len(others):
        raise AttnbenchError(f"{len(distinct)} {what} are too few for {', '.join(('train', *others))}; give more data")
    names = np.full(len(distinct), "train", dtype="<U10")
    for number, name in enumerate(others):
        names[number * share : (number + 1) * share] = name
    found: np.ndarray = names[unit_of.reshape(-1)]
    return found


def _limit(split: str, count: int, splits: dict[str, np.ndarray], surveys: Mapping[str, _Survey]) -> None:
    """Takes the questions out of `split` that are more than `count`."""
    part = "train" if (splits["train"] == split).any() else "test"
    there = np.flatnonzero(splits[part] == split)
    kept = _carving.shuffled(f"{split}, in questions,", surveys[part].questions[there], there, count)
    splits[part][np.delete(there, kept)] = ""


def _tell_shared(
    preparation: Preparation, what: str, splits: Mapping[str, np.ndarray], surveys: Mapping[str, _Survey]
) -> None:
    """Keeps which share of the documents of the other splits the training split has too."""
    of_split: dict[str, list[np.ndarray]] = {split: [] for split in ("", *SPLITS)}
    for name, found in surveys.items():
        for split, documents in zip(splits[name].tolist(), found.documents, strict=True):
            of_split[split].append(documents)
    seen = {split: np.unique(np.concatenate(of_split[split] or [_NONE])) for split in SPLITS}
    shared = {split: len(np.intersect1d(seen[split], seen["train"], assume_unique=True)) for split in SPLITS[1:]}
    shares = {split: round(count / max(1, len(seen[split])), 4) for split, count in shared.items()}
    preparation.fact(f"{what}_shared_with_training", shares)
    if any(shares.values()):
        listed = ", ".join(f"{100 * share:.1f} % of those of {split}" for split, share in shares.items())
        preparation.note(f"{what} that training has too: {listed}")
