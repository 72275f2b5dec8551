"""The paths of xFormers: `xformers`, its block-sparse tensor, and `fmha`, memory-efficient attention with a window.

The package is loaded by the first call, without the warning that it was built for another PyTorch: neither path needs
its extension. The block-sparse tensor is made of PyTorch operations, on CUDA too.

Shape letters: B batch, H heads, K blocks, N content rows, E visible pairs of blocks, b rows of a block, D head width.
"""

from __future__ import annotations

import functools
import logging
import math
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from attnbench.contracts import Layout
from attnbench.errors import Unsupported
from attnbench.sparse.paths import Call, needs_plain_content
from attnbench.sparse.pattern import Pattern
from attnbench.sparse.topologies import BlockWindow, TokenWindow
from attnbench.sparse.topology import Causal, Topology

#: How far the logits of two rows of one call may lie apart. The softmax subtracts one maximum from all rows and clamps
#: a row's sum at exp(-55.26).
LOGIT_SPREAD = 55.0
_SMALLEST_BLOCK = 16


def _foreign_build(record: logging.LogRecord) -> bool:
    return "can't load C++/CUDA extensions" not in record.getMessage()


@functools.cache
def _xformers() -> Any:
    logger = logging.getLogger("xformers")
    logger.addFilter(_foreign_build)
    try:
        import xformers.ops
        import xformers.sparse
    finally:
        logger.removeFilter(_foreign_build)
    return xformers


def _missing() -> str | None:
    return None if find_spec("xformers") else "needs the package xformers, which is not installed"


# --- the block-sparse tensor


def blocksparse_domain(pattern: Pattern, call: Call) -> str | None:
    """See `attnbench.sparse.paths.Domain`."""
    topology, length = pattern.topology, call.layout.length
    if reason := _missing() or needs_plain_content(pattern, call):
        return reason
    if topology.block_size < _SMALLEST_BLOCK:
        return f"takes blocks of at least {_SMALLEST_BLOCK} rows, got block_size={topology.block_size}"
    if length % topology.block_size:
        return f"takes whole blocks, and {length} rows are no multiple of block_size={topology.block_size}"
    first = torch.zeros(1, 1, 1, dtype=torch.int64)
    if topology.element(first, first) is not None:
        return "shows a block whole or not at all, and this pattern has a rule inside blocks"
    if not topology.block_map(length).any(-1).all():
        return "has no row that sees nothing, and this pattern has"
    if call.dtype not in (torch.float32, torch.float64):
        return f"its softmax keeps the precision of the scores; takes float32 and float64, got {call.dtype}"
    return None


def blocksparse(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, mask: Tensor | None, layout: Layout) -> Tensor:
    """See `attnbench.sparse`."""
    package, b = _xformers(), pattern.topology.block_size
    seen_HKK = pattern.topology.block_map(layout.length).expand(q.shape[1], -1, -1).to(q.device)
    pairs = int(seen_HKK.sum())
    shape = package.sparse.BlockSparseTensor(q.new_zeros(()).expand(len(q), pairs, b, b), seen_HKK)
    scores = package.ops.masked_matmul(q * q.shape[-1] ** -0.5, k.contiguous().transpose(-2, -1), shape)
    _check_spread(scores.values().detach(), seen_HKK)
    y: Tensor = torch.softmax(scores, dim=-1) @ v.contiguous()
    return y


def _check_spread(scores_BEbb: Tensor, seen_HKK: Tensor) -> None:
    """
    Raises:
        Unsupported: a row's sum might be clamped.
    """
    head, row, _ = seen_HKK.nonzero(as_tuple=True)
    best_BEb = scores_BEbb.amax(-1)
    rows = best_BEb.new_full((len(best_BEb), seen_HKK.shape[:2].numel(), best_BEb.shape[-1]), -math.inf)
    place = (head * seen_HKK.shape[1] + row)[:, None].expand_as(best_BEb)
    spread = float(best_BEb.max() - rows.scatter_reduce(1, place, best_BEb, "amax").min()) + math.log(
        scores_BEbb.shape[-1]
    )
    if LOGIT_SPREAD < spread < math.inf:
        raise Unsupported(
            f"path xformers: rows whose largest logits lie {spread:.0f} apart; its softmax is right up to "
            f"{LOGIT_SPREAD:.0f}, use path=gather"
        )


# --- windows on CUDA


def fmha_domain(pattern: Pattern, call: Call) -> str | None:
    """See `attnbench.sparse.paths.Domain`."""
    if reason := _missing() or needs_plain_content(pattern, call):
        return reason
    if _window(pattern.topology) is None and not _is_block_diagonal(pattern.topology):
        return "has biases for a window of tokens and for blocks that see themselves alone"
    if call.dtype not in (torch.bfloat16, torch.float16):
        return f"takes bfloat16 and float16, got {call.dtype}"
    if call.width % 8 or call.width > 256:
        return f"takes heads of a multiple of 8 columns up to 256, got {call.width}"
    if torch.cuda.get_device_capability(call.device) < (8, 0):
        return "needs a GPU of compute capability 8.0"
    return None


def fmha(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, mask: Tensor | None, layout: Layout) -> Tensor:
    """See `attnbench.sparse`."""
    bias = window_bias(pattern.topology, len(q), layout.length, q.device)
    rows = [x.transpose(1, 2) for x in (q, k, v)]  # (B, N, H, D)
    if _is_block_diagonal(pattern.topology):  # a bias over the rows of the whole batch
        rows = [x.flatten(0, 1)[None] for x in rows]
    y: Tensor = _xformers().ops.memory_efficient_attention(*rows, attn_bias=bias)
    return y.view(len(q), layout.length, *y.shape[2:]).transpose(1, 2)


def window_bias(topology: Topology, batch: int, length: int, device: torch.device) -> Any:
    """The structured bias of xFormers that shows what the topology does."""
    biases = _xformers().ops.fmha.attn_bias
    if window := _window(topology):
        return biases.LocalAttentionFromBottomRightMask(*window)
    b = topology.block_size
    sizes = [min(b, length - start) for start in range(0, length, b)] * batch
    return biases.BlockDiagonalMask.from_seqlens(sizes, device=device)


def _window(topology: Topology) -> tuple[int, int] | None:
    """Tokens seen to the left and to the right."""
    inner = topology.of if isinstance(topology, Causal) else topology
    if not isinstance(inner, TokenWindow) or inner.dilation != 1:
        return None
    return inner.left, 0 if isinstance(topology, Causal) else inner.right


def _is_block_diagonal(topology: Topology) -> bool:
    return isinstance(topology, BlockWindow) and topology.window == 1
