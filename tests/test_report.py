"""The tables: what may be averaged is, what may not never is, and nothing a name holds can break a page."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import random
import re
from typing import Any

import pytest
from factories import make_quality, make_record
from hypothesis import given
from hypothesis import strategies as st

from attnbench.record import Record
from attnbench.report import Entry, Report, Table, build
from attnbench.tables import to_csv, to_json, to_markdown


def only_table(records: list[Record]) -> Table:
    (table,) = build(records).tables
    return table


def texts(table: Table) -> dict[tuple[str, str, bool], list[str]]:
    """Cell texts by (label, options, stale)."""
    return {(r.label, r.options, r.stale): [e.text if e else "-" for e in r.entries] for r in table.rows}


def entries(report: Report) -> list[Entry]:
    return [entry for table in report.tables for row in table.rows for entry in row.entries if entry]


def csv_rows(records: list[Record]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(build(records)), newline="")))


def markdown_cells(text: str) -> list[list[str]]:
    """Cells of every table line, split at pipes that are not escaped."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


# --- numbers ----------------------------------------------------------------------------------------------------


def test_seeds_of_one_spec_are_one_cell() -> None:
    table = only_table([make_record(seed=seed, test=test) for seed, test in enumerate([0.80, 0.81, 0.82])])
    assert texts(table) == {("dense", "", False): ["0.810 ± 0.010 (3)"]}
    (entry,) = (e for row in table.rows for e in row.entries if e)
    assert entry.seeds == (0, 1, 2)
    assert entry.scope == "mean over seeds"
    # Printed t quantile for 2 degrees of freedom: 4.302653.
    assert entry.low == pytest.approx(0.81 - 4.302653 * 0.01 / 3**0.5, abs=1e-7)


def test_one_seed_shows_the_interval_over_examples_and_says_what_it_speaks_about() -> None:
    record = make_record(quality=make_quality(0.812, interval=(0.789, 0.8339)))
    assert texts(only_table([record])) == {("dense", "", False): ["0.812 [0.79, 0.83] (1 seed)"]}
    assert "`(1 seed)`: 95 % interval over test examples, this trained model only" in to_markdown(build([record]))
    (row,) = csv_rows([record])
    assert (row["scope"], row["low"], row["high"], row["sd"]) == ("this trained model only", "0.789", "0.8339", "")
    assert '"scope": "this trained model only"' in to_json(build([record]))


@pytest.mark.parametrize("status", ["not_above_chance", "trivial"])
def test_a_weak_result_shows_its_number_and_its_status(status: str) -> None:
    one = make_record(status=status, quality=make_quality(0.13, interval=(0.11, 0.15)))
    assert texts(only_table([one]))["dense", "", False] == [f"0.130 [0.11, 0.15] (1 seed), {status}"]
    two = [make_record(seed=0, test=0.2), make_record(seed=1, test=0.1, status=status)]
    assert texts(only_table(two))["dense", "", False] == [f"0.150 ± 0.071 (2), 1 of 2 {status}"]


@pytest.mark.parametrize("status", ["diverged", "oom", "timeout", "unsupported", "failed"])
def test_a_run_without_a_score_shows_its_status(status: str) -> None:
    assert texts(only_table([make_record(status=status)]))["dense", "", False] == [status]
    all_of_them = [make_record(status=status, seed=seed) for seed in range(3)]
    assert texts(only_table(all_of_them))["dense", "", False] == [f"3 of 3 {status}"]


def test_failed_seeds_are_counted_beside_the_mean_of_the_others() -> None:
    records = [
        make_record(seed=0, test=0.8),
        make_record(seed=1, test=0.9),
        make_record(seed=2, status="diverged"),
        make_record(seed=3, status="diverged"),
        make_record(seed=4, status="oom"),
    ]
    assert texts(only_table(records))["dense", "", False] == ["0.850 ± 0.071 (2), 2 of 5 diverged, 1 of 5 oom"]
    (row,) = csv_rows(records)
    assert (row["n"], row["runs"], row["seeds"], row["status"]) == ("2", "5", "0 1", "2 of 5 diverged, 1 of 5 oom")


def test_one_survivor_of_two_is_one_seed() -> None:
    records = [make_record(seed=0, status="diverged"), make_record(seed=1, test=0.8)]
    assert texts(only_table(records))["dense", "", False] == ["0.800 [0.78, 0.82] (1 seed), 1 of 2 diverged"]


def test_a_missing_cell_is_a_dash() -> None:
    records = [make_record(label="dense", task="a"), make_record(label="local", mechanism="local", task="b")]
    rows = texts(only_table(records))
    assert rows["dense", "", False][1] == "-"
    assert rows["local", "", False][0] == "-"
    assert len(csv_rows(records)) == 2


def test_chance_and_the_best_trivial_level_stand_below_each_task() -> None:
    quality = make_quality(0.6, chance=0.5, trivial={"majority": 0.52, "length": 0.613})
    records = [make_record(task="a", quality=quality), make_record(task="b"), make_record(task="c", status="oom")]
    lines = markdown_cells(to_markdown(build(records)))
    assert lines[0][2:] == ["a, accuracy", "b, accuracy", "c"]
    assert lines[-2] == ["*chance*", "", "0.500", "0.125", "-"]
    assert lines[-1] == ["*best trivial*", "", "0.613 (length)", "0.152 (bag of tokens)", "-"]


def test_mixer_parameters_stand_beside_each_row() -> None:
    records = [
        make_record(label="dense", params_mixer=32768),
        make_record(label="linformer", mechanism="linformer", task="a", params_mixer=40000),
        make_record(label="linformer", mechanism="linformer", task="b", params_mixer=90000),
    ]
    lines = markdown_cells(to_markdown(build(records)))
    assert [line[1] for line in lines[2:4]] == ["32,768", "40,000 to 90,000"]
    without = make_record(status="unsupported").model_copy(update={"cost": None})
    assert markdown_cells(to_markdown(build([without])))[2][1] == "-"


# --- what must not be mixed -------------------------------------------------------------------------------------


def test_fewer_seeds_than_the_protocol_asks_for_are_shown() -> None:
    def shown(seeds: int) -> str:
        records = [make_record(seed=seed, test=0.8, seeds=3) for seed in range(seeds)]
        return texts(only_table(records))["dense", "", False][0]

    assert shown(1) == "0.800 [0.78, 0.82] (1 of 3 seeds)"
    assert [shown(seeds) for seeds in (2, 3, 4)] == [f"0.800 ± 0.000 ({n})" for n in ("2 of 3 seeds", 3, 4)]


def test_a_model_larger_or_smaller_than_the_protocol_allows_is_named() -> None:
    """150,000 parameters against what plain attention would have."""
    plain = {"just": 136_364, "large": 136_363, "small": 170_000, "unknown": None}
    records = [
        make_record(label=label, mechanism=label, params_plain=count, parameters_within=0.1)
        for label, count in plain.items()
    ]
    notes = [note for note in only_table(records).notes if "parameters" in note]
    assert notes == [
        f"{label}, recall: {ratio} times the parameters of plain attention; the protocol allows 10% more or less"
        for label, ratio in {"large": "1.10", "small": "0.88"}.items()
    ]
    free = [make_record(label=label, mechanism=label, params_plain=count) for label, count in plain.items()]
    assert not [note for note in only_table(free).notes if "parameters" in note]


def test_two_specs_under_one_label_are_two_rows_that_name_the_difference() -> None:
    records = [
        make_record(label="hst", mechanism="hst", options={"block_size": size, "merge": "add"}, seed=seed, test=test)
        for size, tests in ((32, (0.7, 0.8)), (64, (0.1, 0.2)))
        for seed, test in enumerate(tests)
    ]
    assert texts(only_table(records)) == {
        ("hst", "mechanism.block_size=32", False): ["0.750 ± 0.071 (2)"],
        ("hst", "mechanism.block_size=64", False): ["0.150 ± 0.071 (2)"],
    }
    assert "hst (mechanism.block_size=32)" in to_markdown(build(records))


def test_rows_stand_in_the_order_of_their_numbers() -> None:
    values = [0, 1e-05, 0.05, 0.5, 2, 12, 100]
    records = [make_record(label="hst", options={"size": value}, seed=seed) for seed, value in enumerate(values)]
    table = only_table(records[::-1])
    assert [row.options for row in table.rows] == [f"mechanism.size={value}" for value in values]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"options": {"x": 1}}, {"options": {"x": True}}),
        ({"options": {"x": 1}}, {"options": {"x": 1.0}}),
        ({"options": {"x": "1"}}, {"options": {"x": 1}}),
        ({"options": {"x": None}}, {"options": {}}),
        ({"options": {"a.b": 1}}, {"options": {"a": {"b": 1}}}),
        ({"options": {"x": [1]}}, {"options": {"x": {"0": 1}}}),
        ({"options": {"x": []}}, {"options": {"x": {}}}),
        ({"options": {"engine": 1}}, {"options": {"engine": 2}}),
        ({"options": {"source_sha": "a"}}, {"options": {"source_sha": "b"}}),
        ({"options": {"text": "a" * 40 + "1"}}, {"options": {"text": "a" * 40 + "2"}}),
        ({"implementation": "kernel"}, {"implementation": "reference"}),
        ({"regularizers": ("sar",)}, {"regularizers": ()}),
        ({"regularizers": ("sar", "rdrop")}, {"regularizers": ("rdrop", "sar")}),
        ({"mechanism": "dense"}, {"mechanism": "local"}),
        ({"steps": 400}, {"steps": 401}),
    ],
)
def test_specs_that_differ_anywhere_are_never_averaged(one: dict[str, Any], other: dict[str, Any]) -> None:
    records = [make_record(label="x", seed=0, test=0.2, **one), make_record(label="x", seed=1, test=0.8, **other)]
    table = only_table(records)
    assert len(table.rows) == 2
    assert sorted(entry.mean or 0 for entry in entries(build(records))) == [0.2, 0.8]
    assert not any(row.stale for row in table.rows)


def test_options_that_differ_by_task_only_keep_one_row() -> None:
    records = [
        make_record(label="hst", task="a", options={"block_size": 32}),
        make_record(label="hst", task="b", options={"block_size": 64}),
    ]
    assert list(texts(only_table(records))) == [("hst", "", False)]


def test_a_row_told_apart_on_one_task_finds_its_match_on_another() -> None:
    records = [
        make_record(label="hst", task="a", options={"block_size": 32}, test=0.1),
        make_record(label="hst", task="a", options={"block_size": 64}, test=0.2),
        make_record(label="hst", task="b", options={"block_size": 64}, test=0.3),
    ]
    rows = texts(only_table(records))
    assert rows["hst", "mechanism.block_size=32", False][1] == "-"
    assert [cell[:5] for cell in rows["hst", "mechanism.block_size=64", False]] == ["0.200", "0.300"]


def test_protocols_and_their_versions_never_share_a_table() -> None:
    records = [
        make_record(protocol="quick", test=0.1),
        make_record(protocol="quick", protocol_version=2, test=0.2),
        make_record(protocol="attnbench-1", test=0.3),
        make_record(protocol="quick", protocol_changes={"budget": {"steps": 9}}, test=0.4),
    ]
    report = build(records)
    assert [(t.protocol, t.version, t.changes) for t in report.tables] == [
        ("attnbench-1", 1, ""),
        ("quick", 1, "budget.steps=9"),
        ("quick", 1, ""),
        ("quick", 2, ""),
    ]
    assert all(len(table.rows) == 1 for table in report.tables)
    text = to_markdown(report)
    assert text.count("\n## ") + text.startswith("## ") == 4
    assert "## quick, version 1\n\nChanged: budget.steps=9\n" in text


def test_the_table_with_most_records_comes_first() -> None:
    records = [make_record(protocol="quick", seed=seed) for seed in (0, 1)]
    records += [make_record(protocol="attnbench-1"), make_record(protocol="lra-2021", seed=5)]
    assert [table.protocol for table in build(records).tables] == ["quick", "attnbench-1", "lra-2021"]


def test_a_task_with_other_options_is_another_column() -> None:
    records = [
        make_record(label="dense", task_options={"pairs": 8, "queries": 4}, data_key="8", test=0.9),
        make_record(
            label="local", mechanism="local", task_options={"pairs": 64, "queries": 4}, data_key="64", test=0.2
        ),
    ]
    table = only_table(records)
    assert [column.title for column in table.columns] == ["recall (pairs=8)", "recall (pairs=64)"]
    assert [cell[:5] for cell in texts(table)["dense", "", False]] == ["0.900", "-"]
    assert not any(row.stale for row in table.rows)


def test_a_seed_that_ran_twice_counts_once_and_is_named() -> None:
    old = make_record(test=0.1, started="2026-01-01T00:00:00Z")
    new = make_record(test=0.9, started="2026-01-02T00:00:00Z")
    other_seed = make_record(test=0.7, seed=1)
    for records in itertools.permutations([old, new, other_seed]):
        table = only_table(list(records))
        assert texts(table)["dense", "", False] == ["0.800 ± 0.141 (2)"]
        assert table.notes == ("dense, recall: seed 0 ran 2 times; one counts",)


def test_a_rerun_that_the_machine_stopped_does_not_hide_a_score_but_a_divergence_does() -> None:
    scored = make_record(test=0.8, started="2026-01-01T00:00:00Z")
    for later, shown in (("timeout", "0.800 [0.78, 0.82] (1 seed)"), ("oom", "0.800 [0.78, 0.82] (1 seed)")):
        stopped = make_record(status=later, started="2026-01-02T00:00:00Z")
        assert texts(only_table([scored, stopped]))["dense", "", False] == [shown]
    diverged = make_record(status="diverged", started="2026-01-02T00:00:00Z")
    assert texts(only_table([scored, diverged]))["dense", "", False] == ["diverged"]


def test_rows_that_differ_in_more_than_the_mechanism_are_named() -> None:
    records = [make_record(label="dense", steps=100), make_record(label="local", mechanism="local", steps=5000)]
    assert only_table(records).notes == ("recall: rows differ in budget.steps: dense 100, local 5000",)
    fair = [make_record(label="dense"), make_record(label="local", mechanism="local", options={"window": 3})]
    assert only_table(fair).notes == ()


# --- stale ------------------------------------------------------------------------------------------------------

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"mechanism_sha": "aa" * 32}, {"mechanism_sha": "bb" * 32}),
        ({"task_sha": "aa" * 32}, {"task_sha": "bb" * 32}),
        ({"data_key": "aa" * 32}, {"data_key": "bb" * 32}),
        ({"engine": 1}, {"engine": 2}),
    ],
)
def test_an_older_source_is_a_stale_row_of_its_own(before: dict[str, Any], after: dict[str, Any]) -> None:
    records = [
        make_record(seed=0, test=0.2, started=OLD, **before),
        make_record(seed=1, test=0.8, started=NEW, **after),
        make_record(seed=2, test=0.8, started=NEW, **after),
    ]
    for shuffled in itertools.permutations(records):
        table = only_table(list(shuffled))
        live, stale = table.rows
        assert (live.label, live.options, live.stale) == ("dense", "", False)
        assert [e.text for e in live.entries if e] == ["0.800 ± 0.000 (2)"]
        assert (stale.label, stale.stale) == ("dense", True)
        assert [e.text for e in stale.entries if e] == ["0.200 [0.18, 0.22] (1 seed)"]
    name = next(iter(before))
    if name.endswith(("sha", "key")):
        assert "=aaaaaaaaaaaa" in stale.options
    assert "**stale**" in markdown_cells(to_markdown(build(records)))[3][0]
    assert [row["stale"] for row in csv_rows(records)] == ["false", "true"]


def test_newer_data_makes_the_other_labels_of_that_task_stale_but_no_other_task() -> None:
    records = [
        make_record(label="local", mechanism="local", task="a", data_key="old", started=OLD),
        make_record(label="local", mechanism="local", task="b", data_key="b", started=OLD),
        make_record(label="dense", task="a", data_key="new", started=NEW),
    ]
    rows = texts(only_table(records))
    assert rows["local", "", True][0] != "-"
    assert rows["local", "", True][1] == "-"
    assert rows["local", "", False][1] != "-"


def test_a_new_source_of_one_mechanism_leaves_the_others_alone() -> None:
    records = [
        make_record(label="dense", mechanism_sha="d", started=OLD),
        make_record(label="local", mechanism="local", mechanism_sha="l", started=NEW),
    ]
    assert not any(row.stale for row in only_table(records).rows)


def test_the_newest_run_of_a_label_is_never_stale_for_its_mechanism() -> None:
    shas = ["a", "b", "a"]
    records = [make_record(mechanism_sha=sha, seed=n, started=f"2026-0{n + 1}-01") for n, sha in enumerate(shas)]
    live, stale = only_table(records).rows
    assert [e.seeds for e in live.entries if e] == [(0, 2)]
    assert [e.seeds for e in stale.entries if e] == [(1,)]


def test_stale_scores_set_no_chance_level() -> None:
    records = [
        make_record(data_key="old", started=OLD, quality=make_quality(chance=0.9, trivial={"old": 0.95})),
        make_record(data_key="new", started=NEW),
    ]
    (column,) = only_table(records).columns
    assert (column.chance, column.trivial, column.trivial_name) == (0.125, 0.152, "bag of tokens")


# --- formats ----------------------------------------------------------------------------------------------------


def mixed_records() -> list[Record]:
    labels = ("dense", "local", "hst+sar", "<script>alert(1)</script>", "a|b", "=1+1")
    return [
        make_record(label=label, mechanism=label, task=task, seed=seed, test=0.5 + 0.01 * seed, status=status)
        for label in labels
        for task in ("listops", "recall")
        for seed, status in enumerate(("ok", "ok", "diverged"))
    ]


def test_same_records_same_bytes_in_any_order() -> None:
    records = mixed_records()
    texts = {(to_markdown(r), to_csv(r), to_json(r)) for r in [build(records)]}
    for seed in range(5):
        shuffled = random.Random(seed).sample(records, len(records))
        report = build(iter(shuffled))
        texts.add((to_markdown(report), to_csv(report), to_json(report)))
    assert len(texts) == 1


def test_markdown_as_a_whole() -> None:
    records = [make_record(seed=seed, test=test) for seed, test in enumerate([0.80, 0.81, 0.82])]
    records.append(make_record(label="hst+sar", mechanism="hst", regularizers=("sar",), status="timeout"))
    assert to_markdown(build(records)).splitlines()[:8] == [
        "## quick, version 1",
        "",
        "| mechanism | mixer parameters | recall, accuracy |",
        "| --- | ---: | --- |",
        "| dense | 32,768 | 0.810 ± 0.010 (3) |",
        "| hst+sar | 32,768 | timeout |",
        "| *chance* |  | 0.125 |",
        "| *best trivial* |  | 0.152 (bag of tokens) |",
    ]


def test_no_records() -> None:
    empty = build([])
    assert empty.tables == ()
    assert to_markdown(empty) == "No records.\n"
    assert to_csv(empty).count("\n") == 1
    assert json.loads(to_json(empty)) == {"tables": []}


def test_csv_numbers_are_exact_and_negative_ones_stay_numbers() -> None:
    (row,) = csv_rows([make_record(quality=make_quality(-1 / 3, interval=(-0.5, -0.1)))])
    assert float(row["mean"]) == -1 / 3
    assert row["low"] == "-0.5"


@pytest.mark.parametrize("label", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", '=HYPERLINK("x";"y")'])
def test_csv_holds_no_formulas(label: str) -> None:
    (row,) = csv_rows([make_record(label=label)])
    assert row["label"] == f"'{label.strip()}"


def test_csv_has_one_line_per_entry_whatever_the_names() -> None:
    text = to_csv(build([make_record(label='a\r=1\n"b",c'), make_record(label="\ud800\u202e=1", seed=1)]))
    assert len(re.split(r"[\r\n]+", text.strip())) == 3
    assert [row["label"] for row in csv.DictReader(io.StringIO(text))] == ['a =1 "b",c', "'=1"]


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("a|b", r"a\|b"),
        ("a\\|b", r"a\\\|b"),
        ("two\nlines\r\nand\ttab", "two lines and tab"),
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("a & b", "a &amp; b"),
        ("[x](javascript:y)", r"\[x\](javascript:y)"),
        ("**stale** `x`", r"\*\*stale\*\* \`x\`"),
        ("ernie_sparse", "ernie_sparse"),
        ("\u202eesrever\ud800", "esrever"),
    ],
)
def test_markdown_shows_names_as_text(label: str, shown: str) -> None:
    text = to_markdown(build([make_record(label=label)]))
    assert f"\n| {shown} | 32,768 |" in text


names = st.text(st.characters(), max_size=12) | st.text(st.sampled_from("|\\\n\r<>&`*[]=+-@ a"), max_size=12)


@given(names, names, names, names)
def test_no_name_can_break_a_table(label: str, task: str, option: str, trivial: str) -> None:
    records = [
        make_record(
            label=label, task=task, options={option: value}, seed=0, quality=make_quality(trivial={trivial: 0.2})
        )
        for value in ("|<b>", "=2")
    ]
    report = build(records)
    text = to_markdown(report)
    text.encode("utf-8")
    lines = markdown_cells(text)
    assert len(lines) == 6
    assert {len(line) for line in lines} == {3}
    assert "<" not in text and ">" not in text
    to_csv(report).encode("utf-8")
    assert len(csv_rows(records)) == 2
    json.loads(to_json(report))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "label": st.sampled_from(["a", "b"]),
                "task": st.sampled_from(["t", "u"]),
                "task_options": st.sampled_from([{}, {"n": 1}]),
                "mechanism": st.sampled_from(["m", "n"]),
                "options": st.dictionaries(st.sampled_from("xy"), st.sampled_from([1, True, "1", [1], {"y": 1}])),
                "mechanism_sha": st.sampled_from(["1", "2"]),
                "data_key": st.sampled_from(["1", "2"]),
                "regularizers": st.sampled_from([(), ("sar",)]),
                "steps": st.sampled_from([1, 2]),
                "seed": st.integers(0, 2),
                "started": st.sampled_from([OLD, NEW]),
                "status": st.sampled_from(["ok", "trivial", "diverged", "oom"]),
            }
        ),
        max_size=12,
    )
)
def test_every_entry_is_one_spec_under_one_label_and_every_spec_has_one_entry(settings: list[dict[str, Any]]) -> None:
    records = [make_record(**setting, id=f"run{number}") for number, setting in enumerate(settings)]
    by_id = {record.id: record for record in records}
    found = entries(build(records))
    for entry in found:
        counted = [by_id[name] for name in entry.ids]
        assert {record.spec.hash for record in counted} == {entry.spec_hash}
        assert len({record.label for record in counted}) == 1
        assert len({record.seed for record in counted}) == len(counted) == entry.runs
    assert len(found) == len({(record.label, record.spec.hash) for record in records})


def test_the_json_report_holds_what_the_table_shows() -> None:
    report = build(mixed_records())
    data = json.loads(to_json(report))
    (table,) = data["tables"]
    assert [row["label"] for row in table["rows"]] == [row.label for row in report.tables[0].rows]
    first = table["rows"][0]["entries"][0]
    assert first == json.loads(json.dumps(dataclasses.asdict(entries(report)[0])))
    assert first["mean"] == pytest.approx(0.505)
