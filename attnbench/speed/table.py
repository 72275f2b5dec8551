"""The words and numbers in which a result is shown, on the terminal and in reports."""

from __future__ import annotations

from rich.table import Table

from attnbench import screen
from attnbench.speed import fit
from attnbench.speed.figures import CellFigures, Figures, MechanismFigures
from attnbench.speed.result import SpeedResult

CELLS = ["mechanism", "length", "ms", "quartiles", "tokens/s", "peak MiB", "GFLOP", "of matmul peak", "x baseline"]
GROWTH = ["mechanism", "time grows as", "memory as", "FLOPs as", "declared", "faster than the baseline"]


def cells(found: Figures) -> Table:
    """Cells that were timed, each length beside the baseline's."""
    return screen.listing([cell_line(one) for one in found.cells], CELLS)


def growth(found: Figures) -> Table:
    return screen.listing([growth_line(one, found.baseline) for one in found.mechanisms], GROWTH)


def closing(result: SpeedResult, found: Figures) -> list[str]:
    """What has no time and why, and what the figures are worth."""
    said = {"matmul peak": matmul_peak(result, found), "load before and after:": loads(result)}
    return [
        *untimed(result),
        f"{setting(result)}; {clock(result)}",
        *(f"{name} {text}" for name, text in said.items() if text),
    ]


def untimed(result: SpeedResult) -> list[str]:
    """A line for each cell without a time: why."""
    return [
        f"{cell.mechanism} at {cell.length}: {_STATUS.get(cell.status, cell.status)}: {cell.reason or ''}".rstrip(": ")
        for cell in result.cells
        if cell.status != "ok"
    ]


def setting(result: SpeedResult) -> str:
    s = result.setting
    layers = f", {s.layers} layers" if s.mode == "step" else ""
    return (
        f"{s.mode}, batch {s.batch}, {s.dim} wide, {s.heads} heads{layers}, {s.dtype}, {s.device}, "
        f"{s.threads} thread{'s' * (s.threads > 1)}"
    )


def clock(result: SpeedResult) -> str:
    turns = "in turn" if result.interleaved else "one cell after the other"
    return f"{result.clock}; {result.setting.rounds} rounds{' ' if result.interleaved else ', '}{turns}"


def matmul_peak(result: SpeedResult, found: Figures) -> str | None:
    if found.matmul is None or not result.yardstick:
        return None
    size, drift = result.yardstick.size, found.drift or 0
    rate = f"{found.matmul / 1e9:.0f} GFLOP/s in {result.setting.dtype}, {size} x {size}"
    return f"{rate}; quartiles of its rounds {drift:.0%} apart: the drift of the machine"


def loads(result: SpeedResult) -> str | None:
    """Load of the machine, before and after."""
    known = [result.conditions.get(when) for when in ("before", "after")]
    found = [one.get("load") for one in known if isinstance(one, dict)]
    return " and ".join(str(one[0]) for one in found if isinstance(one, list) and one) or None


_STATUS = {
    "emulation": "no score, dense emulation",
    "wrong": "not timed, failed its check",
    "oom": "out of memory",
    "skipped": "not tried",
}


def cell_line(one: CellFigures) -> list[str]:
    low, median, high = (milliseconds(value) for value in (one.seconds.low, one.seconds.median, one.seconds.high))
    return [
        one.mechanism, str(one.length), median, f"{low} to {high}", f"{one.tokens_per_second:,.0f}",
        "-" if one.peak_bytes is None else mebibytes(one.peak_bytes),
        "-" if not one.flops else f"{one.flops / 1e9:.3g}",
        "-" if one.peak_share is None else f"{one.peak_share:.0%}",
        "-" if one.times_baseline is None else f"{one.times_baseline:.2f}",
    ]  # fmt: skip


def growth_line(one: MechanismFigures, baseline: str | None) -> list[str]:
    declared = "-" if one.declared is None else f"n^{one.declared:.2f}"
    crossed = f"is it ({baseline})" if one.mechanism == baseline else crossing(one.crossover)
    return [one.mechanism, *map(_exponent, (one.time, one.memory, one.flops)), declared, crossed]


def _exponent(found: fit.Exponent | None) -> str:
    if found is None:
        return "too few lengths"
    return f"n^{found.value:.2f} +- {found.half:.2f} ({found.points} from {found.first})"


def crossing(found: fit.Crossover | None) -> str:
    if found is None:
        return "-"
    if found.kind == "at":
        return f"from {found.length:.0f} on"
    return f"{found.kind}, {found.first} to {found.last}"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.4g}" if seconds < 10 else f"{1000 * seconds:.0f}"


def mebibytes(amount: int) -> str:
    return f"{amount / 2**20:.1f}"
