"""Are two generated documents about the same topic? A stand-in for LRA's Retrieval where its files are not at hand.

It is not AAN, and no result on it says anything about AAN. A document is a row of made-up words between blanks: most
are common ones, a share comes from the few words of its topic, anywhere in the document. Label 1 = both documents have
the same topic. All topics are equally frequent under both labels, so one document alone says nothing. With
letters=shared the words of all topics are written with the same letters equally often, so counts of bytes say nothing
either: words must be read. With letters=own they are not, which is far easier. Which words make a topic is the same in
all splits, so it can be learnt. Ids as in `retrieval`: byte + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import datasets
import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from attnbench.contracts import Match, Preparation, Source, Task

from . import _arrow, _matching

_CHUNK = 1000
_COMMON_WORDS = 400
#: Letters of the words of a topic, in turn; those of common words are drawn from the same list.
_LETTERS_OF_A_WORD = (4, 6, 3, 7, 5)
_ALPHABET = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)


@dataclass(frozen=True, kw_only=True)
class Options:
    """max_length: bytes of a document; lengths are drawn from half of it up.
    topics: how many there are. words: how many a topic has. density: the share of a document's words that are its
    topic's. letters: shared, the words of every topic are made of the same letters; or own, each topic draws its own.
    train, validation, test: pairs. data_seed: of words and documents.
    """

    max_length: Annotated[int, Field(ge=64)] = 4000
    topics: Annotated[int, Field(ge=2, le=100)] = 16
    words: Annotated[int, Field(ge=2, le=50)] = 8
    density: Annotated[float, Field(gt=0, le=1)] = 0.2
    letters: Literal["shared", "own"] = "shared"
    train: PositiveInt = 20_000
    validation: PositiveInt = 1_000
    test: PositiveInt = 2_000
    data_seed: NonNegativeInt = 0


def vocabulary(options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Words of the topics (topics, words) and common words (400,), as objects of bytes; no word occurs twice."""
    generator = np.random.Generator(np.random.PCG64([options.data_seed, 0]))
    sizes = np.resize(_LETTERS_OF_A_WORD, options.words)
    letters = generator.choice(_ALPHABET, sizes.sum())
    ends = np.cumsum(sizes)[:-1]
    used: set[bytes] = set()

    def fresh(draw: Any) -> list[bytes]:
        while True:
            found = draw()
            if len(set(found)) == len(found) and not used.intersection(found):
                used.update(found)
                return list(found)

    topics = np.empty((options.topics, options.words), dtype=object)
    for row in topics:
        if options.letters == "own":
            letters = generator.choice(_ALPHABET, sizes.sum())
        row[:] = fresh(lambda of=letters: [bytes(part) for part in np.split(generator.permutation(of), ends)])
    common = np.empty(_COMMON_WORDS, dtype=object)
    for index in range(_COMMON_WORDS):
        size = _LETTERS_OF_A_WORD[index % len(_LETTERS_OF_A_WORD)]
        (common[index],) = fresh(lambda size=size: [bytes(generator.choice(_ALPHABET, size))])
    return topics, common


def documents(
    options: Options, known: tuple[np.ndarray, np.ndarray], topics: np.ndarray, generator: np.random.Generator
) -> list[bytes]:
    """One document for each topic number."""
    of_topic, common = known
    lengths = generator.integers(options.max_length // 2, options.max_length, len(topics), endpoint=True)
    most = options.max_length // (1 + min(_LETTERS_OF_A_WORD)) + 1
    made = []
    for topic, length in zip(topics, lengths, strict=True):
        words = common[generator.integers(0, len(common), most)]
        marked = generator.random(most) < options.density
        words[marked] = of_topic[topic][generator.integers(0, options.words, marked.sum())]
        made.append(b" ".join(words)[:length])
    return made


def pairs(options: Options, known: tuple[np.ndarray, np.ndarray], count: int, seed: list[int]) -> dict[str, Any]:
    """The columns of `count` pairs."""
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = generator.integers(0, 2, count)
    first = generator.integers(0, options.topics, count)
    other = (first + generator.integers(1, options.topics, count)) % options.topics
    second = np.where(labels == 1, first, other)
    tokens, tokens_b = (_arrow.byte_ids(documents(options, known, topics, generator)) for topics in (first, second))
    return {"tokens": tokens, "tokens_b": tokens_b, "label": labels}


def prepare(options: Options, preparation: Preparation) -> datasets.DatasetDict:
    """Pairs in chunks of 1,000, each a file of its own until the set is whole."""
    known = vocabulary(options)
    sizes = {"train": options.train, "validation": options.validation, "test": options.test}
    chunks = [
        (split, number, start, min(_CHUNK, size - start))
        for number, (split, size) in enumerate(sizes.items(), 1)
        for start in range(0, size, _CHUNK)
    ]
    paths: dict[str, list[Any]] = {name: [] for name in sizes}
    for split, number, start, count in preparation.progress(chunks, "pairs, in thousands"):
        path = preparation.folder / f"{split}-{start:09d}.arrow"
        if not path.is_file():
            _arrow.write(path, pairs(options, known, count, [options.data_seed, number, start]))
        paths[split].append(path)
    return datasets.DatasetDict({name: _arrow.joined(found) for name, found in paths.items()})


TASK = Task(
    summary="Are two generated documents about the same topic? A stand-in for LRA's Retrieval; not AAN",
    source=Source(citation="attnbench; the form is that of Tay et al. 2020, Long Range Arena", licence="generated"),
    head=lambda options: Match(2),
    vocab=lambda options: _arrow.BYTE_IDS,
    max_length=lambda options: options.max_length,
    prepare=prepare,
    options=Options,
    baselines=_matching.byte_counts,
    padded=True,
)
