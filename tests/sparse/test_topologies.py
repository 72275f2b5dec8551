"""Every topology against its definition pair by pair, and on every path against the dense one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnbench.contracts import Layout, Tokens
from attnbench.sparse import (
    PATHS,
    BlockWindow,
    Causal,
    Fixed,
    FromRule,
    Pattern,
    Strided,
    TokenWindow,
    Topology,
    end_blocks,
    visible,
)
from attnbench.sparse.topology import blocks_of


def ring(q: Tensor, k: Tensor) -> Tensor:
    return ((q - k) % 7 == 0) | (k < 2)


def by_head(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q - k).abs() <= 2 * h


Definition = Callable[[int, int, int], bool]

#: name: (topology, may head h see the pair (q, k)?)
CASES: dict[str, tuple[Topology, Definition]] = {
    "block window": (BlockWindow(4, 3), lambda h, q, k: abs(q // 4 - k // 4) <= 1),
    "block-diagonal": (BlockWindow(5, 1), lambda h, q, k: q // 5 == k // 5),
    "window": (TokenWindow(4, 6, 1), lambda h, q, k: -6 <= k - q <= 1),
    "one-sided": (TokenWindow(4, 3, 0), lambda h, q, k: 0 <= q - k <= 3),
    "wide": (TokenWindow(4, 90, 90), lambda h, q, k: True),
    "dilated": (TokenWindow(4, 2, 3, dilation=3), lambda h, q, k: -6 <= k - q <= 9 and (k - q) % 3 == 0),
    "dilated more than long": (TokenWindow(4, 1, 1, dilation=100), lambda h, q, k: q == k),
    "strided": (Strided(4, 5), lambda h, q, k: (k - q) % 5 == 0),
    "strided by a block": (Strided(4, 4), lambda h, q, k: (k - q) % 4 == 0),
    "fixed": (Fixed(4, 6, 2), lambda h, q, k: q // 6 == k // 6 or k % 6 >= 4),
    "fixed, long segments": (Fixed(4, 16, 1), lambda h, q, k: q // 16 == k // 16 or k % 16 == 15),
    "causal window": (Causal(TokenWindow(4, 6, 6)), lambda h, q, k: 0 <= q - k <= 6),
    "causal blocks": (Causal(BlockWindow(4, 3)), lambda h, q, k: k <= q and q // 4 - k // 4 <= 1),
    "causal strided": (Causal(Strided(4, 5)), lambda h, q, k: k <= q and (k - q) % 5 == 0),
    "causal fixed": (Causal(Fixed(4, 6, 2)), lambda h, q, k: k <= q and (q // 6 == k // 6 or k % 6 >= 4)),
    "causal dilated": (Causal(TokenWindow(4, 2, 3, dilation=3)), lambda h, q, k: 0 <= q - k <= 6 and (k - q) % 3 == 0),
    "union": (TokenWindow(4, 2, 2) | Fixed(4, 8, 1), lambda h, q, k: abs(q - k) <= 2 or q // 8 == k // 8 or k % 8 == 7),
    "causal union": (Causal(TokenWindow(4, 2, 2) | BlockWindow(4, 1)),
                     lambda h, q, k: k <= q and (q - k <= 2 or q // 4 == k // 4)),
    "own rule": (FromRule(4, ring), lambda h, q, k: (q - k) % 7 == 0 or k < 2),
    "own rule by head": (FromRule(4, by_head, heads=2), lambda h, q, k: abs(q - k) <= 2 * h),
    "own rule and window": (FromRule(4, ring) | BlockWindow(4, 1),
                            lambda h, q, k: (q - k) % 7 == 0 or k < 2 or q // 4 == k // 4),
}  # fmt: skip


@pytest.mark.parametrize("length", [1, 4, 5, 29, 64])
@pytest.mark.parametrize("name", CASES)
def test_the_pattern_is_the_definition(name: str, length: int) -> None:
    topology, seen = CASES[name]
    found = visible(topology, length)
    for head in range(len(found)):
        expected = [[seen(head, q, k) for k in range(length)] for q in range(length)]
        assert found[head].tolist() == expected


@pytest.mark.parametrize("length", [29, 64])
@pytest.mark.parametrize("name", CASES)
def test_only_blocks_with_a_visible_pair_are_computed(name: str, length: int) -> None:
    topology, block = CASES[name][0], blocks_of(CASES[name][0], length)
    shown, blocks = visible(topology, length), topology.blocks(length)
    needed = torch.zeros(len(shown), blocks, blocks, dtype=torch.bool)
    for head, q, k in shown.nonzero().tolist():
        needed[head, block[q], block[k]] = True
    mapped = topology.block_map(length)
    assert not (needed & ~mapped).any()
    if "union" not in name and "dilated" not in name and name != "causal strided":
        assert torch.equal(needed, mapped.expand_as(needed)), (
            "a block that shows nothing costs as much as one that does"
        )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("length", [1, 29, 64])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("path", ["gather"])
def test_a_path_equals_the_dense_one(path: str, name: str, length: int, masked: bool) -> None:
    topology = CASES[name][0]
    generator = torch.Generator().manual_seed(3)
    tokens = Tokens(globals=2, block_size=topology.block_size)
    mask = torch.rand(3, 2 + length, generator=generator) < 0.7 if masked else None
    if mask is not None:
        mask[1, 2:] = False
    results = []
    for name_of_path in (path, "dense"):
        q, k, v, up = torch.randn(4, 3, 2, 2 + length, 5, generator=generator.manual_seed(4), dtype=torch.float64)
        for tensor in (q, k, v):
            tensor.requires_grad_()
        y = PATHS[name_of_path](q, k, v, Pattern(topology), mask, Layout(tokens, length))
        weight = up if mask is None else up * mask[:, None, :, None]
        results.append([y * (weight != 0), *torch.autograd.grad((y * weight).sum(), (q, k, v))])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-9)


def test_global_content_goes_with_a_reordered_grid() -> None:
    pattern = Pattern(TokenWindow(4, 1, 1, dilation=3), content_globals=end_blocks)
    mask = torch.ones(2, 23, dtype=torch.bool)
    mask[1, 15:] = False
    q, k, v = torch.randn(3, 2, 2, 23, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layout = Tokens(block_size=4)
    gathered, dense = (PATHS[path](q, k, v, pattern, mask, Layout(layout, 23)) for path in ("gather", "dense"))
    torch.testing.assert_close(gathered[0], dense[0], atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(gathered[1, :, :15], dense[1, :, :15], atol=1e-12, rtol=1e-9)


def test_what_cannot_be_joined_is_refused() -> None:
    with pytest.raises(ValueError, match="grid of its own"):
        TokenWindow(4, 1, 1) | Strided(4, 3)
    with pytest.raises(ValueError, match="one block size"):
        TokenWindow(4, 1, 1) | BlockWindow(5)
    with pytest.raises(ValueError, match="columns=7"):
        Fixed(4, 6, 7)
    layout = Layout(Tokens(reps_per_block=1, block_size=4), 8)
    x = torch.randn(1, 1, layout.rows, 2)
    for path in ("gather", "dense"):
        with pytest.raises(ValueError, match="does not go with representatives"):
            PATHS[path](x, x, x, Pattern(Strided(4, 3)), None, layout)


def test_a_rule_is_evaluated_once_per_length() -> None:
    calls = []

    def rule(q: Tensor, k: Tensor) -> Tensor:
        calls.append(q.shape)
        return q >= k

    topology = FromRule(4, rule)
    first = topology.block_map(30)
    evaluations = len(calls)
    assert torch.equal(topology.block_map(30), first) and len(calls) == evaluations


def test_rows_of_a_rule_are_evaluated_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnbench.sparse import topologies

    whole = FromRule(4, ring).block_map(61)
    topologies._evaluated.cache_clear()
    monkeypatch.setattr(topologies, "_PAIRS_AT_ONCE", 500)
    assert torch.equal(FromRule(4, ring).block_map(61), whole)
