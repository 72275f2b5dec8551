"""A set of ListOps expressions that all differ, as a function of the options alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from attnbench.errors import AttnbenchError

from .generator import CHUNK, draw
from .grammar import kept_share
from .options import SPLITS, Options, splits_of
from .tables import rows_of, table

_LEAST_KEPT = 1e-4
#: So many chunks in a row must bring so many new expressions, else too few are left to find.
_PATIENCE, _LEAST_NEW = 10, 100


def chunks_of(options: Options) -> range:
    """The chunks that a set takes when no expressions are equal.

    Raises:
        AttnbenchError: expressions within the bounds are too rare to be drawn.
    """
    if kept_share(options.grammar) < _LEAST_KEPT:
        raise AttnbenchError(
            f"more than {options.min_length} and fewer than {options.max_length} tokens has less than one in "
            f"{1 / _LEAST_KEPT:,.0f} expressions, too few to draw; change min_length, max_length, max_depth or max_args"
        )
    return range(-(-options.examples // CHUNK))


def drawn(options: Options, chunk: int) -> pa.Table:
    """The expressions of one chunk, repeats included."""
    trees = draw(options.grammar, options.data_seed, chunk)
    return table(trees.tokens, np.diff(trees.offsets), trees.labels)


def distinct(options: Options, chunk_of: Callable[[int], pa.Table]) -> Iterator[dict[str, pa.Table]]:
    """For one chunk after the other its expressions by split, without those that came before.

    Number i of those that are left goes to the split of i, so a larger set holds the smaller ones in the same splits.

    Raises:
        AttnbenchError: there are too few different ones.
    """
    seen: set[bytes] = set()
    found = [0]  # after each chunk
    while found[-1] < options.examples:
        made = chunk_of(len(found) - 1)
        new = _new(made, seen)[: options.examples - found[-1]]
        where = splits_of(found[-1] + np.arange(len(new)))
        yield {name: made.take(pa.array(new[where == name])) for name in SPLITS}
        found.append(found[-1] + len(new))
        late = len(found) > _PATIENCE and found[-1] < options.examples
        if late and found[-1] - found[-1 - _PATIENCE] < _LEAST_NEW:
            raise AttnbenchError(
                f"examples={options.examples}: only {found[-1]} different expressions among {CHUNK * (len(found) - 1)} "
                "drawn; ask for fewer, or widen min_length, max_length, max_depth or max_args"
            )


def _new(made: pa.Table, seen: set[bytes]) -> np.ndarray:
    """Rows whose tokens are not in `seen` yet; puts them there."""
    new = []
    for row, tokens in enumerate(rows_of(made)):
        key = hashlib.blake2b(tokens, digest_size=16).digest()
        if key not in seen:
            seen.add(key)
            new.append(row)
    return np.array(new, np.int64)
