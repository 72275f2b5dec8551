"""The Pathfinder generator: `parameters` names the setting, `generate` draws the images."""

from __future__ import annotations

from .generator import Batch, generate
from .geometry import LEVELS, Parameters, parameters

__all__ = ["LEVELS", "Batch", "Parameters", "generate", "parameters"]
