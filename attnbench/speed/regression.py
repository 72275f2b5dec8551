"""Two results of the same cells, such as of two commits: what became slower or faster, beyond noise.

A round is what is independent, so the unit is a round's sample. Two ratios are told: of times, and of times as
multiples of the yardstick's product in the same round, which a slower machine moves alike. A change is flagged where
both, by Welch's t over logarithms and with Holm's correction over all cells, leave 1 out on the same side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table
from scipy import stats

from attnbench import screen
from attnbench.errors import AttnbenchError
from attnbench.speed import fit
from attnbench.speed.result import CellResult, Sample, SpeedResult
from attnbench.statistics import ROUNDING


@dataclass(frozen=True)
class Ratio:
    """New over base, with its 95 % interval; `p` of "there is no change", two-sided."""

    value: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Change:
    """One cell that both have. `beside`: relative to the yardstick, where both have one. `memory`: new over base.

    `verdict`: slower, faster, same; or machine: times changed, but not beside the yardstick.
    """

    mechanism: str
    length: int
    time: Ratio | None
    beside: Ratio | None
    memory: float | None
    verdict: str
    base: str
    new: str


def compare(base: SpeedResult, new: SpeedResult) -> list[Change]:
    """
    Raises:
        AttnbenchError: other settings, or no cell in common.
    """
    shapes = base.setting.shape, new.setting.shape
    if differs := [f"{name} {shapes[0][name]} and {shapes[1].get(name)}" for name in shapes[0]
                   if shapes[0][name] != shapes[1].get(name)]:  # fmt: skip
        raise AttnbenchError(f"these two measured different things: {', '.join(differs)}")
    if base.clock != new.clock:
        raise AttnbenchError(f"these two have different clocks: {base.clock}; {new.clock}")
    others = {(cell.mechanism, cell.length): cell for cell in new.cells}
    pairs = [(cell, others[key]) for cell in base.cells if (key := (cell.mechanism, cell.length)) in others]
    if not pairs:
        raise AttnbenchError("these two have no mechanism and length in common")
    times = [_ratio(_logs(a.samples), _logs(b.samples)) if _timed(a, b) else None for a, b in pairs]
    beside = [_ratio(_logs(a.samples, base), _logs(b.samples, new)) if _timed(a, b) else None for a, b in pairs]
    shown, shown_beside = _holm(times), _holm(beside)
    return [
        Change(
            a.mechanism, a.length, times[i], beside[i], _memory(a, b),
            _verdict(a, b, times[i], beside[i], shown[i], shown_beside[i]), a.status, b.status,
        )
        for i, (a, b) in enumerate(pairs)
    ]  # fmt: skip


def other_circumstances(base: SpeedResult, new: SpeedResult) -> list[str]:
    """What else differs, one line each."""
    notes = []
    if base.machine.get("id") != new.machine.get("id"):
        machines = " and ".join(
            f"{one.machine.get('cpu')} {one.machine.get('gpu') or ''}".strip() for one in (base, new)
        )
        notes.append(f"two machines: {machines}; this compares machines, not code")
    names = sorted((base.software.keys() | new.software.keys()) - {"attnbench"})
    versions = [(name, base.software.get(name), new.software.get(name)) for name in names]
    notes += [f"{name} {one} and {other}" for name, one, other in versions if one != other]
    options = {(cell.mechanism, cell.length): cell.options for cell in base.cells}
    changed = {c.mechanism for c in new.cells if options.get((c.mechanism, c.length), c.options) != c.options}
    notes += [f"{name}: other options" for name in sorted(changed)]
    if not (base.interleaved and new.interleaved):
        notes.append("cells were not interleaved: samples of a cell share what the machine did at the time")
    return notes


def table(changes: Sequence[Change]) -> Table:
    header = [
        "mechanism",
        "length",
        "new / base",
        "95 % interval",
        "beside matmul",
        "95 % interval",
        "memory",
        "verdict",
    ]
    return screen.listing([_line(one) for one in changes], header)


def _line(one: Change) -> list[str]:
    shown = [text for found in (one.time, one.beside) for text in _texts(found)]
    memory = "-" if one.memory is None else f"{one.memory:.2f}"
    return [one.mechanism, str(one.length), *shown, memory, one.verdict]


def _texts(found: Ratio | None) -> tuple[str, str]:
    return ("-", "-") if found is None else (f"{found.value:.3f}", f"{found.low:.3f} to {found.high:.3f}")


def _timed(a: CellResult, b: CellResult) -> bool:
    return a.status == b.status == "ok"


def _logs(samples: Sequence[Sample], beside: SpeedResult | None = None) -> np.ndarray[Any, Any]:
    """Of seconds, or of multiples of the yardstick's in the same round."""
    if beside is None:
        return np.log([one.seconds for one in fit.undelayed(samples)])
    return np.log(fit.ratios(samples, beside.yardstick.samples if beside.yardstick else []))


def _ratio(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Ratio | None:
    """Of means of logarithms; None where there are too few rounds to know their spread."""
    if min(len(a), len(b)) < 3:
        return None
    if max(np.ptp(a), np.ptp(b)) < ROUNDING:  # no spread at all
        value = math.exp(float(b.mean() - a.mean()))
        return Ratio(value, value, value, 1.0 if abs(value - 1) < ROUNDING else 0.0)
    found = stats.ttest_ind(b, a, equal_var=False)
    interval = found.confidence_interval(fit.LEVEL)
    value, low, high = (math.exp(float(x)) for x in (b.mean() - a.mean(), interval.low, interval.high))
    return Ratio(value, low, high, float(found.pvalue))


def _holm(ratios: Sequence[Ratio | None]) -> list[bool]:
    """Which of them are changes, by Holm's correction (1979)."""
    from statsmodels.stats.multitest import multipletests

    known = [index for index, found in enumerate(ratios) if found]
    shown = [False] * len(ratios)
    if known:
        found = multipletests([one.p for one in ratios if one], alpha=1 - fit.LEVEL, method="holm")[0]
        for index, rejected in zip(known, found, strict=True):
            shown[index] = bool(rejected)
    return shown


def _memory(a: CellResult, b: CellResult) -> float | None:
    return b.peak_bytes / a.peak_bytes if a.peak_bytes and b.peak_bytes is not None else None


def _verdict(
    a: CellResult, b: CellResult, time: Ratio | None, beside: Ratio | None, shown: bool, shown_beside: bool
) -> str:
    if not _timed(a, b):
        return "same" if a.status == b.status else f"{a.status}, now {b.status}"
    if time is None:
        return "too few rounds"
    if not shown:
        return "same"
    word = "slower" if time.value > 1 else "faster"
    if beside is None:
        return f"{word} (no matmul to tell the machine's drift)"
    return word if shown_beside and (beside.value > 1) == (time.value > 1) else "machine"
