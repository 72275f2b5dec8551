"""CPU settings that make PyTorch faster and change no result: set at the start of a run, checked, recorded.

products    float32 products on the CPU by the kernels behind PyTorch's precision "medium", where these turn out to be
            float32. On some processors they are twice as fast; on others (with AMX) they compute in bfloat16 and are
            not used. "medium" itself would also allow products in less than float32 on CUDA, which nothing checks.
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
#: What "medium" sets for the CPU alone.
_CPU_PRODUCTS = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # made when it is imported
#: glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


@contextmanager
def applied(mode: Mode) -> Iterator[dict[str, str]]:
    """Sets `mode` and yields what is in force, for the record; gives products back their precision afterwards.

    The choice for memory stays: glibc tells nobody what it was before.

    Raises:
        AttnbenchError: no such mode.
    """
    if mode not in MODES:
        raise AttnbenchError(f"numerics is {' or '.join(MODES)}, got {mode!r}")
    usual = torch.get_float32_matmul_precision()
    if mode == "stock":
        yield {"mode": mode, "products": usual, "memory": "as the system has it"}
        return
    before = _CPU_PRODUCTS.fp32_precision
    try:
        yield {"mode": mode, "products": _faster_products(usual, before), "memory": _keep_blocks()}
    finally:
        _CPU_PRODUCTS.fp32_precision = before


def _faster_products(usual: str, before: str) -> str:
    _CPU_PRODUCTS.fp32_precision = "bf16"
    if (error := product_error()) <= _FLOAT32_ERROR:
        return "medium"
    _CPU_PRODUCTS.fp32_precision = before
    return f"{usual} (medium: error {error:.1e})"


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
