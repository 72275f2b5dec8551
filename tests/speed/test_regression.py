"""Two measurements: a change that is there is found, and noise and drift are none."""

from __future__ import annotations

import pytest
from speed.speed_data import cell, result, samples

from attnbench.errors import AttnbenchError
from attnbench.speed.regression import Change, compare, other_circumstances
from attnbench.speed.result import Setting, SpeedResult

MECHANISMS = [f"m{i}" for i in range(12)]


def measured(
    seed: int, factors: dict[str, float] | None = None, machine: float = 1.0, noise: float = 0.03
) -> SpeedResult:
    """Twelve cells; `factors` on the times of some, `machine` on all and the yardstick."""
    cells = [
        cell(name, 256, samples(0.01 * machine * (factors or {}).get(name, 1.0), noise=noise, seed=1000 * seed + i))
        for i, name in enumerate(MECHANISMS)
    ]
    return result(cells, samples(0.02 * machine, noise=noise, seed=1000 * seed + 999))


def verdicts(changes: list[Change]) -> dict[str, str]:
    return {one.mechanism: one.verdict for one in changes}


@pytest.mark.parametrize(("factor", "word"), [(1.3, "slower"), (1 / 1.3, "faster")])
def test_a_change_of_a_third_is_found_and_nothing_else(factor: float, word: str) -> None:
    changes = compare(measured(1), measured(2, {"m3": factor}))
    assert verdicts(changes) == {name: word if name == "m3" else "same" for name in MECHANISMS}
    changed = changes[3]
    assert changed.time is not None and changed.beside is not None
    for found in (changed.time, changed.beside):
        assert found.low < factor < found.high and found.high / found.low < 1.15


def test_no_change_gives_no_flag_and_intervals_hold_the_truth() -> None:
    """Over 60 pairs of equal measurements: about one in twenty has any flag, 95 % of the intervals hold 1."""
    flagged, held = 0, 0
    for seed in range(60):
        changes = compare(measured(2 * seed + 10), measured(2 * seed + 11))
        flagged += any(one.verdict != "same" for one in changes)
        held += sum(one.time.low <= 1 <= one.time.high for one in changes if one.time)
    assert flagged <= 8  # 3 expected; 9 or more by chance once in 300
    assert 0.93 <= held / (60 * len(MECHANISMS)) <= 0.97


def test_a_slower_machine_is_not_a_slower_mechanism() -> None:
    changes = compare(measured(3), measured(4, {"m3": 1.3}, machine=1.3))
    assert verdicts(changes) == {name: "slower" if name == "m3" else "machine" for name in MECHANISMS}


def test_a_drift_inside_both_is_taken_out_beside_the_yardstick() -> None:
    """Three times slower at the end: the interval of the times says little, that beside the yardstick a lot."""

    def drifting(seed: int, factor: float) -> SpeedResult:
        cells = [cell("mine", 256, samples(0.01 * factor, noise=0.02, seed=seed, drift=2.0))]
        return result(cells, samples(0.02, noise=0.02, seed=seed + 1, drift=2.0))

    (change,) = compare(drifting(1, 1.0), drifting(5, 1.3))
    assert change.time is not None and change.beside is not None
    assert change.beside.low < 1.3 < change.beside.high
    assert change.beside.high / change.beside.low < 1.1 < change.time.high / change.time.low


@pytest.mark.parametrize(
    ("base", "new", "verdict"),
    [
        (cell("a", 1, samples(1.0)), cell("a", 1), "ok, now oom"),
        (cell("a", 1), cell("a", 1), "same"),
        (cell("a", 1, samples(1.0, rounds=2)), cell("a", 1, samples(2.0)), "too few rounds"),
        (cell("a", 1, samples(1.0)), cell("a", 1, samples(2.0)), "slower (no matmul to tell the machine's drift)"),
        (cell("a", 1, samples(1.0)), cell("a", 1, samples(1.0)), "same"),
    ],
    ids=["lost", "both lost", "few", "no spread, changed", "no spread, equal"],
)
def test_what_cannot_be_compared_is_said(base: object, new: object, verdict: str) -> None:
    (change,) = compare(result([base]), result([new]))  # type: ignore[list-item]
    assert change.verdict == verdict


def test_memory_is_compared_too() -> None:
    one, other = (result([cell("a", 1, samples(1.0), peak_bytes=size)]) for size in (100, 150))
    assert compare(one, other)[0].memory == 1.5


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"setting": Setting(batch=2, threads=1)}, "batch 1 and 2"),
        ({"clock": "CUDA events"}, "different clocks"),
        ({"cells": [cell("b", 1, samples(1.0))]}, "no mechanism and length in common"),
    ],
)
def test_different_questions_are_not_compared(more: dict[str, object], words: str) -> None:
    other = result([cell("a", 1, samples(1.0))]).model_copy(update=more)
    with pytest.raises(AttnbenchError, match=words):
        compare(result([cell("a", 1, samples(1.0))]), other)


def test_numbers_of_rounds_and_of_layers_outside_a_step_may_differ() -> None:
    other = result([cell("a", 1, samples(1.0))], setting=Setting(threads=1, rounds=99, warmup=9, layers=7))
    assert compare(result([cell("a", 1, samples(1.0))]), other)


def test_other_circumstances_are_told() -> None:
    one = result([cell("a", 1, samples(1.0))])
    two = result(
        [cell("a", 1, samples(1.0), options={"b": 2})], machine={"id": "babe", "cpu": "y"},
        software={"torch": "2.14.0"}, interleaved=False,
    )  # fmt: skip
    notes = "\n".join(other_circumstances(one, two))
    for words in ("two machines: x and y", "torch 2.13.0 and 2.14.0", "a: other options", "not interleaved"):
        assert words in notes
    assert other_circumstances(one, one) == []
