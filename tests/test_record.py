"""The record: identity of a cell, stable JSON, refusal of what does not fit, migrations."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from factories import make_quality, make_record, make_spec
from pydantic import ValidationError

from attnbench import record as record_module
from attnbench.errors import AttnbenchError
from attnbench.record import FINISHED, Record, from_json


def test_the_spec_hash_is_sha256_of_sorted_compact_json() -> None:
    spec = make_spec(mechanism="hst", options={"merge": "add", "block_size": 32}, regularizers=("sar",))
    written_out = (
        '{"budget":{"batch":32,"optimiser":{"lr":0.001,"name":"adamw"},"steps":400},"engine":1,'
        '"mechanism":{"implementation":"reference","name":"hst","options":{"block_size":32,"merge":"add"},'
        f'"source_sha":"{"3c" * 32}","version":1}},"model":{{"dim":64,"heads":2,"layers":2}},'
        '"numerics":{"dtype":"float32"},"padding":{"rule":"longest"},"protocol":{"changes":{},"name":"quick","parameters_within":null,"seeds":1,"version":1},'
        f'"regularizer":[{{"name":"sar","options":{{"alpha":0.5}},"source_sha":"{"5e" * 32}","version":1}}],'
        f'"task":{{"data_key":"{"d0" * 32}","max_length":256,"name":"recall","options":{{"pairs":8}},'
        f'"source_sha":"{"7a" * 32}","version":1,"vocab":66}}}}'
    )
    assert spec.hash == hashlib.sha256(written_out.encode()).hexdigest()[:12]


def test_the_spec_hash_ignores_the_order_of_options_and_the_seed() -> None:
    one = make_spec(options={"a": 1, "b": {"c": 2, "d": 3}})
    other = make_spec(options={"b": {"d": 3, "c": 2}, "a": 1})
    assert one.hash == other.hash
    assert make_record(spec=one, seed=0).spec.hash == make_record(spec=one, seed=7).spec.hash


@pytest.mark.parametrize(
    "change",
    [
        {"task": "listops"},
        {"task_options": {"pairs": 16}},
        {"task_sha": "00"},
        {"data_key": "00"},
        {"mechanism": "local"},
        {"options": {"window": 3}},
        {"mechanism_sha": "00"},
        {"implementation": "kernel"},
        {"regularizers": ("sar",)},
        {"protocol": "attnbench-1"},
        {"protocol_version": 2},
        {"protocol_changes": {"budget": {"steps": 100}}},
        {"steps": 401},
        {"engine": 2},
    ],
)
def test_everything_that_decides_the_numbers_changes_the_hash(change: dict[str, Any]) -> None:
    assert make_spec(**change).hash != make_spec().hash


def test_the_order_of_regularizers_is_part_of_the_spec() -> None:
    assert make_spec(regularizers=("sar", "rdrop")).hash != make_spec(regularizers=("rdrop", "sar")).hash


@pytest.mark.parametrize("status", ["ok", "trivial", "diverged"])
def test_json_returns_the_same_record_and_the_same_bytes(status: str) -> None:
    record = make_record(status=status, label='odd "label" | ü')
    text = record.to_json()
    again = from_json(text, "here")
    assert again == record
    assert again.to_json() == text
    assert text.endswith("}\n")
    assert json.loads(text)["schema"] == 1


def test_floats_survive_exactly() -> None:
    record = make_record(quality=make_quality(0.1 + 0.2, p_above_chance=5e-324))
    again = from_json(record.to_json(), "here")
    assert again.quality is not None
    assert (again.quality.test, again.quality.p_above_chance) == (0.30000000000000004, 5e-324)


def test_a_nan_is_not_written() -> None:
    with pytest.raises(ValueError, match="finite number"):
        make_record(quality=make_quality(float("nan"))).to_json()


def test_a_record_cannot_be_edited() -> None:
    with pytest.raises(ValidationError):
        setattr(make_record(), "seed", 3)  # noqa: B010


def test_finished_statuses_are_those_with_a_score() -> None:
    assert set(FINISHED) == {"ok", "not_above_chance", "trivial"}


def _without(field: str) -> str:
    data = json.loads(make_record().to_json())
    del data[field]
    return json.dumps(data)


def _with(**fields: Any) -> str:
    return json.dumps(json.loads(make_record().to_json()) | fields)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (make_record().to_json()[:200], "not valid JSON"),
        ("", "not valid JSON"),
        ("[]", "no schema number"),
        ("{}", "no schema number"),
        (_with(schema="1"), "no schema number"),
        (_with(schema=99), "newer attnbench (schema 99"),
        (_without("seed"), "seed"),
        (_with(surprise=1), "surprise"),
        (_with(status="great"), "status"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line_that_names_the_file(text: str, said: str) -> None:
    with pytest.raises(AttnbenchError) as caught:
        from_json(text, "folder/a.json")
    message = str(caught.value)
    assert message.startswith("folder/a.json: ")
    assert said in message
    assert "\n" not in message


def test_older_schemas_are_migrated_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def step(data: dict[str, Any]) -> dict[str, Any]:
        seen.append(data["schema"])
        renamed = {("label" if key == "title" else key): value for key, value in data.items()}
        return renamed | {"schema": data["schema"] + 1}

    old = json.loads(make_record(label="kept").to_json())
    old["title"] = old.pop("label")
    monkeypatch.setattr(record_module, "SCHEMA", 3)
    monkeypatch.setattr(record_module, "MIGRATIONS", {1: step, 2: step})
    migrated = from_json(json.dumps(old), "old.json")
    assert seen == [1, 2]
    assert migrated.label == "kept"
    assert migrated.schema_ == 3


def test_fields_are_named_as_documented() -> None:
    assert set(json.loads(make_record().to_json())) == {
        *("schema", "id", "kind", "label", "status", "reason", "spec", "seed", "tuning", "quality", "curve"),
        *("predictions", "predictions_sha", "cost", "machine", "software", "code", "started", "finished", "command"),
    }
    assert {"quality", "curve"} <= set(Record.model_fields)
