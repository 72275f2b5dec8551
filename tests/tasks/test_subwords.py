"""Subwords: the same vocabulary anywhere, nothing lost, places in the text, and a file of the user's by its content."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnbench.tasks._documents import Options
from attnbench.tasks._subwords import FIRST, LEAST, QUESTION, SEPARATOR, Subwords, TokenizerFile, in_batches
from hypothesis import given
from hypothesis import strategies as st

from attnbench.errors import AttnbenchError
from attnbench.options import as_json, parse

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog,", "naïve", "犬", "—", "thethe"]
TEXTS = [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(2 + i % 9)) for i in range(300)]
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(scope="module")
def trained() -> Subwords:
    return Subwords.train(TEXTS, 300)


@pytest.fixture
def file(tmp_path: Path, trained: Subwords) -> Path:
    trained.save(tmp_path / "tokenizer.json")
    return tmp_path / "tokenizer.json"


def options(**values: Any) -> Options:
    found = parse("task x", Options, values)
    assert isinstance(found, Options)
    return found


def reference(texts: list[str], size: int) -> dict[str, int]:
    """BPE as Sennrich et al. 2016 have it, for words of ASCII letters: the most frequent pair is joined, at a tie the
    pair of the lowest ids. A blank before a word belongs to it and is written as byte-level BPE writes it.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    ids = {symbol: number for number, symbol in enumerate(sorted(ByteLevel.alphabet()))}
    words = Counter(("Ġ" if place else "") + word for text in texts for place, word in enumerate(text.split()))
    parts = {word: list(word) for word in words}
    while len(ids) < size:
        pairs: Counter[tuple[int, int]] = Counter()
        for word, split in parts.items():
            for left, right in itertools.pairwise(split):
                pairs[ids[left], ids[right]] += words[word]
        count, best = max(((count, (-a, -b)) for (a, b), count in pairs.items()), default=(0, (0, 0)))
        if count < 2:
            break
        symbols = {number: symbol for symbol, number in ids.items()}
        left, right = symbols[-best[0]], symbols[-best[1]]
        ids[left + right] = len(ids)
        for split in parts.values():
            at = 0
            while at < len(split) - 1:
                if (split[at], split[at + 1]) == (left, right):
                    split[at : at + 2] = [left + right]
                at += 1
    return ids


def test_the_vocabulary_is_that_of_a_slow_second_implementation(tmp_path: Path) -> None:
    texts = [" ".join("abcab bcabc ccab a"[i % 7 :].split() * (1 + i % 3)) for i in range(40)]
    Subwords.train(texts, LEAST + 30).save(tmp_path / "t.json")
    found = json.loads((tmp_path / "t.json").read_text("utf-8"))["model"]["vocab"]
    assert found == reference(texts, LEAST + 30) and len(found) > LEAST + 5


TRAIN = """
import hashlib, json, sys
from attnbench.tasks._subwords import Subwords
texts = json.load(sys.stdin)
subwords = Subwords.train(texts, 300)
print(hashlib.sha256(subwords._tokenizer.to_str().encode()).hexdigest(), [sum(ids) for ids in subwords.ids(texts[:5])])
"""


def test_neither_processes_threads_hashes_nor_order_change_it() -> None:
    found = set()
    for seed, parallel, threads, texts in [
        ("0", "false", "1", TEXTS),
        ("1", "true", "2", TEXTS),
        ("7", "true", "5", [*TEXTS[:5], *TEXTS[:4:-1]]),
    ]:
        environment = os.environ | {
            "PYTHONHASHSEED": seed,
            "TOKENIZERS_PARALLELISM": parallel,
            "RAYON_NUM_THREADS": threads,
        }
        command = [sys.executable, "-c", TRAIN]
        done = subprocess.run(
            command, env=environment, input=json.dumps(texts), capture_output=True, text=True, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1


@given(ANY_TEXT)
def test_decoding_gives_every_text_back(trained: Subwords, text: str) -> None:
    (ids,) = trained.ids([text])
    assert trained.decode(ids) == text
    assert all(FIRST <= one < FIRST + trained.size for one in ids)


def symbols(subwords: Subwords, one: int) -> str:
    """A subword as byte-level BPE writes it, a character for each byte."""
    found: str = subwords._tokenizer.id_to_token(int(one) - FIRST)
    return found


@given(ANY_TEXT, st.data())
def test_spans_say_where_each_subword_stands(trained: Subwords, text: str, data: st.DataObject) -> None:
    (piece,) = trained.encode([text])
    np.testing.assert_array_equal(piece.ids, trained.ids([text])[0])
    assert piece.spans.shape == (len(piece.ids), 2)
    character_of = [place for place, character in enumerate(text) for _ in character.encode()]
    ends = np.cumsum([0, *(len(symbols(trained, one)) for one in piece.ids)])
    assert ends[-1] == len(character_of)
    assert piece.spans.tolist() == [
        [character_of[begin], character_of[end - 1] + 1] for begin, end in itertools.pairwise(ends)
    ]
    if text:  # an answer is found again through the subwords that overlap it
        begin = data.draw(st.integers(0, len(text) - 1))
        end = data.draw(st.integers(begin + 1, len(text)))
        inside = piece.spans[(piece.spans[:, 0] < end) & (piece.spans[:, 1] > begin)]
        assert text[begin:end] in text[inside[0, 0] : inside[-1, 1]]
        assert inside[0, 0] <= begin and inside[-1, 1] >= end


def test_marks_between_texts_are_ids_of_their_own(trained: Subwords) -> None:
    a, b = trained.ids(["the fox?", "[SEP] is no mark"])
    assert trained.decode([QUESTION, *a, SEPARATOR, *b]) == "[Q]the fox?[SEP][SEP] is no mark"
    assert not set(range(FIRST)) & {*a.tolist(), *b.tolist()}


def test_batches_hold_all_texts_in_order() -> None:
    texts = ["x" * size for size in (10, 1 << 20, 5, 1 << 19, 1 << 19, 7)]
    batches = list(in_batches(iter(texts)))
    assert [text for batch in batches for text in batch] == texts
    assert [len(batch) for batch in batches] == [2, 3, 1]


def test_a_file_is_known_by_its_content(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "mine.json"
    other.parent.mkdir()
    other.write_bytes(file.read_bytes())
    one, two = as_json(options(tokenizer=str(file))), as_json(options(tokenizer=str(other)))
    sha = hashlib.sha256(file.read_bytes()).hexdigest()
    assert one == two and one["tokenizer"] == f"sha256-{sha[:16]}-300"
    other.write_bytes(file.read_bytes() + b"\n")
    assert as_json(options(tokenizer=str(other))) != one
    assert options(tokenizer=str(file)).vocab == FIRST + 300


def test_what_a_record_holds_of_it_can_be_asked_for_again(file: Path) -> None:
    recorded = as_json(options(tokenizer=str(file)))
    again = options(**recorded)
    assert as_json(again) == recorded and again.vocab == FIRST + 300
    assert again.tokenizer is not None
    with pytest.raises(AttnbenchError, match="only its content hash is known; give the file"):
        Subwords.load(again.tokenizer)


def test_a_file_that_changes_meanwhile_is_refused(file: Path) -> None:
    chosen = options(tokenizer=str(file)).tokenizer
    assert isinstance(chosen, TokenizerFile)
    assert Subwords.load(chosen).size == 300
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(AttnbenchError, match="changed while it was being used"):
        Subwords.load(chosen)


def test_a_file_of_another_kind_works_too(tmp_path: Path) -> None:
    """WordPiece with lower-casing, marks of its own, padding and truncation, as pretrained models have them."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "the": 1, "fox": 2, "##es": 3}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[CLS]"])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "t.json"))
    chosen = options(tokenizer=str(tmp_path / "t.json"))
    assert chosen.vocab == FIRST + 5
    assert chosen.tokenizer is not None
    (piece,) = Subwords.load(chosen.tokenizer).encode(["The FOXES run"])
    assert (piece.ids - FIRST).tolist() == [1, 2, 3, 0]
    assert piece.spans.tolist() == [[0, 3], [4, 7], [7, 9], [10, 13]]


BAD_FILES = {
    "empty": (b"", "empty"),
    "page": (b"<!DOCTYPE html><title>404</title>", "a git-LFS pointer or a web page"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\n", "a git-LFS pointer or a web page"),
    "no JSON": (b"{", r"no tokenizer\.json of the library tokenizers"),
    "other JSON": (b'{"a": 1}', r"no tokenizer\.json of the library tokenizers"),
    "no UTF-8": (b'{"\xff": 1}', r"no tokenizer\.json of the library tokenizers"),
    "no subwords": (
        b'{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[]}}',
        "a vocabulary without subwords",
    ),
    "pickle": (b"\x80\x04\x95\x0b\x00", r"no tokenizer\.json of the library tokenizers"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_refused_in_one_line(file: Path, kind: str) -> None:
    content, reason = BAD_FILES[kind]
    file.write_bytes(content)
    with pytest.raises(AttnbenchError, match=rf"tokenizer: .*tokenizer\.json: {reason}") as caught:
        options(tokenizer=str(file))
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class _Case:
    values: dict[str, Any]
    reason: str


@pytest.mark.parametrize(
    "case",
    [
        _Case({"tokenizer": "nowhere.json"}, "No such file"),
        _Case({"tokenizer": "."}, "Is a directory"),
        _Case({"tokenizer": 5}, "tokenizer"),
        _Case({"vocab_size": 255}, "vocab_size"),
        _Case({"max_length": 0}, "max_length"),
        _Case({"data_seed": -1}, "data_seed"),
        _Case({"tokenizer": "sha256-0123456789abcdef-300", "vocab_size": 300}, "leave it out with a tokenizer"),
    ],
    ids=lambda case: str(case.values),
)
def test_options_that_cannot_be_are_refused(case: _Case) -> None:
    with pytest.raises(AttnbenchError, match=case.reason):
        options(**case.values)
