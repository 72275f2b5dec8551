"""ERNIE-Sparse (Liu et al. 2022): the Hierarchical Sparse Transformer trained with Self-Attention Regularization.

Our interpretation of the published description; docs/ernie_sparse.md says which lines are sourced and which are ours.
"""

from __future__ import annotations

from attnbench.contracts import Cell

MECHANISM = Cell(
    summary="ERNIE-Sparse: HST trained with SAR (an interpretation of the paper)",
    paper="Liu et al. 2022, ERNIE-SPARSE: Learning Hierarchical Efficient Transformer "
    "Through Regularized Self-Attention",
    mechanism="hst",
    regularizer="sar",
)
