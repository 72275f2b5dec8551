"""ListOps expressions as Arrow tables: columns tokens, rows of ids, and label."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from .. import _arrow


def table(tokens: np.ndarray, lengths: np.ndarray, labels: np.ndarray) -> pa.Table:
    """From consecutive uint8 ids and the length of each expression."""
    return pa.table({"tokens": _arrow.rows(tokens, lengths), "label": labels})


def rows_of(made: pa.Table) -> Iterator[bytes]:
    """The tokens of each expression."""
    for piece in made.column("tokens").chunks:
        content, ends = piece.values.to_numpy().tobytes(), piece.offsets.to_pylist()
        yield from (content[start:end] for start, end in pairwise(ends))
