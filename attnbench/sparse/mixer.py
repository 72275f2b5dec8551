"""The base of sparse mechanisms: projections from `QKVMixer`, computation from an execution path."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.contracts import Layout, MixerShape
from attnbench.layers import QKVMixer
from attnbench.sparse import Call, Pattern, path


class SparseMixer(QKVMixer):
    """Softmax attention over the pairs that `pattern` shows; `path_name` is one of `attnbench.sparse.PATHS`."""

    def __init__(self, shape: MixerShape, pattern: Pattern, path_name: str = "gather"):
        super().__init__(shape)
        self.pattern = pattern
        self.run_path = path(path_name)
        self.implementation = self.run_path.implementation

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
        return self.run_path(q, k, v, self.pattern, mask, layout)

    def refusal(self, layout: Layout, masked: bool, dtype: torch.dtype, device: torch.device) -> str | None:
        return self.run_path.refusal(self.pattern, Call(layout, masked, self.shape.head_dim, dtype, device, grad=True))
