"""Performer, FAVOR+ (Choromanski et al. 2021, sections 2.2 to 2.4): attention through random features of q and k.

`kernel = "softmax"`: phi(x) = exp(w . x - |x|^2 / 2) for Gaussian directions w, x = q or k over the fourth root of the
head width; the mean of phi(q) phi(k) over w is exp(q . k / sqrt(d)) (Lemma 1, positive features).
`kernel = "relu"`: phi(x) = max(w . x, 0), the generalised attention that the paper trains best with; no softmax.

`orthogonal` makes the directions of each d x d block orthogonal and leaves the distribution of each as it was
(section 2.4). They are drawn from (seed, layer, head) when the module is built, are the same in every process, in
training and in evaluation, and are saved with the weights; the paper's periodic redrawing is left out.

`epsilon` is added to every feature; unsaid, it is the authors' 1e-4 (softmax) or 1e-3 (relu). Beside it a factor common
to all features of a query, or of all keys, cancels, so the softmax features are taken relative to the largest: that of
the query, and that of all real keys of the example and head. The authors' code takes off the largest w . x before
|x|^2 / 2, so that with large norms its epsilon outweighs the features and attention becomes a plain mean.

Long Range Arena (Tay et al. 2020) ignores masks (`masks`), and outside ListOps asks for 256 features of relu that its
code never draws: phi(x) = max(x, 0) + epsilon of q and k as they are (`projection = "none"`). For ListOps it has 2
features of softmax, drawn anew in every call from a sum of the queries; here they stay.
"""

# Shape letters: B batch, R rows, H heads, D head width, F features, G blocks of D orthogonal directions

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from attnbench.contracts import Mechanism, MixerShape
from attnbench.layers import QKVMixer, linear_attention


@dataclass(frozen=True, kw_only=True)
class Options:
    """features: random directions of a head. epsilon: added to every feature; unsaid, the kernel's own; 0 = none, at
    the risk of an underflow where norms are large.
    projection: random, or none: the kernel relu of q and k themselves; features, orthogonal and seed draw nothing then.
    masks: honoured, or ignored: padding is content.
    """

    kernel: Literal["softmax", "relu"] = "softmax"
    features: PositiveInt = 256
    orthogonal: bool = True
    seed: NonNegativeInt = 0
    epsilon: Annotated[float, Field(ge=0)] | None = None
    projection: Literal["random", "none"] = "random"
    masks: Literal["honoured", "ignored"] = "honoured"

    def __post_init__(self) -> None:
        if self.projection == "random":
            return
        if self.kernel == "softmax":
            raise ValueError("kernel=softmax is made of random directions; projection=none goes with kernel=relu")
        if drawn := [f.name for f in fields(self) if f.name in _DRAWN and getattr(self, f.name) != f.default]:
            raise ValueError(f"projection=none draws nothing, so {' and '.join(drawn)} must stay as by default")


_DRAWN = {"features", "orthogonal", "seed"}


def softmax_features(
    x_BHRD: Tensor, directions_HFD: Tensor | None, mask_BR: Tensor | None, peak: tuple[int, ...]
) -> Tensor:
    """(B, H, R, F), at most 1; `peak` names the dimensions whose largest feature is 1."""
    assert directions_HFD is not None
    exponent = x_BHRD @ directions_HFD.mT - x_BHRD.square().sum(-1, keepdim=True) / 2
    if mask_BR is not None:
        exponent = exponent.masked_fill(~mask_BR[:, None, :, None], torch.finfo(exponent.dtype).min)
    return (exponent - exponent.amax(peak, keepdim=True)).exp()


def relu_features(
    x_BHRD: Tensor, directions_HFD: Tensor | None, mask_BR: Tensor | None, peak: tuple[int, ...]
) -> Tensor:
    """(B, H, R, F), F = D without directions; these cannot overflow, so there is no peak to take off."""
    return F.relu(x_BHRD if directions_HFD is None else x_BHRD @ directions_HFD.mT)


#: kernel -> (its features, the authors' epsilon)
KERNELS: dict[str, tuple[Callable[[Tensor, Tensor | None, Tensor | None, tuple[int, ...]], Tensor], float]] = {
    "softmax": (softmax_features, 1e-4),
    "relu": (relu_features, 1e-3),
}


def draw_directions(shape: MixerShape, options: Options) -> Tensor:
    """(H, F, D), each N(0, identity)."""
    blocks = -(-options.features // shape.head_dim)
    return torch.stack([_draw_head(shape, options, head, blocks)[: options.features] for head in range(shape.heads)])


def _draw_head(shape: MixerShape, options: Options, head: int, blocks: int) -> Tensor:
    generator = np.random.default_rng((options.seed, shape.layer, head))
    drawn_GDD = generator.standard_normal((blocks, shape.head_dim, shape.head_dim))
    if options.orthogonal:
        lengths_GD = np.linalg.norm(drawn_GDD, axis=-1)
        turned_GDD, r_GDD = np.linalg.qr(generator.standard_normal(drawn_GDD.shape))
        signs_GD = np.sign(np.diagonal(r_GDD, axis1=-2, axis2=-1))  # without them the rotation is not uniform
        drawn_GDD = turned_GDD * signs_GD[:, None, :] * lengths_GD[..., None]
    return torch.from_numpy(drawn_GDD.reshape(-1, shape.head_dim)).to(torch.get_default_dtype())


class Performer(QKVMixer):
    directions: Tensor | None

    def __init__(self, shape: MixerShape, options: Options):
        super().__init__(shape)
        self.features, epsilon = KERNELS[options.kernel]
        self.epsilon = epsilon if options.epsilon is None else options.epsilon
        self.ignores_masks = options.masks == "ignored"
        self.register_buffer("directions", draw_directions(shape, options) if options.projection == "random" else None)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        directions = self.directions
        scale = 1.0 if directions is None else self.shape.head_dim**-0.25
        phi_q = self.features(q * scale, directions, None, (-1,)) + self.epsilon
        phi_k = self.features(k * scale, directions, mask, (-2, -1)) + self.epsilon
        return linear_attention(phi_q, phi_k, v, mask)


MECHANISM = Mechanism(
    summary="Performer (FAVOR+): softmax or ReLU attention through random features",
    paper="Choromanski et al. 2021, Rethinking Attention with Performers",
    build=lambda shape, options: Performer(shape, options),
    options=Options,
    presets={
        "lra": {"kernel": "relu", "features": 256, "projection": "none", "masks": "ignored"},
        "lra-listops": {"kernel": "softmax", "features": 2, "epsilon": 1e-6, "masks": "ignored"},
    },
    ignores_masks=lambda options: options.masks == "ignored",
    shift_invariant=lambda options: options.masks == "honoured",
    family="kernel",
    complexity="n",
)
