"""Painting laid out Pathfinder images by compiled code: dashes, discs, and the stretch to 8 bits."""

from __future__ import annotations

import numpy as np

from .geometry import Floats, Ints
from .stamps import Levels, Tables
from .workspace import compiled

TARGET, DISTRACTOR, MARKER = 0, 1, 2
"""Rows of `Tables.values`."""


@compiled
def _paint_dashes(t: Tables, canvas: Floats, dashes: Ints, kind: int) -> None:
    """Join dashes (n, 3) to a canvas (maximum)."""
    side = canvas.shape[0]
    for k in range(dashes.shape[0]):
        stamp = dashes[k, 2]
        for row in range(t.dash_start[stamp], t.dash_start[stamp + 1]):
            y, x = dashes[k, 0] + t.dash_pixels[row, 0], dashes[k, 1] + t.dash_pixels[row, 1]
            if 0 <= y < side and 0 <= x < side:
                canvas[y, x] = max(canvas[y, x], t.values[kind, t.dash_pixels[row, 2]])


@compiled
def _paint_disc(t: Tables, canvas: Floats, dash: Ints) -> None:
    """Join a disc on the start (y, x) of a dash to a canvas (maximum)."""
    y, x = dash[0], dash[1]
    side, size = canvas.shape[0], t.markers.shape[0]
    middle = size // 2
    # The place of the disc on its small canvas: in the middle, unless an edge is near.
    v = min(y, middle) if y < side - 1 - middle else size - side + y
    u = min(x, middle) if x < side - 1 - middle else size - side + x
    for row in range(size):
        for column in range(size):
            value = t.values[MARKER, t.markers[v, u, row, column]]
            canvas[y - v + row, x - u + column] = max(canvas[y - v + row, x - u + column], value)


@compiled
def _stretch(canvas: Floats, image: Levels) -> None:
    """Write a canvas as 8 bits, its least value as 0 and its greatest as 255."""
    side = canvas.shape[0]
    least = greatest = canvas[0, 0]
    for y in range(side):
        for x in range(side):
            least, greatest = min(least, canvas[y, x]), max(greatest, canvas[y, x])
    scale = 255.0 / (greatest - least)
    for y in range(side):
        for x in range(side):
            image[y, x] = np.uint8((canvas[y, x] - least) * scale + 0.5)


@compiled
def paint(
    t: Tables,
    which: int,
    facts: Ints,
    targets: Ints,
    distractors: Ints,
    images: Levels,
    contours: Levels,
    canvas: Floats,
) -> None:
    """Paint those of n images whose margin is number `which`, from the outputs of `lay_out`.

    Outputs: `images` (n, R, R) and `contours` (n or 0, 2, R, R), each target contour alone. `canvas` (R, R)
    is scratch.
    """
    for i in range(images.shape[0]):
        if facts[i, 1] != which:
            continue
        for k in range(2 * (contours.shape[0] > 0)):
            canvas.fill(0.0)
            _paint_dashes(t, canvas, targets[i, k], TARGET)
            _stretch(canvas, contours[i, k])
        canvas.fill(0.0)
        for k in range(2):
            _paint_dashes(t, canvas, targets[i, k], TARGET)
        for k in range(facts[i, 3]):
            _paint_dashes(t, canvas, distractors[i, k], DISTRACTOR)
        origin = facts[i, 2]
        terminal = origin if facts[i, 0] == 1 else 1 - origin
        _paint_disc(t, canvas, targets[i, origin, 0])
        _paint_disc(t, canvas, targets[i, terminal, -1])
        _stretch(canvas, images[i])
