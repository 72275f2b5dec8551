"""What the official evaluation scripts do to texts before they compare them, written from their published rules."""

from __future__ import annotations

import re
import string

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
#: What TriviaQA's script takes for a blank: ASCII punctuation and four kinds of quotes.
BLANKS = string.punctuation + "\u2018\u2019\u00b4`"
_BLANKED = str.maketrans(BLANKS, " " * len(BLANKS))


def _without_articles(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text).split())


def squad(text: str) -> str:
    """SQuAD's evaluate-v1.1 (Rajpurkar et al. 2016): lower case, no ASCII punctuation, no articles, single blanks."""
    return _without_articles(text.lower().translate(_WITHOUT_PUNCTUATION))


def triviaqa(text: str) -> str:
    """TriviaQA's triviaqa_evaluation (Joshi et al. 2017): as SQuAD's, but punctuation and four kinds of quotes become
    blanks, so they part words.
    """
    return _without_articles(text.lower().translate(_BLANKED))
