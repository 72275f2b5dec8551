"""Official metrics, places of aliases and windows: known answers, and second ways to find the same."""

from __future__ import annotations

import json
import math
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from attnbench.tasks._qa import reports, windows
from attnbench.tasks._qa.aliases import Aliases
from attnbench.tasks._qa.official import squad, triviaqa
from attnbench.tasks._qa.windows import Asked, Evidence, Maker, Options
from attnbench.tasks._subwords import FIRST, NONE, SEPARATOR, Piece
from hypothesis import given
from hypothesis import strategies as st

from attnbench.columns import Split, _view
from attnbench.contracts import Span
from attnbench.errors import AttnbenchError
from attnbench.metrics import best_match
from attnbench.options import parse
from attnbench.questions import question_of


@pytest.mark.parametrize(
    ("text", "of_squad", "of_triviaqa"),
    [
        ("The Beatles", "beatles", "beatles"),
        ("  a  GOLDEN\tstatue\n", "golden statue", "golden statue"),
        ("Jean-Paul Sartre's", "jeanpaul sartres", "jean paul sartre s"),
        ("Sunset_Blvd.", "sunsetblvd", "sunset blvd"),
        ("U.S.A.", "usa", "u s"),
        ("Theatre an der Wien", "theatre der wien", "theatre der wien"),
        ("AC/DC", "acdc", "ac dc"),
        ("\u2018Tis the day\u2019", "\u2018tis day\u2019", "tis day"),
        ("\u201cthe end\u201d", "\u201c end\u201d", "\u201c end\u201d"),
        ("$1,000", "1000", "1 000"),
        ("the", "", ""),
        ("", "", ""),
        ("ÉCOLE", "école", "école"),
    ],
)
def test_texts_are_normalised_by_the_published_rules(text: str, of_squad: str, of_triviaqa: str) -> None:
    assert (squad(text), triviaqa(text)) == (of_squad, of_triviaqa)


def slowly(text: str, blank: bool) -> str:
    """The rules again, letter by letter."""
    marks = set(string.punctuation) | (set("\u2018\u2019\u00b4") if blank else set())
    letters = [letter for letter in text.lower() if blank or letter not in marks]
    letters = [" " if letter in marks else letter for letter in letters]
    kept, run = "", ""
    for letter in [*letters, " "]:
        if letter.isalnum() or letter == "_":
            run += letter
            continue
        kept += (" " if run in ("a", "an", "the") else run) + letter
        run = ""
    return " ".join(kept.split())


@given(st.lists(st.sampled_from(["a", "an", "the", "The", "b", "\u201c", "\u2019", "-", "_", " ", "é", "1", "%", "İ"])))
def test_normalising_letter_by_letter_gives_the_same(parts: list[str]) -> None:
    text = "".join(parts)
    assert squad(text) == slowly(text, blank=False) and triviaqa(text) == slowly(text, blank=True)


@pytest.mark.parametrize(
    ("said", "exact", "f1"),
    [
        ("Saint Bernadette Soubirous", 1, 1),
        ("saint  bernadette soubirous.", 1, 1),
        ("Bernadette Soubirous", 0, 0.8),
        ("to Saint Bernadette Soubirous in 1858", 0, 2 / 3),
        ("the Virgin Mary", 0, 0),
        ("", 0, 0),
    ],
)
def test_squads_script_on_the_first_question_of_the_excerpt(
    test_data: Path, said: str, exact: float, f1: float
) -> None:
    whole = json.loads((test_data / "qa_samples" / "squad.json").read_text("utf-8"))
    answers = [one["text"] for one in whole["data"][0]["paragraphs"][0]["qas"][0]["answers"]]
    assert best_match(said, answers, squad) == (exact, pytest.approx(f1))


@pytest.mark.parametrize(
    ("said", "exact", "f1"),
    [
        ("Sunset Blvd", 1, 1),  # the prediction that is published beside the sample
        ("the Sunset_Boulevard!", 1, 1),
        ("West Sunset Boulevard", 1, 1),
        ("Sunset Boulevard in 1993", 0, 2 / 3),
        ("Phantom of the Opera", 0, 0),
    ],
)
def test_triviaqas_script_on_its_own_sample(test_data: Path, said: str, exact: float, f1: float) -> None:
    whole = json.loads((test_data / "qa_samples" / "triviaqa_sample_official.json").read_text("utf-8"))
    aliases = whole["Data"][0]["Answer"]["NormalizedAliases"]
    assert best_match(said, aliases, triviaqa) == (exact, pytest.approx(f1))


TEXT = "The Lord of the Rings, by J. R. R. Tolkien (\u201cTolkien\u201d); the lord_of_rings. A-Ha! a ha 5€ 5 €"


@pytest.mark.parametrize(
    ("alias", "found"),
    [
        ("lord of rings", ["Lord of the Rings", "lord_of_rings"]),
        ("The Lord Of The Rings", ["Lord of the Rings", "lord_of_rings"]),
        ("tolkien", ["Tolkien", "Tolkien"]),
        ("j r r tolkien", ["J. R. R. Tolkien"]),
        ("ha", ["Ha", "ha"]),
        ("ring", []),
        ("5 €", ["5 €"]),
        ("the", []),
        ("", []),
    ],
)
def test_where_an_alias_stands(alias: str, found: list[str]) -> None:
    assert [TEXT[begin:end] for begin, end in Aliases([alias]).places(TEXT)] == found


@pytest.mark.parametrize("text", ["In İstanbul lives Ada", "ΟΔΥΣΣΕΥΣ and Ada", "ﬁn. Ada"])
def test_letters_that_change_their_length_move_no_place(text: str) -> None:
    assert Aliases(["ada"]).places(text) == [(text.index("Ada"), text.index("Ada") + 3)]


atoms = st.sampled_from(["ab", "c", "the", "a", "€", "5", "\u201d", "Ab"])


@given(st.lists(st.tuples(atoms, st.sampled_from([" ", "-", "_", ", ", "\n"])), max_size=7),
       st.lists(st.lists(atoms, min_size=1, max_size=3).map(" ".join), min_size=1, max_size=3))  # fmt: skip
def test_places_are_those_of_a_search_through_all_pieces_of_text(
    parts: list[tuple[str, str]], aliases: list[str]
) -> None:
    """Pieces that begin and end with an atom that is no article, and that the script takes for an alias."""
    text, bounds = "", []
    for atom, blank in parts:
        if atom.lower() not in ("the", "a"):
            bounds.append((len(text), len(text) + len(atom)))
        text += atom + blank
    wanted = {triviaqa(alias) for alias in aliases} - {""}
    expected = [
        (begin, end)
        for number, (begin, _) in enumerate(bounds)
        for _, end in bounds[number:]
        if triviaqa(text[begin:end]) in wanted
    ]
    assert Aliases(aliases).places(text) == expected


class Letters:
    """In place of subwords: a word of up to three letters with its blank in front, as byte-level BPE has it."""

    def encode(self, texts: Sequence[str]) -> list[Piece]:
        made = []
        for text in texts:
            spans, start = [], 0
            while start < len(text):
                stop = start + 1 + (text[start] == " ")
                most = stop + 2
                while stop < min(len(text), most) and text[stop] != " ":
                    stop += 1
                spans.append((start, min(stop, len(text))))
                start = stop
            ids = np.array([FIRST + ord(text[end - 1]) for _, end in spans], np.int64)
            made.append(Piece(ids, np.array(spans, np.int64).reshape(-1, 2)))
        return made


def maker(max_places: int | None = None, **values: Any) -> Maker:
    small = {"max_length": 16, "max_question": 4, "overlap": 3, "longest_answer": 5, "max_windows": 100}
    return Maker(parse("x", Options, small | values), Letters(), squad, max_places)  # type: ignore[arg-type]


def stored(rows: list[dict[str, Any]], options: Options) -> Split:
    schema = windows.schema(options)
    table = pa.table({field.name: pa.array([row[field.name] for row in rows], field.type) for field in schema})
    extras = {name: _view(table.column(name)) for name in ("context", "offsets", "answers", "question")}
    return Split([_view(table.column("tokens"))], _view(table.column("spans")), extras)


def said(row: dict[str, Any]) -> list[str]:
    """The texts of the spans of a window."""
    offsets, spans = np.array(row["offsets"]).reshape(-1, 2), np.array(row["spans"]).reshape(-1, 2)
    return [row["context"][offsets[first, 0] : offsets[last, 1]] for first, last in spans]


words = st.text("abcxyz", min_size=1, max_size=5)


@given(st.lists(st.lists(words, max_size=40), max_size=3), st.integers(0, 6), st.lists(words, max_size=6),
       st.integers(1, 12), st.data())  # fmt: skip
def test_windows_cover_the_evidence_and_hold_the_places(
    documents: list[list[str]], overlap: int, question: list[str], most: int, data: st.DataObject
) -> None:
    """Against a loop over the subwords; and what comes out is what the engine takes."""
    evidence = []
    for found in documents:
        text = " ".join(found)
        starts = [i for i in range(len(text)) if text[i] != " " and (i == 0 or text[i - 1] == " ")]
        chosen = data.draw(st.lists(st.sampled_from(starts), unique=True, max_size=4)) if starts else []
        sizes = [len(" ".join(text[start:].split(" ")[: data.draw(st.integers(1, 4))])) for start in chosen]
        evidence.append(Evidence(text, [(start, start + size) for start, size in zip(chosen, sizes, strict=True)]))
    one = maker(overlap=overlap, max_length=4 + 2 + overlap + 1 + data.draw(st.integers(0, 6)), max_windows=most)
    asked = Asked("id", " ".join(question) or "q", ["abc"], evidence)
    made = one.rows("test", 5, asked)
    length = min(4, len(one.subwords.encode([asked.question])[0].ids))
    room = one.options.max_length - 2 - length
    expected = []
    for number, document in enumerate(evidence):
        piece, start, turn = one.subwords.encode([document.text])[0], 0, 0
        while len(piece.ids):
            stop = min(start + room, len(piece.ids))
            expected.append((turn, number, piece.ids[start:stop].tolist(), document, piece.spans[start:stop]))
            if stop == len(piece.ids):
                break
            start, turn = start + room - overlap, turn + 1
    expected = sorted(expected, key=lambda found: found[:2])[:most]
    assert [row["tokens"][length + 2 :].tolist() for row in made.rows] == (
        [ids for _, _, ids, _, _ in expected] or [[]]
    )
    for row, (_, _, _, document, spans) in zip(made.rows, expected, strict=False):
        assert row["tokens"][0] == NONE and row["tokens"][length + 1] == SEPARATOR
        assert row["context"] == document.text[spans[0, 0] : spans[-1, 1]].removeprefix(" ")
        inside = {(b, e) for b, e in document.places if spans[0, 0] <= b and e <= spans[-1, 1]}
        short = [(b, e) for b, e in inside if len({i for i, (x, y) in enumerate(spans) if x < e and y > b}) <= 5]
        assert sorted(said(row)) == sorted(document.text[b:e] for b, e in short)
    assert question_of(Span()).row_fault(stored(made.rows, one.options)) is None
    assert made.counts["windows"] == len(made.rows) == max(1, len(expected))
    assert made.counts["without_evidence"] == (not expected)
    assert made.counts["subwords"] == sum(len(one.subwords.encode([d.text])[0].ids) for d in evidence)


EVIDENCE = Evidence(" ".join(f"w{i:02d}" for i in range(40)), [(4 * i, 4 * i + 3) for i in (3, 4, 30)])


def test_training_keeps_windows_with_an_answer_and_few_others() -> None:
    asked = Asked("id", "q", ["w03"], [EVIDENCE])
    test, train = (maker().rows(split, 0, asked) for split in ("test", "train"))
    assert [len(row["spans"]) // 2 for row in test.rows] == [2, 0, 1, 1]
    assert [len(row["spans"]) // 2 for row in train.rows] == [2, 0, 1, 1]
    assert [len(row["spans"]) // 2 for row in maker(empty_windows=0).rows("train", 0, asked).rows] == [2, 1, 1]
    assert test.counts["windows"] == 4 and test.counts["questions"] == 1 and not test.counts["without_answer"]


def test_which_windows_without_an_answer_are_kept_is_drawn() -> None:
    long = Evidence(" ".join(f"w{i:02d}" for i in range(99)), [(0, 3)])
    asked = Asked("id", "q", ["x"], [long])
    drawn = [
        maker(data_seed=seed).rows("train", number, asked).rows
        for seed, number in [(0, 0), (0, 1), (1, 0), (2, 7), (2, 8)]
    ]
    kept = {tuple(row["context"][:3] for row in rows) for rows in drawn}
    assert len(kept) > 2 and all(len(found) == 2 and found[0] == "w00" for found in kept)


def test_a_question_no_window_answers_leaves_training_only() -> None:
    asked = Asked("id", "q", ["zz"], [Evidence("w01 w02")])
    assert maker().rows("train", 0, asked).rows == []
    for split in ("validation", "test"):
        made = maker().rows(split, 0, asked)
        assert len(made.rows) == 1 and len(made.rows[0]["spans"]) == 0
        assert made.counts["without_answer"] == 1 and not made.counts["exactly_answerable"]


def test_a_question_without_evidence_has_a_window_to_fail_in() -> None:
    made = maker().rows("test", 3, Asked("id", "q", ["zz"], []))
    split = stored(made.rows, maker().options)
    question = question_of(Span())
    assert question.row_fault(split) is None and made.counts["without_evidence"] == 1
    logits = np.zeros((2, len(made.rows[0]["tokens"])))
    spoken = question.say(logits, question.ask(split, [0], logits.shape[1]))
    assert spoken["margin"].tolist() == [-math.inf] and question.judge(split, spoken, 0.0).scores.tolist() == [0]


def test_long_answers_and_places_beyond_the_limit_are_left_out() -> None:
    whole = Evidence(EVIDENCE.text, [(0, 3), (0, 7), (0, 39), (8, 11), (12, 15)])
    asked = Asked("id", "q", ["w00"], [whole])
    (row, *_), counts = maker(longest_answer=2).rows("test", 0, asked)
    assert said(row) == ["w00", "w00 w01", "w02", "w03"] and counts["places_too_long"] == 1 and counts["places"] == 5
    (row, *_), counts = maker(max_places=2, longest_answer=2).rows("test", 0, asked)
    assert said(row) == ["w00", "w00 w01"]


def test_an_answer_inside_a_subword_takes_the_whole_one_and_is_counted() -> None:
    (row, *_), counts = maker().rows("test", 0, Asked("id", "q", ["1"], [Evidence("w01 w02", [(2, 3)])]))
    assert said(row) == ["w01"] and not counts["without_answer"] and not counts["exactly_answerable"]


def test_questions_are_cut() -> None:
    made = maker().rows("test", 0, Asked("id", "a b c d e f", ["x"], [Evidence("w")]))
    assert len(made.rows[0]["tokens"]) == 1 + 4 + 1 + 1 and made.counts["questions_cut"] == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_length": 9}, "max_length=9 leaves no evidence that is new behind max_question=4 .*at least 10"),
        ({"max_windows": 0}, "max_windows"),
        ({"overlap": -1}, "overlap"),
        ({"longest_answer": 0}, "longest_answer"),
        ({"examples": 0}, "examples"),
        ({"tokenizer": "nowhere.json"}, "nowhere.json"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(AttnbenchError, match=message):
        maker(**values)
    maker(max_length=10)


def test_what_is_guessed_without_reading() -> None:
    """By hand: names that are not in the question; the windows of one question together."""
    rows = [
        (0, "Who wrote Emma?", "In 1815 it was new. Jane Austen wrote the book in Bath. Bath is old.", ["austen"]),
        (0, "Who wrote Emma?", "Bath again, and no book.", ["austen"]),
        (1, "When was it?", "nothing", ["1815"]),
        (2, "When was it built?", "It was built in 1,815. It burnt down in Ulm.", ["1815"]),
    ]  # fmt: skip
    table = {name: list(column) for name, column in
             zip(("question", "asked", "context", "answers"), zip(*rows, strict=True), strict=True)}  # fmt: skip
    found = reports.guesses(datasets.Dataset.from_dict(table), squad)
    # Bath, nothing, 1,815; Jane Austen (2 words, one right), nothing, 1,815
    assert found == {
        "most_frequent_name": pytest.approx(1 / 3), "name_in_likeliest_sentence": pytest.approx((2 / 3 + 1) / 3)
    }  # fmt: skip
