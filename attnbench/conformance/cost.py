"""What a call costs, counted instead of timed: floating point operations and numbers written to memory."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from attnbench.conformance.check import Case, Check, Mismatch, NotApplicable, applies
from attnbench.conformance.subject import Subject, rows
from attnbench.contracts import COMPLEXITIES

_SLACK = 0.15  # of an exponent: constant and border terms
_HEADS = 2


class Ledger(TorchDispatchMode):
    """Counts the numbers in all memory that operations allocate, and keeps the first tensor of n x n or more."""

    def __init__(self, n: int):
        super().__init__()  # type: ignore[no-untyped-call]
        self.n, self.numbers, self.square = n, 0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
        for tensor in _tensors(result):
            if tensor.untyped_storage().data_ptr() in known:
                continue  # a view, or written in place
            self.numbers += tensor.untyped_storage().nbytes() // tensor.element_size()
            if not self.square and self._is_square(tensor):
                self.square = f"{func.name()} makes a tensor of shape {tuple(tensor.shape)}{_place()}"
        return result

    def _is_square(self, tensor: Tensor) -> bool:
        """Its own memory, not an expanded view, holds a number for every pair of rows."""
        held = tensor.untyped_storage().nbytes() // tensor.element_size()
        long = [size for size in tensor.shape if size >= self.n]
        return held >= self.n**2 and (len(long) > 1 or any(size >= self.n**2 for size in long))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _place() -> str:
    """Where the mechanism asked for it: the innermost line outside installed libraries and this file."""
    for frame in reversed(traceback.extract_stack()):
        if "site-packages" not in frame.filename and frame.filename != __file__:
            return f" ({frame.filename.rpartition('/')[2]}:{frame.lineno})"
    return ""


def declared_cost(subject: Subject) -> str:
    """Operations and memory of a call grow with its length no faster than the declared `complexity`, and what is
    declared below n^2 never makes a tensor with a number for every pair of rows. Counted in a second call, so tables
    kept from the first are free; fused attention is made to show its work; a mechanism whose `implementation` says
    "dense emulation" falls back openly.
    """
    lengths = [factor * max(512, 8 * subject.block) for factor in (1, 2, 4)]
    found, squares = _growth(subject, lengths)
    measured = f"operations grow as n^{found[0]:.2f}, memory as n^{found[1]:.2f}"
    declared = subject.mechanism.complexity
    applies(bool(declared), f"it declares no complexity; {measured}")
    allowed = [COMPLEXITIES[declared](n, subject.block) for n in lengths]
    wanted = _exponent(lengths, allowed)
    if squares and allowed[-1] < lengths[-1] ** 2 / 2:
        raise Mismatch(f"a cost of {declared}", f"at n={lengths[-1]} {squares}; {measured}")
    if max(found) > wanted + _SLACK:
        raise Mismatch(f"a cost of {declared}, n^{wanted:.2f} from {lengths[0]} to {lengths[-1]} rows", measured)
    return f"{measured}; declared {declared}"


def _growth(subject: Subject, lengths: Sequence[int]) -> tuple[tuple[float, float], str]:
    """Exponents of operations and memory, and the n x n tensor at the longest length, if there is one."""
    flops, memory, square = [], [], ""
    for n in lengths:
        case = Case(length=n, batch=1, heads=_HEADS)
        mixer = subject.build(case, length=n, dtype=torch.float32)
        if getattr(mixer.mixer, "implementation", "") == "dense emulation":
            raise NotApplicable('its implementation is "dense emulation", which its records say')
        x, ledger, counter = rows(case, dtype=torch.float32), Ledger(n), FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            mixer(x)
            with counter, ledger:
                mixer(x)
        flops.append(max(1, counter.get_total_flops()))
        memory.append(ledger.numbers)
        square = ledger.square
    return (_exponent(lengths, flops), _exponent(lengths, memory)), square


def _exponent(lengths: Sequence[int], costs: Sequence[float]) -> float:
    return float(np.polyfit(np.log(lengths), np.log(costs), 1)[0])


CHECKS = (Check(declared_cost, needs=("shape_and_dtype",)),)
