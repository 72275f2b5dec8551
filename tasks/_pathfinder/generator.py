"""Pathfinder images: the algorithm of Linsley et al. 2018 under the parameters of Long Range Arena (Tay et al. 2020).

Two discs mark ends of the same target contour (label 1) or of different ones (label 0); dashes of distractors surround
them. `growth` lays the dashes out, `painting` draws them, `stamps` holds their pictures.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .geometry import Ints, Parameters
from .growth import lay_out
from .painting import paint
from .stamps import Levels, border, tables


class Batch(NamedTuple):
    """Images and what is known about them; n images of side R. Points are (y, x) pixels."""

    images: Levels
    """(n, R, R) white on black; every image spans 0 to 255"""
    labels: npt.NDArray[np.int8]
    """(n,) 1 if both discs lie on the same target contour"""
    margins: Ints
    """(n,) the margin drawn for the image"""
    origin_tips: Ints
    """(n, 2, 2) start of each target contour"""
    terminal_tips: Ints
    """(n, 2, 2) end of each target contour"""
    disc_centres: Ints
    """(n, 2, 2) the disc on an origin, then the disc on a terminal tip"""
    distractors_placed: Ints
    """(n,) distractor contours that found room"""
    distractor_attempts: Ints
    """(n,) attempts to place them"""
    contour_trials: Ints
    """(n,) pairs of target contours begun, the successful one included"""
    contours: Levels
    """(n, 2, R, R) each target contour drawn alone; (0, 2, R, R) unless asked for"""


def generate(parameters: Parameters, seed: int, indices: Ints | range, *, contours: bool = False) -> Batch:
    """Draw the images with these indices (0 to 2^63 - 1, in any order; repeats allowed).

    An image is a function of (parameters, seed, its index) alone: batches, order and processes do not matter.
    `ValueError` on a negative index or a seed outside 0 .. 2^64 - 1.
    """
    numbers = np.asarray(indices, dtype=np.int64).reshape(-1)
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"Pathfinder seed {seed}: it must lie in 0 .. 2^64 - 1")
    if numbers.size and numbers.min() < 0:
        raise ValueError(f"Pathfinder image index {numbers.min()}: it must not be negative")
    side, count, margins = parameters.resolution, len(numbers), parameters.margins
    images = np.empty((count, side, side), np.uint8)
    alone = np.empty((count if contours else 0, 2, side, side), np.uint8)
    facts = np.full((count, 6), -1)  # -1: not laid out yet, another margin
    targets = np.empty((count, 2, parameters.contour_length, 3), np.int64)
    distractors = np.empty((count, parameters.distractors, parameters.distractor_length, 3), np.int64)
    key = np.array([seed, side, parameters.contour_length], dtype=np.uint64)
    for which, margin in enumerate(margins):
        t = tables(parameters, margin)
        sizes = np.array([side, parameters.padding, border(parameters, margin), len(margins)])
        lay_out(t, sizes, which, key, numbers, facts, targets, distractors)
        paint(t, which, facts, targets, distractors, images, alone, np.empty((side, side)))
    origin, each = facts[:, 2], np.arange(count)
    terminal = np.where(facts[:, 0] == 1, origin, 1 - origin)
    origin_tips, terminal_tips = targets[:, :, 0, :2], targets[:, :, -1, :2]
    return Batch(
        images=images,
        labels=facts[:, 0].astype(np.int8),
        margins=np.array(margins, np.int64)[facts[:, 1]],
        origin_tips=origin_tips.copy(),
        terminal_tips=terminal_tips.copy(),
        disc_centres=np.stack([origin_tips[each, origin], terminal_tips[each, terminal]], axis=1),
        distractors_placed=facts[:, 3].copy(),
        distractor_attempts=facts[:, 4].copy(),
        contour_trials=facts[:, 5].copy(),
        contours=alone,
    )
