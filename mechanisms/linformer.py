"""Linformer (Wang et al. 2020, section 4, eq. 7): softmax(Q (E K)^T / sqrt(d)) F V; E, F learned, rank x length.

Column n of E and F belongs to content row n. A shorter input uses the first columns; masked rows are set to 0 before
the projection, so neither what stands in padding nor how long it is changes anything. What the result does depend on
is a row's place: content moved right by a shift meets other columns. Special rows are no part of the projection; they
stand beside its `rank` rows as keys of their own.

E and F start as N(0, 1 / rank), the distribution of the paper's random projections; what its experiments started from
is not said. The sharing of one E by all layers is left out: a layer is built on its own.

`masks = "ignored"` is what the code of Long Range Arena does (Tay et al. 2020): padding is projected like content. It
has one projection a layer for the keys and values of all heads, and projects its CLS row too, which is left out.
"""

# Shape letters: B batch, R rows, H heads, D head width, K rank, N content rows

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from attnbench.contracts import Layout, Mechanism, MixerShape
from attnbench.layers import QKVMixer, attention


@dataclass(frozen=True, kw_only=True)
class Options:
    """rank: rows that keys and values are projected to.
    sharing: none (an E and an F for every head), headwise (one E and one F) or key-value (one E, which is F too).
    masks: honoured, or ignored: padding is content.
    """

    rank: PositiveInt = 64
    sharing: Literal["none", "headwise", "key-value"] = "headwise"
    masks: Literal["honoured", "ignored"] = "honoured"


class Linformer(QKVMixer):
    drops_weights = True

    def __init__(self, shape: MixerShape, options: Options):
        super().__init__(shape)
        self.rank, self.ignores_masks = options.rank, options.masks == "ignored"
        own = {"none": (2, shape.heads), "headwise": (2, 1), "key-value": (1, 1)}[options.sharing]
        self.projection = nn.Parameter(torch.empty(*own, options.rank, shape.length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.projection, std=self.rank**-0.5)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
        special = layout.specials
        visible = None
        if mask is not None:
            k, v = (rows.masked_fill(~mask[:, None, :, None], 0) for rows in (k, v))
            visible = F.pad(mask[:, :special], (0, self.rank), value=True)[:, None, None]
        e_HKN, f_HKN = self.projection[..., : layout.length].expand(2, self.shape.heads, -1, -1)
        k = torch.cat([k[:, :, :special], e_HKN @ k[:, :, special:]], dim=2)
        v = torch.cat([v[:, :, :special], f_HKN @ v[:, :, special:]], dim=2)
        return attention(q, k, v, visible, drop=self.drop)


MECHANISM = Mechanism(
    summary="Linformer: keys and values projected along the length to a fixed number of rows",
    paper="Wang et al. 2020, Linformer: Self-Attention with Linear Complexity",
    build=lambda shape, options: Linformer(shape, options),
    options=Options,
    presets={"lra": {"rank": 16, "sharing": "key-value", "masks": "ignored"}},
    ignores_masks=lambda options: options.masks == "ignored",
    family="low-rank",
    complexity="n",
)
