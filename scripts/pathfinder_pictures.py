"""Draws images of the original Pathfinder generator beside ours: python scripts/pathfinder_pictures.py FOLDER OUT.png

FOLDER holds pathfinder32_hard_reference.npz and pathfinder128_hard_reference.npz with arrays images and labels.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from attnbench.tasks._pathfinder import generate, parameters

ACROSS = 4  # of each label


def chosen(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(2 ACROSS, R, R) the first ones of label 1, then of label 0."""
    return np.concatenate([images[labels == label][:ACROSS] for label in (1, 0)])


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    figure, axes = plt.subplots(4, 2 * ACROSS, figsize=(2 * ACROSS * 1.1, 4 * 1.2))
    for pair, resolution in enumerate((32, 128)):
        with np.load(folder / f"pathfinder{resolution}_hard_reference.npz", allow_pickle=False) as reference:
            theirs = chosen(reference["images"], reference["labels"])
        drawn = generate(parameters(resolution, "hard"), 0, range(100))
        for row, (name, images) in enumerate([("original", theirs), ("ours", chosen(drawn.images, drawn.labels))]):
            for column, image in enumerate(images):
                place = axes[2 * pair + row, column]
                place.imshow(image, cmap="gray", vmin=0, vmax=255)
                place.set(xticks=[], yticks=[])
            axes[2 * pair + row, 0].set_ylabel(f"{resolution}, {name}", fontsize=8)
    for column in range(2 * ACROSS):
        axes[0, column].set_title("one contour (1)" if column < ACROSS else "two contours (0)", fontsize=7)
    figure.tight_layout(pad=0.3)
    figure.savefig(out, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
