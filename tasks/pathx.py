"""Path-X: Pathfinder at 128 x 128 pixels, 16,384 tokens (Tay et al. 2020); see pathfinder.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._pathfinder.preparation import Options as Shared
from ._pathfinder.preparation import task


@dataclass(frozen=True, kw_only=True)
class Options(Shared):
    resolution: Literal[128] = 128


TASK = task(summary="Pathfinder on 128 x 128 pixels: LRA's Path-X, 16,384 tokens", options=Options)
