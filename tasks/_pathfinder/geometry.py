"""Parameters and geometry of the Pathfinder stimuli.

Source of the algorithm: Linsley et al. 2018, "Learning long-range spatial dependencies with horizontal gated-recurrent
units" (the generator as of 2019); source of the parameters: Long Range Arena, Tay et al. 2020.

Coordinates are (y, x) in pixels, y downwards; a direction t (radians) moves by (sin t, cos t).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LEVELS = {"easy": 6, "intermediate": 9, "hard": 14}
"""Dashes in a target contour, by level."""

DEGREES = 360
"""Directions a first dash may take: whole degrees from -180."""

WEIGHT_ONE = 1 << 24
"""The integer that stands for a candidate weight of 1, so that sampling needs no floating point."""

_BY_RESOLUTION: dict[int, dict[str, Any]] = {
    32: {"padding": 1, "seed_distance": 7, "marker_radius": 1.5, "dash_length": 2, "dash_thickness": 0.5,
         "margins": (1,), "continuity": 1.0, "snake_contrast": 2.0, "dash_contrast": 0.75},
    64: {"padding": 1, "seed_distance": 12, "marker_radius": 2.5, "dash_length": 5, "dash_thickness": 1.0,
         "margins": (1,), "continuity": 1.8, "snake_contrast": 0.8, "dash_contrast": 1.0},
    128: {"padding": 1, "seed_distance": 20, "marker_radius": 3.0, "dash_length": 5, "dash_thickness": 1.5,
          "margins": (2, 3), "continuity": 1.8, "snake_contrast": 0.9, "dash_contrast": 1.0},
    256: {"padding": 22, "seed_distance": 27, "marker_radius": 5.0, "dash_length": 5, "dash_thickness": 2.0,
          "margins": (3,), "continuity": 1.8, "snake_contrast": 1.0, "dash_contrast": 1.0},
}  # fmt: skip
_DISTRACTOR_DASHES = {32: 20, 64: 22, 128: 35, 256: 30}


@dataclass(frozen=True)
class Parameters:
    """Everything that shapes an image, except the seed and its index. Lengths are in pixels.

    `ValueError` if the values contradict each other or leave no room for a contour.
    """

    resolution: int
    contour_length: int
    """dashes in each of the two target contours"""
    distractor_length: int
    """dashes in a distractor contour"""
    distractors: int
    """distractor contours that are attempted; those without room are left out"""
    padding: int
    """width of the frame that no contour may touch"""
    seed_distance: int
    """distance between the first dashes of the two targets; their distance from the border is about as large"""
    marker_radius: float
    dash_length: int
    dash_thickness: float
    margins: tuple[int, ...]
    """free space round a dash; one value is drawn for each image"""
    continuity: float
    """a contour turns by less than 90 degrees / continuity from dash to dash"""
    snake_contrast: float
    """contrast of a contour; a distractor has this contrast"""
    dash_contrast: float
    """multiplies the contrast of the target contours' dashes"""
    antialias: int = 2
    """stamps are drawn this many times larger, then shrunk"""

    def __post_init__(self) -> None:
        whole = self.dash_thickness * self.antialias
        least = min(self.padding, self.dash_length, self.antialias)
        problems = {
            "contour_length must be at least 2": self.contour_length < 2,
            "distractors and distractor_length must not be negative": min(self.distractors, self.distractor_length) < 0,
            "distractors need a distractor_length of at least 1": self.distractors > 0 and self.distractor_length < 1,
            "padding, dash_length and antialias must be at least 1": least < 1,
            "dash_thickness times antialias must be a positive whole number": whole <= 0 or whole != int(whole),
            "margins must hold at least one value, each at least 1": not self.margins or min(self.margins) < 1,
            "continuity and marker_radius must be positive": min(self.continuity, self.marker_radius) <= 0,
            "contrasts must be positive": min(self.snake_contrast, self.dash_contrast) <= 0,
            "seed_distance must be at least padding / 2": 2 * self.seed_distance < self.padding,
        }
        wrong = [text for text, holds in problems.items() if holds]
        if wrong:
            raise ValueError("Pathfinder parameters: " + "; ".join(wrong))


def parameters(resolution: int, level: str, **overrides: Any) -> Parameters:
    """LRA's parameters for a resolution (32, 64, 128 or 256 pixels) and level (easy, intermediate or hard).

    `overrides` replace single fields of `Parameters`. The number of distractors follows the contour length, as in the
    generator's own wrapper. `ValueError` names the valid resolutions, levels or fields.
    """
    if resolution not in _BY_RESOLUTION:
        raise ValueError(f"Pathfinder resolution {resolution!r}: choose from {', '.join(map(str, _BY_RESOLUTION))}")
    if level not in LEVELS:
        raise ValueError(f"Pathfinder level {level!r}: choose from {', '.join(LEVELS)}")
    valid = [field.name for field in fields(Parameters) if field.name != "resolution"]
    unknown = sorted(set(overrides) - set(valid))
    if unknown:
        raise ValueError(f"Pathfinder has no parameter {', '.join(unknown)}: choose from {', '.join(valid)}")
    values = {"contour_length": LEVELS[level], **_BY_RESOLUTION[resolution], **overrides}
    values.setdefault("distractor_length", values["contour_length"] // 3)
    values.setdefault("distractors", _DISTRACTOR_DASHES[resolution] // max(values["distractor_length"], 1))
    return Parameters(resolution=resolution, **values)


def opposite(direction: float) -> float:
    """The direction turned by pi, in radians, between -pi and pi."""
    return direction + math.pi if direction < 0 else direction - math.pi


def displacements(directions: Floats, distance: float) -> Floats:
    """(n,) directions in radians -> (n, 2) displacements in pixels.

    Left unrounded: a step rounds coordinate + displacement *up*, so that, as in the original, the last bit of the sine
    decides at multiples of 30 degrees. The scalar functions of the C library are used because numpy's vectorised ones
    differ by processor.
    """
    return np.array([(distance * math.sin(t), distance * math.cos(t)) for t in directions.tolist()]).reshape(-1, 2)


def seed_directions() -> Floats:
    """(360,) directions of a first dash, radians, from -180 degrees."""
    return np.array([degree * math.pi / 180 for degree in range(-180, 180)])


def candidate_offsets(radius: int) -> Ints:
    """(candidates, 2) pixels of a circle, relative to its centre, in lexicographic order.

    One point per pixel of arc, cut (not rounded) to whole pixels, without duplicates.
    """
    degrees_per_pixel = 360.0 / (2 * radius * math.pi)
    angles = (np.arange(0, 360, degrees_per_pixel) * math.pi / 180).tolist()
    # Cut at a positive coordinate, as in an image: 64 stands for any that is large enough.
    points = [(int(64 + radius * math.sin(t)) - 64, int(64 + radius * math.cos(t)) - 64) for t in angles]
    return np.array(sorted(set(points)), dtype=np.int64)


def offset_directions(offsets: Ints) -> Floats:
    """(n, 2) offsets -> (n,) directions, radians."""
    return np.array([math.atan2(y, x) for y, x in offsets.tolist()])


def turn_weights(before: Floats, after: Floats, continuity: float) -> Ints:
    """(directions, candidates) weight of a turn: cos^2(min(continuity * turn, pi/2)) in units of 1 / WEIGHT_ONE."""
    turn: Floats = np.abs(before[:, None] - after[None, :])
    turn = np.minimum(turn, 2 * math.pi - turn)
    weights: Ints = np.rint(np.cos(np.minimum(turn * continuity, math.pi / 2)) ** 2 * WEIGHT_ONE).astype(np.int64)
    return weights
