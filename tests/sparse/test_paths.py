"""Every execution path equals the dense path and an independent reference; the random graph follows its seed alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Band, Drawn, Grid, Part, Window
from torch import Tensor

import attnbench
from attnbench.contracts import Layout, Tokens
from attnbench.errors import UnknownName
from attnbench.sparse import PATHS, BlockWindow, Pattern, RandomBlocks, TokenWindow, Topology, Union, end_blocks, path
from attnbench.sparse.paths import everywhere

TOLERANCE = {"atol": 1e-10, "rtol": 1e-9}

#: paths without limits; the others are in test_domains.py
EVERYWHERE = {name: run for name, run in PATHS.items() if run.domain is everywhere}


@dataclass(frozen=True)
class Case:
    """One call of a path: the engine's pattern, the same as parts of the reference, and who is real."""

    pattern: Pattern
    parts: tuple[Part, ...]
    grid: Grid
    heads: int
    width: int
    real_rows: np.ndarray
    use_mask: bool = True

    @property
    def layout(self) -> Layout:
        g = self.grid
        tokens = Tokens(globals=g.globals, reps_per_block=g.reps_per_block, block_size=g.block_size)
        return Layout(tokens, g.length)

    @property
    def mask(self) -> Tensor | None:
        return torch.from_numpy(self.real_rows) if self.use_mask else None

    def seen(self) -> Tensor:
        """(B, H, R, R) by the reference."""
        seen = reference.visible(self.parts, self.grid, self.heads, self.pattern.broadcast)
        if self.pattern.content_globals is None:
            seen = np.repeat(seen[None], len(self.real_rows), axis=0)
        else:
            seen = reference.with_content_globals(seen, self.grid, self.real_rows[:, self.grid.specials :])
        return torch.from_numpy(seen & self.real_rows[:, None, None, :])


def inputs(case: Case, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shape = (len(case.real_rows), case.heads, case.real_rows.shape[1], case.width)
    generator = torch.Generator().manual_seed(11)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for _ in range(4)]


def check(case: Case) -> None:
    """All paths, forward and backward, against the reference; padded rows as queries are compared between paths too."""
    *qkv, weighting = inputs(case)
    real = torch.from_numpy(case.real_rows)[:, None, :, None]
    found = {"reference": reference.softmax_attention(*qkv, case.seen())}
    found |= {name: run(*qkv, case.pattern, case.mask, case.layout) for name, run in EVERYWHERE.items()}
    grads = {name: torch.autograd.grad((y * weighting * real).sum(), qkv) for name, y in found.items()}
    for name in EVERYWHERE:
        assert found[name].isfinite().all()
        torch.testing.assert_close(found[name] * real, found["reference"] * real, **TOLERANCE)
        torch.testing.assert_close(found[name], found["dense"], **TOLERANCE)
        for ours, wanted in zip(grads[name], grads["reference"], strict=True):
            torch.testing.assert_close(ours, wanted, **TOLERANCE)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    block_size, length, batch = draw(st.integers(1, 6)), draw(st.integers(1, 22)), draw(st.integers(1, 3))
    heads, width = draw(st.integers(1, 3)), draw(st.sampled_from([1, 3, 24, 40, 63]))
    topologies: list[Topology] = []
    parts: list[Part] = []
    for kind in draw(st.lists(st.sampled_from(["window", "band", "random"]), min_size=1, max_size=3, unique=True)):
        if kind == "window":
            window = draw(st.sampled_from([1, 3, 5]))
            topologies.append(BlockWindow(block_size, window))
            parts.append(Window(window))
        elif kind == "band":
            left, right = draw(st.integers(0, 9)), draw(st.integers(0, 9))
            topologies.append(TokenWindow(block_size, left, right))
            parts.append(Band(left, right))
        else:
            built = length + draw(st.integers(0, 9))
            topologies.append(
                RandomBlocks(
                    block_size, count=draw(st.integers(1, 3)), length=built, heads=heads, seed=draw(st.integers(0, 9))
                )
            )
            parts.append(Drawn.of(topologies[-1].block_map(length)))
    topology = topologies[0] if len(topologies) == 1 else Union(tuple(topologies))
    grid = Grid(draw(st.integers(0, 2)), draw(st.integers(0, 2)), block_size, length)
    pattern = Pattern(
        topology,
        broadcast=bool(grid.reps_per_block) and draw(st.booleans()),
        content_globals=end_blocks if draw(st.booleans()) else None,
    )
    use_mask = draw(st.booleans())
    rows = grid.specials + length
    masks = st.lists(st.lists(st.booleans(), min_size=rows, max_size=rows), min_size=batch, max_size=batch)
    real = np.array(draw(masks)) if use_mask else np.ones((batch, rows), dtype=bool)
    return Case(pattern, tuple(parts), grid, heads, width, real, use_mask)


@settings(max_examples=150)
@given(cases())
def test_every_path_equals_the_reference(case: Case) -> None:
    check(case)


@pytest.mark.slow
@settings(max_examples=2000, derandomize=False)
@given(cases())
def test_every_path_equals_the_reference_at_length(case: Case) -> None:
    check(case)


def by_hand(
    topology: Topology,
    parts: tuple[Part, ...],
    length: int,
    real: np.ndarray | None = None,
    *,
    globals: int = 0,
    heads: int = 2,
    width: int = 4,
    by_blocks: bool = False,
) -> Case:
    """A case without representatives; `real` (B, length) are the real content rows."""
    content = np.ones((2, length), dtype=bool) if real is None else real
    rows = np.concatenate([np.ones((len(content), globals), dtype=bool), content], axis=1)
    pattern = Pattern(topology, content_globals=end_blocks if by_blocks else None)
    return Case(pattern, parts, Grid(globals, 0, topology.block_size, length), heads, width, rows, real is not None)


NAMED: dict[str, tuple[Topology, tuple[Part, ...]]] = {
    "block-diagonal": (BlockWindow(8, 1), (Window(1),)),
    "block window": (BlockWindow(8, 3), (Window(3),)),
    "token window": (TokenWindow(8, 5, 2), (Band(5, 2),)),
    "token window over many blocks": (TokenWindow(8, 20, 0), (Band(20, 0),)),
    "window with a token window": (BlockWindow(8, 1) | TokenWindow(8, 3, 11), (Window(1), Band(3, 11))),
}


@pytest.mark.parametrize("globals", [0, 3])
@pytest.mark.parametrize("width", [24, 40, 63])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 50])
@pytest.mark.parametrize("name", NAMED)
def test_odd_head_widths_and_lengths(name: str, length: int, width: int, globals: int) -> None:
    topology, parts = NAMED[name]
    check(by_hand(topology, parts, length, globals=globals, width=width))


@pytest.mark.parametrize("name", NAMED)
def test_rows_that_see_nothing_give_zeros_and_finite_gradients(name: str) -> None:
    topology, parts = NAMED[name]
    real = np.zeros((3, 40), dtype=bool)
    real[1, 3] = True
    real[2, 36:] = True
    case = by_hand(topology, parts, 40, real, width=24)
    check(case)
    nothing = ~case.seen().any(-1)
    assert nothing[0].all() and nothing[2].any()
    for run in EVERYWHERE.values():
        *qkv, weighting = inputs(case, torch.float32)
        y = run(*qkv, case.pattern, case.mask, case.layout)
        assert (y[nothing.expand_as(y[..., 0])] == 0).all()
        (y * weighting).sum().backward()
        assert all(x.grad is not None and x.grad.isfinite().all() for x in qkv)


def test_global_blocks_follow_the_real_tokens_of_each_example() -> None:
    """The first and the last real block differ over the batch; one example lies in one block, one in none."""
    real = np.zeros((5, 38), dtype=bool)
    real[0] = True
    real[1, :13] = True
    real[2, 17:30] = True
    real[2, 20:22] = False
    real[3, 9:12] = True
    case = by_hand(BlockWindow(8, 1), (Window(1),), 38, real, by_blocks=True)
    check(case)
    shown = case.seen()[:, 0].any(1)
    assert (shown == torch.from_numpy(real)).all(), "a real token is seen by its own block at least"
    seen_by_all = [np.flatnonzero(seen[real[i]].all(0)).tolist() for i, seen in enumerate(case.seen()[:, 0].numpy())]
    assert seen_by_all[0] == [*range(8), *range(32, 38)]
    assert seen_by_all[1] == list(range(13))
    assert seen_by_all[2] == [17, 18, 19, 22, 23, *range(24, 30)]
    assert seen_by_all[3] == [9, 10, 11]


def test_global_blocks_beside_random_blocks_and_global_rows() -> None:
    random = RandomBlocks(4, count=2, length=60, heads=2, seed=1, outside_window=1, avoid=(0,))
    parts = (Window(1), Drawn.of(random.block_map(7 * 4)))
    real = np.ones((2, 26), dtype=bool)
    real[1, 11:] = real[1, :5] = False
    check(by_hand(BlockWindow(4, 1) | random, parts, 26, real, globals=1, by_blocks=True))


@pytest.mark.parametrize("length", [1000, 1025])
def test_long_inputs(length: int) -> None:
    random = RandomBlocks(64, count=2, length=1100, heads=2, seed=4)
    parts = (Window(3), Drawn.of(random.block_map(length)))
    real = np.ones((2, length), dtype=bool)
    real[1, 300:500] = real[1, 900:] = False
    check(by_hand(BlockWindow(64, 3) | random, parts, length, real, globals=2))


def test_an_unknown_path_and_a_union_of_two_grids_are_refused() -> None:
    with pytest.raises(UnknownName, match="gather"):
        path("gathr")
    with pytest.raises(ValueError, match="one block size"):
        Union((BlockWindow(4), TokenWindow(8, 1, 1)))
    with pytest.raises(ValueError, match="odd"):
        BlockWindow(4, 2)


def test_two_calls_with_other_masks_do_not_share_tables() -> None:
    """Tables of a call live in its layout; masks that follow each other must not be taken for each other."""
    case = by_hand(BlockWindow(4, 1), (Window(1),), 12, np.ones((1, 12), dtype=bool))
    layout, (q, k, v, _) = case.layout, inputs(case)
    for run in EVERYWHERE.values():
        for cut in range(1, 12):
            mask = (torch.arange(12) < cut)[None]
            fresh = run(q, k, v, case.pattern, mask, case.layout)
            assert torch.equal(run(q, k, v, case.pattern, mask, layout), fresh)


# --- the random graph

GRAPH = """
import torch
from attnbench.sparse import RandomBlocks
graph = RandomBlocks(4, count=2, length=67, heads=3, seed=9, layer=1)
print("".join(str(int(bit)) for bit in graph.block_map(17 * 4).flatten()))
"""


def graph(**changes: object) -> RandomBlocks:
    return RandomBlocks(**{"block_size": 4, "count": 2, "length": 67, "heads": 3, "seed": 9, "layer": 1} | changes)


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_the_random_graph_is_the_same_in_another_process(hash_seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GRAPH], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": hash_seed}
    )
    assert done.stdout.strip() == "".join(str(int(bit)) for bit in graph().block_map(17 * 4).flatten())


def test_the_random_graph_ignores_global_random_state_and_leaves_it_alone() -> None:
    maps = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        np.random.seed(seed)
        before = torch.get_rng_state(), np.random.get_state()[1].copy()
        maps.append(graph().block_map(17 * 4))
        assert torch.equal(torch.get_rng_state(), before[0])
        np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    assert torch.equal(*maps)


def test_the_random_graph_is_drawn_once_and_cut() -> None:
    whole = graph().block_map(17 * 4)
    for blocks in range(1, 18):
        assert torch.equal(graph().block_map(blocks * 4), whole[:, :blocks, :blocks])
    with pytest.raises(ValueError, match="built for 17"):
        graph().block_map(18 * 4)


def test_the_random_graph_has_the_count_asked_for_outside_the_window() -> None:
    drawn = graph(outside_window=5, avoid=(0, 3)).block_map(17 * 4)
    assert (drawn.sum(-1) == 2).all()
    query, key = torch.arange(17)[:, None], torch.arange(17)
    assert not drawn[:, (query - key).abs() <= 2].any()
    assert not drawn[:, :, [0, 3]].any()
    everything = graph(count=99).block_map(17 * 4)
    assert torch.equal(everything, ((query - key).abs() > 1).expand(3, -1, -1))


def test_the_random_graph_depends_on_seed_layer_head_and_query() -> None:
    one = graph().block_map(17 * 4)
    assert not torch.equal(one, graph(seed=10).block_map(17 * 4))
    assert not torch.equal(one, graph(layer=2).block_map(17 * 4))
    assert not torch.equal(one[0], one[1])
    assert len({tuple(row.tolist()) for row in one.flatten(0, 1)}) > 17
    assert torch.equal(one[:2], graph(heads=2).block_map(17 * 4)), "more heads leave the first ones as they were"


def test_random_keys_are_spread_evenly() -> None:
    drawn = graph(heads=400, count=1, outside_window=1).block_map(17 * 4).double()
    np.testing.assert_allclose(drawn.mean(0)[~torch.eye(17, dtype=torch.bool)], 1 / 16, atol=0.06)


@pytest.mark.parametrize("form", ["tokens", "blocks"])
def test_bigbird_is_the_same_in_training_and_evaluation_and_at_any_padded_length(form: str) -> None:
    mixer = attnbench.build_mechanism("bigbird", dim=8, heads=2, length=40, block_size=4, random_blocks=2, globals=form)
    mixer = mixer.double()
    x = torch.randn(2, 21, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    trained = mixer.train()(x)
    assert torch.equal(trained, mixer.eval()(x))
    padded = torch.nn.functional.pad(x, (0, 0, 0, 19), value=float("nan"))
    y = mixer(padded, torch.arange(40).expand(2, -1) < 21)
    torch.testing.assert_close(y[:, :21], trained, atol=1e-10, rtol=0)
