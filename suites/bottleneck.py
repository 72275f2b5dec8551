"""Does accuracy hang on the number of global tokens, and less so in HST?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from attnbench.studies.drawing import Series, points
from attnbench.studies.measures import of_scores, over_seeds, paired, slopes
from attnbench.studies.study import Arm, Arms, Drawing, Finding, Study, estimated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KEY = "global_tokens"
_OTHERS = ("bigbird", "longformer")
_MEASURE = "accuracy gained with each doubling of 1 + global tokens"


def _globals(arm: Arm) -> int:
    return int(arm.settings[_KEY])


def _ladder(arms: Arms, mechanism: str) -> dict[int, Arm]:
    """By the number of global tokens, of those numbers that HST has too."""
    steps = {_globals(arm) for arm in arms.values() if arm.label == "hst" and _KEY in arm.settings}
    found = {_globals(arm): arm for arm in arms.values() if arm.label == mechanism and _KEY in arm.settings}
    return {count: found[count] for count in sorted(found.keys() & steps)}


def _own_slots(arms: Arms) -> int:
    """Representatives that HST has beside its global tokens."""
    for arm in _ladder(arms, "hst").values():
        for record in arm.records.values():
            options, length = record.spec.mechanism.options, record.spec.task.max_length
            return int(options["reps_per_block"]) * -(-length // int(options["block_size"]))
    return 0


def _slopes(arms: Arms, mechanism: str) -> dict[int, float]:
    return slopes({count: arm.tests for count, arm in _ladder(arms, mechanism).items()})


def _at_the_floor(arms: Arms, *mechanisms: str) -> str | None:
    """A mechanism that learns nothing is flat too."""
    for mechanism in mechanisms:
        ladder = _ladder(arms, mechanism)
        if ladder and not any(arm.above_trivial for arm in ladder.values()):
            return f"{mechanism} is nowhere above the trivial predictors"
    return None


def findings(arms: Arms) -> list[Finding]:
    found = [_needs_globals(arms, mechanism) for mechanism in _OTHERS]
    found += [_flatter(arms, mechanism) for mechanism in _OTHERS]
    return [*found, _hst_slope(arms), *_at_equal_slots(arms)]


def _needs_globals(arms: Arms, mechanism: str) -> Finding:
    return estimated(
        f"{mechanism} gets better with more global tokens",
        f"{mechanism}: {_MEASURE}",
        1,
        lambda: over_seeds(_slopes(arms, mechanism)),
        _at_the_floor(arms, mechanism),
    )


def _flatter(arms: Arms, mechanism: str) -> Finding:
    return estimated(
        f"HST depends on global tokens less than {mechanism} does",
        f"{mechanism} - hst: {_MEASURE}",
        1,
        lambda: paired(_slopes(arms, mechanism), _slopes(arms, "hst")),
        _at_the_floor(arms, mechanism, "hst"),
    )


def _hst_slope(arms: Arms) -> Finding:
    return estimated(
        "HST itself still gets better with more global tokens",
        f"hst: {_MEASURE}",
        1,
        lambda: over_seeds(_slopes(arms, "hst")),
        _at_the_floor(arms, "hst"),
    )


def _at_equal_slots(arms: Arms) -> list[Finding]:
    """The control: BigBird with as many global tokens as HST has global tokens and representatives."""
    own, hst = _own_slots(arms), _ladder(arms, "hst")
    by_count = {_globals(arm): arm for arm in arms.values() if arm.label == "bigbird" and _KEY in arm.settings}
    pairs = [(count, arm, by_count[count + own]) for count, arm in hst.items() if own and count + own in by_count]

    return [
        estimated(
            f"With {count + own} shared slots each, HST ({count} of them global tokens) is ahead of BigBird",
            "accuracy: hst - bigbird",
            1,
            partial(of_scores, one.scores, other.scores),
        )
        for count, one, other in pairs
    ]


def figure(arms: Arms) -> Figure | None:
    """Accuracy over global tokens, and over all slots that blocks share: global tokens and representatives."""
    own = _own_slots(arms)
    plain, slots = [], []
    for mechanism in ("hst", *_OTHERS):
        ladder = _ladder(arms, mechanism)
        plain.append(Series(mechanism, {count: arm.tests for count, arm in ladder.items()}))
        every = {_globals(arm): arm for arm in arms.values() if arm.label == mechanism and _KEY in arm.settings}
        extra = own if mechanism == "hst" else 0
        slots.append(Series(mechanism, {count + extra: arm.tests for count, arm in sorted(every.items())}))
    panels = {"global tokens": plain, "global tokens + representatives": slots}
    return points(panels, arms, "test accuracy", doubling=True)


STUDY = Study(
    name="bottleneck",
    question="Does accuracy hang on the number of global tokens, and less so in HST?",
    claim="In a sparse Transformer a few global tokens carry all that passes between distant blocks, so their number "
    "is a bottleneck; HST's representatives remove it (abstract of Liu et al. 2022).",
    limits="One generated task with facts that no window reaches, and one small encoder: the paper's claim at its own "
    "size is not tested. No CLS row, no random blocks: one row that reads everything would void the question.",
    findings=findings,
    drawings={
        "accuracy": Drawing(
            "Accuracy and shared slots",
            "Test accuracy over the number of global tokens, and over that of global tokens and representatives.",
            figure,
        )
    },
)
