"""Options: text and plain values in, a validated dataclass out, one-line errors otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, PositiveInt

from attnbench.errors import AttnbenchError, UnknownName
from attnbench.options import Span, as_json, field_names, parse


@dataclass(frozen=True, kw_only=True)
class Options:
    size: PositiveInt = 4
    ratio: float = 0.5
    on: bool = False
    word: Literal["near", "far"] = "near"
    maybe: int | None = None
    shift: Span = (1, 1)

    def __post_init__(self) -> None:
        if self.on and self.word == "far":
            raise ValueError("on=true counts with word=near only")


def refused(values: dict[str, Any], options: type = Options) -> str:
    with pytest.raises(AttnbenchError) as caught:
        parse("mechanism x", options, values)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(
    st.builds(
        Options,
        size=st.integers(1, 10**6),
        ratio=st.floats(allow_nan=False, allow_infinity=False),
        word=st.sampled_from(["near", "far"]),
        maybe=st.none() | st.integers(),
        shift=st.tuples(st.integers(0, 999), st.integers(0, 999)),
    )
)
def test_what_a_record_holds_gives_the_same_options_again(options: Options) -> None:
    assert parse("mechanism x", Options, as_json(options)) == options
    assert list(as_json(options)) == field_names(Options)


@given(st.integers(-50, 50), st.integers(-50, 50))
def test_a_span_is_a_number_or_a_range(low: int, high: int) -> None:
    def shift(value: Any) -> Any:
        return parse("regularizer x", Options, {"shift": value}).shift

    assert shift(f"{low}..{high}") == shift((low, high)) == shift([low, high]) == (low, high)
    assert shift(low) == shift(str(low)) == (low, low)
    assert as_json(Options(shift=(low, high)))["shift"] == (low if low == high else f"{low}..{high}")


@pytest.mark.parametrize("value", ["", "..", "1..", "..3", "1..2..3", "a", "1.5", 1.5, True, (1,), (1, 2, 3), None])
def test_what_is_no_span_is_refused(value: Any) -> None:
    assert refused({"shift": value}).startswith("mechanism x: shift")


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("1", True), ("no", False)])
def test_switches_are_read_from_words(text: str, value: bool) -> None:
    assert parse("mechanism x", Options, {"on": text}).on is value


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"size": "0"}, "size: Input should be greater than 0 (found '0')"),
        ({"size": ""}, "size: Input should be a valid integer"),
        ({"size": "4.5"}, "size: Input should be a valid integer"),
        ({"on": "perhaps"}, "on: Input should be a valid boolean"),
        ({"word": "middle"}, "word: Input should be 'near' or 'far' (found 'middle')"),
        ({"on": True, "word": "far"}, "mechanism x: on=true counts with word=near only"),
        ({"szie": 1}, "unknown option of mechanism x 'szie'; did you mean size?"),
    ],
)
def test_a_wrong_value_names_its_place_and_what_was_found(values: dict[str, Any], said: str) -> None:
    assert said in refused(values)


def test_presets_are_whole_sets_that_single_values_override() -> None:
    presets = {"wide": {"size": 64, "on": True}, "plain": {}}
    assert parse("m", Options, {"preset": "wide"}, presets) == Options(size=64, on=True)
    assert parse("m", Options, {"size": "5", "preset": "wide"}, presets) == Options(size=5, on=True)
    assert parse("m", Options, {"preset": "plain"}, presets) == Options()
    with pytest.raises(UnknownName, match="did you mean wide"):
        parse("m", Options, {"preset": "wider"}, presets)
    with pytest.raises(AttnbenchError, match="counts with word=near only"):
        parse("m", Options, {"preset": "wide", "word": "far"}, presets)


def test_a_preset_may_be_an_option_of_its_own() -> None:
    @dataclass(frozen=True)
    class Own:
        preset: str = "a"

    assert parse("m", Own, {"preset": "b"}).preset == "b"


class Thing:
    """A type of which pydantic knows nothing."""


@dataclass(frozen=True)
class Opaque:
    thing: Thing | None = None


@dataclass(frozen=True)
class Unknown:
    thing: Nowhere = 3  # type: ignore[name-defined]  # noqa: F821  as after an import under TYPE_CHECKING


@dataclass(frozen=True)
class WrongDefault:
    size: PositiveInt = 0


@dataclass(frozen=True)
class OtherDefault:
    size: int = "many"  # type: ignore[assignment]


@dataclass(frozen=True)
class NoJson:
    size: Any = lambda: 3


@dataclass(frozen=True)
class NoJsonMade:
    size: Any = field(default_factory=object)


@dataclass(frozen=True)
class Raises:
    size: int = 3

    def __post_init__(self) -> None:
        raise KeyError("first\nsecond")


@dataclass(frozen=True)
class RaisesDefault:
    size: int = field(default_factory=lambda: 1 // 0)


@pytest.mark.parametrize(
    "options", [Opaque, Unknown, WrongDefault, OtherDefault, NoJson, NoJsonMade, Raises, RaisesDefault]
)
def test_options_that_a_plugin_got_wrong_are_one_line(options: type) -> None:
    assert refused({}, options).startswith("mechanism x: ")


@dataclass(frozen=True)
class Nested:
    anything: Any = 1
    rates: tuple[float, ...] = ()
    table: dict[str, list[float]] = field(default_factory=dict)


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
@pytest.mark.parametrize("name", ["anything", "rates", "table"])
def test_a_number_that_json_lacks_is_refused_however_deep_it_stands(name: str, number: float) -> None:
    values = {"anything": [{"a": number}], "rates": (1.0, number), "table": {"a": [1.0, number]}}
    assert refused({name: values[name]}, Nested).startswith(f"mechanism x: {name}: a finite number, got ")


@pytest.mark.parametrize("value", [[], {}, {"a": [1]}, object(), 3j, b"x"], ids=range(6))
@pytest.mark.parametrize("name", ["size", "word", "shift", "preset"])
def test_a_value_of_no_sense_at_all_is_one_line(name: str, value: Any) -> None:
    assert "mechanism x" in refused({name: value})


@dataclass(frozen=True)
class Described:
    size: int = Field(default=3, ge=1)


def test_a_default_may_stand_in_a_field_of_pydantic() -> None:
    assert parse("mechanism x", Described, {}).size == 3
    assert "size: Input should be greater than or equal to 1" in refused({"size": 0}, Described)


def test_a_plugin_that_explains_itself_in_several_lines_still_gets_one() -> None:
    @dataclass(frozen=True)
    class Verbose:
        size: int = 3

        def __post_init__(self) -> None:
            raise ValueError("one\ntwo")

    assert refused({}, Verbose) == "mechanism x: one two"
