"""The caller's end of a cell's process: starts it, asks it, and says how it ended when it did."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from attnbench.executor import THREADS, ending, last_line
from attnbench.speed.result import Status

#: Loading libraries on a busy machine may take long, and is no fault of the cell.
_LOADING = 600.0
_PROGRAM = ["-m", "attnbench.speed.worker"]


class Over(Exception):
    """The process gives no more samples; its cell has this status."""

    def __init__(self, status: Status, reason: str, facts: Mapping[str, Any] | None = None):
        super().__init__(reason)
        self.status, self.reason, self.facts = status, reason, dict(facts or {})


class Process:
    """One `attnbench.speed.worker`. Nothing is asked of it while another one is asked."""

    def __init__(self, request: Mapping[str, Any], threads: int):
        changed = {name: str(threads) for name in THREADS} | {"NO_COLOR": "1", "TERM": "dumb"}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by `end`
        self._popen = subprocess.Popen(
            [sys.executable, "-P", *_PROGRAM],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env={**os.environ, **changed},
            start_new_session=True,  # Ctrl-C is for the caller, which ends all of them
        )  # fmt: skip
        self._pending = b""
        self._send(json.dumps(request))

    def loaded(self) -> dict[str, str]:
        """Waits until its libraries are loaded; the numerics in force there."""
        found: dict[str, str] = self._answer(_LOADING)["numerics"]
        return found

    def ask(self, seconds: float) -> dict[str, Any]:
        """Its next answer: first what it found out before the samples, then a sample each time.

        Raises:
            Over: a status other than ok, no answer in time, or the process died.
        """
        self._send("turn")
        return self._answer(seconds)

    def end(self) -> None:
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe and not pipe.closed:
                try:
                    pipe.close()
                except OSError:  # what was written to a process that died
                    continue
        try:
            self._popen.wait(1)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._errors.close()

    def _send(self, line: str) -> None:
        assert self._popen.stdin
        try:
            self._popen.stdin.write(f"{line}\n".encode())
            self._popen.stdin.flush()
        except OSError:  # it died; the next answer says how
            return

    def _answer(self, seconds: float) -> dict[str, Any]:
        line = self._line(time.monotonic() + seconds)
        if line is None:
            self._popen.kill()
            raise Over("timeout", f"more than {seconds:g} s; --max-time allows more")
        if not line:
            raise self._died()
        answer: dict[str, Any] = json.loads(line)
        if answer.get("status", "ok") != "ok":
            raise Over(answer.pop("status"), answer.pop("reason"), answer)
        answer.pop("status", None)
        return answer

    def _line(self, limit: float) -> bytes | None:
        """The next line; b"" at the end of the process, None when the time is over."""
        assert self._popen.stdout
        pipe = self._popen.stdout.fileno()
        while b"\n" not in self._pending:
            ready, _, _ = select.select([pipe], [], [], max(0.0, limit - time.monotonic()))
            if not ready:
                return None
            if not (more := os.read(pipe, 1 << 16)):
                return b""
            self._pending += more
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _died(self) -> Over:
        code = self._popen.wait()
        self._errors.seek(0)
        said = last_line(self._errors.read()[-(1 << 16) :].decode("utf-8", errors="replace"))
        return Over("failed", f"the process ended ({ending(code)}){f': {said}' if said else ''}")
