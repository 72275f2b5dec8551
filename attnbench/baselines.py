"""Trivial predictors every task is measured against: what needs no attention at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np
from scipy.sparse import csr_array

from attnbench.columns import Split
from attnbench.contracts import Classify, Head, Span
from attnbench.questions import question_of

_FIT_EXAMPLES = 2000
_MAX_FEATURES = 1 << 16
#: Of different tokens of all examples together, which bounds the memory; a train split with more is cut there.
_MAX_COUNTS = 1 << 22


def scores(head: Head, splits: Mapping[str, Split]) -> dict[str, float]:
    """Accuracy on the test split of the most frequent training label, and for one-document classification of the most
    frequent label given the first token, and of a logistic regression on token counts (scikit-learn, fitted on at most
    2,000 training examples). Spans have no labels.
    """
    if isinstance(head, Span):
        return {}
    answers = {name: question_of(head).answers(split) for name, split in splits.items()}
    majority = np.bincount(np.concatenate(answers["train"])).argmax()
    found = {"majority": float(np.mean([(row == majority).mean() for row in answers["test"]]))}
    if isinstance(head, Classify):
        known, wanted = (np.concatenate(answers[name]) for name in ("train", "test"))
        found["first_token"] = _first_token(splits, known, wanted)
        found["token_counts"] = _token_counts(splits, known[:_FIT_EXAMPLES], wanted)
    return found


def _first_token(splits: Mapping[str, Split], known: np.ndarray, wanted: np.ndarray) -> float:
    train, test = (np.array([int(row[0]) for row in splits[name].documents[0]]) for name in ("train", "test"))
    usual = np.bincount(known).argmax()
    guesses = {token: np.bincount(known[train == token]).argmax() for token in np.unique(train)}
    return float(np.mean([guesses.get(token, usual) == label for token, label in zip(test, wanted, strict=True)]))


def _token_counts(splits: Mapping[str, Split], known: np.ndarray, wanted: np.ndarray) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    train, test = splits["train"], splits["test"]
    if len(np.unique(known)) < 2:
        return float(np.mean(wanted == known[0]))
    width = min(_MAX_FEATURES, 1 + max(int(row.max()) for row in islice(train.documents[0], len(known))))
    # the intercept takes up the means, so sparse counts stay sparse; in place, for they may be many
    scaler = StandardScaler(with_mean=False, copy=False)
    counts = next(_counts(train, len(known), width))
    model = LogisticRegression(max_iter=2000).fit(scaler.fit_transform(counts), known[: counts.shape[0]])
    said = [model.predict(scaler.transform(part)) for part in _counts(test, len(wanted), width)]
    return float(np.mean(np.concatenate(said) == wanted))


def _counts(split: Split, examples: int, width: int) -> Iterator[csr_array]:
    """(examples, width) how often each token id occurs, in parts of about _MAX_COUNTS; larger ids share a column."""
    ends, ids, counts = [0], [], []
    for index, row in enumerate(islice(split.documents[0], examples), start=1):
        found, often = np.unique(np.minimum(row, width - 1), return_counts=True)
        ids.append(found.astype(np.int32))
        counts.append(often.astype(np.int32))
        ends.append(ends[-1] + len(found))
        if ends[-1] >= _MAX_COUNTS or index == examples:
            table = np.concatenate(counts).astype(np.float64), np.concatenate(ids), np.array(ends, dtype=np.int32)
            yield csr_array(table, shape=(len(counts), width))
            ends, ids, counts = [0], [], []
