"""The kit on the mechanisms of this repository, and its ways in: the command, and pytest of somebody else's tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from factories import portable_mechanisms

import attnbench
from attnbench.conformance.check import Case, Check, Mismatch, Outcome
from attnbench.conformance.runner import CHECKS, Examination, examine, judge
from attnbench.conformance.subject import MASKS, Subject, mask_of
from attnbench.testing import conformance

ROOT = Path(__file__).parents[2]
Call = Callable[..., tuple[int, str, str]]

MINE = """\
from attnbench import Mechanism
from attnbench.layers import QKVMixer, attention

class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        return attention(q, k, v{mask})

MECHANISM = Mechanism(summary="", paper="", build=lambda shape, options: Mixer(shape){more})
"""
WHOLE = MINE.format(mask=", None if mask is None else mask[:, None, None, :]", more="")
UNMASKED = MINE.format(mask="", more="")
#: Quick, and one of them fails for UNMASKED.
TWO = ("--only", "shape_and_dtype", "--only", "padding_behind")

#: All but those that take seconds.
QUICK = [check for check in CHECKS if check not in ("same_in_every_process", "trains_under_every_head")]


# --- the mechanisms here


def test_dense_passes_every_check_there_is() -> None:
    outcomes = examine("dense")
    assert [found.check for found in outcomes] == list(CHECKS)
    assert {found.check: found.text for found in outcomes if found.status != "pass"} == {}


@pytest.mark.parametrize("checks", [QUICK, pytest.param(list(CHECKS), marks=pytest.mark.slow)], ids=len)
@pytest.mark.parametrize("name", [*portable_mechanisms(), "xformers_blocksparse"])
def test_every_mechanism_here_keeps_its_promises(name: str, checks: list[str]) -> None:
    outcomes = examine(name, only=checks)
    assert {found.check: found.text for found in outcomes if found.status == "fail"} == {}
    cost = outcomes[-1]
    assert (cost.check, cost.status) == ("declared_cost", "pass"), "each declares how its cost grows"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sliding", {"window": 3, "block_size": 4}),
        ("bigbird", {"block_size": 8, "globals": "blocks"}),
        ("hst", {"block_size": 8, "preset": "literal"}),
        ("hst", {"block_size": 8, "representatives": "pooled", "share_projections": False}),
        ("hst", {"block_size": 8, "reps_per_block": 2, "global_tokens": 1, "merge": "add", "stage2_input": "parallel"}),
        ("hst", {"block_size": 1, "window_blocks": 5}),
        *((name, {"preset": "lra"}) for name in ("bigbird", "linear", "linformer", "longformer", "performer")),
        ("sparse_transformer", {"preset": "lra"}),
        ("disjoint_local", {"block_size": 8, "groups": "comb"}),
        ("linear", {"normalised": False}),
    ],
    ids=str,
)
def test_their_other_forms_do_too(name: str, options: dict[str, object]) -> None:
    assert {found.check: found.text for found in examine(name, options, QUICK) if found.status == "fail"} == {}


@pytest.mark.parametrize(
    ("name", "options", "checks", "said"),
    [
        ("linear", {"masks": "ignored"}, ["padding_content", "padding_behind", "empty_example"], "it ignores masks"),
        ("disjoint_local", {"groups": "comb"}, ["padding_behind"], "the padded length counts"),
    ],
    ids=str,
)
def test_what_these_options_do_not_promise_does_not_apply(
    name: str, options: dict[str, object], checks: list[str], said: str
) -> None:
    for found in examine(name, options, checks):
        assert found.status == "not applicable" and f"with these options {said}" in found.text
    assert {found.status for found in examine(name, {}, checks)} == {"pass"}


def test_options_that_say_nothing_of_the_masks_they_ignore_are_found_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(UNMASKED)
    (found,) = examine(str(path), only=["padding_behind"])
    assert found.status == "fail"
    path.write_text(MINE.format(mask="", more=", ignores_masks=lambda options: True"))
    (found,) = examine(str(path), only=["padding_behind"])
    assert found.status == "not applicable"


def test_what_the_path_of_a_mechanism_cannot_run_here_does_not_apply() -> None:
    found = {outcome.check: outcome for outcome in examine("xformers_local", only=QUICK)}
    assert found["declared_cost"].status == "not applicable"
    assert "runs on CUDA, got cpu" in found["declared_cost"].text
    assert not [outcome for outcome in found.values() if outcome.status == "fail"]


def test_what_a_mechanism_does_not_promise_does_not_apply(tmp_path: Path) -> None:
    declared = ", honours_masks=False, length_bound=True, causal='only', complexity='n'"
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(mask="", more=declared).replace("attention(q, k, v)", "v.cumsum(2)"))
    found = {outcome.check: outcome for outcome in examine(str(path), only=[*QUICK, "trains_under_every_head"])}
    unmasked = {"padding_content", "padding_not_finite", "padding_behind", "empty_example"}
    assert all("honours_masks=False" in found[name].text for name in unmasked)
    assert "exact=False" in found["dense_oracle"].text and "no softmax of q.k" in found["logit_scale"].text
    assert {name for name, outcome in found.items() if outcome.status == "not applicable"} == {
        *unmasked, "dense_oracle", "logit_scale",
    }  # fmt: skip
    assert {name for name, outcome in found.items() if outcome.status == "fail"} == set()
    assert "sar" not in found["trains_under_every_head"].text, "a shifted pass needs masks"


def test_a_complexity_nobody_can_hold_is_refused() -> None:
    with pytest.raises(attnbench.AttnbenchError, match=r"n log n.*got 'n\^3'"):
        attnbench.Mechanism(summary="", paper="", build=lambda shape, options: None, complexity="n^3")


def test_a_dense_emulation_that_says_so_is_no_silent_fall_back() -> None:
    (found,) = examine("local", {"path": "dense"}, ["declared_cost"])
    assert found.status == "not applicable" and "dense emulation" in found.text


# --- how it judges


def subject_of(name: str) -> Subject:
    return Subject.of(name, {})


def test_a_failure_is_shrunk_to_the_smallest_input() -> None:
    def long_inputs(subject: Subject, case: Case) -> None:
        if case.length > 4 and case.batch > 1:
            raise Mismatch("short inputs", f"{case.length} rows came")

    check = Check(long_inputs, cases=lambda subject: [Case(length=100)])
    found = judge(check, subject_of("dense"))
    assert found.case == Case(length=5, batch=2, dim=2, heads=1)
    assert found.text == "expected short inputs; 5 rows came; smallest input found: " + str(found.case)


def test_shrinking_does_not_take_another_fault_for_the_same() -> None:
    def breaks(subject: Subject, case: Case) -> None:
        if case.length < 4:
            raise ValueError("too short")
        raise KeyError(case.length)

    found = judge(Check(breaks, cases=lambda subject: [Case(length=100)]), subject_of("dense"))
    assert found.case is not None and found.case.length == 5
    assert found.expected == "no error" and found.found.startswith("KeyError: 5")


def test_a_check_is_run_once_and_left_out_where_one_below_failed() -> None:
    examination = Examination(subject_of("dense"))
    examination.known["repeatable"] = Outcome(check="repeatable", status="fail")
    for above in ("stateless", "padding_content", "padding_behind"):
        assert examination.outcome(above).text == "repeatable failed, on which it builds"
    assert examination.outcome("empty_example").status == "pass"
    assert examination.outcome("empty_example") is examination.outcome("empty_example")


def test_every_check_builds_on_checks_that_are_run_before_it() -> None:
    names = list(CHECKS)
    for check in CHECKS.values():
        assert all(names.index(below) < names.index(check.name) for below in check.needs), check.name


@pytest.mark.parametrize("length", [1, 2, 7, 40])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_leave_every_example_a_real_row(mask: str, length: int) -> None:
    real = mask_of(Case(length=length, batch=3, mask=mask))
    assert real is not None and real.shape == (3, length) and real.any(1).all()
    assert length < 3 or not real.all()


# --- the command


def test_the_exit_code_says_whether_something_failed(call: Call, tmp_path: Path) -> None:
    (tmp_path / "whole.py").write_text(WHOLE)
    (tmp_path / "unmasked.py").write_text(UNMASKED)
    code, out, err = call("check", "./whole.py", *TWO)
    assert code == 0 and "whole.py: 2 pass, 0 fail, 0 not applicable" in out and "Traceback" not in err
    code, out, _ = call("check", "./unmasked.py", *TWO)
    assert code == 1 and "expected real rows as without padding" in out and "smallest input found: length 1" in out


def test_json_holds_all_of_an_outcome(call: Call, tmp_path: Path) -> None:
    (tmp_path / "unmasked.py").write_text(UNMASKED)
    code, out, _ = call("check", "./unmasked.py", *TWO, "--json")
    found = json.loads(out)
    assert code == 1 and found["mechanism"] == "./unmasked.py"
    passed, failed = found["checks"]
    assert (passed["check"], passed["status"], passed["case"]) == ("shape_and_dtype", "pass", None)
    assert (failed["check"], failed["status"]) == ("padding_behind", "fail")
    assert failed["case"] == {"length": 1, "batch": 1, "dim": 2, "heads": 1, "mask": "none"}
    assert failed["expected"] and failed["found"] and failed["seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a mechanism"),
        (["denze"], "did you mean dense"),
        (["dense", "--only", "causality"], "did you mean causal"),
        (["dense", "--set", "window=3"], "unknown option"),
        (["hst", "--set", "block_size=0"], "block_size"),
        (["./missing.py"], "no such file"),
        (["torch.nn:Linear"], "in_features"),
    ],
)
def test_a_bad_request_gets_one_line_and_exit_2(call: Call, arguments: list[str], said: str) -> None:
    code, out, err = call("check", *arguments)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1


@pytest.mark.parametrize("missing", ["import a_package_nobody_has\n", ""])
def test_a_mechanism_whose_package_is_missing_says_so(call: Call, tmp_path: Path, missing: str) -> None:
    more = "" if missing else ", requires=('a_package_nobody_has',)"
    (tmp_path / "mine.py").write_text(missing + MINE.format(mask="", more=more))
    code, out, err = call("check", "./mine.py")
    assert (code, out) == (2, "") and "a_package_nobody_has" in err and "not installed" in err


def test_an_error_inside_a_mechanism_is_one_line_of_the_table(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WHOLE.replace("return attention", "return undefined"))
    code, out, err = call("check", "./mine.py", "--only", "shape_and_dtype", "--only", "causal")
    assert code == 1 and "Traceback" not in out + err
    assert "NameError: name 'undefined' is not defined (mine.py:6)" in out


def test_the_list_says_what_each_check_holds(call: Call) -> None:
    code, out, _ = call("check", "--list", "--json")
    assert code == 0 and [row["check"] for row in json.loads(out)] == list(CHECKS)
    assert all(len(row["doc"]) > 40 for row in json.loads(out))
    assert all(name in call("check", "--list")[1] for name in CHECKS)


def test_the_documentation_is_that_of_the_code() -> None:
    """docs/checks.md holds this section; paste it there when it differs."""
    section = "".join(f"- **{check.name}**: {check.doc}\n" for check in CHECKS.values())
    assert section in (ROOT / "docs" / "checks.md").read_text("utf-8"), f"\n{section}"


# --- pytest


def test_three_lines_in_somebody_elses_repository(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(UNMASKED)
    (tmp_path / "test_mine.py").write_text(
        'from attnbench.testing import conformance\n\ntest_mine = conformance("./mine.py")\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rsf", "-k", "padding or dense or scale"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},  # pytest cuts its summary to the width
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED test_mine.py::test_mine[padding_behind] - Failed: expected real rows as without" in done.stdout
    assert "it declares exact=False" in done.stdout
    assert "1 failed, 3 passed, 1 skipped" in done.stdout


def test_a_missing_package_skips_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import a_package_nobody_has\n" + WHOLE)
    with pytest.raises(pytest.skip.Exception, match="a_package_nobody_has"):
        conformance(path)("causal")


def test_options_reach_the_mechanism() -> None:
    conformance("hst", block_size=4)("options_survive_json")
    with pytest.raises(attnbench.AttnbenchError, match="block_size"):
        conformance("hst", block_size=0)("options_survive_json")
