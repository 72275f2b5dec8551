"""Pathfinder (Linsley et al. 2018), as Long Range Arena sets it (Tay et al. 2020): do two discs lie on one contour?

Grey pixels, row by row, as ids 0..255; pixels carry no padding mask. Images are generated here, with the semantics of
the original generator (docs/tasks/pathfinder.md); image i is a function of (data_seed, resolution, level, i).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._pathfinder.preparation import Options as Shared
from ._pathfinder.preparation import task


@dataclass(frozen=True, kw_only=True)
class Options(Shared):
    resolution: Literal[32, 64, 128, 256] = 32


TASK = task(summary="Do two discs lie on the same dashed contour? LRA's Pathfinder, 32 x 32 pixels", options=Options)
