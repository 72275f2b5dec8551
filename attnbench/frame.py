"""Records as a DataFrame, a row each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.record import Record
from attnbench.store import Store

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = {
    "id": "object",
    "kind": "object",
    "label": "object",
    "task": "object",
    "protocol": "object",
    "protocol_version": "int64",
    "mechanism": "object",
    "regularizer": "object",
    "seed": "int64",
    "status": "object",
    "test": "float64",
    "low": "float64",
    "high": "float64",
    "validation": "float64",
    "chance": "float64",
    "params": "Int64",
    "params_mixer": "Int64",
    "samples_per_second": "float64",
    "peak_bytes": "Int64",
    "spec_hash": "object",
    "path": "object",
}


def as_frame(store: Store) -> tuple[pd.DataFrame, list[str]]:
    """One row per record, and one line per file that is none. No more than one record is held at a time.

    Raises:
        AttnbenchError: the results folder does not exist.
    """
    import pandas as pd

    rows, problems = [], []
    for path, found in store.scan():
        if isinstance(found, Record):
            rows.append(_row(path, found))
        else:
            problems.append(str(found))
    # column by column, since pandas guesses that text is UTF-8, and a label from elsewhere may not be
    columns = {name: pd.Series([row.get(name) for row in rows], dtype=kind) for name, kind in _COLUMNS.items()}
    return pd.DataFrame(columns), problems


def _row(path: Path, record: Record) -> dict[str, Any]:
    spec, quality, cost = record.spec, record.quality, record.cost
    row: dict[str, Any] = {
        "id": record.id,
        "kind": record.kind,
        "label": record.label,
        "task": spec.task.name,
        "protocol": spec.protocol.name,
        "protocol_version": spec.protocol.version,
        "mechanism": spec.mechanism.name,
        "regularizer": "+".join(part.name for part in spec.regularizer) or "none",
        "seed": record.seed,
        "status": record.status,
        "spec_hash": spec.hash,
        "path": str(path),
    }
    if quality is not None:
        row |= {"test": quality.test, "low": quality.interval[0], "high": quality.interval[1]}
        row |= {"validation": quality.validation, "chance": quality.chance}
    if cost is not None:
        row |= {"params": cost.params_total, "params_mixer": cost.params_mixer}
        row |= {"samples_per_second": cost.samples_per_second, "peak_bytes": cost.peak_bytes}
    return row
