"""Running out of memory: smaller parts of the same whole, and what could not be made smaller would have needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import torch

from attnbench.errors import is_out_of_memory

T = TypeVar("T")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def in_parts(work: Callable[[int], T], parts: int, most: int, note: Callable[[int], None]) -> T:
    """What `work` returns when it splits its task in so many equal parts, or in more where memory does not suffice:
    the next divisor of `most` from twice as many on, of which `note` is told.

    Raises:
        the error of `work`, also when no smaller part is left.
    """
    while True:
        try:
            return work(parts)
        except Exception as error:
            more = next((n for n in range(2 * parts, most + 1) if most % n == 0), None)
            if more is None or not is_out_of_memory(error):
                raise
        # outside the handler, where the error no longer holds the tensors of its frames
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        parts = more
        note(parts)


def needed(error: BaseException, held: int) -> int | None:
    """Bytes that were needed at the least: what was held and what was asked for; None where the error does not say."""
    found = re.search(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", str(error))
    return None if found is None else held + int(float(found[1]) * _UNITS[found[2]])
