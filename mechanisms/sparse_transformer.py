"""Sparse Transformer, causal as published (Child et al. 2019, sections 4.2, 4.3 and 5.2); `_sparse_transformer.py` has
the definition.
"""

from __future__ import annotations

from attnbench.contracts import Mechanism, Tokens

from ._sparse_transformer import Options, build

MECHANISM = Mechanism(
    summary="Sparse Transformer: strided or fixed attention in two factors, causal",
    paper="Child et al. 2019, Generating Long Sequences with Sparse Transformers",
    build=build,
    family="block-sparse",
    options=Options,
    tokens=lambda options: Tokens(block_size=options.block_size),
    presets={"lra": {"stride": 50, "columns": 10, "first_column": True}},
    shift_invariant=lambda options: options.pattern == "strided",
    causal="only",
    complexity="n + n^2/b",
)
