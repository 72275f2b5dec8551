"""Accuracy of runs of `needle` by the depth of the fact: python scripts/needle_by_depth.py RECORD.json...

RECORD is the JSON file of a run, with its predictions beside it. The set is made again if it is not at hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

import datasets
import pandas as pd

from attnbench import data, registry
from attnbench.errors import AttnbenchError
from attnbench.options import parse
from attnbench.store import load_predictions, read

PARTS = 5


def by_depth(path: Path) -> pd.Series:
    """Accuracy in each fifth of the text, the first facts first."""
    record, found = read(path), load_predictions(path)
    if record.spec.task.name != "needle":
        raise AttnbenchError(f"{path}: a run of {record.spec.task.name}, not of needle")
    plugin = registry.load("tasks", "needle")
    prepared = data.load(plugin, parse("needle", plugin.object.options, record.spec.task.options))
    if prepared.key != record.spec.task.data_key:
        raise AttnbenchError(f"{path}: its texts were made by another version of needle, so their depths are not known")
    depth = pd.Series(datasets.load_from_disk(str(prepared.folder / "test"))["depth"])[found["example"]]
    part = (depth.to_numpy() * PARTS).clip(max=PARTS - 1).astype(int)
    right = pd.Series(found["predicted"] == found["target"], name=f"{record.label} s{record.seed}")
    shares = right.groupby(part).mean()
    return shares.rename(index=lambda number: f"{number / PARTS:.1f} to {(number + 1) / PARTS:.1f}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python scripts/needle_by_depth.py RECORD.json...")
    try:
        print(pd.concat([by_depth(Path(path)) for path in sys.argv[1:]], axis=1).round(3).to_string())
    except (AttnbenchError, ValueError) as error:
        sys.exit(str(error))
