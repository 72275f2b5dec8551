"""What a preparation tells of windows, and what can be guessed without reading: the trivial level of spans."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

import datasets

from attnbench.contracts import Preparation
from attnbench.metrics import best_match

_NAME = re.compile(r"\d[\d,.]*|[^\W\d_a-z][\w'\u2019-]*(?: [^\W\d_a-z][\w'\u2019-]*)*")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_WORD = re.compile(r"\w+")


def tell(preparation: Preparation, counts: Mapping[str, Counter[str]], vocabulary: int) -> None:
    """Keeps how many windows a question has, what of its evidence was cut, and how many cannot be answered."""

    def shares(what: str, of: str = "questions", whole: float = 0.0) -> dict[str, float]:
        return {split: round(abs(whole - found[what] / max(1, found[of])), 4) for split, found in counts.items()}

    facts: dict[str, Any] = {
        "questions": {split: found["questions"] for split, found in counts.items()},
        "subwords_in_the_vocabulary": vocabulary,
        "windows_per_question": shares("windows"),
        "share_of_evidence_cut": shares("subwords_kept", "subwords", 1.0),
        "share_of_questions_cut": shares("questions_cut"),
        "share_without_evidence": shares("without_evidence"),
        "share_without_answer_in_a_window": shares("without_answer"),
        "share_exactly_answerable": shares("exactly_answerable"),
        "places_of_answers": {split: found["places"] for split, found in counts.items()},
        "places_that_are_too_long": {split: found["places_too_long"] for split, found in counts.items()},
    }
    for name, fact in facts.items():
        preparation.fact(name, fact)
    if any(facts["share_of_evidence_cut"].values()):
        preparation.note(f"evidence cut, as max_windows says: {_listed(facts['share_of_evidence_cut'])}")
    if any(facts["share_without_answer_in_a_window"].values()):
        preparation.note(
            "no window holds an answer; left out of training, kept elsewhere: "
            f"{_listed(facts['share_without_answer_in_a_window'])} of the questions"
        )


def _listed(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{100 * share:.1f} % of {split}" for split, share in shares.items())


def guesses(test: datasets.Dataset, normalise: Callable[[str], str]) -> dict[str, float]:
    """F1 of two guessers that look for names and numbers which the question does not hold: the most frequent one, and
    the first one of the sentence that shares most words with the question.
    """
    scores: dict[str, list[float]] = {"most_frequent_name": [], "name_in_likeliest_sentence": []}
    rows = (test[index] for index in range(len(test)))
    for _, group in groupby(rows, key=lambda row: row["question"]):
        windows = list(group)
        known = set(_WORD.findall(windows[0]["asked"].lower()))
        contexts = [window["context"] for window in windows]
        said = (_most_frequent(known, contexts), _of_likeliest(known, contexts))
        for of_guesser, text in zip(scores.values(), said, strict=True):
            of_guesser.append(best_match(text, windows[0]["answers"], normalise)[1] if text else 0.0)
    return {name: sum(of_guesser) / len(of_guesser) for name, of_guesser in scores.items()}


def _names(known: set[str], text: str) -> list[str]:
    found = (name.rstrip(".,") for name in _NAME.findall(text))
    return [name for name in found if not known.issuperset(_WORD.findall(name.lower()))]


def _most_frequent(known: set[str], contexts: list[str]) -> str:
    counted = Counter(name for context in contexts for name in _names(known, context))
    return max(counted, key=counted.__getitem__, default="")


def _of_likeliest(known: set[str], contexts: list[str]) -> str:
    sentences = (sentence for context in contexts for sentence in _SENTENCE.split(context))
    best, said = 0, ""
    for sentence in sentences:
        shared = len(known.intersection(_WORD.findall(sentence.lower())))
        if shared > best and (names := _names(known, sentence)):
            best, said = shared, names[0]
    return said
