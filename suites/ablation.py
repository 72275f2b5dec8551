"""Which parts of ERNIE-Sparse matter: HST, SAR, and the choices inside both?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from attnbench.studies.drawing import forest, rows
from attnbench.studies.measures import of_scores
from attnbench.studies.study import Arms, Drawing, Finding, Study, adjusted, estimated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Claims as pairs of arms: the first is said to be ahead of the second.
_AHEAD = (
    ("HST and SAR together beat BigBird", "hst+sar", "bigbird"),
    ("HST beats BigBird, both with SAR", "hst+sar", "bigbird+sar"),
    ("HST beats block windows without representatives, both with SAR", "hst+sar", "local+sar"),
    ("SAR helps HST", "hst+sar", "hst"),
    ("SAR helps HST at equal compute: HST alone has twice the steps", "hst+sar", "hst budget.steps=2x"),
    (
        "SAR helps HST more than R-Drop does, both with dropout",
        "hst+sar model.dropout=0.1",
        "hst+rdrop model.dropout=0.1",
    ),
    ("A window of three blocks beats the own block only", "hst+sar", "hst+sar window_blocks=1"),
    ("Representatives as rows of their own beat pooled ones", "hst+sar", "hst+sar representatives=pooled"),
    ("Replacing a representative beats adding to it", "hst+sar", "hst+sar merge=add"),
    ("The norm in front of stage 2 helps", "hst+sar", "hst+sar stage2_norm=false"),
    ("Weights shared by both stages beat separate ones", "hst+sar", "hst+sar share_projections=false"),
    ("ERNIE-Sparse beats dense attention", "hst+sar", "dense"),
    (
        "ERNIE-Sparse beats dense attention at equal compute: dense has twice the steps",
        "hst+sar",
        "dense budget.steps=2x",
    ),
)


def _named(arms: Arms) -> Arms:
    """A doubled number of steps is called so, whatever the protocol's number is."""
    found = {}
    for name, arm in arms.items():
        steps = arm.settings.get("budget.steps")
        found[name.replace(f"budget.steps={steps}", "budget.steps=2x") if steps else name] = arm
    return found


def findings(arms: Arms) -> list[Finding]:
    named, found = _named(arms), []
    for claim, first, second in _AHEAD:
        if lacking := [name for name in (first, second) if name not in named or not named[name].scores]:
            found.append(Finding(claim, f"{first} - {second}", 1, None, f"no runs: {', '.join(lacking)}"))
            continue
        one, other = named[first], named[second]
        floor = None if one.above_trivial or other.above_trivial else "neither is above the trivial predictors"
        compare = partial(of_scores, one.scores, other.scores)
        found.append(estimated(claim, f"accuracy: {first} - {second}", 1, compare, floor))
    return found


def differences(arms: Arms) -> Figure | None:
    found = adjusted(findings(arms))
    estimates = {one.measure.removeprefix("accuracy: "): one.estimate for one in found if one.estimate}
    return forest(estimates, "difference of test accuracy, with its 95 % interval")


STUDY = Study(
    name="ablation",
    question="Which parts of ERNIE-Sparse matter: HST, SAR, and the choices inside both?",
    claim="Hierarchical attention and the regularizer both improve a sparse Transformer (abstract of Liu et al. 2022).",
    limits="One generated task and one small encoder. Choices that the paper leaves open are ours "
    "(docs/ernie_sparse.md). SAR and R-Drop run the model twice a step, so arms of equal steps have not cost the same; "
    "those with twice the steps have.",
    findings=findings,
    drawings={
        "differences": Drawing("Differences", "The estimates of the findings with their intervals.", differences),
        "scores": Drawing("Scores", "The test score of every run, an arm a row.", rows),
    },
)
