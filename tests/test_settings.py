"""`--set key=value`: the part of a run that a key belongs to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.errors import AttnbenchError, UnknownName
from attnbench.settings import divide, parse_pairs

PARTS = {
    "model": ["dim", "dropout"],
    "budget": ["steps", "rate"],
    "mechanism": ["size", "rate", "dotted.name", "preset"],
    "task": ["size", "length"],
    "sar": ["alpha", "dropout"],
}
ALIASES = {"hst": "mechanism", "recall": "task"}


def refused(settings: dict[str, Any], error: type[AttnbenchError] = AttnbenchError, **more: Any) -> str:
    with pytest.raises(error) as caught:
        divide(settings, PARTS, more.get("aliases", ALIASES))
    assert "\n" not in str(caught.value)
    return str(caught.value)


word = st.text(st.characters(blacklist_characters="=", blacklist_categories=["Cs"]), min_size=1)


@given(st.dictionaries(word, st.text(st.characters(blacklist_categories=["Cs"]))))
def test_a_pair_is_split_at_its_first_equals_sign(pairs: dict[str, str]) -> None:
    assert parse_pairs(f"{key}={value}" for key, value in pairs.items()) == pairs


@pytest.mark.parametrize("pair", ["", "steps", "=3", "steps:3"])
def test_what_is_no_pair_is_refused(pair: str) -> None:
    with pytest.raises(AttnbenchError, match="takes key=value") as caught:
        parse_pairs(["a=1", pair])
    assert repr(pair) in str(caught.value)


def test_a_key_given_twice_is_refused_with_both_values() -> None:
    with pytest.raises(AttnbenchError, match="steps is given twice: 1 and 2"):
        parse_pairs(["steps=1", "steps=2"])


unambiguous = [(part, key) for part, keys in PARTS.items() for key in keys]


@given(st.lists(st.sampled_from(unambiguous), unique=True), st.data())
def test_every_key_with_its_part_goes_there(chosen: list[tuple[str, str]], data: st.DataObject) -> None:
    names = {"mechanism": ["mechanism", "hst"], "task": ["task", "recall"]}
    settings = {
        f"{data.draw(st.sampled_from(names.get(part, [part])))}.{key}": number
        for number, (part, key) in enumerate(chosen)
    }
    divided = divide(settings, PARTS, ALIASES)
    assert set(divided) == set(PARTS), "parts without settings are there, and empty"
    assert {(part, key): value for part, values in divided.items() for key, value in values.items()} == {
        place: number for number, place in enumerate(chosen)
    }


def test_a_bare_key_belongs_to_the_only_part_that_knows_it() -> None:
    assert divide({"dim": 1, "alpha": 2, "dotted.name": 3}, PARTS, ALIASES) == {
        "model": {"dim": 1}, "budget": {}, "mechanism": {"dotted.name": 3}, "task": {}, "sar": {"alpha": 2},
    }  # fmt: skip


def test_a_bare_key_of_several_parts_names_them() -> None:
    assert refused({"dropout": 0}) == "option 'dropout' is ambiguous: write model.dropout or sar.dropout"
    assert "mechanism.size or task.size" in refused({"size": 0})


def test_unknown_keys_suggest_the_closest() -> None:
    assert "did you mean steps" in refused({"stpes": 1}, UnknownName)
    assert refused({"budget.stpes": 1}, UnknownName) == "unknown option of budget 'stpes'; did you mean steps?"
    assert "did you mean budget." in refused({"budgett.steps": 1}, UnknownName)
    assert "unknown option" in refused({"hst.length": 1}, UnknownName), "known, but not to hst"
    assert "unknown option" in refused({"": 1}, UnknownName)


def test_one_value_by_two_names_is_refused() -> None:
    assert "mechanism.size is given twice" in refused({"hst.size": 1, "mechanism.size": 1})
    assert "budget.steps is given twice" in refused({"steps": 1, "budget.steps": 1})


def test_a_plugin_named_like_a_part_takes_nothing_from_it() -> None:
    """`-m ./model.py --set model.dim=8` is about the model."""
    assert divide({"model.dim": 8}, PARTS, {"model": "mechanism"})["model"] == {"dim": 8}
