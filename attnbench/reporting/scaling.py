"""The figure of one result of `attnbench speed`: time and memory of a call against length."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.reporting import style
from attnbench.reporting.speeds import Measured
from attnbench.speed.figures import CellFigures, MechanismFigures
from attnbench.speed.fit import Exponent
from attnbench.tables import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MIB = 2**20
#: Inches: width of a panel and its least height, height of a line of the legend, width of its handles and of a letter.
_PANEL, _LINE, _HANDLE, _LETTER = (3.6, 3.2), 0.19, 0.6, 0.073
#: Letters that fit over a panel.
_WIDE = 45
#: An axis of costs spans no less, so that small differences look small.
_SPAN = 10
#: More lengths than this have no tick each.
_TICKS = 9
_RING: dict[str, Any] = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "linestyle": ""}


def scaling(measured: Measured) -> Figure | None:
    """Medians with the band between quartiles, and peak memory, both logarithmic over length; a line a mechanism.

    The legend has the exponents of both. A ring is where a mechanism begins to stay faster than the baseline. None
    where nothing was timed.
    """
    cells: dict[str, list[CellFigures]] = {}
    for cell in measured.figures.cells:
        cells.setdefault(cell.mechanism, []).append(cell)
    if not cells:
        return None
    looks = style.looks(list(cells))
    with_memory = any(cell.peak_bytes for cell in measured.figures.cells)
    titles = ["time of a call", *(["memory that a call adds, at its peak"] if with_memory else [])]
    grown = {one.mechanism: one for one in measured.figures.mechanisms}
    texts = style.shortened([visible(name) for name in cells], 24)
    names = {
        name: f"{text}: {_growth(grown[name], measured.figures.baseline)}"
        for name, text in zip(cells, texts, strict=True)
    }
    height = max(_PANEL[1], _LINE * (len(cells) + 4))
    beside = _HANDLE + _LETTER * max(map(len, names.values()))
    figure, grid = style.panels(titles, (_PANEL[0], height), beside)
    figure.suptitle(_said(measured, len(titles)), x=0.01, ha="left", fontsize="medium")
    for name, found in cells.items():
        _time(grid[0], found, grown[name], looks[name])
        if with_memory:
            _memory(grid[1], found, looks[name])
    lengths = sorted({cell.length for cell in measured.figures.cells})
    for axes in grid:
        _length_axis(axes, lengths)
    _cost_axis(grid[0], "time", "s")
    if with_memory:
        _cost_axis(grid[1], "MiB", "")
    _legend(figure, names, looks, measured)
    return figure


def _said(measured: Measured, panels: int) -> str:
    """What was measured where, as wide as the panels: beside them is the legend."""
    lines = (visible(measured.title), visible(measured.machine))
    return "\n".join(textwrap.fill(line, _WIDE * panels, max_lines=2, placeholder=" …") for line in lines)


def _line(look: style.Look) -> dict[str, Any]:
    return {
        "color": look.colour, "linestyle": look.dash, "linewidth": 1.5, "marker": look.marker, "markersize": 5,
        "markeredgecolor": "white", "markeredgewidth": 0.4,
    }  # fmt: skip


def _time(axes: Axes, cells: Sequence[CellFigures], grown: MechanismFigures, look: style.Look) -> None:
    lengths, times = [cell.length for cell in cells], [cell.seconds for cell in cells]
    medians = [one.median for one in times]
    axes.fill_between(
        lengths, [one.low for one in times], [one.high for one in times], color=look.colour, alpha=0.2, linewidth=0
    )
    axes.plot(lengths, medians, **_line(look))
    if grown.crossover and grown.crossover.length:
        at = grown.crossover.length
        height = np.exp(np.interp(np.log(at), np.log(lengths), np.log(medians)))
        axes.plot([at], [height], **_RING, markeredgecolor=look.colour, markeredgewidth=1.4, zorder=3)


def _memory(axes: Axes, cells: Sequence[CellFigures], look: style.Look) -> None:
    """Nothing added to what is in use, as small inputs may do on a CPU, has no place on a logarithmic axis."""
    known = [(cell.length, cell.peak_bytes / _MIB) for cell in cells if cell.peak_bytes]
    axes.plot([length for length, _ in known], [peak for _, peak in known], **_line(look))


def _length_axis(axes: Axes, lengths: Sequence[int]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    shown = lengths[:: -(-len(lengths) // _TICKS)]
    axes.set_xscale("log", base=2)
    axes.set_xlim(lengths[0] / 1.15, lengths[-1] * 1.15)
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda length, _: _short(round(length))))
    axes.set_xlabel("length")


def _short(length: int) -> str:
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


def _cost_axis(axes: Axes, label: str, unit: str) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high / low < _SPAN:
        middle, half = (low * high) ** 0.5, _SPAN**0.5
        low, high = axes.set_ylim(middle / half, middle * half)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,)))
    axes.yaxis.set_major_formatter(EngFormatter(unit) if unit else FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(label)


def _legend(figure: Figure, names: dict[str, str], looks: dict[str, style.Look], measured: Measured) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linestyle=""), *(Line2D([], [], **_line(look)) for look in looks.values())]
    texts = ["time grows as, memory as", *names.values()]
    if any(one.crossover and one.crossover.length for one in measured.figures.mechanisms):
        handles.append(Line2D([], [], **_RING, markeredgecolor="0.45"))
        texts.append(f"faster than {style.short(visible(measured.figures.baseline or ''), 24)} from there on")
    style.legend(figure, handles, texts, {}, 90)


def _growth(one: MechanismFigures, baseline: str | None) -> str:
    """Exponents, and what it is to the baseline."""
    powers = f"{_power(one.time)}, {_power(one.memory)}"
    if one.mechanism == baseline:
        return f"{powers} (baseline)"
    if one.crossover is None:
        return powers
    at = one.crossover.length
    return f"{powers}; {one.crossover.kind} faster" if at is None else f"{powers}; faster from {at:.0f}"


def _power(found: Exponent | None) -> str:
    return "-" if found is None else f"n^{found.value:.2f}±{found.half:.2f}"
