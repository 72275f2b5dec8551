"""Subwords: byte-level BPE (Sennrich et al. 2016; on bytes as in Radford et al. 2019) without a download.

The vocabulary is trained on a task's own training texts, or read from the user's tokenizer.json. Every byte has an id,
so no text is unknown and decoding a trained vocabulary gives the text back, character by character. Ids of a prepared
set are the tokenizer's plus FIRST; those below are the engine's padding and the marks that tasks put between texts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from pydantic import BeforeValidator, PlainSerializer

from attnbench.errors import AttnbenchError, one_line

from ._files import refuse_stand_in

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PADDING, SEPARATOR, NONE, QUESTION, CANDIDATE = range(5)
#: How decoding shows the ids below FIRST; 5 to 7 are kept free.
MARKS = ("[PAD]", "[SEP]", "[NONE]", "[Q]", "[CAND]", "[5]", "[6]", "[7]")
FIRST = len(MARKS)
#: Bytes are the smallest vocabulary.
LEAST = 256
#: File of a vocabulary, in the format of the library `tokenizers`.
FILE = "tokenizer.json"
_CONTENT = re.compile(r"sha256-(?P<sha>[0-9a-f]{16})-(?P<size>\d+)")
_ROUGHLY_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer.json, known by its content: as an option it is `sha256-HASH-SIZE`, wherever the file lies.

    `path` is None where only the content is known, as in a record.
    """

    sha: str
    size: int
    path: Path | None = None

    def __str__(self) -> str:
        return f"sha256-{self.sha}-{self.size}"


def _tokenizer_file(value: Any) -> Any:
    if not isinstance(value, str | Path):
        return value
    if match := _CONTENT.fullmatch(str(value)):
        return TokenizerFile(match["sha"], int(match["size"]))
    path = Path(value).expanduser()
    try:
        raw = path.read_bytes()
        size = Subwords.parse(path, raw).size
    except ModuleNotFoundError:
        raise ValueError("reading it needs the package tokenizers: pip install tokenizers") from None
    except (OSError, AttnbenchError) as error:
        raise ValueError(str(error)) from None
    return TokenizerFile(hashlib.sha256(raw).hexdigest()[:16], size, path)


#: An option: the path of a tokenizer.json. Its content enters the identity of the data, its path does not.
TokenizerPath = Annotated[TokenizerFile, BeforeValidator(_tokenizer_file), PlainSerializer(str)]


class Piece(NamedTuple):
    """ids: (N,) int64 with FIRST added; spans: (N, 2), first character and the one behind the last, of each id."""

    ids: np.ndarray
    spans: np.ndarray


class Subwords:
    """A vocabulary, and texts in it."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer

    @property
    def size(self) -> int:
        """The number of ids, without those below FIRST."""
        return int(max(self._tokenizer.get_vocab(with_added_tokens=True).values())) + 1

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> Subwords:
        """At most `size` subwords, the bytes included: the same for the same texts, in any order, with any threads."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    @classmethod
    def parse(cls, path: Path, raw: bytes) -> Subwords:
        """
        Raises:
            AttnbenchError: no tokenizer.json, or one without subwords.
        """
        from tokenizers import Tokenizer

        refuse_stand_in(path, raw[:64])
        try:
            tokenizer = Tokenizer.from_str(raw.decode("utf-8"))
            tokenizer.no_truncation()
            tokenizer.no_padding()
        except Exception as error:  # noqa: BLE001  the library raises Exception itself
            raise AttnbenchError(f"{path}: no tokenizer.json of the library tokenizers ({one_line(error)})") from None
        if not tokenizer.get_vocab_size(with_added_tokens=True):
            raise AttnbenchError(f"{path}: a vocabulary without subwords")
        return cls(tokenizer)

    @classmethod
    def load(cls, file: Path | TokenizerFile) -> Subwords:
        """
        Raises:
            AttnbenchError: only the content is known, not the file; or it is another one now, or none.
        """
        path = file.path if isinstance(file, TokenizerFile) else file
        if path is None:
            raise AttnbenchError(f"tokenizer={file}: only its content hash is known; give the file: tokenizer=PATH")
        raw = path.read_bytes()
        if isinstance(file, TokenizerFile) and hashlib.sha256(raw).hexdigest()[:16] != file.sha:
            raise AttnbenchError(f"{path}: changed while it was being used; start again")
        return cls.parse(path, raw)

    def save(self, path: Path) -> None:
        path.write_text(self._tokenizer.to_str(), "utf-8")

    def encode(self, texts: Sequence[str]) -> list[Piece]:
        """Each text's ids and where they stand in it; an id that ends within a character's bytes spans it whole."""
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [Piece(self._ids(one), np.array(one.offsets, np.int64).reshape(-1, 2)) for one in encoded]

    def ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Each text's ids, (N,) int64; faster than `encode`."""
        return [self._ids(one) for one in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    @staticmethod
    def _ids(encoding: Any) -> np.ndarray:
        return np.array(encoding.ids, np.int64) + FIRST

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, with MARKS where ids below FIRST stand."""
        shown, run = [], []
        for one in [*map(int, ids), None]:
            if one is not None and one >= FIRST:
                run.append(one - FIRST)
                continue
            shown.append(self._tokenizer.decode(run, skip_special_tokens=False))
            run = []
            if one is not None:
                shown.append(MARKS[one])
        return "".join(shown)


def in_batches(texts: Iterable[str]) -> Iterable[list[str]]:
    """Texts together of about a million characters: an encoding takes a hundred bytes a subword."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _ROUGHLY_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
