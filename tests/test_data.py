"""Prepared sets: stored once under the right key, checked, read as made; and the two generated tasks."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np
import pytest
from sklearn.datasets import load_digits

from attnbench import data, registry
from attnbench.batches import Batches
from attnbench.cards import SPLITS
from attnbench.columns import Split
from attnbench.config import Padding
from attnbench.contracts import NO_TARGET, Classify, Head, Match, Source, TagTokens, Task
from attnbench.errors import AttnbenchError, Terminated, Unsupported
from attnbench.options import parse
from attnbench.questions import question_of
from attnbench.registry import Home, Plugin


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))


def splits(**rows: tuple[list[list[int]], list[int]]) -> datasets.DatasetDict:
    return datasets.DatasetDict(
        {name: datasets.Dataset.from_dict({"tokens": tokens, "label": label}) for name, (tokens, label) in rows.items()}
    )


CLASSIFY = Classify(2)
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
    big = plugin(lambda options, preparation: splits(**{n: ([[1, 2, 3]] * 5_000, [0, 1] * 2_500) for n in SPLITS}))
    found = load(dataclasses.replace(big, source_sha="other"))
    assert found.splits["train"].documents[0][4_999].tolist() == [1, 2, 3]
    again = load(dataclasses.replace(big, source_sha="other"))
    del found
    labels = 3 * 5_000 * 8
    assert pa.total_allocated_bytes() - before <= labels, "the tokens, three times as much, stay in the file"
    assert len(again.splits["train"]) == 5_000


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
    which = plugin(lambda o, p: datasets.DatasetDict({n: datasets.Dataset.from_dict({"text": ["a"]}) for n in SPLITS}))
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
    assert kept(tmp_path) == []
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


def batches(
    split: Split, head: Head = CLASSIFY, rule: Literal["max", "batch", "grouped"] = "batch", padded: bool = True
) -> Batches:
    """Of documents of up to 3 tokens."""
    return Batches(split, question_of(head), Padding(rule=rule), padded, 3)


def test_batches_are_filled_behind_and_the_last_one_counts() -> None:
    split = load(made_up()).splits["train"]
    batch = batches(split).collate([2, 0])
    tokens, mask = batch.documents[0]
    assert tokens.tolist() == [[0, 1, 0], [1, 2, 3]]
    assert mask is not None and mask.tolist() == [[True, True, False], [True, True, True]]
    assert batch.asked.labels.tolist() == [1, 0] and batch.indices.tolist() == [2, 0]
    assert batches(split, rule="max").collate([1]).documents[0][0].tolist() == [[4, 0, 0]]
    parts = list(batches(split).in_order(2))
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
    sizes = [len(found.splits[name]) for name in SPLITS]
    assert sum(sizes) == 1797 and abs(sizes[0] / 1797 - 0.8) < 0.03


def test_trivial_levels_are_what_a_direct_count_gives() -> None:
    plugin_ = registry.load("tasks", "digits")
    found = data.load(plugin_, plugin_.object.options())
    labels = np.concatenate(question_of(Classify(10)).answers(found.splits["train"]))
    guess = np.bincount(labels).argmax()
    assert found.card["trivial"]["majority"] == pytest.approx(np.mean(found.splits["test"].targets == guess))
    assert 0.2 < found.card["trivial"]["token_counts"] < 0.5
    assert found.card["chance"] == 0.1


def columns(head: Head = CLASSIFY, features: datasets.Features | None = None, **rows: list[Any]) -> Plugin:
    """A task of which all three splits have these columns."""
    made = datasets.DatasetDict({n: datasets.Dataset.from_dict(rows, features=features) for n in SPLITS})
    which = plugin(lambda options, preparation: made)
    return dataclasses.replace(which, object=dataclasses.replace(which.object, head=lambda options: head))


LABEL = {"label": [0, 1]}


@pytest.mark.parametrize(
    ("which", "said"),
    [
        (columns(tokens=[[3, -1], [2]], **LABEL), "token -1 outside 0..4"),
        (columns(tokens=[[1.0, 2.5], [2.0]], **LABEL), "tokens"),
        (columns(tokens=[["a"], ["b"]], **LABEL), "tokens"),
        (columns(tokens=[1, 2], **LABEL), "tokens"),
        (columns(tokens=[[[1, 2]], [[2, 3]]], **LABEL), "tokens"),
        (columns(tokens=[[1, None], [2]], **LABEL), "tokens"),
        (columns(tokens=[[1], None], **LABEL), "train, row 1: 0 tokens"),
        (columns(tokens=[[1], [2]], label=[0.5, 1.0]), "label"),
        (columns(tokens=[[1], [2]], label=["a", "b"]), "label"),
        (columns(tokens=[[1], [2]], label=[-100, 1]), "train, row 0"),
        (columns(TagTokens(2), tokens=[[1, 2], [2]], targets=[[0, -100], [2]]), "train, row 1: target outside 0..1"),
        (columns(TagTokens(2), tokens=[[1, 2], [2]], targets=[[0, 1], [1, 1]]), "train, row 1"),
        (columns(TagTokens(2), tokens=[[1, 2], [2]], targets=[[0], [1]]), "train, row 0"),
        (columns(TagTokens(2), tokens=[[1, 2], [2]], targets=[[-100, -100], [-100]]), "train"),
        (columns(Match(2), tokens=[[1, 2], [2]], tokens_b=[[1], [9]], **LABEL), "row 1: token 9 outside 0..4"),
        (columns(Match(2), tokens=[[1, 2], [2]], **LABEL), "no column 'tokens_b'"),
    ],
    ids=range(16),
)
def test_a_column_of_the_wrong_kind_is_refused_in_one_line(which: Plugin, said: str) -> None:
    with pytest.raises(AttnbenchError) as caught:
        load(which)
    assert said in str(caught.value) and "made_up" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "tokens", [datasets.List(datasets.Value("uint8"), length=3), datasets.LargeList(datasets.Value("uint16"))]
)
def test_lists_of_every_kind_are_read(tokens: Any) -> None:
    features = datasets.Features(tokens=tokens, label=datasets.ClassLabel(names=["no", "yes"]))
    found = load(columns(features=features, tokens=[[1, 2, 3], [4, 3, 2]], **LABEL)).splits["test"]
    assert [row.tolist() for row in found.documents[0]] == [[1, 2, 3], [4, 3, 2]] and found.targets.tolist() == [0, 1]


def test_sets_that_were_selected_shuffled_or_joined_are_read_as_they_show_themselves() -> None:
    whole = datasets.Dataset.from_dict({"tokens": [[i % 5] * (i % 3 + 1) for i in range(30)], "label": [0, 1] * 15})
    parts = whole.shuffle(seed=1).train_test_split(0.3, seed=1)
    made = datasets.DatasetDict(
        train=parts["train"],
        validation=parts["test"].select([5, 0, 3]),
        test=datasets.concatenate_datasets([whole.select(range(20, 24)), whole.select([2])]),
    )
    found = load(plugin(lambda options, preparation: made))
    for name, split in made.items():
        assert [row.tolist() for row in found.splits[name].documents[0]] == split["tokens"][:]
        assert found.splits[name].targets.tolist() == split["label"][:]


@pytest.mark.parametrize("made", [None, {}, datasets.Dataset.from_dict({"tokens": [[1]], "label": [0]})])
def test_a_preparation_that_returns_something_else_is_one_line(made: Any) -> None:
    with pytest.raises(AttnbenchError, match=r"returned a \w+, not a datasets.DatasetDict"):
        load(plugin(lambda options, preparation: made))


@pytest.mark.parametrize("fault", [ZeroDivisionError, float("nan")], ids=["raises", "nan"])
def test_a_baseline_that_breaks_is_one_line_and_nothing_is_kept(tmp_path: Path, fault: Any) -> None:
    def baselines(options: Any, made: Any) -> dict[str, float]:
        if isinstance(fault, float):
            return {"mine": fault}
        raise fault("first\nsecond")

    which = plugin(lambda o, p: splits(train=GOOD, validation=GOOD, test=GOOD), baselines=baselines)
    with pytest.raises(AttnbenchError) as caught:
        load(which)
    assert "\n" not in str(caught.value) and "made_up" in str(caught.value)
    assert kept(tmp_path) == []


def test_a_preparation_that_raises_says_how_and_where() -> None:
    def breaks(options: Any, preparation: Any) -> Any:
        raise KeyError("first\nsecond")

    with pytest.raises(AttnbenchError, match=r"made_up.*KeyError.*test_data.py:\d+") as caught:
        load(plugin(breaks))
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_card_is_not_trusted(tmp_path: Path) -> None:
    """Left by an older version, a copy that was cut off, or a hand that removed files."""
    folder = data.folder_of(made_up(), made_up().object.options())
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "data.arrow").write_text("half")
    assert len(load(made_up()).splits["train"]) == 3


def test_a_set_that_another_prepares_is_waited_for_and_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs start at once on an empty cache. Here they are threads: each has a lock of its own, as a process has."""
    started, waits, calls = threading.Event(), threading.Event(), []

    def slow(options: Any, preparation: Any) -> datasets.DatasetDict:
        calls.append(1)
        started.set()
        assert waits.wait(30), "the second one never waited"
        return splits(train=GOOD, validation=GOOD, test=GOOD)

    monkeypatch.setattr(data, "say", lambda text: waits.set() if text.startswith("waiting: ") else None)
    which = plugin(slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(load, which)
        assert started.wait(30)
        second = pool.submit(load, which)
        assert [len(one.result(60).splits["train"]) for one in (first, second)] == [3, 3]
    assert calls == [1] and kept(tmp_path) == [data.folder_of(which, _options(which)).name]


def kept(tmp_path: Path) -> list[str]:
    """What lies in the cache of the task, but for locks."""
    return sorted(path.name for path in (tmp_path / "cache" / "made_up").iterdir() if path.suffix != ".lock")


def _options(which: Plugin) -> Any:
    return which.object.options()


def interrupted(fault: BaseException | None) -> tuple[Plugin, list[list[str]]]:
    """A preparation that writes a file and ends in `fault` (None: in a wrong result) the first time it is started.

    The list shows which files each start found.
    """
    found: list[list[str]] = []

    def prepare(options: Any, preparation: Any) -> Any:
        found.append(sorted(path.name for path in preparation.folder.iterdir()))
        (preparation.folder / f"{len(found)}.bin").write_bytes(b"x")
        if len(found) > 1:
            return splits(train=GOOD, validation=GOOD, test=GOOD)
        if fault is not None:
            raise fault
        return None

    return plugin(prepare), found


@pytest.mark.parametrize(
    "fault",
    [KeyboardInterrupt(), Terminated(), OSError(errno.ENOSPC, "no space left")],
    ids=lambda f: type(f).__name__,
)
def test_files_of_a_preparation_that_was_cut_off_are_there_the_next_time(tmp_path: Path, fault: BaseException) -> None:
    which, found = interrupted(fault)
    with pytest.raises(type(fault)):
        load(which)
    key = data.folder_of(which, _options(which)).name
    assert kept(tmp_path) == [f"{key}.partial"], "nothing that could be taken for a whole set"
    load(which)
    assert found == [[], ["1.bin"]] and kept(tmp_path) == [key]
    assert list((tmp_path / "cache").rglob("*.bin")) == [], "they go when the set is whole"


@pytest.mark.parametrize(
    "fault",
    [AttnbenchError("no"), Unsupported("no"), KeyError("no"), SystemExit(0), MemoryError(), None],
    ids=lambda fault: type(fault).__name__,
)
def test_files_of_a_preparation_at_fault_are_cleared(tmp_path: Path, fault: Exception | None) -> None:
    """They may be what is wrong."""
    which, found = interrupted(fault)
    with pytest.raises((AttnbenchError, MemoryError)):
        load(which)
    assert kept(tmp_path) == []
    load(which)
    assert found == [[], []]


def test_a_split_that_was_half_written_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fills_the_disk(made: datasets.Dataset, path: str) -> None:
        Path(path).mkdir()
        (Path(path) / "half.arrow").write_bytes(b"x")
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(datasets.Dataset, "save_to_disk", fills_the_disk)
        with pytest.raises(OSError, match="no space left"):
            load(made_up())
    assert list((tmp_path / "cache").rglob("half.arrow"))
    assert len(load(made_up()).splits["train"]) == 3
    assert not list((tmp_path / "cache").rglob("half.arrow"))


def test_a_tilde_in_the_name_of_the_cache_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ATTNBENCH_DATA", "~/elsewhere")
    assert data.home() == tmp_path / "elsewhere"


def test_what_shapes_nothing_leaves_the_key_alone() -> None:
    which = made_up()
    moved = dataclasses.replace(which, home=Home("folder", "/elsewhere/made_up.py"))
    told = dataclasses.replace(which, object=dataclasses.replace(which.object, summary="other words"))
    assert len({data.data_key(one, _options(which)) for one in (which, moved, told)}) == 1


def test_two_documents_are_filled_apart_and_targets_of_tokens_with_them() -> None:
    two = load(columns(Match(2), tokens=[[1, 2], [2]], tokens_b=[[1], [4, 4, 4]], **LABEL)).splits["train"]
    batch = batches(two, Match(2)).collate([0, 1])
    assert [tokens.tolist() for tokens, _ in batch.documents] == [[[1, 2], [2, 0]], [[1, 0, 0], [4, 4, 4]]]
    tagging = columns(TagTokens(2), tokens=[[1, 2], [2]], targets=[[0, 1], [1]])
    tags = load(dataclasses.replace(tagging, source_sha="other")).splits["train"]
    for rule, width in ("batch", 2), ("max", 3):
        batch = batches(tags, TagTokens(2), rule).collate([1, 0])
        expected = np.zeros((2, width), dtype=bool)
        expected[0, 0] = expected[1, :2] = True
        assert batch.asked.places is not None and batch.asked.places.tolist() == expected.tolist()
        assert batch.asked.labels.tolist() == [1, 0, 1] and batch.asked.example.tolist() == [1, 0, 0]
        assert batch.documents[0][0].shape == (2, width)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
def test_in_order_shows_every_example_once(size: int) -> None:
    split = load(made_up()).splits["test"]
    for padded in (True, False):
        found = list(batches(split, padded=padded).in_order(size))
        assert np.concatenate([batch.indices for batch in found]).tolist() == [0, 1, 2]
        assert all((batch.documents[0][1] is not None) == padded for batch in found)


def recall(**values: int) -> tuple[Any, data.TaskData]:
    which = registry.load("tasks", "recall")
    sizes = {"train": 400, "validation": 50, "test": 200}
    options = parse("task recall", which.object.options, sizes | values)
    return options, data.load(which, options)


@pytest.mark.parametrize("values", [{}, {"keys": 300, "values": 300}, {"values": 40_000}, {"fillers": 70_000}])
def test_recall_asks_for_values_that_stand_in_front_at_any_size(values: dict[str, int]) -> None:
    """Token ids and answers as wide as the options make them."""
    options, found = recall(**values, train=60)
    first_query = options.fillers + options.keys * options.values
    for tokens, targets in zip(found.splits["train"].documents[0], found.splits["train"].targets, strict=True):
        ids = [int(token) for token in tokens]
        kept = dict(divmod(i - options.fillers, options.values) for i in ids if options.fillers <= i < first_query)
        assert len(kept) == options.pairs
        assert [kept[i - first_query] for i in ids[-options.pairs :]] == targets[-options.pairs :].tolist()


def test_the_trivial_levels_of_recall_by_hand() -> None:
    options, found = recall(pairs=3, keys=5, values=3)
    first_query = options.fillers + options.keys * options.values
    test = found.splits["test"]
    right = []
    for tokens, targets in zip(test.documents[0], test.targets, strict=True):
        carried = [(int(t) - options.fillers) % options.values for t in tokens if options.fillers <= t < first_query]
        guess = min(range(options.values), key=lambda value: (-carried.count(value), value))
        right.append(np.mean([answer == guess for answer in targets if answer != NO_TARGET]))
    assert found.card["trivial"]["most_frequent_value_present"] == pytest.approx(np.mean(right))
    answers = [int(a) for row in found.splits["train"].targets for a in row if a != NO_TARGET]
    common = max(range(options.values), key=lambda value: answers.count(value))
    rows = [[a for a in row if a != NO_TARGET] for row in test.targets]
    assert found.card["trivial"]["majority"] == pytest.approx(np.mean([np.mean(np.array(r) == common) for r in rows]))
    assert found.card["chance"] == pytest.approx(1 / 3) and found.card["splits"]["test"]["predictions"] == 600


def test_values_of_recall_are_drawn_evenly_and_fillers_carry_no_answer() -> None:
    options, found = recall(train=4000)
    answers = np.concatenate(question_of(TagTokens(4)).answers(found.splits["train"]))
    counts = np.bincount(answers, minlength=4)
    assert np.all(np.abs(counts - len(answers) / 4) < 4.5 * np.sqrt(len(answers) * 0.25 * 0.75))
    places = np.concatenate([np.flatnonzero(row >= options.fillers)[:-2] for row in found.splits["train"].documents[0]])
    spread = np.bincount(places, minlength=options.room)
    assert len(spread) == options.room and np.all(np.abs(spread - 8000 / options.room) < 5 * np.sqrt(8000 / 34))


@pytest.mark.parametrize("first", [0, 8000])
def test_the_level_of_token_counts_by_hand(first: int) -> None:
    """The label is whether one token occurs more than twice: counts alone tell, the most frequent label does not. In a
    large vocabulary too.
    """
    generator = np.random.default_rng(0)

    def split(count: int) -> tuple[list[list[int]], list[int]]:
        tokens = generator.integers(0, 5, (count, 12))
        return (first + tokens).tolist(), ((tokens == 1).sum(1) > 2).astype(int).tolist()

    made = splits(train=split(600), validation=split(50), test=split(200))
    which = plugin(lambda options, preparation: made)
    task = dataclasses.replace(which.object, max_length=lambda options: 12, vocab=lambda options: first + 5)
    found = load(dataclasses.replace(which, object=task))
    train, test = np.array(made["train"]["label"]), np.array(made["test"]["label"])
    assert found.card["trivial"]["token_counts"] > 0.97
    assert found.card["trivial"]["majority"] == pytest.approx(np.mean(test == np.bincount(train).argmax()))


def test_the_split_of_digits_is_a_rule_on_the_number_alone() -> None:
    import hashlib

    which = registry.load("tasks", "digits")
    found = data.load(which, _options(which))
    truth = load_digits()
    expected: dict[str, list[list[int]]] = {name: [] for name in SPLITS}
    for index, pixels in enumerate(truth.data):
        place = int.from_bytes(hashlib.sha256(b"digits %d" % index).digest()[:4], "big") % 10
        expected["test" if place == 9 else "validation" if place == 8 else "train"].append(pixels.astype(int).tolist())
    for name in SPLITS:
        assert [row.tolist() for row in found.splits[name].documents[0]] == expected[name]
