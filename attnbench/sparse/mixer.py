"""The base of sparse mechanisms: projections from `QKVMixer`, computation from an execution path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.contracts import Layout, MixerShape
from attnbench.errors import AttnbenchError
from attnbench.layers import QKVMixer
from attnbench.sparse import Call, Pattern, path


class HeadGroup(NamedTuple):
    """So many heads attend by one pattern."""

    heads: int
    pattern: Pattern


class SparseMixer(QKVMixer):
    """Softmax attention over the pairs that `pattern` shows; `path_name` is one of `attnbench.sparse.PATHS`.

    Several groups of heads, in order, may have a pattern each. With `shape.causal` a row sees itself and earlier rows.
    """

    def __init__(self, shape: MixerShape, pattern: Pattern | Sequence[HeadGroup], path_name: str = "gather"):
        super().__init__(shape)
        groups = [HeadGroup(shape.heads, pattern)] if isinstance(pattern, Pattern) else pattern
        if shape.causal:
            if shape.tokens.globals or shape.tokens.reps_per_block:
                raise AttnbenchError("special rows in front see all rows, so a causal mechanism cannot have them")
            groups = [HeadGroup(heads, pattern.causal()) for heads, pattern in groups]
        self.groups = tuple(groups)
        self.run_path = path(path_name)
        self.implementation = self.run_path.implementation

    @property
    def pattern(self) -> Pattern:
        """Of the first group of heads, which is the only one of most mechanisms."""
        return self.groups[0].pattern

    def groups_at(self, length: int) -> tuple[HeadGroup, ...]:
        """For a call with so many content rows; the same for all, unless a mechanism overrides it."""
        return self.groups

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
        groups = self.groups_at(layout.length)
        if len(groups) == 1:
            return self.run_path(q, k, v, groups[0].pattern, mask, layout)
        sizes = [group.heads for group in groups]
        split = zip(groups, *(x.split(sizes, dim=1) for x in (q, k, v)), strict=True)
        return torch.cat([self.run_path(q, k, v, group.pattern, mask, layout) for group, q, k, v in split], dim=1)

    def refusal(self, layout: Layout, masked: bool, dtype: torch.dtype, device: torch.device) -> str | None:
        call = Call(layout, masked, self.shape.head_dim, dtype, device, grad=True)
        reasons = (self.run_path.refusal(group.pattern, call) for group in self.groups_at(layout.length))
        return next((reason for reason in reasons if reason), None)
