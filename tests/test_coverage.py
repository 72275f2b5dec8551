"""How often intervals of differences hold the truth, and how often a difference shows where there is none, simulated.

An example is right where a sum of normal draws is above a level: how easy it is, how much it suits the mechanism (the
same in every seed), how well the training went (the same in every example), and noise. The true share right, over
examples and trainings, is then a value of the normal distribution.

93 to 97 % of intervals should hold the truth. With SIMULATIONS = 10_000 and `pytest -s`, over all worlds below:

- three seeds 95.2 to 97.3 %, five 94.9 to 96.5 %; the most where examples prefer and trainings are alike. That is the
  price of two seeds' worth of freedom: the root of summed squares of both half-widths (MOVER) came to 98 % there,
  Satterthwaite's degrees of freedom to 92 % where both parts are alike;
- one seed 94.7 to 96.7 %, but 98.6 % where nearly all answers are right (McNemar's exact test is cautious with few).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from attnbench.comparison import difference, of_column

pytestmark = pytest.mark.slow

SIMULATIONS = 1000
EXAMPLES = 200
#: Standard error of a share of that many simulations.
ERROR = math.sqrt(0.05 * 0.95 / SIMULATIONS)
NULL, EFFECT, NEAR_1 = (0.5, 0.5), (1.0, 0.5), (3.0, 3.2)


@dataclass(frozen=True)
class World:
    """Standard deviations: of the examples' ease, of what suits a mechanism, and of trainings. Noise has 1."""

    suits: float
    trainings: float
    ease: float = 1.0

    def share(self, level: float) -> float:
        """The true share right."""
        return float(stats.norm.cdf(level / math.sqrt(1 + self.suits**2 + self.trainings**2 + self.ease**2)))

    def scores(self, levels: tuple[float, ...], seeds: int, generator: np.random.Generator) -> np.ndarray:
        """Right or wrong, (mechanisms, S, N)."""
        count = len(levels)
        sums = np.asarray(levels)[:, None, None] + self.ease * generator.standard_normal(EXAMPLES)
        sums = sums + self.suits * generator.standard_normal((count, 1, EXAMPLES))
        sums = sums + self.trainings * generator.standard_normal((count, seeds, 1))
        scores: np.ndarray = (sums + generator.standard_normal((count, seeds, EXAMPLES)) > 0).astype(np.float64)
        return scores


WORLDS = {
    "no preference, trainings alike": World(suits=0.0, trainings=0.02),
    "no preference, trainings apart": World(suits=0.0, trainings=0.3),
    "examples prefer, trainings alike": World(suits=1.0, trainings=0.02),
    "examples prefer, trainings apart": World(suits=1.0, trainings=0.3),
}


def cells(scores: np.ndarray) -> list[dict[int, np.ndarray]]:
    return [dict(enumerate(mechanism)) for mechanism in scores]


def simulated(world: World, levels: tuple[float, ...], seeds: int) -> Iterator[np.ndarray]:
    for number in range(SIMULATIONS):
        yield world.scores(levels, seeds, np.random.default_rng([seeds, number]))


@pytest.mark.parametrize("levels", [NULL, EFFECT], ids=["null", "effect"])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("seeds", [3, 5])
def test_over_seeds_the_interval_holds_the_truth(seeds: int, world: str, levels: tuple[float, float]) -> None:
    truth = WORLDS[world].share(levels[0]) - WORLDS[world].share(levels[1])
    found = [difference("a", "b", *cells(scores)) for scores in simulated(WORLDS[world], levels, seeds)]
    held = np.mean([one.low <= truth <= one.high for one in found])
    shown = np.mean([one.differs for one in found])
    print(f"{seeds} seeds, {world}, {truth:.3f}: held {held:.4f}, shown {shown:.4f}")
    assert 0.93 <= held <= 0.97 + 2 * ERROR
    if levels == NULL:
        assert shown <= 0.05 + 2 * ERROR
    elif world == "no preference, trainings alike":
        assert shown > 0.7


@pytest.mark.parametrize("suits", [0.0, 1.0])
@pytest.mark.parametrize("answers", [1, 8], ids=["right or wrong", "a share of eight"])
@pytest.mark.parametrize("levels", [NULL, EFFECT, NEAR_1], ids=["null", "effect", "nearly all right"])
def test_with_one_seed_the_interval_holds_the_truth_of_these_two_models(
    levels: tuple[float, float], answers: int, suits: float
) -> None:
    """The models stay, the examples are drawn. Each holds one answer, or eight that share its ease."""
    world = World(suits, trainings=0.0)
    truth = world.share(levels[0]) - world.share(levels[1])
    held, shown = [], []
    for scores in simulated(world, levels, answers):
        one = difference("a", "b", *({0: mechanism.mean(0)} for mechanism in scores))
        held.append(one.low <= truth <= one.high)
        shown.append(one.differs)
    print(
        f"1 seed, {answers} answers, suits {suits}, {truth:.3f}: held {np.mean(held):.4f}, shown {np.mean(shown):.4f}"
    )
    assert np.mean(held) >= 0.93 and (np.mean(held) <= 0.97 + 2 * ERROR or (levels, answers) == (NEAR_1, 1))
    assert levels != NULL or np.mean(shown) <= 0.05 + 2 * ERROR


@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_of_six_equals_one_pair_differs_no_more_often_than_the_level(
    seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gc.collect", lambda: 0)  # statsmodels' multipletests calls it, 50 ms each
    world = World(suits=0.0, trainings=0.0 if seeds == 1 else 0.1)
    columns = (dict(zip("abcdef", cells(scores), strict=True)) for scores in simulated(world, (0.5,) * 6, seeds))
    found = [of_column(column) for column in columns]
    print(f"{seeds} seeds, six equals: {np.mean([any(one.differs for one in column) for column in found]):.4f}")
    assert np.mean([any(one.differs for one in column) for column in found]) <= 0.05 + 2 * ERROR
    assert np.mean([any(one.p < 0.05 for one in column) for column in found]) > 0.1  # what the adjustment is for


def test_simpler_intervals_hold_the_truth_too_seldom() -> None:
    """t over seeds forgets that all are tested on the same examples; a bootstrap of three has ten means to draw."""
    world = World(suits=1.5, trainings=0.02)
    truth = world.share(EFFECT[0]) - world.share(EFFECT[1])
    by_seed = np.stack([(a - b).mean(1) for a, b in simulated(world, EFFECT, 3)])
    half = stats.t.ppf(0.975, 2) * by_seed.std(1, ddof=1) / math.sqrt(3)
    over_seeds = np.mean(np.abs(by_seed.mean(1) - truth) <= half)
    draws = by_seed[:, np.array(list(itertools.product(range(3), repeat=3)))].mean(2)
    low, high = np.quantile(draws, (0.025, 0.975), axis=1)
    bootstrap = np.mean((low <= truth) & (truth <= high))
    one_model = WORLDS["no preference, trainings apart"]
    of_one = [difference("a", "b", *cells(scores)) for scores in simulated(one_model, NULL, 1)]
    one_seed = np.mean([not one.differs for one in of_one])
    print(f"t over seeds {over_seeds:.4f}, bootstrap {bootstrap:.4f}, one seed for all trainings {one_seed:.4f}")
    assert over_seeds < 0.9 and bootstrap < 0.7 and one_seed < 0.7
