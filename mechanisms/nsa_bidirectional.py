"""Native Sparse Attention without the causal rule: our variant of `nsa` (Yuan et al. 2025, section 3.3).

A row sees all compressed blocks, selects among earlier and later blocks (always the first, its own and both neighbours)
and has `window` rows on each side. A short last block is compressed as if it were filled with padding.
"""

from __future__ import annotations

from attnbench.contracts import Mechanism, Tokens

from ._nsa import NSA, Options

MECHANISM = Mechanism(
    summary="Native Sparse Attention over earlier and later rows (our variant of nsa)",
    paper="after Yuan et al. 2025, Native Sparse Attention: Hardware-Aligned and Natively Trainable Sparse Attention",
    build=lambda shape, options: NSA(shape, options),
    options=Options,
    tokens=lambda options: Tokens(block_size=options.block_size),
    family="selective",
    complexity="n + n^2/b",
)
