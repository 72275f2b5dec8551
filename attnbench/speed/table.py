"""What the terminal shows of a result."""

from __future__ import annotations

from rich.table import Table

from attnbench import screen
from attnbench.speed import fit
from attnbench.speed.figures import CellFigures, Figures, MechanismFigures
from attnbench.speed.result import SpeedResult

_CELLS = ["mechanism", "length", "ms", "quartiles", "tokens/s", "peak MiB", "GFLOP", "of matmul peak", "x baseline"]
_GROWTH = ["mechanism", "time grows as", "memory as", "FLOPs as", "declared", "faster than the baseline"]


def cells(found: Figures) -> Table:
    """Cells that were timed, each length beside the baseline's."""
    return screen.listing([_cell(one) for one in found.cells], _CELLS)


def growth(found: Figures) -> Table:
    return screen.listing([_mechanism(one, found.baseline) for one in found.mechanisms], _GROWTH)


def closing(result: SpeedResult, found: Figures) -> list[str]:
    """What has no time and why, and what the figures are worth."""
    lines = [
        f"{cell.mechanism} at {cell.length}: {_STATUS.get(cell.status, cell.status)}: {cell.reason or ''}".rstrip(": ")
        for cell in result.cells
        if cell.status != "ok"
    ]
    s, conditions = result.setting, result.conditions
    layers = f", {s.layers} layers" if s.mode == "step" else ""
    lines.append(
        f"{s.mode}, batch {s.batch}, {s.dim} wide, {s.heads} heads{layers}, {s.dtype}, {s.device}, "
        f"{s.threads} thread{'s' * (s.threads > 1)}; "
        f"{result.clock}; {s.rounds} rounds{' in turn' if result.interleaved else ', one cell after the other'}"
    )
    if found.matmul is not None and result.yardstick:
        size, drift = result.yardstick.size, found.drift or 0
        rate = f"{found.matmul / 1e9:.0f} GFLOP/s in {s.dtype}, {size} x {size}"
        lines.append(f"matmul peak {rate}; quartiles of its rounds {drift:.0%} apart: the drift of the machine")
    if loads := [conditions[when].get("load") for when in ("before", "after") if when in conditions]:
        lines.append(f"load before and after: {' and '.join(str(one[0]) for one in loads if one)}")
    return lines


_STATUS = {
    "emulation": "no score, dense emulation",
    "wrong": "not timed, failed its check",
    "oom": "out of memory",
    "skipped": "not tried",
}


def _cell(one: CellFigures) -> list[str]:
    return [
        one.mechanism, str(one.length), _ms(one.seconds.median), f"{_ms(one.seconds.low)} to {_ms(one.seconds.high)}",
        f"{one.tokens_per_second:,.0f}", "-" if one.peak_bytes is None else f"{one.peak_bytes / 2**20:.1f}",
        "-" if not one.flops else f"{one.flops / 1e9:.3g}",
        "-" if one.peak_share is None else f"{one.peak_share:.0%}",
        "-" if one.times_baseline is None else f"{one.times_baseline:.2f}",
    ]  # fmt: skip


def _mechanism(one: MechanismFigures, baseline: str | None) -> list[str]:
    declared = "-" if one.declared is None else f"n^{one.declared:.2f}"
    crossed = f"is it ({baseline})" if one.mechanism == baseline else _crossing(one.crossover)
    return [one.mechanism, *map(_exponent, (one.time, one.memory, one.flops)), declared, crossed]


def _exponent(found: fit.Exponent | None) -> str:
    if found is None:
        return "too few lengths"
    return f"n^{found.value:.2f} +- {found.half:.2f} ({found.points} from {found.first})"


def _crossing(found: fit.Crossover | None) -> str:
    if found is None:
        return "-"
    if found.kind == "at":
        return f"from {found.length:.0f} on"
    return f"{found.kind}, {found.first} to {found.last}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g}"
