"""Interleaved comparison in one process: medians of paired ratios, of rounds in which nobody was kept waiting.

On a shared machine absolute times drift, and one descheduled thread holds up all others of an operation. So the
candidates take turns, a ratio is always that of two neighbours in time, and where the kernel tells how long the threads
of this process waited for a core (Linux, `schedstat`), rounds with a wait are left out. With one thread
(ATTNBENCH_BENCH_THREADS=1) the clock is the CPU time of the process, which waiting does not touch. The settings of
`attnbench.numerics` are on; ATTNBENCH_BENCH_NUMERICS=stock leaves PyTorch as it comes.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType

import torch

from attnbench import numerics
from attnbench.speed.clock import waited

THREADS = int(os.environ.get("ATTNBENCH_BENCH_THREADS", "2"))
NUMERICS = os.environ.get("ATTNBENCH_BENCH_NUMERICS", "fast")
#: Share of a sample that its threads may have waited.
_DELAY = 0.03

Run = Callable[[], object]


class Elsewhere:
    """A candidate in a process of its own, under PyTorch as it comes: the choice for memory cannot be taken back. It
    takes its turn with the others and is idle otherwise. `make` is a function that can be pickled and gives the run.
    Use as a context manager.
    """

    def __init__(self, make: Callable[[], Run]):
        context = multiprocessing.get_context("spawn")
        self._line, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, make), daemon=True)

    def __enter__(self) -> Elsewhere:
        self._process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.send(False)
        self._process.join()

    def timed(self) -> tuple[float, bool]:
        self._line.send(True)
        if not self._line.poll(300):
            raise TimeoutError("no answer from the other process")
        found: tuple[float, bool] = self._line.recv()
        return found


def _serve(line: Connection, make: Callable[[], Run]) -> None:
    torch.set_num_threads(THREADS)
    with numerics.applied("stock"):
        run = make()
        while line.recv():
            line.send(_timed(run))


Candidates = Mapping[str, "Run | Elsewhere"]


@dataclass(frozen=True)
class Comparison:
    """Milliseconds of each candidate; how many times faster the first is than each other one."""

    seconds: dict[str, list[float]]  # of each round
    clean: bool  # no round was delayed; else too few were not, and all count
    numerics: str

    @property
    def rounds(self) -> int:
        return min(map(len, self.seconds.values()))

    @property
    def milliseconds(self) -> dict[str, float]:
        return {name: 1000 * statistics.median(taken) for name, taken in self.seconds.items()}

    @property
    def times_faster(self) -> dict[str, float]:
        first, *others = self.seconds
        return {name: self.ratio(name, first) for name in others}

    def ratio(self, slow: str, fast: str) -> float:
        return statistics.median(a / b for a, b in zip(self.seconds[slow], self.seconds[fast], strict=True))

    def info(self) -> dict[str, object]:
        found: dict[str, object] = {f"x {name}": round(ratio, 2) for name, ratio in self.times_faster.items()}
        found |= {f"ms {name}": round(ms, 2) for name, ms in self.milliseconds.items()}
        clock = "process CPU time" if THREADS == 1 else "wall, undelayed rounds" if self.clean else "wall, delayed"
        return found | {"rounds": self.rounds, "threads": THREADS, "clock": clock, "numerics": self.numerics}


def compare(candidates: Candidates, *, rounds: int = 11, seconds: float = 12) -> Comparison:
    """Rounds of all candidates in turn until there are enough clean ones or the time is over."""
    with numerics.applied(NUMERICS) as in_force:
        return _compare(candidates, rounds, seconds, ", ".join(in_force.values()))


def _compare(candidates: Candidates, rounds: int, seconds: float, in_force: str) -> Comparison:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        for run in candidates.values():
            _timed(run)
        every, clean = [], []
        end = time.monotonic() + seconds
        while len(clean) < rounds and (time.monotonic() < end or len(every) < 3):
            taken, delayed = zip(*(_timed(run) for run in candidates.values()), strict=True)
            every.append(taken)
            if not any(delayed):
                clean.append(taken)
    finally:
        torch.set_num_threads(before)
    used = clean if len(clean) >= 3 else every
    by_name = dict(zip(candidates, map(list, zip(*used, strict=True)), strict=True))
    return Comparison(by_name, used is clean, in_force)


def _timed(run: Run | Elsewhere) -> tuple[float, bool]:
    """Seconds, and whether its threads were kept waiting."""
    if isinstance(run, Elsewhere):
        return run.timed()
    clock = time.process_time if THREADS == 1 else time.perf_counter
    before, start = waited(), clock()
    run()
    taken = clock() - start
    return taken, THREADS > 1 and waited() - before > _DELAY * taken


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
