"""ListOps' options and splits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeInt

from .grammar import Grammar

SPLITS = ("train", "validation", "test")
#: Expressions of Long Range Arena's set.
RELEASED = 100_000
_OF_GENERATED = ("min_length", "max_depth", "max_args", "data_seed")


@dataclass(frozen=True, kw_only=True)
class Options:
    """examples: of all splits together, 96/2/2 %; of files the first ones, each split its share.
    min_length, max_length: tokens of a generated expression lie between, both excluded; an expression of a file has
    max_length at the most.
    max_depth: of a node, the root has 1; so operators nest max_depth - 1 deep. max_args: arguments of an operator.
    data_seed: of the whole set.
    origin: generated, or files of the released form, read by `attnbench data prepare listops --from DIR`.
    overlong: expressions of a file with more than max_length tokens are refused, or cut as Long Range Arena does, which
    leaves them without their end; counted either way.
    """

    examples: Annotated[int, Field(ge=50)] = RELEASED
    min_length: NonNegativeInt = 500
    max_length: Annotated[int, Field(ge=2, le=1 << 15)] = 2000
    max_depth: Annotated[int, Field(ge=2, le=100)] = 10
    max_args: Annotated[int, Field(ge=2, le=100)] = 10
    data_seed: NonNegativeInt = 0
    origin: Literal["generated", "files"] = "generated"
    overlong: Literal["refuse", "cut"] = "refuse"

    def __post_init__(self) -> None:
        if self.origin == "files":
            usual = {field.name: field.default for field in fields(self)}
            if changed := [name for name in _OF_GENERATED if getattr(self, name) != usual[name]]:
                name = changed[0]
                raise ValueError(f"{name} shapes generated expressions; with origin=files set {name}={usual[name]}")
        elif self.overlong == "cut":
            raise ValueError("generated expressions are shorter than max_length; leave overlong out")
        elif self.max_length < self.min_length + 2:
            raise ValueError(f"no length lies between min_length={self.min_length} and max_length={self.max_length}")

    @property
    def grammar(self) -> Grammar:
        return Grammar(self.min_length, self.max_length, self.max_depth, self.max_args)


def splits_of(numbers: np.ndarray) -> np.ndarray:
    """Name of the split of each number: of fifty in a row the 49th is for validation, the 50th for test."""
    return np.array([SPLITS[0]] * 48 + list(SPLITS[1:])).take(numbers % 50)
