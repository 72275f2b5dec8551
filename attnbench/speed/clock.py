"""The clock of a sample. It starts when the device is idle and stops when the device has finished."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

Run = Callable[[], object]

#: The least time of a sample; a shorter call is repeated inside it.
SHORTEST = 0.02
_MOST_CALLS = 1000


class Taken(NamedTuple):
    """Seconds of a sample by its clock and by the clock on the wall, and the share of it its threads had no core."""

    seconds: float
    wall: float
    waited: float


def clock_name(device: str, threads: int) -> str:
    """What `seconds` are. With one thread the CPU time of the process, which waiting for a core does not touch."""
    if device == "cuda":
        return "CUDA events"
    return "CPU time of the process" if threads == 1 else "wall time, samples whose threads waited for a core left out"


def timed(run: Run, calls: int, device: str, threads: int) -> Taken:
    """So many calls behind each other, as one sample."""
    if device == "cuda":
        return _timed_on_cuda(run, calls)
    before, cpu, wall = waited(), time.process_time(), time.perf_counter()
    for _ in range(calls):
        run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Taken(cpu, wall, 0.0) if threads == 1 else Taken(wall, wall, (waited() - before) / wall)


def _timed_on_cuda(run: Run, calls: int) -> Taken:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    wall = time.perf_counter()
    start.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize()
    return Taken(start.elapsed_time(end) / 1000, time.perf_counter() - wall, 0.0)


def calls_for(seconds: float) -> int:
    """How many calls of this length fill a sample."""
    return min(_MOST_CALLS, max(1, math.ceil(SHORTEST / max(seconds, 1e-9))))


def waited() -> float:
    """Seconds for which threads of this process have been ready and without a core (Linux); 0 where nobody tells."""
    total = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total += int(task.read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue
    return total / 1e9
