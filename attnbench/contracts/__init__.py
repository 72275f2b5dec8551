"""What a plugin author writes: mechanisms, tasks, regularizers as data plus one callable. Nothing here loads torch."""

from attnbench.contracts.mechanism import COMPLEXITIES, Cell, Mechanism
from attnbench.contracts.regularizer import Loss, Regularizer, Run
from attnbench.contracts.shape import Layout, MixerShape, NoOptions, Tokens
from attnbench.contracts.task import (
    NO_TARGET,
    Choose,
    Classify,
    Controls,
    Head,
    Match,
    Preparation,
    Source,
    Span,
    TagTokens,
    Task,
)

__all__ = [
    "COMPLEXITIES",
    "NO_TARGET",
    "Cell",
    "Choose",
    "Classify",
    "Controls",
    "Head",
    "Layout",
    "Loss",
    "Match",
    "Mechanism",
    "MixerShape",
    "NoOptions",
    "Preparation",
    "Regularizer",
    "Run",
    "Source",
    "Span",
    "TagTokens",
    "Task",
    "Tokens",
]
