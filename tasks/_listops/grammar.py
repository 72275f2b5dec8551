"""ListOps' grammar (Nangia and Bowman 2018, with the settings of Long Range Arena, Tay et al. 2020) as numbers.

A node nearer to the root than `max_depth` is an operator with probability 1/4, else a digit; the root has depth 1, and
at `max_depth` all are digits. Operators and digits are drawn evenly, and so is the number of arguments, from 2 to
`max_args`. A digit counts one, an operator two (itself and its bracket), and a tree is kept when its length lies
between `min_length` and `max_length`, both excluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

OPERATOR_SHARE = 0.25


@dataclass(frozen=True)
class Grammar:
    min_length: int
    max_length: int
    max_depth: int
    max_args: int


@lru_cache(maxsize=8)
def length_shares(grammar: Grammar) -> np.ndarray:
    """(max_length,) probability of each length among all trees that are drawn, exact but for rounding.

    The lengths of arguments are independent, so those of an operator's add up by convolution, depth by depth.
    """
    from scipy.signal import fftconvolve

    size = grammar.max_length
    shares = np.zeros(size)
    shares[1] = 1.0  # at max_depth
    for _ in range(grammar.max_depth - 1):
        power, total = shares, np.zeros(size)
        for _ in range(2, grammar.max_args + 1):
            power = np.maximum(fftconvolve(power, shares)[:size], 0.0)
            total += power
        shares = np.zeros(size)
        shares[2:] = total[:-2] * OPERATOR_SHARE / (grammar.max_args - 1)
        shares[1] += 1 - OPERATOR_SHARE
    shares.flags.writeable = False
    return shares


def kept_share(grammar: Grammar) -> float:
    """Share of the drawn trees whose length lies within the bounds; 8 % for LRA's."""
    return float(length_shares(grammar)[grammar.min_length + 1 :].sum())
