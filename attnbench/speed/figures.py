"""From a result to what people read: figures of each cell and of each mechanism, as plain data. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from attnbench.contracts import COMPLEXITIES
from attnbench.errors import UnknownName
from attnbench.speed import fit
from attnbench.speed.result import CellResult, SpeedResult


@dataclass(frozen=True)
class CellFigures:
    """One cell that was timed.

    Attributes:
        seconds: of a call, quartiles and median.
        tokens_per_second: content rows, at the median.
        flops_declared: what the shortest length's count becomes when it grows as the mechanism declares.
        peak_share: of the best rate at which the yardstick's products ran.
        times_baseline: time over the baseline's, of neighbours in time; below 1 is faster.
    """

    mechanism: str
    length: int
    seconds: fit.Quantiles
    tokens_per_second: float
    samples: int
    peak_bytes: int | None
    flops: int | None
    flops_formula: int | None
    flops_declared: float | None
    peak_share: float | None
    times_baseline: float | None


@dataclass(frozen=True)
class MechanismFigures:
    """How a mechanism grows, over the lengths that were timed. `declared`: exponent of the declared complexity over the
    lengths of `flops`.
    """

    mechanism: str
    time: fit.Exponent | None
    memory: fit.Exponent | None
    flops: fit.Exponent | None
    declared: float | None
    crossover: fit.Crossover | None


@dataclass(frozen=True)
class Figures:
    """`matmul`: operations a second of the yardstick at its best, and `drift`: spread of its quartiles, as a share."""

    baseline: str | None
    matmul: float | None
    drift: float | None
    cells: list[CellFigures]
    mechanisms: list[MechanismFigures]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def figures(result: SpeedResult, baseline: str | None = None) -> Figures:
    """
    Args:
        baseline: the mechanism others are held against; else the first that equals softmax attention.

    Raises:
        UnknownName: the baseline was not measured.
    """
    by_name: dict[str, dict[int, CellResult]] = {}
    for cell in result.cells:
        timed = by_name.setdefault(cell.mechanism, {})
        if cell.status == "ok" and cell.samples:
            timed[cell.length] = cell
    if baseline is not None and baseline not in by_name:
        raise UnknownName("mechanism of this measurement", baseline, by_name)
    name = baseline or next((cell.mechanism for cell in result.cells if cell.exact), None)
    base = by_name.get(name or "", {})
    matmul, drift = _yardstick(result)
    cells = [
        _cell(cell, result, timed, matmul, None if length not in base else fit.ratio(cell, base[length]))
        for timed in by_name.values()
        for length, cell in sorted(timed.items())
    ]
    mechanisms = [_mechanism(one, timed, base, one == name) for one, timed in by_name.items()]
    return Figures(name, matmul, drift, cells, mechanisms)


def _yardstick(result: SpeedResult) -> tuple[float | None, float | None]:
    yard = result.yardstick
    if yard is None or not yard.samples:
        return None, None
    spread = fit.quantiles(yard.samples)
    return yard.flops / min(one.seconds for one in yard.samples), (spread.high - spread.low) / spread.median


def _cell(
    cell: CellResult, result: SpeedResult, timed: Mapping[int, CellResult], matmul: float | None, times: float | None
) -> CellFigures:
    seconds = fit.quantiles(cell.samples)
    first = timed[min(timed)]
    growth = COMPLEXITIES.get(cell.complexity)
    declared = None
    if growth and first.flops:
        declared = first.flops * growth(cell.length, cell.block) / growth(first.length, cell.block)
    return CellFigures(
        cell.mechanism, cell.length, seconds, result.setting.batch * cell.length / seconds.median,
        len(fit.undelayed(cell.samples)), cell.peak_bytes, cell.flops, cell.flops_formula, declared,
        cell.flops / seconds.median / matmul if cell.flops and matmul else None, times,
    )  # fmt: skip


def _mechanism(
    name: str, timed: Mapping[int, CellResult], base: Mapping[int, CellResult], is_base: bool
) -> MechanismFigures:
    times = {length: fit.quantiles(cell.samples).median for length, cell in timed.items()}
    flops = fit.exponent({length: cell.flops or 0 for length, cell in timed.items()})
    growth = next((COMPLEXITIES.get(cell.complexity) for cell in timed.values()), None)
    declared = None
    if growth and flops:
        declared = fit.exponent({length: growth(length, cell.block) for length, cell in timed.items()})
    return MechanismFigures(
        name,
        fit.exponent(times),
        fit.exponent({length: cell.peak_bytes or 0 for length, cell in timed.items()}),
        flops,
        declared.value if declared else None,
        None if is_base else fit.crossover(timed, base),
    )
