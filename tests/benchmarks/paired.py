"""Interleaved comparison in one process: medians of paired ratios, of rounds in which nobody was kept waiting.

On a shared machine absolute times drift, and one descheduled thread holds up all others of an operation. So the
candidates take turns, a ratio is always that of two neighbours in time, and where the kernel tells how long the threads
of this process waited for a core (Linux, `schedstat`), rounds with a wait are left out. With one thread
(ATTNBENCH_BENCH_THREADS=1) the clock is the CPU time of the process, which waiting does not touch. The settings of
`attnbench.numerics` are on; ATTNBENCH_BENCH_NUMERICS=stock leaves PyTorch as it comes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from attnbench import numerics

THREADS = int(os.environ.get("ATTNBENCH_BENCH_THREADS", "2"))
NUMERICS = os.environ.get("ATTNBENCH_BENCH_NUMERICS", "fast")
#: Share of a sample that its threads may have waited.
_DELAY = 0.03

Candidates = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Comparison:
    """Milliseconds of each candidate; how many times faster the first is than each other one."""

    milliseconds: dict[str, float]
    times_faster: dict[str, float]
    rounds: int
    clean: bool  # no round was delayed; else too few were not, and all count
    numerics: str

    def info(self) -> dict[str, object]:
        found: dict[str, object] = {f"x {name}": round(ratio, 2) for name, ratio in self.times_faster.items()}
        found |= {f"ms {name}": round(ms, 1) for name, ms in self.milliseconds.items()}
        clock = "process CPU time" if THREADS == 1 else "wall, undelayed rounds" if self.clean else "wall, delayed"
        return found | {"rounds": self.rounds, "threads": THREADS, "clock": clock, "numerics": self.numerics}


def compare(candidates: Candidates, *, rounds: int = 11, seconds: float = 12) -> Comparison:
    """Rounds of all candidates in turn until there are enough clean ones or the time is over."""
    with numerics.applied(NUMERICS) as in_force:
        return _compare(candidates, rounds, seconds, ", ".join(in_force.values()))


def _compare(candidates: Candidates, rounds: int, seconds: float, in_force: str) -> Comparison:
    clock = time.process_time if THREADS == 1 else time.perf_counter
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        for run in candidates.values():
            run()
        every, clean = [], []
        end = time.monotonic() + seconds
        while len(clean) < rounds and (time.monotonic() < end or len(every) < 3):
            taken, delayed = [], False
            for run in candidates.values():
                waited, start = _waited(), clock()
                run()
                taken.append(clock() - start)
                delayed |= THREADS > 1 and _waited() - waited > _DELAY * taken[-1]
            every.append(taken)
            if not delayed:
                clean.append(taken)
    finally:
        torch.set_num_threads(before)
    used = clean if len(clean) >= 3 else every
    names = list(candidates)
    return Comparison(
        {name: 1000 * statistics.median(taken[i] for taken in used) for i, name in enumerate(names)},
        {name: statistics.median(taken[i] / taken[0] for taken in used) for i, name in enumerate(names) if i},
        len(used),
        used is clean,
        in_force,
    )


def _waited() -> float:
    """Seconds for which threads of this process have been ready and without a core; 0 where nobody tells."""
    total = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total += int(task.read_text().split()[1])
        except (OSError, IndexError):
            continue
    return total / 1e9


def peak_extra_mib(code: str) -> float:
    """MiB by which `run()`, which `code` defines, raises the peak memory of a fresh process."""
    program = f"""
import ctypes, re, torch
torch.set_num_threads({THREADS})
def status(field):
    return int(re.search(field + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
{code}
import gc
gc.collect(); ctypes.CDLL(None).malloc_trim(0)
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
before = status("VmRSS")
run()
print("peak", status("VmHWM") - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(done.stdout.rsplit("peak", 1)[1])
