"""The figures of one table. Each takes what it draws and returns a figure, or None where there is nothing to draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.report import Table
from attnbench.reporting import style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: With fewer tasks, ranks say nothing about mechanisms in general.
TASKS_FOR_RANKS = 6
ROWS_FOR_RANKS = 3


_FRONT: dict[str, Any] = {"color": "0.55", "linewidth": 1.2}


def order(runs: pd.DataFrame) -> list[str]:
    """Mechanisms, best mean over their tasks first."""
    means = runs.groupby(["mechanism", "task"])["score"].mean().groupby("mechanism").mean()
    return list(means.sort_values(ascending=False, kind="stable").index)


def against_cost(runs: pd.DataFrame, table: Table, cost: str, label: str, *, less_is_better: bool) -> Figure | None:
    """Score against a cost, a panel per task, mean and standard deviation over seeds.

    The grey line is the cost front: no mechanism on it is beaten in both.
    """
    from matplotlib.lines import Line2D

    known = runs.dropna(subset=[cost])
    if known.empty:
        return None
    names = order(known)
    looks = style.looks(names)
    tasks = list(dict.fromkeys(known["task"]))
    figure, grid = style.panels(tasks)
    for axes, task in zip(grid, tasks, strict=True):
        here = known[known["task"] == task].groupby("mechanism").agg(
            x=(cost, "mean"), y=("score", "mean"), spread=("score", "std")
        )  # fmt: skip
        for name, point in here.iterrows():
            look = looks[str(name)]
            bar = None if np.isnan(point["spread"]) else point["spread"]
            axes.errorbar(
                point["x"], point["y"], yerr=bar, fmt=look.marker, color=look.colour, markersize=8, elinewidth=1.4,
                markeredgecolor="white", markeredgewidth=0.5, alpha=0.9,
            )  # fmt: skip
        _levels(axes, table, task)
        _cost_axis(axes, here["x"])
        _front(axes, here, less_is_better)
        axes.set(xlabel=label, ylabel=_metric(table, task))
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle="", markersize=8) for look in looks.values()
    ]
    style.legend(figure, [*handles, Line2D([], [], **_FRONT)], [*names, "cost front"], style.LEVELS)
    return figure


def _cost_axis(axes: Axes, costs: Any) -> None:
    """Logarithmic where costs differ much; else linear, with some room, so that equal costs look equal."""
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

    least, most = float(min(costs)), float(max(costs))
    if least > 0 and most / least > 4:
        axes.set_xscale("log")
        axes.set_xlim(least / 1.3, most * 1.3)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if most / least < 100 else (1,)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        room = max(most - least, 0.1 * most) * 0.15
        axes.set_xlim(least - room, most + room)
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _front(axes: Axes, points: pd.DataFrame, less_is_better: bool) -> None:
    ordered = points.sort_values(["x", "y"], ascending=[less_is_better, False], kind="stable")
    front = ordered[ordered["y"] > ordered["y"].cummax().shift(fill_value=-np.inf)]
    edge = axes.get_xlim()[1 if less_is_better else 0]  # who spends more gets at least as much
    axes.plot([*front["x"], edge], [*front["y"], front["y"].max()], drawstyle="steps-post", zorder=1, **_FRONT)


def _metric(table: Table, task: str) -> str:
    found = [column.metric for column in table.columns if column.title == task]
    return f"test {found[0] if found and found[0] else 'score'}"


def _levels(axes: Axes, table: Table, task: str) -> None:
    """Chance and the best trivial level as lines."""
    for column in table.columns:
        if column.title == task:
            for level, dash in zip((column.trivial, column.chance), style.LEVELS.values(), strict=True):
                if level is not None:
                    axes.axhline(level, color="0.45", linewidth=0.9, linestyle=dash, zorder=0)


def learning_curves(curves: pd.DataFrame, runs: pd.DataFrame, table: Table) -> Figure | None:
    """Validation score by step, mean and range over seeds, a panel per task."""
    from matplotlib.lines import Line2D

    if curves.empty:
        return None
    names = order(runs)
    looks = style.looks(names)
    tasks = list(dict.fromkeys(curves["task"]))
    figure, grid = style.panels(tasks)
    for axes, task in zip(grid, tasks, strict=True):
        here = curves[curves["task"] == task]
        for name in names:
            steps = here[here["mechanism"] == name].groupby("step")["validation"].agg(["mean", "min", "max"])
            if not steps.empty:
                look = looks[name]
                marker = look.marker if len(steps) == 1 else None
                axes.plot(
                    steps.index, steps["mean"], color=look.colour, linestyle=look.dash, linewidth=1.5, marker=marker
                )
                axes.fill_between(steps.index, steps["min"], steps["max"], color=look.colour, alpha=0.15, linewidth=0)
        _levels(axes, table, task)
        axes.set(xlabel="step", ylabel="validation score")
    style.legend(
        figure, [Line2D([], [], color=k.colour, linestyle=k.dash) for k in looks.values()], names, style.LEVELS
    )
    return figure


def heat_map(runs: pd.DataFrame, table: Table) -> Figure | None:
    """Mechanism x task: mean test score; the colour is its share of the way from chance to 1."""
    import seaborn as sns
    from matplotlib.figure import Figure

    if runs.empty:
        return None
    names, tasks = order(runs), list(dict.fromkeys(runs["task"]))
    scores = runs.pivot_table(index="mechanism", columns="task", values="score").reindex(index=names, columns=tasks)
    chance = {column.title: column.chance or 0.0 for column in table.columns}
    floor = np.array([chance.get(task, 0.0) for task in tasks])
    shares = ((scores - floor) / np.maximum(1 - floor, 1e-9)).clip(0, 1)
    figure = Figure(figsize=(2.6 + 1.15 * len(tasks), max(2.8, 1.4 + 0.36 * len(names))), layout="constrained")
    axes = figure.subplots()
    sns.heatmap(
        shares, annot=scores, fmt=".3f", cmap="cividis", vmin=0, vmax=1, linewidths=0.5, ax=axes,
        cbar_kws={"label": "share of the way from chance to 1"},
    )  # fmt: skip
    axes.set_facecolor("0.9")
    axes.set(xlabel="", ylabel="")
    axes.set_yticklabels(style.shortened(names, 32), rotation=0)
    long = max(map(len, tasks)) > 11
    turn = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if long else {"rotation": 0}
    axes.set_xticklabels(style.shortened(tasks, 24), **turn)
    return figure


def critical_differences(runs: pd.DataFrame) -> Figure | None:
    """Mean ranks of mechanisms with a score on every task (Demsar 2006): Friedman's test, then Nemenyi's, level 0.05.

    Bars join those whose ranks do not differ. None with fewer than six tasks or three such mechanisms.
    """
    import scikit_posthocs
    from matplotlib.figure import Figure
    from scipy import stats

    if runs.empty:
        return None
    scores = runs.pivot_table(index="task", columns="mechanism", values="score").dropna(axis="columns")
    if len(scores) < TASKS_FOR_RANKS or scores.shape[1] < ROWS_FOR_RANKS:
        return None
    ranks = scores.rank(axis="columns", ascending=False).mean()
    p = float(stats.friedmanchisquare(*(scores[name] for name in scores)).pvalue)
    apart = scikit_posthocs.posthoc_nemenyi_friedman(scores)
    figure = Figure(figsize=(8.5, 1.6 + 0.2 * scores.shape[1]), layout="constrained")
    axes = figure.subplots()
    short = dict(zip(ranks.index, style.shortened([str(name) for name in ranks.index], 32), strict=True))
    scikit_posthocs.critical_difference_diagram(
        ranks.rename(short),
        apart.rename(index=short, columns=short),
        ax=axes,
        label_fmt_left="{label} ({rank:.2f})",
        label_fmt_right="({rank:.2f}) {label}",
        color_palette=dict.fromkeys(short.values(), "#000000"),
    )
    axes.set_title(f"Mean rank over {len(scores)} tasks (1 is best); Friedman p = {p:.2g}", pad=22)
    axes.grid(visible=False)
    return figure
