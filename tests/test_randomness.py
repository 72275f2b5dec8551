"""Draws are functions of their names: order of data, dropout masks, initialisation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attnbench.randomness import Dropout, Stream, batch_indices, draw, initialise, key, seeded


def test_an_epoch_shows_every_example_once_and_batches_run_on_over_its_end() -> None:
    seen = np.concatenate([batch_indices(3, 50, 8, step) for step in range(25)])
    assert len(seen) == 200
    for epoch in range(4):
        assert sorted(seen[epoch * 50 : epoch * 50 + 50]) == list(range(50))
    assert not np.array_equal(seen[:50], seen[50:100]), "epochs differ in order"


def test_a_batch_depends_on_its_step_alone() -> None:
    in_order = [batch_indices(0, 30, 8, step) for step in range(12)]
    for step in (11, 3, 7, 3):
        assert np.array_equal(batch_indices(0, 30, 8, step), in_order[step])
    assert not np.array_equal(batch_indices(1, 30, 8, 0), in_order[0])


def test_draws_cover_their_range_evenly() -> None:
    found = np.bincount([draw(2, 5, 0, "shift", step) for step in range(4000)], minlength=7)
    assert found[:2].sum() == found[6:].sum() == 0
    assert all(abs(count - 1000) < 4 * np.sqrt(750) for count in found[2:6])


def test_keys_tell_their_parts_apart() -> None:
    assert len({key(1, 23), key(12, 3), key("1", 23), key(123), key(1, "23"), key("1,23")}) == 6


def masks(stream: Stream, p: float = 0.3, shape: tuple[int, int, int] = (4, 50, 40)) -> torch.Tensor:
    site = Dropout(p, "site", stream)
    return site(torch.ones(shape))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_dropped_is_p_and_the_mean_is_kept(p: float) -> None:
    kept = masks(Stream(seed=1), p, (20, 100, 100))
    share = (kept == 0).double().mean().item()
    assert abs(share - p) < 4 * np.sqrt(p * (1 - p) / kept.numel())
    assert torch.allclose(kept[kept != 0], torch.tensor(1 / (1 - p)))


def test_masks_of_neighbours_are_uncorrelated() -> None:
    kept = (masks(Stream(seed=1), 0.5, (20, 100, 100)) != 0).double().flatten() - 0.5
    for lag in (1, 2, 3, 4, 5, 8, 100):
        assert abs((kept[:-lag] * kept[lag:]).mean().item()) < 4 * 0.25 / np.sqrt(len(kept))


@pytest.mark.parametrize("change", [{"seed": 2}, {"step": 1}, {"micro": 1}, {"repeat": 1}])
def test_a_mask_is_a_function_of_the_stream_and_the_site(change: dict[str, int]) -> None:
    base = {"seed": 1, "step": 0, "micro": 0, "repeat": 0}
    torch.manual_seed(0)
    first = masks(Stream(**base))
    torch.manual_seed(1)
    assert torch.equal(masks(Stream(**base)), first)
    assert not torch.equal(masks(Stream(**{**base, **change})), first)
    assert not torch.equal(Dropout(0.3, "elsewhere", Stream(**base))(torch.ones(4, 50, 40)), first)


def test_a_token_keeps_its_mask_when_rows_are_put_in_front() -> None:
    plain = masks(Stream(seed=1, specials=3), shape=(2, 13, 8))
    moved = masks(Stream(seed=1, specials=5, shift=4), shape=(2, 19, 8))
    assert torch.equal(moved[:, 9:], plain[:, 3:])
    assert bool((moved[:, 5:9] != 0).all()), "shifted rows are masked anyway and draw nothing"


def test_dropout_is_off_in_eval_and_when_disabled() -> None:
    x = torch.randn(2, 5, 4)
    assert torch.equal(Dropout(0.5, "a", Stream()).eval()(x), x)
    assert torch.equal(Dropout(0.5, "a", Stream(enabled=False))(x), x)


def test_initialisation_is_a_function_of_seed_and_name() -> None:
    def two() -> nn.ModuleDict:
        return nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})

    one, other = two(), nn.ModuleDict({"new": nn.Linear(9, 9), "b": nn.Linear(4, 4)})
    initialise(one, 5)
    initialise(other, 5)
    assert torch.equal(one["b"].weight, other["b"].weight)
    assert not torch.equal(one["a"].weight, one["b"].weight)
    again = two()
    initialise(again, 6)
    assert not torch.equal(again["a"].weight, one["a"].weight)


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    with seeded(1, "x"):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected) and not torch.equal(inside, expected)


@given(st.integers(1, 40), st.integers(1, 100), st.integers(0, 3))
def test_batches_of_any_size_go_through_epoch_after_epoch(examples: int, batch: int, seed: int) -> None:
    steps = -(-3 * examples // batch)
    alone = [batch_indices(seed, examples, batch, step) for step in reversed(range(steps))][::-1]
    seen = np.concatenate(alone)
    for epoch in range(3):
        assert sorted(seen[epoch * examples : (epoch + 1) * examples]) == list(range(examples))


def test_the_order_of_an_epoch_is_a_fair_permutation() -> None:
    """Every example comes first about equally often over the seeds."""
    first = np.bincount([batch_indices(seed, 5, 1, 0)[0] for seed in range(2000)], minlength=5)
    assert np.all(np.abs(first - 400) < 4 * np.sqrt(2000 * 0.2 * 0.8))


@pytest.mark.parametrize("p", [0.01, 0.3, 0.75])
def test_dropout_keeps_the_mean_of_what_it_gets(p: float) -> None:
    x = torch.linspace(0.5, 1.5, 400 * 50 * 10).reshape(400, 50, 10)
    kept = Dropout(p, "site", Stream(seed=4))(x)
    error = float(x.square().mean()) ** 0.5 * np.sqrt(p / (1 - p) / x.numel())
    assert abs(float(kept.mean()) - float(x.mean())) < 4 * error


def test_dropout_draws_are_alike_for_every_row_and_column() -> None:
    dropped = (masks(Stream(seed=2), 0.25, (64, 30, 20)) == 0).double()
    for dims, count in (((0, 1), 64 * 30), ((0, 2), 64 * 20), ((1, 2), 600)):
        assert (dropped.mean(dims) - 0.25).abs().max() < 5 * np.sqrt(0.25 * 0.75 / count)


def test_special_rows_and_content_have_masks_of_their_own() -> None:
    dropped = masks(Stream(seed=1, specials=10), 0.5, (2, 20, 50)) == 0
    assert not torch.equal(dropped[:, :10], dropped[:, 10:])


def test_the_number_dropped_among_neighbours_is_binomial() -> None:
    """Chi-square over groups of 8 neighbours, which share words of the generator; 18.5 is its 99.9 % point at 4
    degrees of freedom.
    """
    p, dropped = 0.3, masks(Stream(seed=3), 0.3, (20, 100, 80)) == 0
    found = torch.bincount(dropped.view(-1, 8).sum(1), minlength=9)
    expected = torch.tensor([math.comb(8, k) * p**k * (1 - p) ** (8 - k) for k in range(9)]) * found.sum()
    found, expected = (torch.cat([x[:4].double(), x[4:].sum()[None].double()]) for x in (found, expected))
    assert ((found - expected) ** 2 / expected).sum() < 18.5


@pytest.mark.parametrize("change", [{"seed": 2}, {"step": 1}, {"micro": 1}, {"repeat": 1}, {"site": "layers.1.mlp"}])
def test_masks_of_two_draws_are_independent(change: dict[str, Any]) -> None:
    def dropped(site: str = "layers.0.mlp", **stream: int) -> torch.Tensor:
        return Dropout(0.25, site, Stream(**stream))(torch.ones(16, 100, 64)) == 0

    one, other = dropped(), dropped(**change)
    share = 0.25**2
    assert abs((one & other).double().mean().item() - share) < 4 * np.sqrt(share * (1 - share) / one.numel())


@pytest.mark.parametrize("p", [1e-4, 0.001, 1 / 256, 0.0117, 0.9999])
def test_shares_that_a_byte_cannot_tell_are_right(p: float) -> None:
    dropped = (masks(Stream(seed=5), p, (64, 250, 64)) == 0).double()
    assert abs(dropped.mean().item() - p) < 4 * np.sqrt(p * (1 - p) / dropped.numel())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_mask_is_the_same_in_every_type_and_layout(dtype: torch.dtype) -> None:
    x = torch.ones(6, 4, 5).transpose(1, 2)
    site = Dropout(0.5, "a", Stream(specials=2))
    assert torch.equal(site(x).double(), site(x.contiguous().to(dtype)).double())
    assert site(x.to(dtype)).dtype == dtype


def test_dropped_values_get_no_gradient() -> None:
    x = torch.ones(2, 30, 8, requires_grad=True)
    y = Dropout(0.4, "site", Stream(seed=1))(x)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y.detach())


def test_a_module_that_fails_inside_leaves_the_generator_alone() -> None:
    layer = nn.Linear(3, 3)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), seeded(1):
        raise ZeroDivisionError(torch.rand(5))
    assert torch.equal(torch.get_rng_state(), before)
    initialise(layer, 1)
    Dropout(0.5, "site", Stream())(torch.ones(2, 3, 4))
    draw(0, 9, "x")
    assert torch.equal(torch.get_rng_state(), before)
