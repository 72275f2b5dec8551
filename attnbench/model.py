"""The encoder, the same for every mechanism; only the mixer inside differs.

Shape letters: B batch, N content rows, R all rows, C width, T predictions, Y classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnbench.config import ModelConfig
from attnbench.contracts import Head, Layout, Mechanism, MixerShape, Tokens
from attnbench.errors import AttnbenchError, Unsupported
from attnbench.heads import HEADS
from attnbench.layers import QKVMixer, clear, positions
from attnbench.randomness import Dropout, Stream, WeightDropout, initialise, seeded

#: The least number of rows kept free for a shifted pass.
SHIFT_ROOM = 64


class SpecialTokens(nn.Module):
    """Owns the embeddings of global tokens and representatives and puts their rows in front of the content."""

    def __init__(self, dim: int, tokens: Tokens):
        super().__init__()
        self.tokens = tokens
        self.global_rows = nn.Parameter(torch.empty(tokens.globals, dim))
        self.rep_rows = nn.Parameter(torch.empty(tokens.reps_per_block, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for rows in (self.global_rows, self.rep_rows):
            if rows.numel():
                nn.init.normal_(rows)

    def insert(
        self, x_BNC: Tensor, mask_BN: Tensor | None, shift: int = 0, moved: bool = False
    ) -> tuple[Tensor, Tensor | None, Layout]:
        """All rows (B, R, C), their mask (B, R) or None, and the layout. `shift` leading rows are masked."""
        batch, length, _ = x_BNC.shape
        layout = Layout(self.tokens, length, shift, moved)
        rows = [
            self.global_rows.expand(batch, -1, -1),
            self.rep_rows.repeat(layout.blocks, 1).expand(batch, -1, -1),
            x_BNC,
        ]
        if mask_BN is not None and layout.specials:
            spare = layout.blocks * layout.block_size - length if layout.reps else 0
            real = (
                F.pad(mask_BN, (0, spare)).unflatten(1, (layout.blocks, -1)).any(-1) if layout.reps else mask_BN[:, :0]
            )
            always = mask_BN.new_ones(batch, layout.globals)
            mask_BN = torch.cat([always, real.repeat_interleave(layout.reps_per_block, dim=1), mask_BN], dim=1)
        return (torch.cat(rows, dim=1) if layout.specials else x_BNC), mask_BN, layout


class StandaloneMixer(nn.Module):
    """A mixer that takes plain (batch, length, dim): special rows go in, through the call, and out."""

    def __init__(self, mixer: nn.Module, specials: SpecialTokens, dim: int, length: int):
        super().__init__()
        self.mixer, self.specials, self.dim, self.length = mixer, specials, dim, length

    def forward(self, x: Tensor, mask: Tensor | None = None, keep_special: bool = False) -> Tensor:
        """x: (batch, length, dim), mask: (batch, length) bool -> the same shape, or all rows with `keep_special`.

        Raises:
            AttnbenchError: another shape, more rows than it was built for, or a mask that is no bool of that shape.
        """
        if x.ndim != 3 or x.shape[2] != self.dim or not 0 < x.shape[1] <= self.length:
            raise AttnbenchError(
                f"x is (batch, 1 to {self.length} rows, {self.dim}), got {tuple(x.shape)}; length is set when building"
            )
        if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
            raise AttnbenchError(f"mask is {tuple(x.shape[:2])} bool, got {tuple(mask.shape)} {mask.dtype}")
        rows, row_mask, layout = self.specials.insert(x, mask)
        y: Tensor = self.mixer(rows, row_mask, layout)
        return y if keep_special else y[:, layout.specials :]


def mixer_shape(
    mechanism: Mechanism, options: Any, *, dim: int, heads: int, length: int, causal: bool = False, **more: Any
) -> MixerShape:
    """The shape to build for content of up to `length` rows, with room for a shifted pass behind it.

    Raises:
        Unsupported: `causal` is asked of a mechanism that is not.
    """
    if causal and mechanism.causal == "no":
        raise Unsupported("this mechanism cannot be causal")
    MixerShape(dim=dim, heads=heads, length=length, **more)  # refuses what cannot be, before the room is added
    tokens = mechanism.tokens(options)
    return MixerShape(
        dim=dim,
        heads=heads,
        length=length + shift_room(tokens),
        tokens=tokens,
        causal=causal or mechanism.causal == "only",
        **more,
    )


def standalone(
    mechanism: Mechanism, options: Any, *, dim: int, heads: int, length: int, init_seed: int = 0, causal: bool = False
) -> StandaloneMixer:
    """The mechanism as a mixer that works alone; its parameters are a function of `init_seed` and their names.

    `causal` asks a mechanism that is capable of it for its causal form.
    """
    shape = mixer_shape(mechanism, options, dim=dim, heads=heads, length=length, causal=causal)
    with seeded(init_seed, "build"):
        mixer = StandaloneMixer(mechanism.build(shape, options), SpecialTokens(dim, shape.tokens), dim, length)
    initialise(mixer, init_seed)
    return mixer


def shift_room(tokens: Tokens) -> int:
    """Content rows kept free behind the longest input, at least a block; equal for all mechanisms with blocks up to
    SHIFT_ROOM, so that they share the table of positions.
    """
    return max(tokens.block_size, SHIFT_ROOM)


class EncoderLayer(nn.Module):
    """Pre-norm layer: x + drop(mixer(norm x)), then x + drop(mlp(norm x))."""

    def __init__(self, mixer: nn.Module, config: ModelConfig, site: str, stream: Stream):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.dim), nn.LayerNorm(config.dim)
        self.mixer = mixer
        self.mlp = nn.Sequential(nn.Linear(config.dim, config.mlp), nn.GELU(), nn.Linear(config.mlp, config.dim))
        self.drop1 = Dropout(config.dropout, f"{site}.mixer", stream)
        self.drop2 = Dropout(config.dropout, f"{site}.mlp", stream)

    def forward(self, x: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
        mixed: Tensor = self.mixer(self.norm1(x), mask, layout)
        if mixed.shape != x.shape:  # it might broadcast in silence
            raise AttnbenchError(f"the mechanism returned {tuple(mixed.shape)} for rows of shape {tuple(x.shape)}")
        x = x + self.drop1(mixed)
        y: Tensor = x + self.drop2(self.mlp(self.norm2(x)))
        return y


class Encoder(nn.Module):
    """Embedding, positions, special rows, layers, final norm. A mechanism that ignores masks is handed none: for it
    padding is content, rows of zeros in front of the first layer.
    """

    def __init__(self, config: ModelConfig, mechanism: Mechanism, options: Any, vocab: int, max_length: int):
        super().__init__()
        self.config, self.stream = config, Stream()
        shape = mixer_shape(
            mechanism, options, dim=config.dim, heads=config.heads, length=max_length, causal=config.causal,
            qkv=config.qkv, bias=config.qkv_bias, rotary=config.positions == "rotary",
        )  # fmt: skip
        self.masked_mixers = mechanism.honours(options)
        extra = 1 if config.pooling == "cls" else 0
        if extra and shape.causal:
            raise Unsupported("pooling=cls puts a row in front, which a causal mechanism cannot fill; use mean or last")
        tokens = replace(shape.tokens, globals=shape.tokens.globals + extra)
        self.embedding = nn.Embedding(vocab, config.dim)
        self.positions = POSITIONS[config.positions](shape.length, config.dim)
        self.last_position = shape.length - 1
        self.specials = SpecialTokens(config.dim, tokens)
        self.drop = Dropout(config.dropout, "embedding", self.stream)
        self.layers = nn.ModuleList(
            EncoderLayer(self._mixer(mechanism, options, shape, tokens, i), config, f"layers.{i}", self.stream)
            for i in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.dim)

    def _mixer(self, mechanism: Mechanism, options: Any, shape: MixerShape, tokens: Tokens, layer: int) -> nn.Module:
        mixer = mechanism.build(replace(shape, tokens=tokens, layer=layer), options)
        for asked, what in self._of_projections().items():
            if not isinstance(mixer, QKVMixer):
                raise Unsupported(f"{asked} {what}, and this mechanism does not use attnbench's")
        if rate := self.config.attention_dropout:
            if not getattr(mixer, "drops_weights", False):
                raise Unsupported(f"attention_dropout={rate} drops attention weights, and this mechanism holds none")
            mixer.drop = WeightDropout(rate, f"layers.{layer}.weights", self.stream)
        return mixer

    def _of_projections(self) -> dict[str, str]:
        """What is asked of queries, keys and values, and why only attnbench's can do it."""
        config = self.config
        asked = {
            "positions=rotary": ("turns queries and keys", config.positions == "rotary"),
            f"qkv={config.qkv}": ("is the width of queries, keys and values", config.qkv is not None),
            "qkv_bias=false": ("takes the bias from queries, keys and values", not config.qkv_bias),
        }
        return {name: what for name, (what, wanted) in asked.items() if wanted}

    def forward(
        self, tokens_BN: Tensor, mask_BN: Tensor | None, shift: int = 0, move_positions: bool = False
    ) -> tuple[Tensor, Tensor | None, Layout]:
        """(B, N) ids -> rows (B, R, C), their mask, their layout. `shift` masked rows stand in front."""
        if shift:
            mask_BN = torch.ones_like(tokens_BN, dtype=torch.bool) if mask_BN is None else mask_BN
            tokens_BN, mask_BN = F.pad(tokens_BN, (shift, 0)), F.pad(mask_BN, (shift, 0))
        x, mask, layout = self.specials.insert(self.embedding(tokens_BN), mask_BN, shift, move_positions)
        where = positions(layout, x.device)[layout.globals :].clamp(max=self.last_position)
        placed = self.positions(where)
        x = clear(x + F.pad(placed, (0, 0, layout.globals, 0)), mask)
        self.stream.specials, self.stream.shift = layout.specials, shift
        x = self.drop(x)
        for layer in self.layers:
            x = layer(x, mask if self.masked_mixers else None, layout)
        return self.norm(x), mask, layout


class Sinusoidal(nn.Module):
    """Fixed positions (Vaswani et al. 2017, section 3.5)."""

    def __init__(self, length: int, dim: int):
        super().__init__()
        angle = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(0, dim, 2) / dim)
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :dim]
        self.register_buffer("table", table, persistent=False)

    def forward(self, positions_R: Tensor) -> Tensor:
        found: Tensor = self.get_buffer("table")[positions_R]
        return found


class NoPositions(nn.Module):
    def __init__(self, length: int, dim: int):
        super().__init__()
        self.register_buffer("zero", torch.zeros(1, dim), persistent=False)

    def forward(self, positions_R: Tensor) -> Tensor:
        return self.get_buffer("zero").expand(len(positions_R), -1)


#: rotary positions enter inside the mixer
POSITIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "learned": nn.Embedding,
    "sinusoidal": Sinusoidal,
    "rotary": NoPositions,
    "none": NoPositions,
}


class Model(nn.Module):
    """Encoder and head: documents in, logits (T, Y) out, one row for each prediction."""

    def __init__(
        self, config: ModelConfig, mechanism: Mechanism, options: Any, head: Head, vocab: int, max_length: int
    ):
        super().__init__()
        self.encoder = Encoder(config, mechanism, options, vocab, max_length)
        self.head = HEADS[type(head)](config, head)

    @property
    def stream(self) -> Stream:
        return self.encoder.stream

    def count_parameters(self) -> tuple[int, int]:
        """In total, and in the mixers."""
        sizes = {name: parameter.numel() for name, parameter in self.named_parameters()}
        return sum(sizes.values()), sum(size for name, size in sizes.items() if ".mixer." in name)

    def plain_parameters(self) -> int:
        """In total, if the mixers were plain attention: projections to queries, keys and values, and one behind."""
        config, (total, mixers) = self.encoder.config, self.count_parameters()
        shape = MixerShape(dim=config.dim, heads=config.heads, length=1, qkv=config.qkv, bias=config.qkv_bias)
        with torch.device("meta"):
            plain = sum(parameter.numel() for parameter in QKVMixer(shape).parameters())
        return total - mixers + config.layers * plain

    def refusal(self, length: int, masked: bool, dtype: torch.dtype, device: torch.device) -> str | None:
        """Why the mechanism cannot be trained on inputs of this length, or None."""
        masked = masked and self.encoder.masked_mixers
        layout = Layout(self.encoder.specials.tokens, length)
        mixers = [layer.mixer for layer in self.encoder.layers if isinstance(layer.mixer, QKVMixer)]
        return next(filter(None, (mixer.refusal(layout, masked, dtype, device) for mixer in mixers)), None)

    def forward(
        self,
        documents: Sequence[tuple[Tensor, Tensor | None]],
        places: Tensor | None,
        shift: int = 0,
        move_positions: bool = False,
    ) -> Tensor:
        """documents: (tokens (B, N) int64, mask (B, N) bool or None) each; places: see `attnbench.questions.Asked`."""
        encoded = [self.encoder(tokens, mask, shift, move_positions) for tokens, mask in documents]
        logits: Tensor = self.head(encoded, places)
        return logits if logits.dtype == torch.float64 else logits.float()
