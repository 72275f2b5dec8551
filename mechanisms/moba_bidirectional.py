"""Mixture of Block Attention without the causal rule: our variant of `moba` (Lu et al. 2025, section 2.2).

All blocks are candidates, earlier and later alike; a row sees its whole own block and the `top_k` - 1 best others.
"""

from __future__ import annotations

from attnbench.contracts import Mechanism, Tokens

from ._moba import MoBA, Options

MECHANISM = Mechanism(
    summary="Mixture of Block Attention over earlier and later blocks (our variant of moba)",
    paper="after Lu et al. 2025, MoBA: Mixture of Block Attention for Long-Context LLMs",
    build=lambda shape, options: MoBA(shape, options),
    options=Options,
    tokens=lambda options: Tokens(block_size=options.block_size),
    family="selective",
    complexity="n + n^2/b",
)
