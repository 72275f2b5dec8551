"""Trivial predictors every task is measured against: what needs no attention at all."""

from __future__ import annotations

from collections import Counter

import datasets
import numpy as np

from attnbench.contracts import NO_TARGET, Classify, Head

_FIT_EXAMPLES = 2000
_MAX_FEATURES = 4096


def scores(head: Head, made: datasets.DatasetDict) -> dict[str, float]:
    """Accuracy on the test split of the most frequent training label, and for one-document classification of a logistic
    regression on token counts (scikit-learn, fitted on at most 2,000 training examples)."""
    train, test = made["train"], made["test"]
    labels = Counter(int(t) for row in train[head.target] for t in np.atleast_1d(row) if t != NO_TARGET)
    majority = labels.most_common(1)[0][0]
    found = {"majority": _mean_score([np.atleast_1d(row) for row in test[head.target]], majority)}
    if isinstance(head, Classify):
        found["token_counts"] = _token_counts(train, test, head)
    return found


def _mean_score(targets: list[np.ndarray], guess: int) -> float:
    """Mean over examples of the share of predictions that are right, as the engine scores a model."""
    return float(np.mean([(row[row != NO_TARGET] == guess).mean() for row in targets if (row != NO_TARGET).any()]))


def _token_counts(train: datasets.Dataset, test: datasets.Dataset, head: Head) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    train = train.select(range(min(_FIT_EXAMPLES, len(train))))
    column = head.documents[0]
    width = 1 + max(max(max(row) for row in split[column]) for split in (train, test))
    width = min(width, _MAX_FEATURES)

    def counts(split: datasets.Dataset) -> np.ndarray:
        return np.stack([np.bincount(np.minimum(row, width - 1), minlength=width) for row in split[column]]).astype(float)

    labels = np.asarray(train[head.target])
    if len(np.unique(labels)) < 2:
        return float(np.mean(np.asarray(test[head.target]) == labels[0]))
    scaler = StandardScaler().fit(counts(train))
    model = LogisticRegression(max_iter=200).fit(scaler.transform(counts(train)), labels)
    return float(model.score(scaler.transform(counts(test)), np.asarray(test[head.target])))
