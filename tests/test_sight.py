"""`attnbench show --plot`: what a sparse mechanism sees, as numbers and as a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch
import truth
from factories import portable_mechanisms

import attnbench
from attnbench import cli, sight
from attnbench.contracts import Layout
from attnbench.errors import AttnbenchError, UnknownName
from attnbench.sparse.dense import visibility

SMALL = {"block_size": 4, "window": 3, "random_blocks": 1, "stride": 6, "columns": 2}


def small(name: str) -> dict[str, Any]:
    from attnbench.choice import load_mechanism
    from attnbench.options import field_names

    names = field_names(load_mechanism(name).object.options)
    return {key: value for key, value in SMALL.items() if key in names}


def sparse() -> list[str]:
    found = []
    for name in portable_mechanisms():
        mixer = attnbench.build_mechanism(name, dim=4, heads=2, length=8).mixer
        found += [name] if hasattr(mixer, "pattern") else []
    return found


@pytest.mark.parametrize("name", sparse())
def test_one_layer_reaches_what_its_pattern_shows(name: str) -> None:
    """And what a mechanism does beside its pattern, which adds to it."""
    seen = sight.look(name, small(name), 29)
    mixer = attnbench.build_mechanism(name, dim=4, heads=2, length=29, **small(name)).mixer
    groups = getattr(mixer, "groups", [(2, mixer.pattern)])
    layout = Layout(seen.layout.tokens, 29)
    shown = torch.stack([visibility(p, None, layout, 1, torch.device("cpu"))[0].any(0) for _, p in groups]).any(0)
    shown |= torch.eye(layout.rows, dtype=torch.bool)
    assert not (shown.numpy() & ~seen.reach[0]).any()
    if not layout.reps:
        assert (shown.numpy() == seen.reach[0]).all()


def test_combs_are_those_of_the_length_drawn() -> None:
    found = sight.look("disjoint_local", {"block_size": 5, "groups": "comb"}, 23)
    assert (found.reach[0] == truth.pairs(lambda h, q, k: (q - k) % 5 == 0, 1, 23)[0, 0]).all()
    assert found.density[0] == found.reach[0].mean() and (found.reach[2] == found.reach[0]).all()


def test_reach_grows_by_the_window_of_each_layer() -> None:
    found = sight.look("longformer", {"window": 2, "window_growth": 2, "global_tokens": 0, "block_size": 4}, 40)
    for reached, radius in zip(found.reach, (2, 2 + 4, 2 + 4 + 8), strict=True):
        assert (reached == truth.pairs(lambda h, q, k, r=radius: abs(q - k) <= r, 1, 40)[0, 0]).all()


def test_reach_of_representatives_and_of_the_second_stage() -> None:
    """Layer 1: a representative reaches all blocks in its second stage; layer 2: it hands them to its block."""
    found = sight.look("hst", {"block_size": 4, "window_blocks": 1}, 12)
    first, second, _ = found.reach
    reps, block = found.layout.specials, np.arange(12) // 4
    assert reps == 3 and first[:reps, reps:].all()
    assert (first[reps:, reps:] == (block[:, None] == block)).all()
    assert (first[reps:, :reps] == (block[:, None] == np.arange(3))).all()
    assert second.all()
    alone = sight.look("disjoint_local", {"block_size": 4}, 12).reach
    assert all((reached == first[reps:, reps:]).all() for reached in alone)


def test_density_and_block_map_are_shares_of_pairs() -> None:
    found = sight.look("sparse_transformer", {"stride": 3, "columns": 1, "block_size": 4, "factors": "split"}, 11)
    first = truth.pairs(lambda h, q, k: k <= q and q // 3 == k // 3, 1, 11)[0, 0]
    second = truth.pairs(lambda h, q, k: k <= q and k % 3 == 2, 1, 11)[0, 0]
    share = (first + second * 1.0) / 2
    assert found.density == pytest.approx((share.mean(),) * 3)
    assert found.block_map.shape == (4, 4)
    for q in range(4):
        for k in range(4):
            block = share[3 * q : 3 * q + 3, 3 * k : 3 * k + 3]
            assert found.block_map[q, k] == pytest.approx(block.mean())


def test_global_content_is_part_of_the_pattern() -> None:
    found = sight.look("bigbird", {"globals": "blocks", "block_size": 4, "random_blocks": 0, "window_blocks": 1}, 16)
    assert found.block_map.tolist() == [[1, 1, 1, 1], [1, 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 1]]
    assert found.reach[1].all()


def test_what_cannot_be_drawn_says_why(tmp_path: Path) -> None:
    with pytest.raises(AttnbenchError, match="dense has no pattern to draw"):
        sight.look("dense", {}, 16)
    with pytest.raises(UnknownName, match="did you mean window"):
        sight.look("sliding", {"windw": 3}, 16)
    with pytest.raises(AttnbenchError, match="greater than 0"):
        sight.look("sliding", {"model.heads": 0}, 16)
    for length in (0, sight.LONGEST + 1):
        with pytest.raises(AttnbenchError, match="1 to 1024 rows"):
            sight.look("sliding", {}, length)
    with pytest.raises(AttnbenchError, match="no such folder"):
        sight.show("sliding", {}, 16, tmp_path / "nowhere" / "x.png")


def test_a_mixer_of_ones_own_needs_only_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from attnbench import Mechanism\nfrom attnbench.layers import QKVMixer\n"
        "from attnbench.sparse import BlockWindow, Pattern, gather\n"
        "class Mine(QKVMixer):\n"
        "    pattern = Pattern(BlockWindow(4, 1))\n"
        "    def mix(self, q, k, v, mask, layout):\n        return gather(q, k, v, self.pattern, mask, layout)\n"
        "MECHANISM = Mechanism(summary='x', paper='x', build=lambda shape, options: Mine(shape))\n"
    )
    found = sight.look(str(tmp_path / "mine.py"), {}, 8)
    assert found.name == "mine" and found.density == (0.5, 0.5, 0.5)


def test_the_command_draws_and_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["attnbench", "show", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    code, out, _ = call("ernie_sparse", "--plot", "--set", "hst.block_size=8", "--set", "heads=1", "--length", "32")
    assert code == 0 and "reach.after 3 layers.content pairs" in out
    assert matplotlib.image.imread(tmp_path / "hst.png").shape[:2] == (750, 2400)
    code, out, _ = call("sliding", "--plot", "--json", "--set", "window=2", "--length", "20", "--to", "here.png")
    facts = json.loads(out)
    assert facts["picture"] == "here.png" and (tmp_path / "here.png").is_file()
    assert facts["density"]["layer 1"] == pytest.approx((20 * 5 - 6) / 400)
    assert facts["special rows"] == {"globals": 0, "representatives": 0}
    for words, said in (
        (["dense", "--plot"], "no pattern to draw"),
        (["recall", "--plot"], "unknown mechanism 'recall'"),
        (["sliding", "--length", "9"], "go with --plot"),
    ):
        code, out, err = call(*words)
        assert (code, out, len(err.splitlines())) == (2, "", 1) and said in err
