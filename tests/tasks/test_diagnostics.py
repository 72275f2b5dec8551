"""mqar, copying, induction, needle: every answer found again by another reader, nothing told by place or frequency."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from attnbench.tasks import mqar
from published import options, plugin, prepared
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder

from attnbench import data
from attnbench.errors import AttnbenchError
from attnbench.verification import verify

SMALL = {"train": 300, "validation": 60, "test": 120}
#: (place, answer) of every question of a text
Answers = list[tuple[int, int]]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))


def read_mqar(text: list[int], o: Any) -> Answers:
    """Reads pairs until they are over, then looks every key up that stands at an even distance behind them."""
    value_of: dict[int, int] = {}
    for place in range(0, 2 * o.pairs, 2):
        key, value = text[place : place + 2]
        assert 1 <= key <= o.keys < value < 1 + o.keys + o.values and key not in value_of
        value_of[key] = value - 1 - o.keys
    assert len(set(value_of.values())) == o.pairs
    first = 2 * o.pairs + o.distance
    if o.fill == "blank":
        assert all(text[place] == 0 for place in range(2 * o.pairs, o.length) if place < first or (place - first) % 2)
        found = [place for place in range(first, o.length) if text[place]]
        assert sorted(text[place] for place in found) == sorted(value_of), "every pair is asked for once"
        return [(place, value_of[text[place]]) for place in found]
    return [(place, value_of[text[place]]) for place in range(first, o.length, 2) if text[place] in value_of]


def read_copying(text: list[int], o: Any) -> Answers:
    front, _, behind = "".join(map(chr, text)).partition(chr(o.alphabet + 1))
    assert len(behind) == o.symbols and set(behind) == {chr(o.alphabet)}
    assert set(front[o.spread :]) <= {chr(o.alphabet)}
    return list(zip(range(o.length - o.symbols, o.length), map(ord, front.replace(chr(o.alphabet), "")), strict=True))


def read_induction(text: list[int], o: Any) -> Answers:
    *before, trigger = text
    assert before.count(trigger) == 1 and (o.trigger == "any" or trigger == o.symbols)
    place = before.index(trigger) + 1
    assert o.length - 1 - place > o.distance and text[place] < o.symbols
    return [(o.length - 1, text[place])]


def read_needle(text: list[int], o: Any) -> Answers:
    facts = {t: divmod(t - o.words, o.values) for t in text if o.words <= t < o.words + o.keys * o.values}
    value_of = dict(facts.values())
    places = [place for place, t in enumerate(text) if t in facts]
    assert len(places) == len(facts) == len(value_of) == o.facts and o.length - 1 - places[-1] > o.distance
    assert all(t < o.words for place, t in enumerate(text[:-1]) if place not in places)
    return [(o.length - 1, value_of[text[-1] - o.words - o.keys * o.values])]


READ: dict[str, Callable[[list[int], Any], Answers]] = {
    "mqar": read_mqar, "copying": read_copying, "induction": read_induction, "needle": read_needle,
}  # fmt: skip


@pytest.mark.parametrize(
    ("task", "values"),
    [
        ("mqar", {}),
        ("mqar", {"length": 64, "pairs": 4, "keys": 4095, "values": 4096, "distance": 0}),
        ("mqar", {"length": 45, "pairs": 5, "keys": 9, "power": 1.0, "distance": 3}),
        ("mqar", {"pairs": 1, "keys": 30, "values": 40, "distance": 45, "length": 49}),
        ("copying", {}),
        ("copying", {"spread": 55}),
        ("copying", {"symbols": 10, "spread": 10, "length": 120, "data_seed": 7}),
        ("copying", {"symbols": 1, "spread": 300, "alphabet": 9, "length": 302}),
        ("induction", {}),
        ("induction", {"trigger": "any"}),
        ("induction", {"trigger": "any", "symbols": 3, "length": 30, "distance": 27}),
        ("induction", {"symbols": 2, "distance": 0}),
        ("needle", {}),
        ("needle", {"facts": 8, "keys": 8, "words": 1, "distance": 0, "length": 300}),
        ("needle", {"facts": 1, "keys": 50, "values": 900, "distance": 126}),
    ],
)
def test_every_answer_is_found_by_another_reader(task: str, values: dict[str, Any]) -> None:
    found, o = prepared(task, None, **SMALL, **values), options(task, **SMALL, **values)
    texts = []
    for name, split in found.splits.items():
        assert len(split) == SMALL[name]
        for tokens, targets in zip(split.documents[0], split.targets, strict=True):
            texts.append(tuple(tokens.tolist()))
            asked = [(place, answer) for place, answer in enumerate(targets.tolist()) if answer != -100]
            assert asked == READ[task](tokens.tolist(), o)
    assert len(set(texts)) == sum(SMALL.values()), "no text occurs twice"


def test_random_fillers_come_from_the_whole_vocabulary_and_move_nothing() -> None:
    """Every query is still a key in its place; what lies between says nothing."""
    o = options("mqar", fill="random", keys=20, values=12)
    found = mqar.examples(o, 500, np.random.default_rng(0))
    fillers = []
    for tokens, targets in zip(found["tokens"].tolist(), found["targets"].tolist(), strict=True):
        asked = {(place, answer) for place, answer in enumerate(targets) if answer != -100}
        assert len(asked) == o.pairs and asked <= set(read_mqar(tokens, o))
        fillers += [tokens[place] for place in range(2 * o.pairs, o.length) if targets[place] == -100]
    assert stats.chisquare(np.bincount(fillers, minlength=o.vocab)).pvalue > 1e-4


@pytest.mark.parametrize("power", [0.01, 0.5, 1.0])
def test_the_law_of_gaps_is_that_of_zoology(power: float) -> None:
    """Which pair is asked for at which place, against numpy's own draws without replacement, as their generator has."""
    pairs, space, count = 3, 7, 6000
    o = options("mqar", length=2 * pairs + 2 * space, pairs=pairs, distance=0, power=power)
    tokens = mqar.examples(o, count, np.random.default_rng(1))["tokens"].astype(int)
    queries = tokens[:, 2 * pairs :: 2]
    ours = np.array([(queries == tokens[:, [2 * pair]]).sum(0) for pair in range(pairs)])
    weights = power * np.arange(1, space + 1) ** (power - 1)
    legacy = np.random.RandomState(2)
    theirs = np.zeros((pairs, space), dtype=int)
    for _ in range(count):
        gaps = legacy.choice(space, size=pairs, replace=False, p=weights / weights.sum())
        theirs[np.arange(pairs), gaps] += 1
    assert ours.sum() == theirs.sum() == pairs * count
    assert stats.chi2_contingency([ours.ravel(), theirs.ravel()]).pvalue > 1e-4
    swapped = [ours.ravel(), theirs[::-1].ravel()]
    assert power == 1 or stats.chi2_contingency(swapped).pvalue < 1e-10, "the order of the pairs matters"


def hide(task: str, tokens: np.ndarray, o: Any) -> np.ndarray:
    """The texts without what the (first) answer can be read from, and that answer alone."""
    hidden = tokens.astype(int).copy()
    rows = np.arange(len(hidden))
    if task == "mqar":
        hidden[:, 1 : 2 * o.pairs : 2] = 0
    elif task == "copying":
        hidden[rows, (tokens < o.alphabet).argmax(1)] = o.alphabet
    elif task == "induction":
        hidden[rows, (tokens == tokens[:, -1:]).argmax(1) + 1] = o.vocab
    else:
        fact = (hidden >= o.words) & ((hidden - o.words) // o.values == hidden[:, -1:] - o.first_question)
        hidden[fact & (hidden < o.first_question)] = o.vocab
    return hidden


@pytest.mark.parametrize(
    ("task", "values"),
    [
        ("mqar", {"pairs": 4, "keys": 4}), ("copying", {"spread": 20}), ("induction", {}),
        ("induction", {"trigger": "any", "symbols": 8}), ("needle", {"length": 40, "distance": 10}),
    ],
)  # fmt: skip
def test_without_the_tokens_that_hold_the_answer_nothing_tells_it(task: str, values: dict[str, Any]) -> None:
    """A linear reader of every token and of all counts is at chance on the first answer of each text; with them it is
    not, so it could tell.
    """
    o = options(task, **values)
    found = prepared(task, None, train=6000, validation=10, test=1500, **values)

    def features(split: str, hidden: bool) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.stack(list(found.splits[split].documents[0])).astype(int)
        text = hide(task, tokens, o) if hidden else tokens
        counts = np.stack([np.bincount(row, minlength=o.vocab + 1) for row in text])
        return np.hstack([text, 1000 + counts]), answers(found, split)[:, 0]

    def score(hidden: bool) -> float:
        (train, wanted), (test, right) = features("train", hidden), features("test", hidden)
        encoder = OneHotEncoder(handle_unknown="ignore").fit(train)
        reader = LogisticRegression(C=0.01, max_iter=300).fit(encoder.transform(train), wanted)
        return float(reader.score(encoder.transform(test), right))

    chance = found.card["chance"]
    spread = 4 * np.sqrt(chance * (1 - chance) / 1500)
    assert abs(score(hidden=True) - chance) < spread
    if task != "induction" or o.trigger == "any":
        assert score(hidden=False) > chance + spread


def answers(found: data.TaskData, split: str) -> np.ndarray:
    """(texts, asked)"""
    return np.array([row[row != -100] for row in found.splits[split].targets]).astype(int)


@pytest.mark.parametrize("task", READ)
def test_answers_and_their_places_are_drawn_evenly(task: str) -> None:
    o = options(task)
    found = prepared(task, None, **SMALL | {"train": 4000})
    labels, classes = answers(found, "train"), {"mqar": 8, "copying": 8, "induction": 16, "needle": 4}[task]
    assert set(labels.flat) == set(range(classes)) and found.card["chance"] == 1 / classes
    assert stats.chisquare(np.bincount(labels[:, 0])).pvalue > 1e-4
    tokens = np.stack(list(found.splits["train"].documents[0])).astype(int)
    if task == "induction":
        places = (tokens == o.symbols).argmax(1)
    elif task == "needle":
        places = ((tokens >= o.words) & ((tokens - o.words) // o.values == tokens[:, -1:] - o.first_question)).argmax(1)
    else:
        return
    assert stats.chisquare(np.bincount(places, minlength=o.room)).pvalue > 1e-4


def test_the_trivial_levels_by_hand() -> None:
    def rows(task: str, split: str = "test", **values: Any) -> list[tuple[list[int], list[int]]]:
        found = prepared(task, None, **SMALL, **values).splits[split]
        return [(t.tolist(), a.tolist()) for t, a in zip(found.documents[0], found.targets, strict=True)]

    def share(scores: list[Any]) -> Any:
        return pytest.approx(np.mean(scores))

    def level(task: str, name: str, **values: Any) -> float:
        trivial = prepared(task, None, **SMALL, **values).card["trivial"]
        return float(trivial[name])

    def commonest(symbols: list[int]) -> int:
        counts = Counter(symbols)
        return min(counts, key=lambda symbol: (-counts[symbol], symbol))

    copied = [np.mean(np.array(a[-8:]) == commonest(a[-8:])) for _, a in rows("copying", spread=30)]
    assert level("copying", "most_frequent_symbol", spread=30) == share(copied)
    followed = [commonest([s for s in t[1:15] if s != t[-1]]) == a[-1] for t, a in rows("induction")]
    assert level("induction", "most_frequent_symbol") == share(followed)
    values = [([(s - 32) % 4 for s in t if 32 <= s < 48], a[-1]) for t, a in rows("needle")]
    assert level("needle", "most_frequent_value_present") == share([commonest(v) == a for v, a in values])
    asked: dict[int, list[int]] = {}
    for text, _ in rows("mqar", "train"):
        for place in range(32, 48, 2):
            asked.setdefault(place, []).append(text[:16:2].index(text[place]))
    right = []
    for text, answers in rows("mqar"):
        right += [text[1 + 2 * commonest(asked[place])] - 9 == answers[place] for place in asked]
    assert level("mqar", "likeliest_pair_of_a_place") == share(right)


@pytest.mark.parametrize("task", READ)
def test_verify_finds_nothing(task: str) -> None:
    found = verify(prepared(task, None, **SMALL), plugin(task), options(task, **SMALL))
    assert found["findings"] == ["none"]


PINNED = {
    "mqar": "da84dd6e95556e84d62ed0c47e0c3f82df2f0428957f75e54fbd9a9570dd8401",
    "copying": "4a1a923a84620ed3a03cc3ec88f755bc2cca367ad421fa2b9a4a204003d9817d",
    "induction": "69348f94712387f14d09253924248a71a36aae15514f0ebc423090a8a8a2b1b5",
    "needle": "cf2329f00b8cee16a47e15e78a67840c6fe4f69ed45d70c5a21228b543578499",
}
HASH = (
    "import sys; from attnbench import data, registry; from attnbench.options import parse\n"
    "for task in sys.argv[1:]:\n"
    "    plugin = registry.load('tasks', task)\n"
    "    print(task, data.load(plugin, parse(task, plugin.object.options, dict(train=1500, test=90))).card['sha256'])"
)


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_the_same_texts_in_every_process(hash_seed: str, tmp_path: Path) -> None:
    """Whoever changes the texts raises the version of the task and pins them anew."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "ATTNBENCH_DATA": str(tmp_path / hash_seed)}
    run = [sys.executable, "-c", HASH, *PINNED]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert dict(line.split() for line in done.stdout.splitlines()) == PINNED


@pytest.mark.parametrize("task", READ)
def test_another_seed_makes_other_texts(task: str) -> None:
    cards = [prepared(task, None, **SMALL, data_seed=seed).card["sha256"] for seed in (0, 1)]
    assert cards[0] != cards[1]


def test_where_few_texts_exist_they_still_differ_in_all_splits() -> None:
    """64 different texts, of which 60 are asked for; then 65."""
    few = {"symbols": 3, "alphabet": 4, "spread": 3, "length": 7}
    found = prepared("copying", None, train=40, validation=10, test=10, **few)
    assert len({row.tobytes() for split in found.splits.values() for row in split.documents[0]}) == 60
    with pytest.raises(AttnbenchError, match=r"test: only 14 of 15 texts are new among [\d]+ drawn") as refused:
        prepared("copying", None, train=40, validation=10, test=15, **few)
    assert "\n" not in str(refused.value)


def test_the_depth_of_a_needle_is_told_and_can_be_set_for_the_test() -> None:
    anywhere, deep = prepared("needle", None, **SMALL), prepared("needle", None, **SMALL, depth=0.75)
    o = options("needle")
    for found, wanted in ((anywhere, None), (deep, round(0.75 * (o.room - 1)))):
        told = datasets.load_from_disk(str(found.folder / "test"))["depth"]
        for tokens, depth in zip(found.splits["test"].documents[0], told, strict=True):
            key = tokens[-1] - o.first_question
            (place,) = [
                n for n, t in enumerate(tokens) if o.words <= t < o.first_question and (t - o.words) // 4 == key
            ]
            assert depth == pytest.approx(place / 94) and wanted in (None, place)
            read_needle(tokens.tolist(), o)
    for name in ("train", "validation"):
        texts = [[row.tolist() for row in found.splits[name].documents[0]] for found in (anywhere, deep)]
        assert texts[0] == texts[1], "what is trained on does not know the depth"
