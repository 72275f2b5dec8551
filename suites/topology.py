"""Do outputs hang on where the block grid lies, and less so after training with SAR?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING

from attnbench.record import Record, ShiftPoint
from attnbench.studies.drawing import Series, points
from attnbench.studies.measures import over_seeds, paired
from attnbench.studies.study import Arm, Arms, Drawing, Finding, Study, estimated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DROPOUT, _SHIFT = "model.dropout", "sar.shift"


def _flips(arm: Arm) -> dict[int, float]:
    """Mean share of changed answers over all shifts that are no whole block, by seed."""
    return {seed: fmean(one.flips for one in record.shifts) for seed, record in arm.records.items() if record.shifts}


def _mechanism(arm: Arm) -> str:
    return arm.label.split("+")[0]


def _training(arm: Arm) -> str:
    """How the arm was trained, in words."""
    settings = arm.settings
    regularizer = {"": "plain", "sar": f"SAR, shift {settings.get(_SHIFT, '1')}", "rdrop": "R-Drop"}
    said = regularizer.get(arm.label.partition("+")[2], arm.label.partition("+")[2])
    return said + (f", dropout {settings[_DROPOUT]}" if float(settings.get(_DROPOUT, 0)) else "")


def _by_training(arms: Arms) -> dict[str, dict[str, Arm]]:
    found: dict[str, dict[str, Arm]] = {}
    for arm in arms.values():
        found.setdefault(_mechanism(arm), {})[_training(arm)] = arm
    return found


def _invariant(trained: Mapping[str, Arm]) -> bool:
    """A mechanism without a grid: no answer changes, whatever the training."""
    flips = [rate for arm in trained.values() for rate in _flips(arm).values()]
    return bool(flips) and not any(flips)


def findings(arms: Arms) -> list[Finding]:
    found: list[Finding] = []
    for mechanism, trained in _by_training(arms).items():
        if _invariant(trained):
            continue
        if "plain" in trained:
            found.append(_moves(mechanism, trained["plain"]))
        found += [_lowers(mechanism, name, trained) for name in trained if not name.startswith("plain")]
    return found


def _moves(mechanism: str, plain: Arm) -> Finding:
    claim = f"answers of {mechanism}, trained without SAR, change when the input moves against the grid"
    return estimated(claim, f"{mechanism}: flip rate", 1, lambda: over_seeds(_flips(plain)))


def _lowers(mechanism: str, training: str, trained: Mapping[str, Arm]) -> Finding:
    """Against the same mechanism and dropout without the regularizer. SAR with dropout holds R-Drop, so there it is
    compared with that.
    """
    what, comma, dropout = training.partition(", dropout")
    other = f"{'R-Drop' if comma and what.startswith('SAR') else 'plain'}{comma}{dropout}"
    claim = f"{training} lowers the flip rate of {mechanism}, against {other}"
    if other not in trained:
        return Finding(claim, f"{mechanism}, {training}: change of the flip rate", -1, None, f"no runs: {other}")
    return _less(claim, mechanism, training, trained[training], trained[other])


def _less(claim: str, mechanism: str, training: str, arm: Arm, other: Arm) -> Finding:
    floor = (
        None if arm.above_trivial and other.above_trivial else "one of both learned no more than a trivial predictor"
    )
    measure = f"{mechanism}, {training}: change of the flip rate"
    return estimated(claim, measure, -1, lambda: paired(_flips(arm), _flips(other)), floor)


def _by_shift(
    label: str, value: Callable[[ShiftPoint], float], unmoved: Callable[[Record], float]
) -> Callable[[Arms], Figure | None]:
    """Values of each arm over the shift, a panel for each mechanism."""

    def draw(arms: Arms) -> Figure | None:
        panels: dict[str, list[Series]] = {}
        for mechanism, trained in _by_training(arms).items():
            for training, arm in trained.items():
                measured = {seed: record for seed, record in arm.records.items() if record.shifts}
                values: dict[float, dict[int, float]] = {0: {seed: unmoved(one) for seed, one in measured.items()}}
                for seed, record in measured.items():
                    for one in record.shifts:
                        values.setdefault(one.shift, {})[seed] = value(one)
                if measured:
                    panels.setdefault(f"{mechanism}: rows the input is moved", []).append(Series(training, values))
        return points(panels, arms, label, levels=False) if panels else None

    return draw


def _score(record: Record) -> float:
    assert record.quality is not None
    return record.quality.test


STUDY = Study(
    name="topology",
    question="Do outputs hang on where the block grid lies, and less so after training with SAR?",
    claim="A small change of the input, such as a shift by one token, changes which tokens a sparse attention connects "
    "and so the prediction; SAR makes predictions agree (abstract of Liu et al. 2022).",
    limits="The shift is made by masked rows in front, so real tokens keep their positions and only the grid moves. A "
    "change inside a document is not tested.",
    findings=findings,
    drawings={
        "flips": Drawing(
            "Changed answers",
            "The share of answers that change, over the rows by which the input is moved.",
            _by_shift("share of changed answers", lambda point: point.flips, lambda record: 0.0),
        ),
        "divergence": Drawing(
            "Divergence",
            "The divergence between outputs, over the rows by which the input is moved.",
            _by_shift("KL divergence, nats", lambda point: point.kl, lambda record: 0.0),
        ),
        "accuracy": Drawing(
            "Accuracy",
            "Test accuracy over the rows by which the input is moved.",
            _by_shift("test accuracy", lambda point: point.test, _score),
        ),
    },
)
