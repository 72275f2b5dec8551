"""Attention of other packages as functions of q, k and v (B, H, N, D), and a published training step."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.sparse import RandomBlocks

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
BLOCK = 64


class _Tail(Exception):
    """Carries the result out of a function that goes on to fill a table of all pairs of rows."""


class _TorchWithoutTail:
    """In place of `torch` in BigBird's module: the one call of `zeros` there makes that table."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *shape: Any, **more: Any) -> None:
        raise _Tail(sys._getframe(1).f_locals["context_layer"])


def transformers_bigbird(random: RandomBlocks, tail: bool = True) -> Attention:
    """As shipped, but on our random blocks: its own are drawn anew in every call, in the row before the last
    among blocks that it sees already and counts twice, and in evaluation they are all block 0. Without the `tail` it
    does not fill the table of probabilities of all pairs that it returns besides.
    """
    big_bird = pytest.importorskip(
        "transformers.models.big_bird.modeling_big_bird", reason="needs the extra hf", exc_type=ImportError
    )
    heads, length = random.heads, random.length
    drawn = random.block_map(length)[:, 1:-1].nonzero()[:, 2].view(heads, -1, random.count).numpy()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, width = len(q), q.shape[3]
        config = big_bird.BigBirdConfig(hidden_size=heads * width, num_attention_heads=heads, block_size=BLOCK)
        module = modules.setdefault(width, big_bird.BigBirdBlockSparseAttention(config, seed=0).train())
        each_head = iter(drawn)
        module._bigbird_block_rand_mask = lambda *args, **kwargs: next(each_head)
        module._bigbird_block_rand_mask_with_head = lambda **kwargs: list(drawn)
        ones = q.new_ones(batch, length)
        blocked, band, rows, columns = big_bird.BigBirdModel.create_masks_for_block_sparse_attn(ones, BLOCK)
        big_bird.torch = torch if tail else _TorchWithoutTail()
        try:
            y, _ = module.bigbird_block_sparse_attention(
                q, k, v, band, rows, columns, blocked, blocked, heads, random.count, width, BLOCK, BLOCK, batch, length,
                length, seed=0, plan_from_length=None, plan_num_rand_blocks=None,
            )  # fmt: skip
        except _Tail as cut:
            y = cut.args[0]
        finally:
            big_bird.torch = torch
        out: Tensor = y.reshape(batch, length, heads, width).transpose(1, 2)
        return out

    modules: dict[int, Any] = {}
    return attend


def xformers_blocks(shown: Tensor) -> Attention:
    """Softmax attention over the blocks shown (H, K, K), by xformers' block-sparse tensor."""
    sparse = pytest.importorskip("xformers.sparse", reason="needs xformers")
    layout = shown.to(torch.uint8)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        count = int(layout.sum())
        mask = sparse.BlockSparseTensor(q.new_ones(len(q), count, BLOCK, BLOCK), layout)
        scores = sparse.BlockSparseTensor._masked_matmul(
            q * q.shape[-1] ** -0.5, k.contiguous().transpose(-2, -1), mask
        )
        out: Tensor = torch.bmm(torch.nn.functional.softmax(scores, -1), v)
        return out

    return attend


def local_attention() -> Attention:
    """A block sees itself and a neighbour on each side."""
    package = pytest.importorskip("local_attention", reason="needs the package local-attention")
    module = package.LocalAttention(window_size=BLOCK, look_backward=1, look_forward=1, use_rotary_pos_emb=False)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y: Tensor = module(*(x.flatten(0, 1) for x in (q, k, v)))
        return y.view_as(q)

    return attend


def transformers_longformer(heads: int, width: int) -> Attention:
    """A token sees 64 tokens on each side."""
    longformer = pytest.importorskip(
        "transformers.models.longformer.modeling_longformer", reason="needs the extra hf", exc_type=ImportError
    )
    config = longformer.LongformerConfig(
        hidden_size=heads * width,
        num_attention_heads=heads,
        attention_window=[2 * BLOCK],
        attention_probs_dropout_prob=0.0,
    )
    module = longformer.LongformerSelfAttention(config, layer_id=0)
    given = {name: _Given() for name in ("query", "key", "value")}
    for name, projection in given.items():
        setattr(module, name, projection)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for projection, x in zip(given.values(), (q, k, v), strict=True):
            projection.rows = x.permute(2, 0, 1, 3).flatten(2)
        batch, length = len(q), q.shape[2]
        none = torch.zeros(batch, length, dtype=torch.bool)
        y: Tensor = module(q.new_empty(batch, length, heads * width), q.new_zeros(batch, length), none, none, False)[0]
        return y.view(batch, length, heads, width).transpose(1, 2)

    return attend


class _Given(nn.Module):
    """In place of a projection: rows that are there already."""

    rows: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.rows


class _PublishedMixer(nn.Module):
    """Softmax attention as the authors of Nystromformer train it on Long Range Arena: three projections, the whole
    table of scores, masked keys by a large number taken away, float32.
    """

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            one(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2).float() for one in (self.q, self.k, self.v)
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        scores = scores - 1e6 * (1 - mask[:, None, None, :])
        y: Tensor = torch.matmul(scores.softmax(-1), v)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(x.shape))
        return mixed


class _PublishedModel(nn.Module):
    """Their encoder with our sizes: pre-norm, learned positions, mean of the rows, a hidden layer in the head."""

    def __init__(self, dim: int, heads: int, hidden: int, layers: int, length: int, vocab: int):
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.mixers = nn.ModuleList(_PublishedMixer(dim, heads) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * layers + 1))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim)) for _ in range(layers)
        )
        self.head = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for i, (mixer, mlp) in enumerate(zip(self.mixers, self.mlps, strict=True)):
            x = mixer(self.norms[2 * i](x), mask) + x
            x = mlp(self.norms[2 * i + 1](x)) + x
        x = self.norms[-1](x) * mask[:, :, None]
        logits: Tensor = self.head(x.sum(1) / mask.sum(1, keepdim=True))
        return logits


def published_step() -> Callable[[], object]:
    """A training step of theirs, without checkpointing and dropout: 32 x 1,024 tokens, 2 layers, 64 wide, 2 heads."""
    generator = torch.Generator().manual_seed(0)
    model = _PublishedModel(64, 2, 128, 2, 1024, 256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(256, (32, 1024), generator=generator)
    labels = torch.randint(2, (32,), generator=generator)
    mask = torch.ones(32, 1024)

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens, mask), labels)
        loss.backward()
        optimizer.step()
        loss.item()

    return step
