"""Reading other people's files: line by line in binary, nothing executed, every fault with its file and row.

The csv builders of data libraries shift columns when a row has a field too many, merge rows at a stray quote and turn
the text "NA" into nothing; so rows are split here, by us, and never guessed at.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from attnbench.errors import AttnbenchError

#: What stands at the beginning of a file that is not the data: a pointer of git-LFS, or the page of an error.
_NOT_DATA = (b"version https://git-lfs", b"<!doctype", b"<html")
_GZIP = b"\x1f\x8b"


def refuse_stand_in(path: Path, beginning: bytes) -> None:
    """
    Raises:
        AttnbenchError: the file is empty, a git-LFS pointer or a web page.
    """
    if not beginning:
        raise AttnbenchError(f"{path}: empty")
    if beginning.lstrip(b"\xef\xbb\xbf \r\n\t").lower().startswith(_NOT_DATA):
        raise AttnbenchError(f"{path}: a git-LFS pointer or a web page in place of data; download the file itself")


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Row numbers from 1 and rows without their line end (LF or CRLF); a byte order mark is taken off. Reads .gz too.

    Raises:
        AttnbenchError: no such file, empty, a stand-in for the data, a NUL byte, or a compressed file cut short.
    """
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == _GZIP
        with gzip.open(path, "rb") if packed else open(path, "rb") as file:
            row = 0
            for row, line in enumerate(file, 1):
                if row == 1:
                    refuse_stand_in(path, line)
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if (nul := line.find(b"\0")) >= 0:
                    raise AttnbenchError(f"{path}, row {row}: a NUL byte at column {nul + 1}")
                yield row, line.removesuffix(b"\n").removesuffix(b"\r")
            if not row:
                raise AttnbenchError(f"{path}: empty")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise AttnbenchError(f"{path}: cut short or damaged after row {row} ({error}); download it again") from None
    except FileNotFoundError:
        raise AttnbenchError(f"{path}: no such file") from None


def fields(path: Path, row: int, line: bytes, count: int) -> list[bytes]:
    """The `count` tab-separated fields of a row.

    Raises:
        AttnbenchError: another number of them.
    """
    found = line.split(b"\t")
    if len(found) != count:
        raise AttnbenchError(f"{path}, row {row}: {len(found)} fields between tabs, expected {count}")
    return found


def utf8(where: str, raw: bytes) -> str:
    """
    Raises:
        AttnbenchError: not UTF-8; names the byte.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AttnbenchError(
            f"{where}: not UTF-8, byte {error.start} is 0x{raw[error.start]:02x}; convert the file"
        ) from None
