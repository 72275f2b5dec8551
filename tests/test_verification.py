"""`data verify`: every finding is planted here and must be told, and a clean set must give none."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pytest

from attnbench import data
from attnbench.contracts import Classify, Source, TagTokens, Task
from attnbench.registry import Home, Plugin
from attnbench.verification import verify

SIZES = {"train": 60, "validation": 20, "test": 20}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path))


def rows(seed: int = 0) -> dict[str, dict[str, list[Any]]]:
    """Three splits of different documents with labels in random order."""
    generator = np.random.default_rng(seed)
    tokens = iter([[*map(int, f"{number:03d}"), *[0] * int(generator.integers(4))] for number in range(100)])
    return {
        name: {"tokens": [next(tokens) for _ in range(n)], "label": generator.permutation(np.arange(n) % 2).tolist()}
        for name, n in SIZES.items()
    }


def verified(made: dict[str, dict[str, list[Any]]], **more: Any) -> dict[str, Any]:
    whole = datasets.DatasetDict({name: datasets.Dataset.from_dict(split) for name, split in made.items()})
    declared: dict[str, Any] = {"head": lambda options: Classify(2), **more}
    task = Task(
        summary="x", source=Source(citation="x", licence="x"), vocab=lambda options: 10,
        max_length=lambda options: 6, prepare=lambda options, preparation: whole, padded=True, **declared,
    )  # fmt: skip
    plugin = Plugin("tasks", "planted", task, Home("file", "planted.py"), "sha")
    return verify(data.load(plugin, task.options()), plugin, task.options())


def test_a_clean_set_has_no_finding() -> None:
    found = verified(rows())
    assert found["findings"] == ["none"]
    assert found["splits"]["train"]["labels"] == {"0": 30, "1": 30}
    assert sum(found["splits"]["train"]["lengths"].values()) == 60
    assert found["splits"]["train"]["lengths"].keys() <= {"3..4", "4..5", "5..6", "3..3", "4..4", "5..5", "6..6"}


def test_duplicates_are_counted_within_a_split_and_between_two() -> None:
    made = rows()
    made["train"]["tokens"][7], made["train"]["label"][7] = made["train"]["tokens"][3], made["train"]["label"][3]
    made["test"]["tokens"][:2] = made["train"]["tokens"][10:12]
    made["test"]["label"][:2] = made["train"]["label"][10:12]
    found = verified(made)
    assert {name: split["duplicates"] for name, split in found["splits"].items()} == {
        "train": 1, "validation": 0, "test": 0,
    }  # fmt: skip
    assert found["in two splits"] == {"train and validation": 0, "train and test": 2, "validation and test": 0}
    assert found["findings"] == ["train: 1 examples are there more than once", "2 examples of train and test"]


def test_padding_behind_makes_another_document() -> None:
    made = rows()
    made["train"]["tokens"][0], made["train"]["tokens"][1] = [1, 2], [1, 2, 0]
    assert verified(made)["splits"]["train"]["duplicates"] == 0


def test_a_label_that_contradicts_another_is_found() -> None:
    made = rows()
    made["validation"]["tokens"][0] = made["train"]["tokens"][5]
    made["validation"]["label"][0] = 1 - made["train"]["label"][5]
    assert "1 documents occur with different labels" in verified(made)["findings"]


@pytest.mark.parametrize(("labels", "order"), [(sorted, "sorted"), (list, "mixed")])
def test_a_split_sorted_by_label_is_found(labels: Any, order: str) -> None:
    made = rows()
    made["train"]["label"] = labels(made["train"]["label"])
    found = verified(made)
    assert found["splits"]["train"]["order"] == order
    assert ("train: examples are sorted by label" in found["findings"]) == (order == "sorted")


def test_one_class_is_found() -> None:
    made = rows()
    made["test"]["label"] = [1] * 20
    assert "test: one class only" in verified(made)["findings"]


def test_levels_that_take_their_time_are_computed_here_and_not_when_preparing() -> None:
    asked: list[int] = []

    def levels(options: Any, made: datasets.DatasetDict) -> dict[str, float]:
        asked.append(len(made["test"]))
        return {"network": 0.75}

    found = verified(rows(), levels=levels)
    assert asked == [20] and found["trivial"]["network"] == 0.75 and "majority" in found["trivial"]


def test_tags_are_counted_by_prediction() -> None:
    made: dict[str, dict[str, list[Any]]] = {
        name: {"tokens": split["tokens"], "targets": [[-100] * (len(row) - 2) + [0, 1] for row in split["tokens"]]}
        for name, split in rows().items()
    }
    counted = verified(made, head=lambda options: TagTokens(2))["splits"]["test"]
    assert (counted["examples"], counted["predictions"], counted["labels"]) == (20, 40, {"0": 20, "1": 20})
