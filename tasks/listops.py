"""ListOps (Nangia and Bowman 2018) as Long Range Arena sets it (Tay et al. 2020): the value of a nested expression.

`[MAX 2 9 [MIN 4 7 ] 0 ]` is 9. Tokens are 0 to 9, four operators and a bracket; ids 1 to 15, in fixed order. Generated
here by LRA's grammar, or read from its files: docs/tasks/listops.md.
"""

from __future__ import annotations

from attnbench.contracts import Classify, Source, Task

from ._listops.expressions import VOCAB
from ._listops.levels import root_and_its_digits
from ._listops.options import Options
from ._listops.preparation import export, majority, pinned, prepare

TASK = Task(
    summary="The value of a nested expression of MIN, MAX, MED and SM over digits; LRA's ListOps",
    source=Source(
        citation="Nangia and Bowman 2018, ListOps: A Diagnostic Dataset for Latent Tree Learning; Tay et al. 2020, "
        "Long Range Arena",
        licence="generated",
        url="https://github.com/google-research/long-range-arena",
    ),
    head=lambda options: Classify(10),
    vocab=lambda options: VOCAB,
    max_length=lambda options: options.max_length,
    prepare=prepare,
    options=Options,
    chance=majority,
    levels=root_and_its_digits,
    padded=True,
    export=export,
    pinned=pinned,
)
