"""Lets the processes of cells take turns, round by round, and gathers what they say."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from attnbench import machine
from attnbench.recording import now
from attnbench.speed.clock import clock_name
from attnbench.speed.footprint import how
from attnbench.speed.plan import TOGETHER, Candidate, Cell, groups, turns
from attnbench.speed.process import Over, Process
from attnbench.speed.result import CellResult, Sample, Setting, SpeedResult, Status, Yardstick

_YARDSTICK = {"cpu": 1024, "cuda": 8192}
#: What a status at one length says of longer ones.
_LONGER: dict[Status, Status] = {"oom": "skipped", "timeout": "skipped", "emulation": "emulation", "wrong": "wrong"}


class Watch(Protocol):
    """Is told when a cell is ready, or has had its turn."""

    def advance(self, count: int = 1, note: str = "") -> None: ...


@dataclass(eq=False)
class _Running:
    """A cell, or the yardstick where it is None, whose process is alive."""

    cell: Cell | None
    process: Process
    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    over: Over | None = None

    def turn(self, round_: int, seconds: float) -> None:
        if self.over is not None:
            return
        try:
            self.samples.append(Sample(round=round_, **self.process.ask(seconds)["sample"]))
        except Over as over:
            self.over = over
            self.process.end()  # and what it holds

    @property
    def result(self) -> CellResult:
        assert self.cell
        if self.over is None:
            return self.cell.result("ok", samples=self.samples, **self.facts)
        facts = {**self.facts, **self.over.facts}
        return self.cell.result(self.over.status, self.over.reason, samples=self.samples, **facts)


@dataclass
class Measurement:
    """All cells of `candidates` at `lengths`. `seconds`: what a cell may take to get ready, and for a turn."""

    candidates: Sequence[Candidate]
    lengths: Sequence[int]
    setting: Setting
    seconds: float = 120.0
    together: int = TOGETHER
    command: str = ""
    results: list[CellResult] = field(default_factory=list)
    _round: int = 0
    _stopped: dict[str, CellResult] = field(default_factory=dict)
    _yard: list[Sample] = field(default_factory=list)
    _numerics: dict[str, str] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Of the progress bar."""
        return len(self.candidates) * len(self.lengths) * (1 + self.setting.rounds)

    @property
    def groups(self) -> list[list[Cell]]:
        return list(groups(self.candidates, self.lengths, self.together))

    def __call__(self, watch: Watch) -> SpeedResult:
        started, before, code = now(), conditions(self.setting.device), machine.describe_code()
        where = machine.describe_machine() | {"threads": self.setting.threads}
        for group in self.groups:
            self._group(group, watch)
        size = _YARDSTICK[self.setting.device]
        return SpeedResult(
            id=f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}-{secrets.token_hex(2)}",
            setting=self.setting, interleaved=True, clock=clock_name(self.setting.device, self.setting.threads),
            cells=self.results, yardstick=Yardstick(size=size, flops=2 * size**3, samples=self._yard),
            peak_how=how(self.setting.device),
            conditions={"before": before, "after": conditions(self.setting.device), "numerics": self._numerics},
            machine=where, software=machine.describe_software(), code=code,
            started=started, finished=now(), command=self.command,
        )  # fmt: skip

    def _group(self, cells: Sequence[Cell], watch: Watch) -> None:
        """All rounds of a group; its results are in the order of its cells."""
        with ExitStack() as stack:
            running = self._start([cell for cell in cells if cell.candidate.name not in self._stopped], stack)
            for one in running:  # in turn: one that gets ready would disturb another
                self._get_ready(one)
                if one.cell:
                    watch.advance(note=f"{one.cell} is ready")
            rounds = self.setting.rounds if any(one.cell and one.over is None for one in running) else 0
            for number in range(self._round, self._round + rounds):
                for index in turns(len(running), number):
                    running[index].turn(number, self.seconds)
                    if running[index].cell:
                        watch.advance(note=str(running[index].cell))
            self._round += rounds
        found = {one.cell: one for one in running if one.cell}
        self._yard += [sample for one in running if one.cell is None for sample in one.samples]
        for one in found.values():
            self._note_stop(one)
        self.results += [found[cell].result if cell in found else self._inherited(cell) for cell in cells]
        watch.advance((len(cells) - len(found)) * (1 + rounds) + len(found) * (self.setting.rounds - rounds))

    def _start(self, cells: Sequence[Cell], stack: ExitStack) -> list[_Running]:
        """Processes of the cells behind that of the yardstick, their libraries loaded."""
        if not cells:
            return []
        yardstick = {"size": _YARDSTICK[self.setting.device], "setting": self.setting.model_dump()}
        requests = [(None, yardstick), *((cell, cell.request(self.setting)) for cell in cells)]
        running = []
        for cell, request in requests:
            running.append(_Running(cell, Process(request, self.setting.threads)))
            stack.callback(running[-1].process.end)
        for one in running:
            try:
                self._numerics = one.process.loaded()
            except Over as over:
                one.over = over
        return running

    def _get_ready(self, one: _Running) -> None:
        if one.over is None and one.cell and one.cell.candidate.name in self._stopped:
            known = self._inherited(one.cell)
            one.over = Over(known.status, known.reason or "")
        if one.over is None:
            try:
                one.facts = one.process.ask(self.seconds)
            except Over as over:
                one.over = over
                one.process.end()
        self._note_stop(one)

    def _note_stop(self, one: _Running) -> None:
        """What ends longer inputs too."""
        if one.cell and one.over and one.over.status in _LONGER:
            self._stopped.setdefault(one.cell.candidate.name, one.result)

    def _inherited(self, cell: Cell) -> CellResult:
        """Of a cell that needs no process, for a shorter one said enough."""
        known = self._stopped[cell.candidate.name]
        status = _LONGER[known.status]
        reason = f"{known.status} at {known.length} already" if status == "skipped" else known.reason
        return cell.result(status, reason, implementation=known.implementation)


def conditions(device: str) -> dict[str, Any]:
    """What moves times without a trace in the code: load, and clocks as far as the machine tells them."""
    found: dict[str, Any] = {}
    if hasattr(os, "getloadavg"):
        found["load"] = [round(value, 2) for value in os.getloadavg()]
    with suppress(OSError, ValueError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        found["cpu MHz"] = [round(float(line.partition(":")[2])) for line in lines if line.startswith("cpu MHz")]
    if device == "cuda" and (tool := shutil.which("nvidia-smi")):
        fields = "clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu,pstate"
        with suppress(OSError, subprocess.SubprocessError):
            asked = [tool, f"--query-gpu={fields}", "--format=csv,noheader"]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)
            found["gpu"] = {"fields": fields, "values": done.stdout.strip().splitlines()}
    return found
