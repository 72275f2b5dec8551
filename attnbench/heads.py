"""The modules that answer: from the encoded documents to logits, one row for each prediction.

Shape letters: B batch, N content rows, R all rows, C width, M candidates, T predictions, Y classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.config import ModelConfig
from attnbench.contracts import Choose, Classify, Layout, Match, Span, TagTokens
from attnbench.layers import clear
from attnbench.questions import IMPOSSIBLE

Encoded = tuple[Tensor, Tensor | None, Layout]


def _pool_mean(x: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
    rows, real = x[:, layout.globals :], None if mask is None else mask[:, layout.globals :]
    if real is None:
        return rows.mean(1)
    return clear(rows, real).sum(1) / real.sum(1, keepdim=True).clamp(min=1)


def _pool_cls(x: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
    return x[:, 0]


def _pool_first(x: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
    if mask is None:
        return x[:, layout.specials]
    first = layout.specials + mask[:, layout.specials :].int().argmax(1)
    return x[torch.arange(len(x), device=x.device), first]


def _pool_last(x: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
    if mask is None:
        return x[:, -1]
    last = x.shape[1] - 1 - mask[:, layout.specials :].flip(1).int().argmax(1)
    return x[torch.arange(len(x), device=x.device), last]


#: mean: over content and representatives, global rows left out; cls: the first global row; first, last: that real row
#: of the content; Long Range Arena's code has the first where it says CLS of two documents
POOLING: dict[str, Callable[[Tensor, Tensor | None, Layout], Tensor]] = {
    "mean": _pool_mean,
    "cls": _pool_cls,
    "first": _pool_first,
    "last": _pool_last,
}


def content(encoded: Encoded) -> Tensor:
    """(B, N, C), without special rows and without the rows of a shift."""
    x, _, layout = encoded
    return x[:, layout.specials + layout.shift :]


def answer(config: ModelConfig, width: int, classes: int) -> nn.Module:
    """From `width` numbers to the logits; one linear layer unless the protocol puts hidden ones in front."""
    hidden: list[nn.Module] = []
    for inner in config.head_hidden:
        hidden += [nn.Linear(width, inner), nn.ReLU()]
        width = inner
    last = nn.Linear(width, classes)
    return nn.Sequential(*hidden, last) if hidden else last


class ClassifyHead(nn.Module):
    def __init__(self, config: ModelConfig, head: Classify):
        super().__init__()
        self.pool, self.linear = POOLING[config.pooling], answer(config, config.dim, head.classes)

    def forward(self, encoded: list[Encoded], places: Tensor | None) -> Tensor:
        logits: Tensor = self.linear(self.pool(*encoded[0]))
        return logits


class MatchHead(nn.Module):
    """On [a, b, a * b, a - b] of the two pooled documents, as most re-implementations of LRA's Retrieval have it; or on
    [a, b], as its released code has it.
    """

    def __init__(self, config: ModelConfig, head: Match):
        super().__init__()
        self.pool, self.products = POOLING[config.pooling], config.match == "products"
        self.linear = answer(config, (4 if self.products else 2) * config.dim, head.classes)

    def forward(self, encoded: list[Encoded], places: Tensor | None) -> Tensor:
        a, b = (self.pool(*one) for one in encoded)
        seen = [a, b, a * b, a - b] if self.products else [a, b]
        logits: Tensor = self.linear(torch.cat(seen, dim=-1))
        return logits


class TagTokensHead(nn.Module):
    def __init__(self, config: ModelConfig, head: TagTokens):
        super().__init__()
        self.linear = answer(config, config.dim, head.classes)

    def forward(self, encoded: list[Encoded], places_BN: Tensor) -> Tensor:
        logits: Tensor = self.linear(content(encoded[0])[places_BN])
        return logits


class ChooseHead(nn.Module):
    """A score for the row of each candidate (Beltagy et al. 2020, Longformer, on WikiHop)."""

    def __init__(self, config: ModelConfig, head: Choose):
        super().__init__()
        self.linear = answer(config, config.dim, 1)

    def forward(self, encoded: list[Encoded], places_BM: Tensor) -> Tensor:
        rows_BMC = content(encoded[0]).take_along_dim(places_BM.clamp(min=0)[..., None], dim=1)
        logits: Tensor = self.linear(rows_BMC)[..., 0].masked_fill(places_BM < 0, IMPOSSIBLE)
        return logits


class SpanHead(nn.Module):
    """Where an answer begins and where it ends, each a choice among all rows that may (Devlin et al. 2019, section
    4.2); (2 B, N), of each example first the beginning.
    """

    def __init__(self, config: ModelConfig, head: Span):
        super().__init__()
        self.linear = answer(config, config.dim, 2)

    def forward(self, encoded: list[Encoded], places_BN: Tensor) -> Tensor:
        logits_B2N = self.linear(content(encoded[0])).transpose(1, 2)
        logits: Tensor = logits_B2N.masked_fill(~places_BN[:, None], IMPOSSIBLE).flatten(0, 1)
        return logits


HEADS: dict[type, Callable[[ModelConfig, Any], nn.Module]] = {
    Classify: ClassifyHead,
    Match: MatchHead,
    TagTokens: TagTokensHead,
    Choose: ChooseHead,
    Span: SpanHead,
}


def join_right(logits_TY: Tensor, right_TY: Tensor, labels_T: Tensor) -> Tensor:
    """Logits in which the share of all right classes stands at the label: cross-entropy is then minus the logarithm of
    the sum of their probabilities (Clark and Gardner 2018, section 3.2).
    """
    together = logits_TY.masked_fill(~right_TY, -torch.inf).logsumexp(-1, keepdim=True)
    return logits_TY.masked_fill(right_TY, IMPOSSIBLE).scatter(1, labels_T[:, None], together)
