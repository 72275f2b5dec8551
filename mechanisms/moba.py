"""Mixture of Block Attention (Lu et al. 2025, section 2.2), causal, as published.

A row scores every earlier block of keys by the product of its query with the mean of the block's keys (equation 6) and
sees the `top_k` - 1 best of them (equation 5) and its own block up to itself: one softmax over all these keys
(equation 2). Its own block counts as one of the top_k and no later block is ever chosen, as in the authors' code. No
weights beyond those of softmax attention; each head chooses for itself; the choice has no gradient.
Ours: means are over real keys, and a block without one is never chosen; of equal scores the earlier block wins;
block_size is that of attnbench's other mechanisms (the paper has 512, with the same top_k, in its Table 1).
"""

from __future__ import annotations

from attnbench.contracts import Mechanism, Tokens

from ._moba import MoBA, Options

MECHANISM = Mechanism(
    summary="Mixture of Block Attention: each row sees its own block and the best earlier ones; causal",
    paper="Lu et al. 2025, MoBA: Mixture of Block Attention for Long-Context LLMs",
    build=lambda shape, options: MoBA(shape, options),
    options=Options,
    tokens=lambda options: Tokens(block_size=options.block_size),
    causal="only",
    family="selective",
    complexity="n + n^2/b",
)
