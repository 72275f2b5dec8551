"""`attnbench data`: what it prints, what it refuses, and that a run finds what it prepared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]
SMALL = ("--set", "examples=40")


def test_prepare_prints_the_card_once_made_and_verify_agrees(call: Call) -> None:
    code, out, err = call("data", "prepare", "pathfinder", *SMALL, "--seed", "7", "--json")
    card = json.loads(out)
    assert code == 0 and "preparing pathfinder" in err
    assert card["options"]["data_seed"] == 7
    assert {name: split["examples"] for name, split in card["splits"].items()} == {
        "train": 32, "validation": 4, "test": 4,
    }  # fmt: skip
    code, out, err = call("data", "verify", "pathfinder", *SMALL, "--set", "data_seed=7", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {name: found[name] for name in ("folder", "sha256", "on record", "chance", "trivial")} == {
        "folder": card["folder"], "sha256": card["sha256"], "on record": "none",
        "chance": card["chance"], "trivial": card["trivial"],
    }  # fmt: skip
    code, out, _ = call("data", "verify", "pathfinder", *SMALL, "--seed", "7")
    assert code == 0 and "train" in out and "finding" in out


def test_verify_finds_damage(call: Call) -> None:
    card = json.loads(call("data", "prepare", "recall", "--set", "train=20", "--set", "test=10", "--json")[1])
    (file,) = Path(card["folder"], "train").glob("*.arrow")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    code, out, err = call("data", "verify", "recall", "--set", "train=20", "--set", "test=10")
    assert (code, out) == (2, "") and "damaged" in err and f"remove {card['folder']}" in err


def test_what_is_exported_is_read_again_and_runs(call: Call) -> None:
    assert call("data", "export", "pathfinder", *SMALL, "--seed", "7", "--to", "there")[0] == 0
    code, out, _ = call("data", "prepare", "pathfinder", "--from", "there", *SMALL, "--json")
    read = json.loads(out)
    assert code == 0 and read["options"]["origin"] == "files"
    drawn = json.loads(call("data", "prepare", "pathfinder", *SMALL, "--seed", "7", "--json")[1])
    assert read["sha256"] == drawn["sha256"]
    cell = ("-m", "local", "-t", "pathfinder", "--set", "origin=files", *SMALL)
    tiny = [
        word
        for pair in ("model.dim=8", "model.layers=1", "budget.steps=1", "budget.batch=2")
        for word in ("--set", pair)
    ]
    code, out, err = call("run", *cell, *tiny, "--json")
    assert code == 0 and "preparing" not in err
    assert json.loads(out)["spec"]["task"]["data_key"].endswith(f"-{read['sha256'][:12]}")


def test_a_protocol_sets_the_options(call: Call) -> None:
    code, out, _ = call("data", "prepare", "pathx", "--protocol", "quick", *SMALL, "--json")
    assert code == 0 and json.loads(out)["options"]["examples"] == 40
    code, out, _ = call("data", "prepare", "recall", "--protocol", "quick", "--set", "train=20", "--json")
    assert code == 0 and json.loads(out)["options"]["train"] == 20


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["prepare", "pathfnder"], "did you mean pathfinder"),
        (["prepare", "pathfinder", "--set", "example=3"], "did you mean examples"),
        (["prepare", "pathfinder", "--set", "examples=3"], "examples"),
        (["prepare", "pathfinder", "--seed", "1", "--set", "data_seed=2"], "give one of them"),
        (["prepare", "digits", "--seed", "1"], "does not depend on one"),
        (["prepare", "pathfinder", "--from", "nowhere"], "nowhere: no such folder"),
        (["prepare", "pathfinder", "--from", ".", "--set", "examples=10"], "no pathfinder32/curv_contour_length_14"),
        (["export", "recall", "--to", "there"], "recall has no form to export"),
        (["export", "pathfinder", "--set", "origin=files", "--to", "there"], "in the released layout already"),
        (["prepare", "pathfinder", "--protocol", "quik"], "did you mean quick"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_request_gets_one_line_and_exit_2(call: Call, arguments: list[str], what: str) -> None:
    code, out, err = call("data", *arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: ") and what in err.splitlines()[-1]
