"""SemEval-2019 task 4, by article (Kiesel et al. 2019): two XML files, zipped or not, joined by the articles' ids.

    articles-training-byarticle-20181122.zip         <article id title published-at> text with p, q and a </article>
    ground-truth-training-byarticle-20181122.zip     <article id hyperpartisan url labeled-by/>

Nothing is unpacked to disk and no document type or entity is taken from a file, so that neither a path nor an expansion
can do harm. Reading ends at a size many times that of the published files.
"""

from __future__ import annotations

import html
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple
from xml.parsers import expat

from attnbench.errors import AttnbenchError, one_line

from ._files import refuse_stand_in

ARTICLES, TRUTH = "articles-training-byarticle", "ground-truth-training-byarticle"
LABELS = {"false": 0, "true": 1}
#: Bytes of an unpacked file; the published ones have 2.7 million at most.
_MOST = 1 << 28
_AT_ONCE = 1 << 16
#: Elements whose text stands by itself; `a` stands within a sentence.
_BLOCKS = ("p", "q", "article")
#: What the library raises for an archive that is cut short, damaged, encrypted or packed in a way it does not know.
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, NotImplementedError, RuntimeError,
    ValueError, OSError,
)  # fmt: skip


class Article(NamedTuple):
    """text and title without tags; label: 1 = hyperpartisan."""

    id: str
    title: str
    text: str
    label: int


def read(source: Path) -> list[Article]:
    """All articles, by id.

    Raises:
        AttnbenchError: files that are not there, damaged, or do not belong together, with file, line and reason.
    """
    paths = {kind: _find(source, kind) for kind in (ARTICLES, TRUTH)}
    articles, truth = _Articles(paths[ARTICLES]), _Truth(paths[TRUTH])
    for handler in (articles, truth):
        _parse(handler)
    for found, other in ((articles, truth), (truth, articles)):
        if lost := sorted(set(found.rows) - set(other.rows)):
            raise AttnbenchError(
                f"{other.path}: no article {lost[0]}, which {found.path.name} has (such ids: {len(lost)}); the two "
                "files belong to different sets"
            )
    return [Article(id, *articles.rows[id], truth.rows[id]) for id in sorted(articles.rows)]


def _find(source: Path, kind: str) -> Path:
    """The file of this kind in the folder, its folder `data`, or beside the file that was named."""
    home = source.parent if source.is_file() else source
    if not home.is_dir():
        raise AttnbenchError(f"{source}: no such folder")
    found: dict[str, Path] = {}
    for ending in ("zip", "xml"):  # an unpacked file goes before the archive of the same name
        for place in (home, home / "data"):
            found |= {path.stem: path for path in sorted(place.glob(f"{kind}*.{ending}"))}
    if not found:
        raise AttnbenchError(
            f"{home}: no {kind}-….zip or .xml there; get it from https://doi.org/10.5281/zenodo.5776081"
        )
    if len(found) > 1:
        raise AttnbenchError(f"{home}: more than one set: {' and '.join(path.name for path in found.values())}")
    return next(iter(found.values()))


class _Refused(Exception):
    """What is wrong with the element that is being read."""


class _Articles:
    """Collects (title, text) of each article."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: dict[str, tuple[str, str]] = {}
        self._id, self._title, self._parts, self._depth = "", "", list[str](), 0

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        _check_place(name, self._depth)
        if self._depth == 2:
            self._id, self._title, self._parts = _new_id(attributes, self.rows), attributes.get("title", ""), []
        elif name in _BLOCKS:
            self._parts.append("\n")

    def text(self, data: str) -> None:
        if self._depth >= 2:
            self._parts.append(data)

    def end(self, name: str) -> None:
        self._depth -= 1
        if name in _BLOCKS:
            self._parts.append("\n")
        if self._depth == 1:
            text = clean("".join(self._parts))
            if not text:
                raise _Refused(f"article {self._id}: empty text")
            self.rows[self._id] = (clean(self._title), text)


class _Truth:
    """Collects the label of each article."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: dict[str, int] = {}
        self._depth = 0

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        _check_place(name, self._depth)
        if self._depth == 2:
            key, label = _new_id(attributes, self.rows), attributes.get("hyperpartisan")
            if label not in LABELS:
                raise _Refused(f"article {key}: hyperpartisan={label!r}, expected true or false")
            self.rows[key] = LABELS[label]

    def text(self, data: str) -> None:
        pass

    def end(self, name: str) -> None:
        self._depth -= 1


def _check_place(name: str, depth: int) -> None:
    wanted = {1: "articles", 2: "article"}.get(depth, name)
    if name != wanted:
        raise _Refused(f"element {name!r} where {wanted!r} belongs")


def _new_id(attributes: Mapping[str, str], known: Mapping[str, object]) -> str:
    found = attributes.get("id", "")
    if not (found.isascii() and found.isdecimal()):
        raise _Refused(f"an article with id={attributes.get('id')!r}, expected digits")
    if found in known:
        raise _Refused(f"article {found} occurs twice")
    return found


def clean(text: str) -> str:
    """References that were escaped twice (`&amp;amp;`) resolved, all white space as single blanks."""
    return " ".join(html.unescape(text).split())


def _parse(handler: _Articles | _Truth) -> None:
    """Streams the file through the parser.

    Raises:
        AttnbenchError: with file, line and reason.
    """
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = handler.start, handler.end
    parser.CharacterDataHandler = handler.text
    parser.StartDoctypeDeclHandler = _refuse_doctype
    try:
        for part in _bytes(handler.path):
            if b"\0" in part:
                raise _Refused("a NUL byte")
            parser.Parse(part, False)
        parser.Parse(b"", True)
    except (_Refused, expat.ExpatError) as error:
        line = error.lineno if isinstance(error, expat.ExpatError) else parser.CurrentLineNumber
        raise AttnbenchError(f"{handler.path}, line {line}: {error}") from None
    if not handler.rows:
        raise AttnbenchError(f"{handler.path}: no articles")


def _refuse_doctype(*declaration: object) -> None:
    raise _Refused("a document type declaration, which the published files do not have; it is not read")


def _bytes(path: Path) -> Iterator[bytes]:
    """The XML file's content, piece by piece, out of its archive where it is in one."""
    read = 0
    with _opened(path) as file:
        while part := file.read(_AT_ONCE):
            if not read:
                refuse_stand_in(path, part)
            read += len(part)
            if read > _MOST:
                raise AttnbenchError(f"{path}: unpacks to more than {_MOST:,} bytes; the published file is far smaller")
            yield part
    if not read:
        raise AttnbenchError(f"{path}: empty")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    if path.suffix != ".zip":
        with open(path, "rb") as plain:
            yield plain
        return
    with open(path, "rb") as packed:  # where it cannot be opened, that is said
        refuse_stand_in(path, packed.read(64))
    try:
        with zipfile.ZipFile(path) as archive, archive.open(_member(path, archive)) as file:
            yield file
    except _DAMAGED as error:
        raise AttnbenchError(f"{path}: cut short or damaged ({one_line(error)}); download it again") from None


def _member(path: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """The one XML file in the archive."""
    infos = archive.infolist()
    for info in infos:
        if info.filename.startswith("/") or ".." in PurePosixPath(info.filename.replace("\\", "/")).parts:
            raise AttnbenchError(f"{path}: its member {info.filename!r} leads out of the folder")
    found = [info for info in infos if info.filename.endswith(".xml") and not info.filename.startswith("__MACOSX/")]
    if len(found) != 1 or not Path(found[0].filename).name.startswith(path.stem.partition("byarticle")[0]):
        raise AttnbenchError(f"{path}: holds {[info.filename for info in infos][:5]}, not one file {path.stem}.xml")
    return found[0]
