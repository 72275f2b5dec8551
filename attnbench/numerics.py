"""CPU settings that make PyTorch faster and change no result: set at the start of a run, checked, recorded.

products    float32 products by the kernels behind PyTorch's precision "medium", where these turn out to be float32. On
            some processors they are twice as fast; on others (with AMX) they compute in bfloat16 and are not used. For
            work on the CPU only: the setting would allow products in less than float32 on CUDA too, unchecked.
memory      glibc keeps large blocks for the next operation instead of returning them to the kernel and faulting every
            page in again.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from attnbench.errors import AttnbenchError

Mode = Literal["fast", "stock"]
MODES: tuple[Mode, ...] = ("fast", "stock")

#: Largest error of a product of random 256 x 256 matrices against float64, as a share of its largest entry.
_FLOAT32_ERROR = 1e-5
#: glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


@contextmanager
def applied(mode: Mode, on_cpu: bool = True) -> Iterator[dict[str, str]]:
    """Sets `mode` for work on the CPU, or on another device, and yields what is in force, for the record; gives
    products back their precision afterwards.

    The choice for memory stays: glibc tells nobody what it was before.

    Raises:
        AttnbenchError: no such mode.
    """
    if mode not in MODES:
        raise AttnbenchError(f"numerics is {' or '.join(MODES)}, got {mode!r}")
    before = torch.get_float32_matmul_precision()
    if mode == "stock":
        yield {"mode": mode, "products": before, "memory": "as the system has it"}
        return
    try:
        yield {"mode": mode, "products": _faster_products(before) if on_cpu else before, "memory": _keep_blocks()}
    finally:
        torch.set_float32_matmul_precision(before)


def _faster_products(before: str) -> str:
    torch.set_float32_matmul_precision("medium")
    if (error := product_error()) <= _FLOAT32_ERROR:
        return "medium"
    torch.set_float32_matmul_precision(before)
    return f"{before} (medium: error {error:.1e})"


def product_error() -> float:
    """Of a float32 product on the CPU, against float64, as a share of its largest entry."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 256, 256, generator=generator, dtype=torch.float64)
    exact = a.float().double() @ b.float().double()
    return float(((a.float() @ b.float()) - exact).abs().max() / exact.abs().max())


def _keep_blocks() -> str:
    if sys.platform != "linux":
        return "as the system has it"
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library
        return "as the system has it"
    set_ = [mallopt(_MMAP_THRESHOLD, 2**31 - 1), mallopt(_TRIM_THRESHOLD, 2**31 - 1), mallopt(_TOP_PAD, 64 << 20)]
    return "kept" if all(set_) else "kept in part"
