"""What mechanisms may reuse: projections, head split, rotary positions, masked rows.

Shape letters: B batch, R rows, C width of a row, H heads, D width of a head, F features of a query or key.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnbench.contracts import Layout, MixerShape, Tokens

NO_TOKENS = Tokens()


def positions(layout: Layout, device: torch.device) -> Tensor:
    """Position of every row, (rows,) int64: content counts from 0 behind the shift (unless the positions move
    with it), a representative takes the middle of its whole block, a global token stands at 0.
    """
    memo_key = ("positions", device)
    if memo_key not in layout.memo:
        content = torch.arange(layout.length, device=device)
        blocks = torch.arange(layout.blocks, device=device).repeat_interleave(layout.reps_per_block)
        middle = blocks * layout.block_size + layout.block_size // 2
        rows = torch.cat([middle, content]) - (0 if layout.moved else layout.shift)
        layout.memo[memo_key] = torch.cat([rows.new_zeros(layout.globals), rows.clamp(min=0)])
    found: Tensor = layout.memo[memo_key]
    return found


def rotate(x_BHRD: Tensor, positions_R: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021, RoFormer, section 3.2.2), base 10,000; an odd last column is left alone."""
    half = x_BHRD.shape[-1] // 2
    frequency = 10_000.0 ** (-torch.arange(half, device=x_BHRD.device, dtype=torch.float32) / max(half, 1))
    angle = positions_R[:, None] * frequency
    cos, sin = angle.cos().to(x_BHRD.dtype), angle.sin().to(x_BHRD.dtype)
    a, b, rest = x_BHRD[..., :half], x_BHRD[..., half : 2 * half], x_BHRD[..., 2 * half :]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], dim=-1)


def projection(shape: MixerShape, parts: int) -> nn.Linear:
    """From rows to so many of queries, keys and values beside each other, (.., C) -> (.., parts * H * D)."""
    return nn.Linear(shape.dim, parts * shape.inner, bias=shape.bias)


class QKVMixer(nn.Module):
    """Owns the projections and the head split, the same for every mechanism that has queries, keys and values.

    A mechanism overrides `attend(q, k, v, mask)`, all (batch, heads, rows, head width), mask (batch, rows) bool or
    None, and returns the same shape; one that needs the layout overrides `mix`. Content of masked rows is cleared on
    entry, so that nothing in it, NaN included, reaches another row. One that sets `ignores_masks` takes all rows for
    real. One that has its attention weights at hand sets `drops_weights` and hands `drop` to `attention`.
    """

    #: how the result is computed: `kernel`, `reference` or `dense emulation`; part of the record
    implementation = "reference"
    ignores_masks = False
    drops_weights = False

    def __init__(self, shape: MixerShape):
        super().__init__()
        self.shape = shape
        self.qkv = projection(shape, 3)
        self.out = nn.Linear(shape.inner, shape.dim, bias=shape.bias)
        #: drops attention weights (B, H, R, R); the encoder's, where the protocol asks for it
        self.drop: nn.Module | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define attend(q, k, v, mask)")

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
        return self.attend(q, k, v, mask)

    def refusal(self, layout: Layout, masked: bool, dtype: torch.dtype, device: torch.device) -> str | None:
        """Why it cannot be trained in such calls, or None."""
        return None

    def forward(self, x: Tensor, mask: Tensor | None = None, layout: Layout | None = None) -> Tensor:
        """x: (batch, rows, dim) -> (batch, rows, dim). Without a layout all rows are content."""
        layout = layout or Layout(NO_TOKENS, x.shape[1])
        if self.ignores_masks:
            mask = None
        q, k, v = self.project(clear(x, mask), positions(layout, x.device))
        return self.join(self.mix(q, k, v, mask, layout))

    def project(
        self, x_BRC: Tensor, positions_R: Tensor, qkv: nn.Linear | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of rows at these positions, each (B, H, R, D); `qkv` stands in for the mixer's."""
        # split along its own dimension, so that the gradients of the three go back into one tensor in one pass
        parts_BRHD = (qkv or self.qkv)(x_BRC).unflatten(-1, (3, self.shape.heads, -1)).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts_BRHD)
        if self.shape.rotary:
            q, k = rotate(q, positions_R), rotate(k, positions_R)
        return q, k, v

    def join(self, y_BHRD: Tensor) -> Tensor:
        joined: Tensor = self.out(y_BHRD.transpose(1, 2).flatten(-2))
        return joined


def clear(x_BRC: Tensor, mask_BR: Tensor | None) -> Tensor:
    """Zeros in masked rows, whatever stood there, and no gradient to them."""
    return x_BRC if mask_BR is None else x_BRC.masked_fill(~mask_BR[..., None], 0)


def attention(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None = None, causal: bool = False, drop: nn.Module | None = None
) -> Tensor:
    """Softmax attention; `visible` is bool, broadcast to (B, H, queries, keys); a query that sees nothing gives 0.

    With `causal` a query also sees no key behind its own row. In training `drop` is applied to the weights, which are
    then all held at once.
    """
    dropping = drop is not None and drop.training
    if causal and (dropping or visible is not None):
        rows = q.shape[2]
        earlier = torch.ones(rows, rows, dtype=torch.bool, device=q.device).tril()
        visible = earlier if visible is None else visible & earlier
    if drop is not None and dropping:
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores if visible is None else scores.masked_fill(~visible, -torch.inf)
        weights: Tensor = drop(scores.softmax(-1).nan_to_num(0))
        return weights @ v
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=causal and visible is None)


def linear_attention(phi_q_BHRF: Tensor, phi_k_BHRF: Tensor, v_BHRD: Tensor, mask_BR: Tensor | None) -> Tensor:
    """Attention with weights phi_q . phi_k >= 0, normalised over the real keys, in time linear in the rows; a query
    whose weights are all 0 gives 0.
    """
    if mask_BR is not None:
        phi_k_BHRF = phi_k_BHRF.masked_fill(~mask_BR[:, None, :, None], 0)
    summed = phi_q_BHRF @ (phi_k_BHRF.mT @ v_BHRD)
    weight = phi_q_BHRF @ phi_k_BHRF.sum(-2)[..., None]
    return summed / weight.masked_fill(weight == 0, 1)
