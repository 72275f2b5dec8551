"""Options: from text or plain values to a validated frozen dataclass, and back to JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from attnbench.errors import AttnbenchError, UnknownName, one_line


def _span(value: Any) -> Any:
    if isinstance(value, str):
        low, dots, high = value.partition("..")
        try:
            return (int(low), int(high if dots else low))
        except ValueError:
            raise ValueError(f"a whole number or a range such as 1..15, got {value!r}") from None
    if isinstance(value, int) and not isinstance(value, bool):
        return (value, value)
    return value


def _show_span(value: tuple[int, int]) -> int | str:
    low, high = value
    return low if low == high else f"{low}..{high}"


#: A whole number or a range of them, both ends included: `3` or `1..15`.
Span = Annotated[tuple[int, int], BeforeValidator(_span), PlainSerializer(_show_span)]


def field_names(options: type) -> list[str]:
    return [f.name for f in dataclasses.fields(options)]


def parse(owner: str, options: type, values: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]] = {}) -> Any:
    """Builds the dataclass `options` from `values` (text allowed); `owner` names it in errors, e.g. `mechanism hst`.

    Raises:
        UnknownName: a key or a preset that does not exist.
        AttnbenchError: a value of the wrong type or range, or a combination its `__post_init__` refuses.
    """
    given = dict(values)
    names = field_names(options)
    if "preset" in given and "preset" not in names:
        preset = given.pop("preset")
        if not isinstance(preset, str) or preset not in presets:
            raise UnknownName(f"preset of {owner}", str(preset), presets)
        given = {**presets[preset], **given}
    for key in given:
        if key not in names:
            raise UnknownName(f"option of {owner}", key, names)
    try:
        found: Any = TypeAdapter(options).validate_python({**_defaults(options), **given})
        as_json(found)
        plain = TypeAdapter(options).dump_python(found)
    except PydanticUserError as error:
        raise AttnbenchError(f"{owner}: its options are no valid dataclass: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        raise AttnbenchError(f"{owner}: {first_fault(error)}") from None
    except Exception as error:  # a third party's `__post_init__` or type may fail in any way
        raise AttnbenchError(f"{owner}: its options cannot be built or written as JSON: {one_line(error)}") from error
    for name, value in plain.items():
        if not _is_finite(value):
            raise AttnbenchError(f"{owner}: {name}: a finite number, got {value}")
    return found


def _is_finite(value: Any) -> bool:
    """Also what stands in lists and mappings; where a type says nothing of numbers, JSON would hold null for NaN."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple, set, frozenset)):
        return not isinstance(value, float) or math.isfinite(value)
    return all(map(_is_finite, value))


def _defaults(options: type) -> dict[str, Any]:
    """The defaults as if the user had given them, so that one of a wrong type is found."""
    found = {}
    for field in dataclasses.fields(options):
        if not field.init or isinstance(field.default, FieldInfo):  # pydantic knows the default of its own Field
            continue
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


def dotted(value: Any, prefix: str = "") -> Any:
    """`budget.lr = 1` is a table in TOML, `"budget.lr" = 1` a key; here they are the same."""
    if not isinstance(value, Mapping):
        return value
    found: dict[str, Any] = {}
    for key, inner in value.items():
        nested = isinstance(inner, Mapping)
        for name, one in dotted(inner, f"{prefix}{key}.").items() if nested else ((f"{prefix}{key}", inner),):
            if name in found:
                raise ValueError(f"{name} is given twice")
            found[name] = one
    return found


def first_fault(error: ValidationError) -> str:
    """The first thing pydantic complains of, as one line: where, what, and what was found."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return " ".join((f"{where}: {message} (found {first['input']!r})" if where else message).split())


def as_json(options: Any) -> dict[str, Any]:
    """All values of an options object, defaults included, as plain JSON values."""
    dumped = TypeAdapter(type(options)).dump_python(options, mode="json")
    assert isinstance(dumped, dict)
    return dumped
