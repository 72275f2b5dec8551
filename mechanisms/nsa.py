"""Native Sparse Attention (Yuan et al. 2025, sections 3.2 and 3.3), causal, as published.

Three branches share the queries and have keys and values of their own; an output is their sum, each times a gate in
0..1 (equation 5). Compressed: an MLP with a position embedding inside the block makes one key and one value of each
`compress_block` rows, `compress_stride` rows apart, and a row sees those that end at it or before (equation 7).
Selected: the probabilities of the compressed branch (equation 8), summed over the compressed blocks that overlap a
block (equation 9, indices from 1), rank the blocks; a row sees the keys of the `top_n` best up to itself (equations 11
and 12), among them always the first block, its own and the one before. Window: itself and `window` rows before.
Defaults are the paper's numbers (section 4.1): l = 32, d = 16, l' = 64, n = 16, w = 512.

Where the paper is silent, ours: gates per head, from an MLP as wide as the model; phi is shared by the heads, its
hidden layer as wide as a head; the selection has no gradient; heads select each for itself, for here each has its own
keys (`share_selection` sums over all heads, equation 10); the scores of equation 8 are scaled as in attention;
rotary positions turn queries and keys, and a compressed key stands in the middle of its block. Padding: it is not
compressed, blocks of nothing else are never seen, and the first block is the first with a real row.
"""

from __future__ import annotations

from attnbench.contracts import Mechanism, Tokens

from ._nsa import NSA, Options

MECHANISM = Mechanism(
    summary="Native Sparse Attention: compressed blocks, selected blocks and a window, mixed by gates; causal",
    paper="Yuan et al. 2025, Native Sparse Attention: Hardware-Aligned and Natively Trainable Sparse Attention",
    build=lambda shape, options: NSA(shape, options),
    options=Options,
    tokens=lambda options: Tokens(block_size=options.block_size),
    causal="only",
    family="selective",
    complexity="n + n^2/b",
)
