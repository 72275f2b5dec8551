"""Options that the tasks on questions have in common, and the vocabulary they shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
from pydantic import PositiveInt

from attnbench.contracts import Preparation

from .._documents import Options as Documents
from .._documents import threads
from .._subwords import FILE, Subwords

#: A vocabulary is trained on no more of the training texts than this.
_VOCABULARY_CHARACTERS = 1 << 27


@dataclass(frozen=True, kw_only=True)
class Shared(Documents):
    """max_length: subwords of an example, the question and the marks in front included.
    max_question: subwords of a question that are kept.
    examples, test_examples: that many questions for training, and for validation and test each; none: all.
    vocab_size: of the vocabulary that is trained on the training texts, bytes included; those below it are counted.
    tokenizer: a tokenizer.json to use instead; what is recorded of it is a hash of its content.
    data_seed: of the validation questions and of every other choice among them.
    """

    max_question: PositiveInt = 64
    examples: PositiveInt | None = None
    test_examples: PositiveInt | None = None

    @property
    def id_type(self) -> pa.DataType:
        return pa.uint16() if self.vocab <= 1 << 16 else pa.uint32()


def vocabulary(options: Shared, preparation: Preparation, texts: Iterable[str]) -> Subwords:
    """The user's, or one trained on the beginning of `texts`; it stays with the set."""
    path = preparation.folder / "kept" / FILE
    path.parent.mkdir(exist_ok=True)
    if path.is_file():
        return Subwords.load(path)
    if options.tokenizer:
        subwords = Subwords.load(options.tokenizer)
    else:
        with threads(preparation.workers):
            subwords = Subwords.train(_first(texts), options.vocab_size)
    partial = path.with_suffix(".partial")
    subwords.save(partial)
    partial.replace(path)
    return subwords


def _first(texts: Iterable[str]) -> Iterable[str]:
    left = _VOCABULARY_CHARACTERS
    for text in texts:
        yield text
        left -= len(text)
        if left <= 0:
            return
