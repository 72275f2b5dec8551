"""How plots look: a colour, marker and dash for each mechanism of a table, told apart without colours too."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Wong (2011), Nature Methods 8, 441: told apart with the common kinds of colour blindness. Yellow is left out.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
#: What the two lines across a panel are, and their dashes.
LEVELS = {"best trivial": "--", "chance": ":"}
#: In SVG, ids of elements are made from this and not from chance.
_SALT = "attnbench"
#: Inches: width and height of a panel, width of the legend.
PANEL, LEGEND = (3.2, 2.9), 1.8


@dataclass(frozen=True)
class Look:
    colour: str
    marker: str
    dash: Any


def looks(names: Sequence[str]) -> dict[str, Look]:
    """By name; the lists have no common factor, so pairs repeat late."""
    return {
        name: Look(COLOURS[n % len(COLOURS)], MARKERS[n % len(MARKERS)], DASHES[n % len(DASHES)])
        for n, name in enumerate(names)
    }


@contextmanager
def settings() -> Iterator[None]:
    """Of matplotlib and seaborn, while a figure is made and saved; nothing global is left changed."""
    import matplotlib
    import seaborn as sns

    style = sns.axes_style("whitegrid") | sns.plotting_context("notebook", font_scale=0.8)
    own = {
        "svg.hashsalt": _SALT,
        "axes.edgecolor": "0.4",
        "font.family": "DejaVu Sans",
        "text.usetex": False,
        "text.parse_math": False,  # a name may hold dollar signs
    }
    with matplotlib.rc_context(style | own):
        yield


def panels(
    titles: Sequence[str], panel: tuple[float, float] = PANEL, beside: float = LEGEND
) -> tuple[Figure, list[Axes]]:
    """A figure with one panel per title; sizes in inches, `beside` is the width of the legend."""
    from matplotlib.figure import Figure

    across = min(2 if len(titles) == 4 else 3, len(titles))
    down = -(-len(titles) // across)
    figure = Figure(figsize=(panel[0] * across + beside, panel[1] * down + 0.4), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).flat
    shown = [next(grid) for _ in titles]
    for spare in grid:
        spare.set_axis_off()
    for axes, title in zip(shown, shortened(titles, 40), strict=True):
        axes.set_title(title)
    return figure, shown


def legend(
    figure: Figure, handles: Sequence[Any], names: Sequence[str], levels: Mapping[str, Any], width: int = 30
) -> None:
    """At the right of all panels; `levels` are the lines across panels, by name their dash. Longer names are cut."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color="0.45", linewidth=0.9, linestyle=dash) for dash in levels.values()]
    texts = shortened([*names, *levels], width)
    figure.legend([*handles, *lines], texts, loc="outside right upper", frameon=False)


def short(name: str, width: int) -> str:
    return textwrap.shorten(name, width, placeholder=" …") if len(name) > width and " " in name else _cut(name, width)


def shortened(names: Sequence[str], width: int) -> list[str]:
    """As `short`; where names would then be the same, they lose their middle instead, and get a number if need be."""
    found = _told_apart(names, [short(name, width) for name in names], lambda name, _: _without_middle(name, width))
    return _told_apart(names, found, lambda name, number: f"{short(name, width - 4)} ({number})")


def _told_apart(names: Sequence[str], texts: Sequence[str], how: Callable[[str, int], str]) -> list[str]:
    same: dict[str, list[str]] = defaultdict(list)
    for name, text in zip(names, texts, strict=True):
        if name not in same[text]:
            same[text].append(name)
    return [
        text if len(same[text]) == 1 else how(name, same[text].index(name) + 1)
        for name, text in zip(names, texts, strict=True)
    ]


def _without_middle(name: str, width: int) -> str:
    head = width // 3
    return name if len(name) <= width else f"{name[:head]}…{name[head + 1 - width :]}"


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"
