"""Handwritten digits as sequences of 64 pixels with 17 levels: real images that ship with scikit-learn.

1,797 pictures of 8 x 8 pixels (test part of the UCI set), row by row; pixels carry no padding mask. The split is by a
hash of the picture's number: about 80/10/10, and it depends on nothing else.
"""

from __future__ import annotations

import hashlib

import datasets
import numpy as np

from attnbench.contracts import Classify, Preparation, Source, Task


def split_of(index: int) -> str:
    """train, validation or test; a function of the number alone."""
    place = int.from_bytes(hashlib.sha256(f"digits {index}".encode()).digest()[:4], "big") % 10
    return {8: "validation", 9: "test"}.get(place, "train")


def prepare(options: object, preparation: Preparation) -> datasets.DatasetDict:
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels, labels = found.data.astype(np.uint8), found.target
    where = np.array([split_of(index) for index in range(len(labels))])
    features = datasets.Features(tokens=datasets.List(datasets.Value("uint8")), label=datasets.Value("int64"))
    return datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict(
                {"tokens": pixels[where == name], "label": labels[where == name]}, features=features
            )
            for name in ("train", "validation", "test")
        }
    )


TASK = Task(
    summary="8 x 8 handwritten digits as pixel sequences: real images without a download",
    source=Source(
        citation="Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository",
        licence="CC BY 4.0",
        url="https://doi.org/10.24432/C50P49",
    ),
    head=lambda options: Classify(10),
    vocab=lambda options: 17,
    max_length=lambda options: 64,
    prepare=prepare,
)
