"""Compiling a generator's loops with numba.

Keep all compiled functions that call each other in one file, and hand over what other files define as arguments:
numba's cache on disk notices changes of a function's own file, not of what it calls or reads elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Runs without the interpreter's lock, so threads share work; cached where some cache folder can be written."""
    try:
        return cast(Function, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # numba found no place for its cache
        return cast(Function, numba.njit(nogil=True)(function))
