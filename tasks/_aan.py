"""The released pairs of LRA's Retrieval (Tay et al. 2020; documents of the ACL Anthology Network, Radev et al. 2013).

    new_aan_pairs.{train,eval,test}.tsv     label, id, id, text, text between tabs; no header, no quoting; 8.5 GB, 1, 1

Rows are read one by one. A double quote is a character like any other: readers that take it for the beginning of a
quoted field merge rows. The texts are Python's form of bytes, `b'...'` with escapes, and published figures were made on
that form as it is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from attnbench.contracts import Source
from attnbench.errors import AttnbenchError

from . import _files

SOURCE = Source(
    citation="Tay et al. 2020, Long Range Arena; Radev et al. 2013, The ACL Anthology Network corpus",
    licence="the texts were never openly licensed; do not redistribute",
    url="https://github.com/google-research/long-range-arena",
)
FILES = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
WHERE = (
    "new_aan_pairs.{train,eval,test}.tsv of lra_release (the data set OpenNLPLab/lra of the Hugging Face hub holds "
    "them too); they have no open licence, so nothing fetches them for you"
)
_PLACES = ("", "aan", "tsv_data", "lra_release/tsv_data", "lra_release/lra_release/tsv_data")
_LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
#: ASCII alone; possessive, so that a text that is none is found out in one pass.
_LITERAL = re.compile(rb"""b'(?:[ -&(-\[\]-~]++|\\[ -~])*+'|b"(?:[ !#-\[\]-~]++|\\[ -~])*+\"""")
_ESCAPE = re.compile(rb"\\(x[0-9a-f]{2}|.)", re.DOTALL)
_PLAIN = {b"\\": b"\\", b"'": b"'", b'"': b'"', b"n": b"\n", b"r": b"\r", b"t": b"\t"}


class Pair(NamedTuple):
    where: str
    label: int
    texts: tuple[bytes, bytes]


def find(source: Path) -> dict[str, Path]:
    """The file of each split, plain or packed by gzip, in the layouts in which the release lies about.

    Raises:
        AttnbenchError: none, some missing, or two copies.
    """
    if not source.is_dir():
        raise AttnbenchError(f"{source}: no such folder; name the folder of {FILES['train']} with --from")
    found: dict[Path, dict[str, Path]] = {}
    for place in (source / part for part in _PLACES):
        here = {split: _one(place, name) for split, name in FILES.items()}
        if some := {split: path for split, path in here.items() if path}:
            found[place] = some
    if not found:
        alone = next((path for part in _PLACES for path in (source / part).glob("*only_ids*")), None)
        if alone:
            raise AttnbenchError(f"{alone}: the ids of the pairs without their texts; get {WHERE}")
        raise AttnbenchError(f"{source}: no {FILES['train']} there; get {WHERE}")
    if len(found) > 1:
        first, second, *_ = found
        raise AttnbenchError(f"{source}: two copies, in {first} and {second}; name one of them with --from")
    ((place, files),) = found.items()
    for split, name in FILES.items():
        if split not in files:
            raise AttnbenchError(f"{place / name}: no such file; complete the folder")
    return files


def _one(place: Path, name: str) -> Path | None:
    there = [path for path in (place / name, place / f"{name}.gz") if path.is_file()]
    if len(there) > 1:
        raise AttnbenchError(f"{place}: both {there[0].name} and {there[1].name}; take one out")
    return there[0] if there else None


def parse(path: Path, row: int, line: bytes) -> Pair:
    """
    Raises:
        AttnbenchError: other than five fields, a header, a label other than 0 and 1, an empty text, or no UTF-8.
    """
    where = f"{path}, row {row}"
    if line.count(b"\t") == 2:
        raise AttnbenchError(f"{where}: 3 fields, the ids without the texts; get {WHERE}")
    label, _, _, first, second = _files.fields(path, row, line, 5)
    if label not in _LABELS:
        shown = label[:20].decode("utf-8", "backslashreplace")
        header = "; a header, which the released files do not have? take it out" if row == 1 and label.isalpha() else ""
        raise AttnbenchError(f"{where}: label {shown!r}, expected 0, 1, 0.0 or 1.0{header}")
    _files.utf8(where, line)
    for number, text in ((4, first), (5, second)):
        if not text.strip() or text in (b"b''", b'b""'):
            raise AttnbenchError(f"{where}: field {number} holds no text")
    return Pair(where, _LABELS[label], (first, second))


def is_literal(text: bytes) -> bool:
    """Whether the text looks like Python's form of bytes; a look at both ends, since texts are long."""
    return len(text) > 2 and text[:2] in (b"b'", b'b"') and text[-1] == text[1]


def decoded(where: str, text: bytes) -> bytes:
    """The bytes that a text in Python's form stands for.

    Raises:
        AttnbenchError: it is not in that form.
    """
    if not _LITERAL.fullmatch(text):
        raise AttnbenchError(f"{where}: the text is not in the form b'...'; read it with escapes=kept")
    return _ESCAPE.sub(lambda found: _unescaped(where, found[1]), text[2:-1])


def _unescaped(where: str, escape: bytes) -> bytes:
    if len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    if escape not in _PLAIN:
        shown = escape.decode("utf-8", "backslashreplace")
        raise AttnbenchError(f"{where}: \\{shown} is no escape that Python writes; read the texts with escapes=kept")
    return _PLAIN[escape]
