"""Long JSON read one element at a time: what json.load gives, or one line that says what is wrong and where."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from attnbench.tasks import squad, triviaqa, wikihop
from attnbench.tasks._qa import json_lists, official, trivia, windows
from attnbench.tasks._qa.json_lists import elements
from attnbench.tasks._qa.records import Record
from attnbench.tasks._subwords import Subwords
from hypothesis import given, settings
from hypothesis import strategies as st
from qa_files import options

from attnbench.errors import AttnbenchError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
).filter(lambda value: "\\ud" not in json.dumps(value).lower())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("json") / "file.json"


def read(path: Path, raw: bytes, key: str | None = None, at_once: int = 1 << 20) -> list[Any]:
    path.write_bytes(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lists, "_AT_ONCE", at_once)
        return [element for _, element in elements(path, key)]


@given(st.lists(values, min_size=1, max_size=5), st.integers(1, 9), st.booleans(), st.booleans(),
       st.sampled_from([None, 1, "\t"]), st.integers(0, 2))  # fmt: skip
def test_elements_are_those_of_the_library(
    path: Path, found: list[Any], at_once: int, inside: bool, ascii_: bool, indent: Any, place: int
) -> None:
    whole: Any = found
    if inside:
        members = [("a", {"Data": [1]}), ("b", "Data"), ("c", [0.5])]
        members.insert(place, ("Data", found))
        whole = dict(members)
    raw = json.dumps(whole, ensure_ascii=ascii_, indent=indent).encode("utf-8", "surrogatepass")
    assert read(path, raw, "Data" if inside else None, at_once) == found


@settings(max_examples=300)
@given(st.lists(values, min_size=1, max_size=3), st.data(), st.integers(1, 40))
def test_spoiled_bytes_are_read_as_the_library_does_or_refused_in_one_line(
    path: Path, found: list[Any], data: st.DataObject, at_once: int
) -> None:
    raw = bytearray(json.dumps(found).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(raw) - 1))
        how = data.draw(st.sampled_from(["set", "cut", "insert", "double"]))
        if how == "set":
            raw[place] = data.draw(st.integers(0, 255))
        elif how == "insert":
            raw.insert(place, data.draw(st.integers(0, 255)))
        elif how == "double":
            raw[place:place] = raw[place : place + 8]
        else:
            del raw[place:]
        if not raw:
            break
    got, message = None, f"{path}"
    try:
        got = read(path, bytes(raw), None, at_once)
    except AttnbenchError as error:
        message = str(error)
    assert "\n" not in message and message.startswith(str(path))
    assert got is None or got == json.loads(raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", ": empty$"),
        (b"<!DOCTYPE html><html></html>", "a git-LFS pointer or a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "a git-LFS pointer or a web page"),
        (b"[]", "an empty list of data$"),
        (b'{"Data": []}', "the file is no list$"),
        (b"3", "the file is no list$"),
        (b'[{"a": 1}', "character 9: the file is cut short; get it again$"),
        (b'[{"a": 1}, {"b', r"character 12: no JSON, or a file cut short \(Unterminated string"),
        (b'[{"a": 1} {"b": 2}]', "character 10: '{' where , or ] is expected$"),
        (b'[{"a": 1},]', r"character 10: no JSON, or a file cut short \(Expecting value\)"),
        (b'[{"a": NaN}]', "character 1: NaN is no JSON$"),
        (b'[{"a": 1, "a": 2}]', "character 1: the name 'a' stands twice in one object$"),
        (b'[{"a": "\xff"}]', ": not UTF-8 at byte 8; convert the file$"),
        (b'[{"a": "x\0y"}]', "character 9: no JSON, or a file cut short .Invalid control character at"),
        (b"[1] x", "character 4: 'x' behind the end of the data$"),
        (b"[" * 100_000 + b"]" * 100_000, "lists in lists, too deep to be data$"),
        (b"[1" + b"0" * 5000 + b"]", "Exceeds the limit"),
    ],
)  # fmt: skip
def test_what_is_no_list_of_json_is_refused(tmp_path: Path, raw: bytes, message: str) -> None:
    with pytest.raises(AttnbenchError, match=message) as fault:
        read(tmp_path / "x.json", raw)
    assert str(fault.value).startswith(str(tmp_path / "x.json")) and "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"data": [1]}', "no list 'Data' in it, found data$"),
        (b"{}", "no list 'Data' in it, found nothing$"),
        (b'{"Data": 5}', "'Data' is no list$"),
        (b'[{"Data": [1]}]', "'\\[' where { is expected$"),
        (b'{3: 4, "Data": [1]}', "'3' where a name is expected$"),
        (b'{"Data": [1], "Domain"', "the file is cut short; get it again$"),
        (b'{"Data": [1]', "the file is cut short; get it again$"),
        (b'{"Data": [1]} {', "behind the end of the data$"),
    ],
)
def test_what_holds_no_list_is_refused(tmp_path: Path, raw: bytes, message: str) -> None:
    with pytest.raises(AttnbenchError, match=message):
        read(tmp_path / "x.json", raw, "Data")


def test_a_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "x.json", tmp_path, tmp_path / "x" / "y"):
        with pytest.raises(AttnbenchError, match=r": no such file$"):
            next(elements(path))


def test_a_mark_of_byte_order_is_taken_off(tmp_path: Path) -> None:
    assert read(tmp_path / "x.json", b'\xef\xbb\xbf[{"a": "\xc3\xa9"}]', at_once=1) == [{"a": "é"}]


def test_an_element_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lists, "_MOST", 10_000)
    with pytest.raises(AttnbenchError, match="one element has more than 10,000 characters"):
        read(tmp_path / "x.json", b'["' + b"x" * 100_000 + b'"]', at_once=1000)


def test_memory_holds_an_element_not_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with path.open("w") as file:
        file.write("[")
        file.write(",".join(json.dumps({"text": f"{i} " + "x" * 20_000}) for i in range(1500)))
        file.write("]")
    assert path.stat().st_size > 30_000_000
    tracemalloc.start()
    try:
        assert sum(1 for _ in elements(path)) == 1500
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("value", "call", "message"),
    [
        ({}, lambda r: r.text("a"), "here: no 'a', found nothing"),
        ({"b": 1, "c": 2}, lambda r: r.text("a"), "here: no 'a', found b, c"),
        ({"a": None}, lambda r: r.text("a"), "here: 'a' is nothing, expected text"),
        ({"a": 1.5}, lambda r: r.text("a"), "here: 'a' is a float, expected text"),
        ({"a": " \t"}, lambda r: r.text("a"), "here: 'a' is empty"),
        ({"a": "x\0"}, lambda r: r.text("a"), "here: 'a' has a NUL character at 1"),
        ({"a": "xy\ud800"}, lambda r: r.text("a"), "here: 'a' has half a surrogate pair at character 2"),
        ({"a": True}, lambda r: r.number("a"), "here: 'a' is true or false, expected a whole number"),
        ({"a": "x"}, lambda r: r.texts("a"), "here: 'a' is text, expected a list"),
        ({"a": ["x", 1]}, lambda r: r.texts("a"), "here: 'a', number 2 is a whole number, expected text"),
        ({"a": ["x", ""]}, lambda r: r.texts("a"), "here: 'a', number 2 is empty"),
        ({"a": [1]}, lambda r: r.records("a"), "here, a 1: a whole number, expected an object"),
        ({"a": []}, lambda r: r.record("a"), "here: 'a' is a list, expected an object"),
    ],
)
def test_a_value_of_another_kind_is_named(value: Any, call: Any, message: str) -> None:
    with pytest.raises(AttnbenchError) as fault:
        call(Record("here", value))
    assert str(fault.value) == message


TEXT = "Ada lives in Rome. Bo lives in Oslo."
RECORDS: dict[str, Any] = {
    "squad": {"title": "T", "paragraphs": [{"context": TEXT, "qas": [{"id": "1", "question": "Where does Ada live?",
              "answers": [{"text": "Rome", "answer_start": 13}]}]}]},
    "squad of the hub": {"id": "1", "title": "T", "context": TEXT, "question": "Where does Ada live?",
                         "answers": {"text": ["Rome"], "answer_start": [13]}},
    "wikihop": {"id": "1", "query": "lives_in ada", "candidates": ["oslo", "rome"], "answer": "rome",
                "supports": [TEXT, "Rome"]},
    "triviaqa": {"Question": "Where does Ada live?", "QuestionId": "1", "EntityPages": [{"Filename": "a.txt"}],
                 "Answer": {"NormalizedAliases": ["rome"], "HumanAnswers": ["Rome"]},
                 "SearchResults": [{"Filename": "b.txt"}]},
    "triviaqa of the hub": {"question": "Where does Ada live?", "question_id": "1",
                            "answer": {"normalized_aliases": ["rome"]},
                            "entity_pages": {"filename": ["a"], "wiki_context": [TEXT]},
                            "search_results": [{"filename": "b", "search_context": TEXT}]},
}  # fmt: skip


def places(value: Any) -> list[tuple[Any, ...]]:
    """Where something stands in lists and objects, to any depth."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((key, *rest) for key, one in inner for rest in places(one))]


def spoilt(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = spoilt(value[path[0]], path[1:], other)
    return copy


others = values | st.sampled_from([-1, 2**70, "", "\0", "\ud800", "../../x", "/etc/passwd", "x" * 5000, [None], True])


@settings(max_examples=300)
@given(st.sampled_from(sorted(RECORDS)), st.data())
def test_no_record_gives_a_traceback(path: Path, kind: str, data: st.DataObject) -> None:
    """Something in it replaced by something else: it is read and cut into rows, or refused in one line."""
    where = data.draw(st.sampled_from(places(RECORDS[kind])))
    record = spoilt(RECORDS[kind], where, data.draw(others))
    (path.parent / "wikipedia").mkdir(exist_ok=True)
    (path.parent / "wikipedia" / "a.txt").write_text(TEXT)
    message = ""
    try:
        assert made_of(kind, Record.of("here", record), path.parent) >= 0
    except AttnbenchError as error:
        message = str(error)
    assert "\n" not in message and (not message or "here" in message)


SUBWORDS = Subwords.train([TEXT], 300)
OF_SPANS, OF_CHOICES = options("triviaqa", max_length=100, overlap=10), options("wikihop", max_length=300)


def made_of(kind: str, record: Record, evidence: Path) -> int:
    """How many rows are made of it."""
    maker = windows.Maker(OF_SPANS, SUBWORDS, official.triviaqa)
    if kind == "wikihop":
        made = [wikihop._row(OF_CHOICES, SUBWORDS, "test", 0, one) for one in wikihop.read(iter([record]))]
    elif kind.startswith("squad"):
        made = [maker.rows("test", 0, one) for one in squad.read(iter([record]))]
    else:
        found = trivia.read(iter([record]), "web", None if kind.endswith("hub") else evidence)
        made = [triviaqa._rows(maker, "test", 0, one) for one in found]
    return sum(len(one.rows) for one in made)
