"""Draws the validation curves of one task: python scripts/learning_curves.py TASK OUT.png [RESULTS]."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from attnbench.store import Store


def points(results: Path, task: str) -> tuple[pd.DataFrame, float, float]:
    """Steps, scores and mechanisms of all finished runs of the task under `quick`; chance; the best trivial score."""
    found = [record for _, record in Store(results).read_all()[0]]
    records = [r for r in found if (r.spec.task.name, r.spec.protocol.name) == (task, "quick")]
    scored = [(r, r.quality) for r in records if r.quality]
    if not scored:
        raise SystemExit(f"{results}: no finished run of {task} under quick; run some first")
    rows = [
        {"step": point.step, "validation accuracy": point.validation, "mechanism": record.label, "seed": record.seed}
        for record, _ in scored
        for point in record.curve
    ]
    quality = scored[0][1]
    return pd.DataFrame(rows), quality.chance, max(quality.trivial.values())


def main() -> None:
    task, out = sys.argv[1], Path(sys.argv[2])
    frame, chance, trivial = points(Path(sys.argv[3]) if len(sys.argv) > 3 else Path("results"), task)
    sns.set_theme(style="whitegrid", palette="colorblind")
    last = frame[frame["step"] == frame["step"].max()].groupby("mechanism")["validation accuracy"].mean()
    order = list(last.sort_values(ascending=False).index)
    figure, axes = plt.subplots(figsize=(7.5, 4))
    sns.lineplot(
        frame,
        x="step",
        y="validation accuracy",
        hue="mechanism",
        style="mechanism",
        hue_order=order,
        style_order=order,
        errorbar=("pi", 100),
        ax=axes,
    )
    for level, name in ((chance, "chance"), (trivial, "best trivial predictor")):
        axes.axhline(level, color="0.4", linewidth=1, linestyle=":")
        axes.text(frame["step"].max(), level + 0.01, name, ha="right", fontsize=8, color="0.3")
    seeds = frame.groupby("mechanism")["seed"].nunique().min()
    axes.set(title=f"{task}, protocol quick: mean and range of {seeds} seeds", ylim=(0, 1.02), xlim=(0, None))
    sns.move_legend(axes, "center left", bbox_to_anchor=(1, 0.5), title=None, frameon=False)
    figure.savefig(out, dpi=150, bbox_inches="tight", metadata={"Software": None})


if __name__ == "__main__":
    main()
