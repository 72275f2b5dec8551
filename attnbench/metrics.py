"""Metrics of question answering, which the engine scores with and tasks compute trivial levels with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence


def best_match(text: str, answers: Sequence[str], normalise: Callable[[str], str]) -> tuple[float, float]:
    """Exact match and token F1 (Rajpurkar et al. 2016, SQuAD, section 6.1), each the best over the answers."""
    said = normalise(text)
    pairs = [(said, normalise(answer)) for answer in answers]
    return max((float(a == b) for a, b in pairs), default=0.0), max((_f1(a, b) for a, b in pairs), default=0.0)


def _f1(said: str, answer: str) -> float:
    a, b = said.split(), answer.split()
    common = sum((Counter(a) & Counter(b)).values())
    return 2 * common / (len(a) + len(b)) if common else 0.0
