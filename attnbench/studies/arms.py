"""The arms of a study, from its sweep: every cell with the runs that the results folder has of it."""

from __future__ import annotations

from attnbench.errors import AttnbenchError
from attnbench.outcomes import Outcome
from attnbench.standing import Examples
from attnbench.statistics import Scores
from attnbench.store import read
from attnbench.studies.study import Arm, Arms
from attnbench.sweep import Sweep


def of_sweep(sweep: Sweep) -> Arms:
    """By name, in the suite's order. Runs without a record, and trials, are left out.

    Raises:
        AttnbenchError: two cells of one name, so on two tasks.
    """
    arms: dict[str, Arm] = {}
    for place in range(len(sweep.survey.cells)):
        outcomes = {run.seed: out for run, out in sweep.outcomes.items() if run.cell == place and run.trial is None}
        arm = _arm(sweep, place, outcomes)
        if arm.name in arms:
            raise AttnbenchError(f"{sweep.suite.name}: {arm.name} is there on two tasks; a study takes one")
        arms[arm.name] = arm
    return arms


def _arm(sweep: Sweep, place: int, outcomes: dict[int, Outcome]) -> Arm:
    cell = sweep.survey.cells[place]
    found = {seed: (out.path, read(out.path)) for seed, out in sorted(outcomes.items()) if out.finished and out.path}
    examples = Examples.of(found.values())
    scores: dict[int, Scores] = {}
    for seed, (_, record) in found.items():
        if (both := examples.of_record(record.id)) is not None:
            scores[seed] = both[1]
    return Arm(
        label=cell.label,
        settings=dict(cell.own),
        records={seed: record for seed, (_, record) in found.items()},
        scores=scores,
        asked=len(sweep.suite.seeds),
        others=[out.status or out.how for out in outcomes.values() if not out.finished],
        lost=sweep.lost(place),
    )
