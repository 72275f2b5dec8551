"""Sparse Transformer without direction: the sets of Child et al. 2019 without j <= i (ours);
`_sparse_transformer.py` has the definition.
"""

from __future__ import annotations

from attnbench.contracts import Mechanism, Tokens

from ._sparse_transformer import Options, build

MECHANISM = Mechanism(
    summary="Sparse Transformer: strided or fixed attention in two factors, in both directions",
    paper="Child et al. 2019, Generating Long Sequences with Sparse Transformers",
    build=build,
    family="block-sparse",
    options=Options,
    tokens=lambda options: Tokens(block_size=options.block_size),
    shift_invariant=lambda options: options.pattern == "strided",
    complexity="n + n^2/b",
)
