"""The figures of studies: points of single seeds behind their means, told apart without colours too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.reporting import style
from attnbench.studies.measures import Estimate
from attnbench.studies.study import Arms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Series:
    """One line: values by x, then by seed."""

    name: str
    values: Mapping[float, Mapping[int, float]]


def points(
    panels: Mapping[str, Sequence[Series]], arms: Arms, label: str, *, doubling: bool = False, levels: bool = True
) -> Figure | None:
    """A panel for each x axis, by its label: mean lines, and every seed as a small point. With `doubling` the axis is
    that of log2(1 + x).
    """
    from matplotlib.lines import Line2D

    every = [one for series in panels.values() for one in series if any(one.values.values())]
    names = list(dict.fromkeys(one.name for one in every))
    if not names:
        return None
    looks = style.looks(names)
    found = _levels(arms) if levels else {}
    figure, grid = style.panels(list(panels))
    for axes, (title, series) in zip(grid, panels.items(), strict=True):
        drawn = [one for one in series if any(one.values.values())]
        for place, one in enumerate(drawn):
            _line(axes, one, looks[one.name], (place - (len(drawn) - 1) / 2) * 0.06 if doubling else 0.0, doubling)
        if doubling:
            most = max((x for one in drawn for x, values in one.values.items() if values), default=0)
            ticks = [0, *(2**n for n in range(int(np.log2(max(most, 1))) + 1))]
            axes.set_xticks(np.log2(1 + np.array(ticks)), [str(x) for x in ticks])
        _across(axes.axhline, found)
        axes.set_title("")
        axes.set(xlabel=title, ylabel=label)
    values = [value for one in every for values in one.values.values() for value in values.values()]
    _same_heights(grid, [*values, *found.values()])
    handles = [
        Line2D([], [], color=look.colour, linestyle=look.dash, marker=look.marker, markersize=6)
        for look in looks.values()
    ]
    style.legend(figure, handles, names, style.LEVELS if found else {})
    return figure


def _line(axes: Axes, one: Series, look: style.Look, aside: float, doubling: bool) -> None:
    found = {x: list(values.values()) for x, values in sorted(one.values.items()) if values}
    places = [float(np.log2(1 + x)) if doubling else float(x) for x in found]
    for place, values in zip(places, found.values(), strict=True):
        axes.scatter([place + aside] * len(values), values, s=10, color=look.colour, alpha=0.5, linewidths=0)
    means = [float(np.mean(values)) for values in found.values()]
    axes.plot(places, means, color=look.colour, linestyle=look.dash, marker=look.marker, markersize=5, linewidth=1.5)


def _same_heights(grid: Sequence[Axes], values: Sequence[float]) -> None:
    """Panels are compared with each other."""
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or 0.01
    for axes in grid:
        axes.set_ylim(low - room, high + room)


def _levels(arms: Arms) -> dict[str, float]:
    """The dash and the place of the best trivial level and of chance, by the first run that has them."""
    quality = next((record.quality for arm in arms.values() for record in arm.records.values() if record.quality), None)
    if quality is None:
        return {}
    found = (max(quality.trivial.values(), default=None), quality.chance)
    return {dash: level for dash, level in zip(style.LEVELS.values(), found, strict=True) if level is not None}


def _across(line: Callable[..., Any], levels: Mapping[str, float]) -> None:
    for dash, level in levels.items():
        line(level, color="0.45", linewidth=0.9, linestyle=dash, zorder=0)


def forest(estimates: Mapping[str, Estimate], label: str) -> Figure | None:
    """Estimates with their intervals, one below the other, and a line at 0."""
    from matplotlib.figure import Figure

    if not estimates:
        return None
    figure = Figure(figsize=(7.5, 0.8 + 0.36 * len(estimates)), layout="constrained")
    axes = figure.subplots()
    for place, one in enumerate(estimates.values()):
        colour = style.COLOURS[0] if one.shows else "0.45"
        reach = [[one.mean - one.low], [one.high - one.mean]]
        axes.errorbar(one.mean, place, xerr=reach, fmt="o" if one.shows else "s", color=colour, markersize=5, capsize=3)
    axes.axvline(0, color="0.3", linewidth=0.9)
    axes.set_yticks(range(len(estimates)), style.shortened(list(estimates), 60))
    axes.set_ylim(len(estimates) - 0.5, -0.5)
    axes.set_xlabel(label)
    return figure


def rows(arms: Arms) -> Figure | None:
    """Test score of every run, an arm a row, with the mean as a stroke."""
    from matplotlib.figure import Figure

    drawn = {name: list(arm.tests.values()) for name, arm in arms.items() if arm.tests}
    if not drawn:
        return None
    figure = Figure(figsize=(7.5, 0.8 + 0.3 * len(drawn)), layout="constrained")
    axes = figure.subplots()
    for place, values in enumerate(drawn.values()):
        axes.scatter(values, [place] * len(values), s=18, color=style.COLOURS[0], alpha=0.5, linewidths=0)
        axes.plot([np.mean(values)], [place], marker="|", markersize=13, markeredgewidth=2, color="0.2")
    _across(axes.axvline, _levels(arms))
    axes.set_yticks(range(len(drawn)), style.shortened(list(drawn), 60))
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    axes.set_xlabel("test score; dotted chance, dashed the best trivial predictor")
    return figure
