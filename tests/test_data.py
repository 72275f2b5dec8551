"""Prepared sets: stored once under the right key, checked, read as made; and the two generated tasks."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from sklearn.datasets import load_digits

from attnbench import data, registry
from attnbench.contracts import NO_TARGET, Classify, Source, Task
from attnbench.errors import AttnbenchError
from attnbench.options import parse
from attnbench.registry import Home, Plugin


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))


def splits(**rows: tuple[list[list[int]], list[int]]) -> datasets.DatasetDict:
    return datasets.DatasetDict(
        {name: datasets.Dataset.from_dict({"tokens": tokens, "label": label}) for name, (tokens, label) in rows.items()}
    )


GOOD = ([[1, 2, 3], [4], [0, 1]], [0, 1, 1])


def plugin(prepare: Any, **more: Any) -> Plugin:
    task = Task(
        summary="x",
        source=Source(citation="x", licence="x"),
        head=lambda options: Classify(2),
        vocab=lambda options: 5,
        max_length=lambda options: 3,
        prepare=prepare,
        **{"padded": True, **more},
    )
    return Plugin("tasks", "made_up", task, Home("file", "made_up.py"), "sha")


def made_up(**changes: Any) -> Plugin:
    rows: dict[str, Any] = {"train": GOOD, "validation": GOOD, "test": GOOD, **changes}
    return plugin(lambda options, preparation: splits(**{k: v for k, v in rows.items() if v is not None}))


def load(which: Plugin) -> data.TaskData:
    return data.load(which, which.object.options())


def test_a_set_is_read_back_as_it_was_made_and_made_once() -> None:
    calls = []
    which = plugin(lambda options, preparation: calls.append(1) or splits(train=GOOD, validation=GOOD, test=GOOD))
    for _ in range(2):
        found = load(which).splits["train"]
        assert [row.tolist() for row in found.documents[0]] == GOOD[0]
        assert list(found.targets) == GOOD[1]
    assert calls == [1]


def test_it_is_read_from_a_mapped_file() -> None:
    import pyarrow as pa

    load(made_up())
    before = pa.total_allocated_bytes()
    big = plugin(
        lambda options, preparation: splits(**{n: ([[1, 2, 3]] * 50_000, [0, 1] * 25_000) for n in data.SPLITS})
    )
    found = load(dataclasses.replace(big, source_sha="other"))
    assert found.splits["train"].documents[0][49_999].tolist() == [1, 2, 3]
    again = load(dataclasses.replace(big, source_sha="other"))
    del found
    labels = 3 * 50_000 * 8
    assert pa.total_allocated_bytes() - before <= labels, "the tokens, three times as much, stay in the file"
    assert len(again.splits["train"]) == 50_000


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"validation": None}, "prepare returned no split 'validation'"),
        ({"test": ([], [])}, "test: empty"),
        ({"train": ([[5]], [0])}, "train, row 0: token 5 outside 0..4"),
        ({"train": ([[1], [-1]], [0, 0])}, "train, row 1"),
        ({"test": ([[1], [1, 2, 3, 4]], [0, 1])}, "test, row 1: 4 tokens, allowed are 1 to 3"),
        ({"test": ([[1], []], [0, 1])}, "test, row 1: 0 tokens"),
        ({"train": ([[1], [2]], [0, 2])}, "train, row 1: target outside 0..1"),
    ],
)
def test_what_does_not_fit_the_task_is_refused_with_its_place(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(AttnbenchError) as caught:
        load(made_up(**changes))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_column_names_those_found() -> None:
    which = plugin(
        lambda o, p: datasets.DatasetDict({n: datasets.Dataset.from_dict({"text": ["a"]}) for n in data.SPLITS})
    )
    with pytest.raises(AttnbenchError, match=r"no column 'tokens', found \['text'\]"):
        load(which)


def test_unequal_lengths_need_the_task_to_say_padded() -> None:
    which = plugin(lambda o, p: splits(train=GOOD, validation=GOOD, test=GOOD), padded=False)
    with pytest.raises(AttnbenchError, match="declares all have 3"):
        load(which)


def test_a_preparation_that_breaks_leaves_nothing_to_trust(tmp_path: Path) -> None:
    def breaks(options: Any, preparation: Any) -> Any:
        (preparation.folder / "half.bin").write_bytes(b"x")
        raise AttnbenchError("the disk is gone")

    with pytest.raises(AttnbenchError, match="disk is gone"):
        load(plugin(breaks))
    assert list((tmp_path / "cache" / "made_up").iterdir()) == []
    assert len(load(made_up()).splits["train"]) == 3


def test_a_killed_preparation_is_done_anew(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(
        "import os, signal, datasets\nfrom attnbench.contracts import *\n"
        "def prepare(options, preparation):\n"
        "    if not os.environ.get('LIVE'): os.kill(os.getpid(), signal.SIGKILL)\n"
        "    rows = {'tokens': [[1, 2]] * 20, 'label': [0, 1] * 10}\n"
        "    made = datasets.Dataset.from_dict(rows)\n"
        "    return datasets.DatasetDict(train=made, validation=made, test=made)\n"
        "TASK = Task(summary='x', source=Source(citation='x', licence='x'), head=lambda o: Classify(2),\n"
        "            vocab=lambda o: 3, max_length=lambda o: 2, prepare=prepare)\n"
    )
    code = "import attnbench; print(len(attnbench.build_task('./dies.py').splits['train']))"
    run = [sys.executable, "-c", code]
    killed = subprocess.run(run, cwd=tmp_path, env={**os.environ}, capture_output=True, text=True)
    assert killed.returncode == -9
    done = subprocess.run(run, cwd=tmp_path, env={**os.environ, "LIVE": "1"}, capture_output=True, text=True)
    assert done.stdout.strip() == "20", done.stderr


def test_the_key_depends_on_everything_that_shapes_the_set() -> None:
    recall = registry.load("tasks", "recall")
    options = recall.object.options
    base = options()
    keys = {data.data_key(recall, base), data.data_key(dataclasses.replace(recall, source_sha="other"), base)}
    newer = dataclasses.replace(recall, object=dataclasses.replace(recall.object, version=99))
    keys.add(data.data_key(newer, base))
    for field in dataclasses.fields(options):
        keys.add(data.data_key(recall, dataclasses.replace(base, **{field.name: getattr(base, field.name) + 1})))
    assert len(keys) == 3 + len(dataclasses.fields(options))


def test_batches_are_filled_behind_and_the_last_one_counts() -> None:
    split = load(made_up()).splits["train"]
    batch = data.collate(split, [2, 0], None, True)
    tokens, mask = batch.documents[0]
    assert tokens.tolist() == [[0, 1, 0], [1, 2, 3]]
    assert mask is not None and mask.tolist() == [[True, True, False], [True, True, True]]
    assert batch.targets.tolist() == [1, 0] and batch.indices.tolist() == [2, 0]
    assert data.collate(split, [1], 3, True).documents[0][0].tolist() == [[4, 0, 0]]
    parts = list(data.in_order(split, 2, None, True))
    assert [index for part in parts for index in part.indices] == [0, 1, 2] and parts[1].documents[0][0].shape == (1, 2)


def test_every_answer_of_recall_is_right() -> None:
    plugin_ = registry.load("tasks", "recall")
    small = {"train": 50, "validation": 20, "test": 30, "length": 20, "pairs": 3, "keys": 5, "values": 7, "distance": 4}
    options = parse("task recall", plugin_.object.options, small)
    found = data.load(plugin_, options)
    for split in found.splits.values():
        for tokens, targets in zip(split.documents[0], split.targets, strict=True):
            words = [divmod(int(t) - options.fillers, options.values) for t in tokens]
            pairs = {
                key: value for (key, value), t in zip(words, tokens, strict=True)
                if options.fillers <= t < options.fillers + 35
            }  # fmt: skip
            places = [i for i, t in enumerate(tokens) if options.fillers <= t < options.fillers + 35]
            assert len(pairs) == len(places) == 3 and max(places) < 20 - 3 - 4
            queries = [int(t) - options.fillers - 35 for t in tokens[-3:]]
            assert sorted(queries) == sorted(pairs)
            assert [pairs[q] for q in queries] == targets[-3:].tolist()
            assert (targets[:-3] == NO_TARGET).all()
    assert len({tuple(row) for s in found.splits.values() for row in s.documents[0]}) == 100


def test_digits_are_those_of_scikit_learn() -> None:
    plugin_ = registry.load("tasks", "digits")
    found = data.load(plugin_, plugin_.object.options())
    truth = load_digits()
    have = sorted(
        (tuple(row), int(t)) for s in found.splits.values() for row, t in zip(s.documents[0], s.targets, strict=True)
    )
    assert have == sorted((tuple(row.astype(int)), int(t)) for row, t in zip(truth.data, truth.target, strict=True))
    sizes = [len(found.splits[name]) for name in data.SPLITS]
    assert sum(sizes) == 1797 and abs(sizes[0] / 1797 - 0.8) < 0.03


def test_trivial_levels_are_what_a_direct_count_gives() -> None:
    plugin_ = registry.load("tasks", "digits")
    found = data.load(plugin_, plugin_.object.options())
    labels = np.concatenate(found.splits["train"].labels())
    guess = np.bincount(labels).argmax()
    assert found.card["trivial"]["majority"] == pytest.approx(np.mean(found.splits["test"].targets == guess))
    assert 0.2 < found.card["trivial"]["token_counts"] < 0.5
    assert found.card["chance"] == 0.1
