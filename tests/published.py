"""Small sets in the forms in which the published ones lie about, written by other code than that which reads them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from attnbench import data, registry
from attnbench.contracts import Preparation
from attnbench.errors import AttnbenchError
from attnbench.options import parse

REVIEWS = [(f"film {number} was {'good' if number % 2 else 'bad'} \u2019 <br />", number % 2) for number in range(60)]


def plugin(name: str) -> registry.Plugin:
    return registry.load("tasks", name)


def options(name: str, **values: Any) -> Any:
    return parse(f"task {name}", plugin(name).object.options, values)


def prepared(name: str, source: Path | None, **values: Any) -> data.TaskData:
    return data.load(plugin(name), options(name, **values), source)


def documents(found: data.TaskData, split: str, column: int = 0) -> list[bytes]:
    """The bytes of each document of a set whose ids are byte + 1."""
    return [bytes((row - 1).astype(np.uint8)) for row in found.splits[split].documents[column]]


def attempt(read: Callable[[], Any]) -> Any:
    """What `read` returns, or how it was refused: on one line."""
    try:
        return read()
    except AttnbenchError as error:
        return error if "\n" not in str(error) else None


def silent(folder: Path, source: Path | None = None) -> Preparation:
    folder.mkdir(parents=True, exist_ok=True)
    return Preparation(folder, source, lambda items, title: iter(items), lambda text: None)


def parquet(path: Path, table: pa.Table, names: dict[str, Sequence[str]] | None = None) -> None:
    """With the class names where `datasets` keeps them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if names:
        features = {column: {"names": list(known), "_type": "ClassLabel"} for column, known in names.items()}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path)


def reviews(path: Path, rows: Sequence[tuple[Any, Any]]) -> None:
    """A parquet file of the hub's IMDB."""
    schema = pa.schema({"text": pa.string(), "label": pa.int64()})
    table = pa.Table.from_pylist([{"text": text, "label": label} for text, label in rows], schema)
    parquet(path, table, {"label": ("neg", "pos")})


def png(colours: np.ndarray, **kind: Any) -> bytes:
    kept = io.BytesIO()
    Image.fromarray(colours, **kind).save(kept, "PNG")
    return kept.getvalue()


def colours(count: int, seed: int = 0) -> np.ndarray:
    """(count, 32, 32, 3) uint8."""
    return np.random.Generator(np.random.PCG64(seed)).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def pictures(
    path: Path, packed: Sequence[Any], labels: Sequence[Any], names: tuple[str, str] = ("img", "label")
) -> None:
    """A parquet file of the hub's CIFAR-10."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    column = pa.array([None if one is None else {"bytes": one, "path": "0.png"} for one in packed], kind)
    parquet(path, pa.table(dict(zip(names, (column, pa.array(labels, pa.int64())), strict=True))))


AAN = {"train": "new_aan_pairs.train.tsv", "validation": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}


def aan(rows: Sequence[tuple[bytes, bytes, bytes]]) -> bytes:
    """Rows of LRA's Retrieval: a label and two texts, with ids between them."""
    return b"".join(b"%s\tP%d\tW%d\t%s\t%s\n" % (label, n, n + 1, a, b) for n, (label, a, b) in enumerate(rows))
