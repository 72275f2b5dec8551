"""Where the runs of a sweep take place: an interface, and processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

#: Libraries that start threads read one of these.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS")
_TAIL = 1 << 16
_LONGEST_LINE = 300


@dataclass(frozen=True)
class Job:
    """Words behind `attnbench`; `name` is unique among the jobs of an executor."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """A job that is over: exit code (negative: the signal that ended it), stdout, and the last line of stderr."""

    job: Job
    code: int
    output: str
    last_line: str
    seconds: float


class Executor(Protocol):
    """Runs jobs, each in a process of its own that can crash alone.

    An implementation owes:

    - `workers` jobs can be under way at once; the caller starts no more.
    - `start` returns at once. The job is `attnbench` with its words, in the caller's working directory and with its
      environment, and sees as many threads and GPUs as its share allows. The number of threads decides how sums round,
      so it must not depend on how many jobs are under way.
    - `wait` returns what ended since the last call, as soon as there is something and after `seconds` at the latest.
      Every job that was started is returned once, however it ended; nothing is raised for one that crashed.
    - `stop` asks all jobs to end as SIGTERM would: a run then writes a checkpoint and exits with 130. They are still
      returned by `wait`. `kill` ends those that are left, at once.
    - The results folder that the words name is the same one for all jobs and for the caller.
    """

    workers: int

    def start(self, job: Job) -> None: ...

    def wait(self, seconds: float) -> list[Ended]: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


@dataclass
class _Process:
    job: Job
    slot: int
    popen: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]
    started: float


class LocalExecutor:
    """Processes of this machine. Job k of those under way gets GPU k, modulo their number; `threads` is per job."""

    def __init__(self, workers: int, threads: int = 1, gpus: int = 0):
        self.workers, self.threads = workers, threads
        self._gpus = _visible_gpus(gpus)
        self._running: list[_Process] = []

    def start(self, job: Job) -> None:
        slot = min(set(range(self.workers)) - {process.slot for process in self._running})
        folder = tempfile.TemporaryDirectory(prefix="attnbench-")
        with open(Path(folder.name, "out"), "wb") as out, open(Path(folder.name, "err"), "wb") as err:
            popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "attnbench", *job.words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self._environment(slot),
                start_new_session=True,  # Ctrl-C is for the sweep, which then asks each run to stop
            )
        self._running.append(_Process(job, slot, popen, folder, time.monotonic()))

    def wait(self, seconds: float) -> list[Ended]:
        limit = time.monotonic() + seconds
        while True:
            over = [process for process in self._running if process.popen.poll() is not None]
            if over or time.monotonic() >= limit or not self._running:
                return [self._ended(process) for process in over]
            time.sleep(0.05)

    def stop(self) -> None:
        for process in self._running:
            process.popen.terminate()

    def kill(self) -> None:
        """With all that a run may have started itself."""
        for process in self._running:
            if process.popen.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.popen.pid, signal.SIGKILL)

    def _ended(self, process: _Process) -> Ended:
        self._running.remove(process)
        output = Path(process.folder.name, "out").read_text("utf-8", errors="replace")
        errors = Path(process.folder.name, "err").read_bytes()[-_TAIL:].decode("utf-8", errors="replace")
        process.folder.cleanup()
        return Ended(
            process.job, process.popen.returncode, output, last_line(errors), time.monotonic() - process.started
        )

    def _environment(self, slot: int) -> dict[str, str]:
        changed = {name: str(self.threads) for name in THREADS} | {"NO_COLOR": "1", "TERM": "dumb"}
        if self._gpus:
            changed["CUDA_VISIBLE_DEVICES"] = self._gpus[slot % len(self._gpus)]
        return {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"} | changed


def workers_for(threads: int, gpus: int) -> int:
    """As many as there are GPUs, or else as fit the cores with that many threads each."""
    return gpus or max(1, cores() // threads)


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _visible_gpus(count: int) -> list[str]:
    """Their names for CUDA_VISIBLE_DEVICES, which may already be a choice."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def last_line(text: str) -> str:
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return "".join(letter for letter in lines[-1].strip() if letter.isprintable())[:_LONGEST_LINE] if lines else ""


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    hint = "; often the system, out of memory" if name == "SIGKILL" else ""
    return f"signal {-code}, {name}{hint}"
