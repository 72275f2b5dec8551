"""The stand-in for Retrieval: what label, topic and letters are, and that neither document alone tells anything."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnbench.tasks import _arrow, _matching, retrieval_synthetic
from published import documents, options, plugin, prepared

from attnbench import data, registry
from attnbench.errors import AttnbenchError
from attnbench.options import as_json

SMALL = {"max_length": 300, "topics": 6, "train": 1200, "validation": 50, "test": 600}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))


def topic_of(document: bytes, words: dict[bytes, int]) -> int:
    """The topic most of whose words occur, read with the vocabulary at hand."""
    found = Counter(words[word] for word in document.split(b" ") if word in words)
    return found.most_common(1)[0][0] if found else -1


@pytest.mark.parametrize("letters", ["shared", "own"])
def test_the_label_says_whether_the_topics_are_the_same(letters: str) -> None:
    found = prepared("retrieval_synthetic", None, letters=letters, **SMALL)
    known, common = retrieval_synthetic.vocabulary(options("retrieval_synthetic", letters=letters, **SMALL))
    words = {word: topic for topic, row in enumerate(known) for word in row}
    assert len(words) == known.size and not set(words) & set(common)
    first, second = ([topic_of(text, words) for text in documents(found, "test", side)] for side in (0, 1))
    labels = np.asarray(found.splits["test"].targets)
    assert np.mean(labels == (np.array(first) == np.array(second))) > 0.97, "short documents may lack their words"
    for topics in (first, second):
        for label in (0, 1):
            shares = np.bincount(np.array(topics)[(labels == label) & (np.array(topics) >= 0)], minlength=6)
            assert shares.min() > 0.5 * shares.mean(), "one document says nothing of the label"
    lengths = found.splits["test"].documents[0].lengths()
    assert lengths.min() >= 150 and lengths.max() <= 300 and len(np.unique(lengths)) > 50


def test_with_shared_letters_counts_of_bytes_tell_nothing() -> None:
    known, _ = retrieval_synthetic.vocabulary(options("retrieval_synthetic"))
    assert len({bytes(sorted(b"".join(row))) for row in known}) == 1
    assert len({tuple(map(len, row)) for row in known}) == 1
    trivial = prepared("retrieval_synthetic", None, **SMALL).card["trivial"]
    assert 0.44 < trivial["byte_counts"] < 0.56 and 0.44 < trivial["majority"] < 0.56
    easy = prepared("retrieval_synthetic", None, letters="own", density=0.5, **SMALL).card["trivial"]
    assert easy["byte_counts"] > 0.7


def test_the_trivial_level_is_that_of_scikit_learn_on_the_plainest_counts() -> None:
    """The same features counted in Python."""
    made: dict[str, Any] = {}
    for number, (name, count) in enumerate({"train": 2100, "test": 300}.items()):
        chosen = options("retrieval_synthetic", letters="own", density=0.5, max_length=200)
        known = retrieval_synthetic.vocabulary(chosen)
        made[name] = _arrow.dataset(retrieval_synthetic.pairs(chosen, known, count, [number]))

    def plain(split: str, count: int) -> np.ndarray:
        rows = []
        for one, other in zip(made[split][:count]["tokens"], made[split][:count]["tokens_b"], strict=True):
            a, b = Counter(one), Counter(other)
            rows.append([abs(a[i] / len(one) - b[i] / len(other)) for i in range(257)])
        return np.array(rows)

    for split, count in (("train", 2000), ("test", 300)):
        features, labels = _matching._differences(made[split], count)
        np.testing.assert_allclose(features, plain(split, count), atol=1e-12)
        assert labels.tolist() == made[split][:count]["label"]


def test_it_is_generated_in_pieces_that_depend_on_the_seed_alone() -> None:
    found = prepared("retrieval_synthetic", None, **SMALL)
    chosen = options("retrieval_synthetic", **SMALL)
    second = retrieval_synthetic.pairs(chosen, retrieval_synthetic.vocabulary(chosen), 200, [0, 1, 1000])
    assert documents(found, "train")[1000:] == [
        bytes(token - 1 for token in row) for row in second["tokens"].to_pylist()
    ]
    texts = {name: set(documents(found, name)) for name in found.splits}
    assert not texts["train"] & texts["test"] and len(texts["train"]) == 1200
    other = prepared("retrieval_synthetic", None, data_seed=1, **SMALL)
    assert not set(documents(other, "test")) & texts["test"]


def test_it_cannot_be_taken_for_retrieval() -> None:
    mine, theirs = (registry.load("tasks", name) for name in ("retrieval_synthetic", "retrieval"))
    assert "not AAN" in mine.object.summary and "AAN" not in mine.object.source.citation
    keys = [data.data_key(which, which.object.options()) for which in (mine, theirs)]
    assert keys[0] != keys[1] and type(mine.object.head(None)) is type(theirs.object.head(None))


def test_each_option_has_its_own_set() -> None:
    changed = {"max_length": 99, "topics": 3, "words": 3, "density": 0.1, "letters": "own", "data_seed": 1,
               "train": 9, "validation": 9, "test": 9}  # fmt: skip
    usual = options("retrieval_synthetic")
    assert set(changed) == set(as_json(usual))
    made = [usual, *(options("retrieval_synthetic", **{name: value}) for name, value in changed.items())]
    assert len({data.data_key(plugin("retrieval_synthetic"), one) for one in made}) == 1 + len(changed)


@pytest.mark.parametrize(
    "values", [{"topics": 1}, {"words": 1}, {"density": 0}, {"density": 1.1}, {"max_length": 63}, {"letters": "none"}]
)
def test_options_that_cannot_be_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(AttnbenchError, match=next(iter(values))):
        options("retrieval_synthetic", **values)


@pytest.mark.parametrize("letters", ["shared", "own"])
def test_the_largest_vocabulary_is_found(letters: str) -> None:
    known, common = retrieval_synthetic.vocabulary(
        options("retrieval_synthetic", topics=100, words=50, letters=letters)
    )
    assert len({*known.reshape(-1), *common}) == known.size + len(common) == 5400
