"""A training of the program itself, ready for a step: 32 pictures of 1,024 pixels, 2 layers, 64 wide, 2 heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnbench import plan
from attnbench.runner import Settings, _trainer
from attnbench.train import Trainer


def trainer(mechanism: str, **settings: Any) -> Trainer:
    """Under the protocol `quick`, whose model has no dropout; data goes to $ATTNBENCH_DATA."""
    fixed = {"task.examples": 500, "budget.steps": 100_000}
    return _trainer(plan.make(mechanism, "pathfinder", settings=fixed | settings), Settings(device="cpu"))


def step(mechanism: str, **settings: Any) -> Callable[[], object]:
    return trainer(mechanism, **settings)._train_step
