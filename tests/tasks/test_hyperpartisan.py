"""Hyperpartisan: two XML files joined by id, folds in which each article is tested once, and bad files named."""

from __future__ import annotations

import html
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnbench.tasks import _hyperpartisan, hyperpartisan
from attnbench.tasks._hyperpartisan import ARTICLES, TRUTH, Article, read
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from attnbench.errors import AttnbenchError
from attnbench.options import parse

COUNT = 40


def options(**values: Any) -> hyperpartisan.Options:
    found = parse("task hyperpartisan", hyperpartisan.Options, values)
    assert isinstance(found, hyperpartisan.Options)
    return found


def xml(count: int = COUNT) -> tuple[str, str]:
    """Articles and truth as the published files have them: a headline, links within sentences, some dates missing."""
    articles, truth = [], []
    for i in range(count):
        date = f' published-at="2017-01-{1 + i % 28:02d}"' if i % 9 else ""
        words = " ".join(f"w{(i * k) % 37}" for k in range(3 + i % 11))
        articles.append(
            f'<article id="{i:07d}"{date} title="Headline &amp; {i}">\n<p>Text {i} of <a href="x" type="external">the '
            f"press</a>, {words}</p> <p>B&amp;amp;C &lt;d&gt;</p>said<q>so</q>\n</article>"
        )
        truth.append(f'<article hyperpartisan="{"true" if i % 3 else "false"}" id="{i:07d}" labeled-by="article"/>')
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    return tuple(f"{head}<articles>\n" + "\n".join(rows) + "\n</articles>\n" for rows in (articles, truth))  # type: ignore[return-value]


def pack(folder: Path, kind: str, content: bytes, member: str | None = None) -> Path:
    path = folder / f"{kind}-20181122.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member or f"{kind}-20181122.xml", content)
    return path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    folder.mkdir()
    for kind, text in zip((ARTICLES, TRUTH), xml(), strict=True):
        pack(folder, kind, text.encode())
    return folder


def test_tags_references_and_white_space(files: Path) -> None:
    found = read(files)
    assert [article.id for article in found] == [f"{i:07d}" for i in range(COUNT)]
    assert [article.label for article in found] == [int(i % 3 > 0) for i in range(COUNT)]
    assert found[2] == Article("0000002", "Headline & 2", "Text 2 of the press, w0 w2 w4 w6 w8 B&C <d> said so", 1)


def test_the_published_set_is_what_a_second_reading_finds(test_data: Path) -> None:
    """The second one cuts the text with regular expressions."""
    folder = test_data / "hyperpartisan" / "data"
    raw = {
        kind: zipfile.ZipFile(next(folder.glob(f"{kind}*.zip"))).read(f"{kind}-20181122.xml").decode()
        for kind in (ARTICLES, TRUTH)
    }
    bodies = dict(re.findall(r'<article id="(\d+)"[^>]*>(.*?)</article>', raw[ARTICLES], re.DOTALL))
    truth = {
        re.findall(r' id="(\d+)"', tag)[0]: 'hyperpartisan="true"' in tag
        for tag in re.findall(r"<article .*?/>", raw[TRUTH])
    }
    texts = {
        key: " ".join(
            html.unescape(html.unescape(re.sub("</?a(?: [^>]*)?>", "", re.sub("</?[pq]/?>", "\n", body)))).split()
        )
        for key, body in bodies.items()
    }
    found = read(test_data / "hyperpartisan")
    assert {article.id: article.text for article in found} == texts
    assert {article.id: bool(article.label) for article in found} == truth
    assert (len(found), sum(article.label for article in found)) == (645, 238)
    words = sorted(len(article.text.split()) for article in found)
    assert (words[0], words[322]) == (15, pytest.approx(413, abs=2))


@pytest.mark.parametrize("seed", [0, 1])
def test_over_five_folds_every_article_is_tested_once(test_data: Path, seed: int) -> None:
    articles = read(test_data / "hyperpartisan")
    splits = [hyperpartisan.split(options(fold=fold, data_seed=seed), articles) for fold in range(5)]
    assert sorted(np.concatenate([one["test"] for one in splits])) == list(range(645))
    for one in splits:
        assert sorted(np.concatenate(list(one.values()))) == list(range(645))
        for name, rows in one.items():
            share = np.mean([articles[row].label for row in rows])
            assert share == pytest.approx(238 / 645, abs=0.012), name
        assert [len(one[name]) for name in ("validation", "test")] == [
            pytest.approx(65, abs=2), pytest.approx(129, abs=2)
        ]  # fmt: skip
        sides = [{articles[row].text for row in rows} for rows in one.values()]
        assert not (sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])


def test_folds_are_a_function_of_the_seed_and_the_texts_alone(files: Path) -> None:
    articles = read(files)
    again = [articles[-1], *articles[:-1]]

    def tested(of: list[Article], **values: Any) -> set[str]:
        return {of[row].id for row in hyperpartisan.split(options(**values), of)["test"]}

    assert tested(articles) == tested(again) != tested(articles, data_seed=1)
    assert tested(articles, title=True) == tested(articles)
    assert [len(tested(articles, fold=fold)) for fold in range(5)] == [8] * 5


def test_equal_texts_stay_together(files: Path) -> None:
    articles = read(files)
    doubled = [*articles, *(article._replace(id=f"9{article.id}") for article in articles[:7])]
    for fold in range(5):
        found = hyperpartisan.split(options(fold=fold), doubled)
        texts = [{doubled[row].text for row in rows} for rows in found.values()]
        assert sum(map(len, texts)) == COUNT
        assert sum(map(len, found.values())) == COUNT + 7


@pytest.mark.parametrize("layout", ["zip", "xml", "both", "data", "file", "one of each"])
def test_layouts(files: Path, tmp_path: Path, layout: str) -> None:
    wanted = read(files)
    source = files
    if layout in ("xml", "both", "one of each"):
        for path in sorted(files.glob("*.zip"))[: 1 if layout == "one of each" else 2]:
            zipfile.ZipFile(path).extractall(files)
            if layout != "both":
                path.unlink()
    elif layout == "data":
        source = tmp_path / "outer"
        shutil.copytree(files, source / "data")
    elif layout == "file":
        source = files / f"{TRUTH}-20181122.zip"
    (files / "article.xsd").write_text("<not read/>")
    assert read(source) == wanted


def change(kind: str, old: str, new: str) -> Callable[[Path], Any]:
    def spoil(files: Path) -> None:
        text = xml()[kind == TRUTH]
        assert old in text
        pack(files, kind, text.replace(old, new, 1).encode("utf-8", "surrogateescape"))

    return spoil


def change_zip(spoil: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    def at(files: Path) -> None:
        path = files / f"{ARTICLES}-20181122.zip"
        path.write_bytes(spoil(path.read_bytes()))

    return at


def encrypted(raw: bytes) -> bytes:
    """Sets the flag in the file's header and in the directory."""
    changed = bytearray(raw)
    changed[6] |= 1
    changed[raw.rindex(b"PK\x01\x02") + 8] |= 1
    return bytes(changed)


LAUGHS = '<!DOCTYPE a [<!ENTITY b "ha">' + "".join(
    f'<!ENTITY {chr(99 + n)} "{f"&{chr(98 + n)};" * 10}">' for n in range(9)
)
START = "<articles>"
BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "billion laughs": (change(ARTICLES, START, LAUGHS + "]>" + START), r"articles.*zip, line 1: a document type decl"),
    "file entity": (change(ARTICLES, START, '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + START),
                    "line 1: a document type declaration"),
    "doctype": (change(TRUTH, START, '<!DOCTYPE a SYSTEM "http://x.org/a.dtd">' + START), "a document type decl"),
    "unknown entity": (change(ARTICLES, "Text 4", "&laughs;"), r"articles.*line \d+: undefined entity"),
    "no UTF-8": (change(ARTICLES, "Text 4", "\udcff"), r"line \d+: not well-formed"),
    "NUL": (change(ARTICLES, "Text 4", "\0"), r"line \d+: a NUL byte"),
    "unclosed": (change(ARTICLES, "</p>", ""), r"line \d+: mismatched tag"),
    "cut short": (change(TRUTH, "\n</articles>", ""), r"line \d+: no element found"),
    "other root": (change(TRUTH, START, "<pages>"), "element 'pages' where 'articles' belongs"),
    "other element": (change(ARTICLES, '<article id="0000003"', '<page id="0000003"'), "element 'page' where 'art"),
    "article twice": (change(ARTICLES, '"0000005"', '"0000004"'), r"articles.*line \d+: article 0000004 occurs twice"),
    "truth twice": (change(TRUTH, '"0000005"', '"0000004"'), r"ground.*line \d+: article 0000004 occurs twice"),
    "no id": (change(ARTICLES, 'id="0000005"', ""), "id=None, expected digits"),
    "id in words": (change(ARTICLES, '"0000005"', '"five"'), "id='five', expected digits"),
    "id of another set": (change(TRUTH, '"0000005"', '"0000405"'), r"ground.*: no article 0000005, which articles"),
    "article without truth": (change(TRUTH, '<article hyperpartisan="true" id="0000005" labeled-by="article"/>', ""),
                              r"ground.*: no article 0000005"),
    "label": (change(TRUTH, '"true"', '"maybe"'), r"line \d+: article 0000001: hyperpartisan='maybe', expected"),
    "no label": (change(TRUTH, 'hyperpartisan="true"', ""), "hyperpartisan=None, expected true or false"),
    "empty article": (lambda files: pack(files, ARTICLES, b'<articles><article id="1"> <p/></article></articles>'),
                      "article 1: empty text"),
    "no articles": (lambda files: pack(files, ARTICLES, b"<articles/>"), "zip: no articles"),
    "one class": (lambda files: pack(files, TRUTH, xml()[1].replace('"false"', '"true"').encode()), "one class in"),
    "empty member": (lambda files: pack(files, ARTICLES, b""), "zip: empty"),
    "way out": (lambda files: pack(files, ARTICLES, b"<a/>", "../../articles.xml"), "leads out of the folder"),
    "absolute": (lambda files: pack(files, ARTICLES, b"<a/>", "/articles-training-byarticle.xml"), "leads out of the"),
    "other member": (lambda files: pack(files, ARTICLES, b"<a/>", "ground-truth.xml"), "not one file articles-train"),
    "no member": (lambda files: pack(files, ARTICLES, b"<a/>", "readme.txt"), "not one file articles-training"),
    "zip cut short": (change_zip(lambda raw: raw[:-40]), r"zip: cut short or damaged \(BadZipFile"),
    "zip damaged": (change_zip(lambda raw: raw[:90] + b"\xff\0\xff" + raw[93:]), "zip: cut short or damaged"),
    "encrypted": (change_zip(encrypted), r"zip: cut short or damaged .*(encrypted|password)"),
    "no zip": (change_zip(lambda raw: b"GIF89a"), "zip: cut short or damaged"),
    "empty zip": (change_zip(lambda raw: b""), "zip: empty"),
    "page": (change_zip(lambda raw: b"<!DOCTYPE html><title>403"), "a git-LFS pointer or a web page"),
    "pointer": (change_zip(lambda raw: b"version https://git-lfs.github.com/spec/v1"), "a git-LFS pointer or a web"),
    "missing": (lambda files: (files / f"{TRUTH}-20181122.zip").unlink(), r"no ground-truth-training-byarticle-….zip"),
    "two sets": (lambda files: (files / f"{TRUTH}-2020.xml").write_text("<a/>"), "more than one set"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_named_in_one_line(
    files: Path, call: Callable[..., tuple[int, str, str]], kind: str, tmp_path: Path
) -> None:
    spoil, reason = BAD[kind]
    spoil(files)
    code, out, err = call("data", "prepare", "hyperpartisan", "--from", str(files))
    assert (code, out) == (2, "")
    assert re.search(reason, err.splitlines()[-1])
    assert len([line for line in err.splitlines() if not line.startswith("preparing")]) == 1
    assert "Traceback" not in err and not list((tmp_path / "cache").rglob("card.json"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "set"]


def test_a_bomb_is_left_before_it_unpacks(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hyperpartisan, "_MOST", 1 << 20)
    bomb = b'<articles><article id="1">' + b"x" * (1 << 22)
    path = pack(files, ARTICLES, bomb)
    assert path.stat().st_size < 10_000
    with pytest.raises(AttnbenchError, match="unpacks to more than"):
        read(files)


def test_files_are_asked_for_where_there_are_none(call: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = call("data", "prepare", "hyperpartisan", "--set", "fold=3")
    assert code == 2 and "attnbench data prepare hyperpartisan --set fold=3 --from DIR" in err.replace("\n", " ")
    assert call("data", "prepare", "hyperpartisan", "--from", "nowhere")[0] == 2


@pytest.mark.parametrize("values", [{"fold": 5}, {"fold": -1}, {"title": "perhaps"}], ids=str)
def test_options_that_cannot_be_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(AttnbenchError, match=next(iter(values))):
        options(**values)


FUZZED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def read_anything(folder: Path) -> None:
    """Either articles come out, or one line that names a file."""
    found, said = [], ""
    try:
        found = read(folder)
    except AttnbenchError as error:
        said = str(error)
    assert (folder.name in said and "\n" not in said) != bool(found)
    assert all(article.text.strip() and article.label in (0, 1) for article in found)


@FUZZED
@given(st.integers(0, 1), st.integers(0, 4000), st.binary(max_size=8), st.integers(0, 8))
def test_fuzzed_archives_never_give_a_traceback(files: Path, which: int, at: int, put: bytes, drop: int) -> None:
    path = sorted(files.glob("*.zip"))[which]
    raw = path.read_bytes()
    at %= len(raw)
    path.write_bytes(raw[:at] + put + raw[at + drop :])
    try:
        read_anything(files)
    finally:
        path.write_bytes(raw)


@FUZZED
@example(which=0, at=30, put="<!DOCTYPE", drop=0)
@given(
    which=st.integers(0, 1),
    at=st.integers(0, 9000),
    put=st.text(st.characters(), max_size=12)
    | st.sampled_from(["<!--", "<![CDATA[", "&#0;", "]]>", "<?x", "</p>", "&"]),
    drop=st.integers(0, 40),
)
def test_fuzzed_xml_never_gives_a_traceback(files: Path, which: int, at: int, put: str, drop: int) -> None:
    kind, text = (ARTICLES, TRUTH)[which], xml()[which]
    at %= len(text)
    packed = files / f"{kind}-20181122.zip"
    spoilt = files / f"{kind}-20181122.xml"  # goes before the archive
    spoilt.write_bytes((text[:at] + put + text[at + drop :]).encode("utf-8", "surrogatepass"))
    try:
        read_anything(files)
    finally:
        spoilt.unlink()
        assert packed.is_file()
