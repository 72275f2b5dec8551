"""Memory of a call: its peak over what was in use before, each measured from a fresh mark."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from pathlib import Path

import torch

from attnbench.speed.clock import Run

_STATUS, _MARKS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_of(run: Run, device: str) -> int | None:
    """Bytes by which one call raises the memory in use; None where this cannot be seen.

    The call must have been made before, so that libraries and tables are loaded. On a CPU it is the resident memory of
    the process, whose peak Linux lets begin anew; so only a process of its own, in which nothing large was freed that
    the call could use again, shows all of it.
    """
    release(device)
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    before_or_none = _status("VmRSS")
    try:
        _MARKS.write_text("5")
    except OSError:
        return None
    run()
    after = _status("VmHWM")
    return None if before_or_none is None or after is None else max(0, after - before_or_none)


def how(device: str) -> str:
    return "allocated by CUDA tensors" if device == "cuda" else "resident memory of the process"


def release(device: str) -> None:
    """Gives back what no tensor uses, so that an idle process holds no more than it must."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    elif sys.platform == "linux":
        try:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        except (OSError, AttributeError):  # another C library
            return


def bound(device: str) -> None:
    """Makes an allocation beyond the memory that is free now an error of this process, instead of its end or that of
    another one. Linux, and CPU tensors only: CUDA reserves far more addresses than it uses.
    """
    if device != "cpu" or sys.platform != "linux":
        return
    import resource

    try:
        free = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
        held = _status("VmData")
        if free and held is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            limit = held + int(free[1]) * 1024 * 9 // 10
            resource.setrlimit(resource.RLIMIT_DATA, (min(limit, hard) if hard > 0 else limit, hard))
    except (OSError, ValueError):
        return


def _status(field: str) -> int | None:
    try:
        found = re.search(rf"{field}:\s+(\d+)", _STATUS.read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
