"""What can be said of two documents without reading either: the trivial level of the tasks that match two."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np

from ._arrow import BYTE_IDS

_FIT_EXAMPLES = 2000
_AT_ONCE = 1000


def byte_counts(options: Any, made: datasets.DatasetDict) -> dict[str, float]:
    """Test accuracy of a logistic regression on how far the shares of each byte differ between the two documents,
    fitted on at most 2,000 training pairs.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    known, labels = _differences(made["train"], _FIT_EXAMPLES)
    asked, wanted = _differences(made["test"], len(made["test"]))
    if len(np.unique(labels)) < 2:
        return {"byte_counts": float(np.mean(wanted == labels[0]))}
    scaler = StandardScaler()
    model = LogisticRegression(max_iter=2000).fit(scaler.fit_transform(known), labels)
    return {"byte_counts": float(model.score(scaler.transform(asked), wanted))}


def _differences(split: datasets.Dataset, count: int) -> tuple[np.ndarray, np.ndarray]:
    """|share in the first document - share in the second| (pairs, ids) of the first `count` pairs, and their labels."""
    found, labels = [], []
    for start in range(0, min(count, len(split)), _AT_ONCE):
        table = split.data.table.slice(start, min(_AT_ONCE, count - start)).combine_chunks()
        shares = [_shares(table.column(name).chunk(0)) for name in ("tokens", "tokens_b")]
        found.append(np.abs(shares[0] - shares[1]))
        labels.append(table.column("label").to_numpy())
    return np.concatenate(found), np.concatenate(labels)


def _shares(documents: Any) -> np.ndarray:
    """(documents, ids): how large a part of each document an id makes up."""
    lengths = documents.value_lengths().to_numpy()
    row = np.repeat(np.arange(len(lengths)), lengths)
    flat = row * BYTE_IDS + documents.flatten().to_numpy()
    counts = np.bincount(flat, minlength=len(lengths) * BYTE_IDS).reshape(-1, BYTE_IDS)
    shares: np.ndarray = counts / lengths[:, None]
    return shares
