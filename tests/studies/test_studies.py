"""What each study says of runs whose truth is known, its page, and its command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnbench.suites import ablation, bottleneck, topology
from books import HOSTILE
from factories import make_quality, make_record

from attnbench import suite as suites
from attnbench.record import ShiftPoint
from attnbench.studies import registry
from attnbench.studies.page import Answer, as_json, pictures, to_html
from attnbench.studies.study import Arm, Arms

COUNTS = (0, 1, 2, 4, 8, 16, 32)
NOISE = (0.01, -0.02, 0.015, 0.0, -0.005)


def arm(label: str, tests: list[float], settings: dict[str, Any] | None = None, **changes: Any) -> Arm:
    """One run a seed; its examples are right as often as the score says."""
    records = {
        seed: make_record(label=label, seed=seed, quality=make_quality(test), test=test, **changes)
        for seed, test in enumerate(tests)
    }
    scores = {seed: (np.arange(400) < 400 * test).astype(float) for seed, test in enumerate(tests)}
    return Arm(label, {key: str(value) for key, value in (settings or {}).items()}, records, scores, len(tests))


def named(*arms: Arm) -> Arms:
    return {one.name: one for one in arms}


def ladder(
    mechanism: str, slope: float, start: float = 0.3, counts: tuple[int, ...] = COUNTS, **changes: Any
) -> list[Arm]:
    """Seeds of different mechanisms lie off by different noise."""
    turn = len(mechanism) % 5
    noises = NOISE[turn:] + NOISE[:turn]
    options = {"reps_per_block": 1, "block_size": 64}

    def tests(count: int) -> list[float]:
        return [start + slope * np.log2(1 + count) + noise * (1 + count / 32) for noise in noises]

    return [arm(mechanism, tests(count), {"global_tokens": count}, options=options, **changes) for count in counts]


def verdicts(arms: Arms, study: Any) -> dict[str, str]:
    return {
        one.measure: one.verdict
        for one in Answer.of(study, arms, suites.load(study.name), "attnbench study x").findings
    }


# --- bottleneck -------------------------------------------------------------------------------------------------------


def test_bottleneck_finds_the_slopes_and_the_flatter_one() -> None:
    arms = named(*ladder("bigbird", 0.1), *ladder("longformer", 0.0), *ladder("hst", 0.02, 0.6))
    every = Answer.of(bottleneck.STUDY, arms, suites.load("bottleneck"), "").findings
    found = {one.measure.split(":")[0]: one for one in every if "doubling" in one.measure}
    assert {name: one.verdict for name, one in found.items()} == {
        "bigbird": "supports", "longformer": "cannot tell", "bigbird - hst": "supports",
        "longformer - hst": "contradicts", "hst": "supports",
    }  # fmt: skip
    assert found["bigbird"].estimate and found["bigbird"].estimate.mean == pytest.approx(0.1, abs=0.002)
    assert found["bigbird - hst"].estimate and found["bigbird - hst"].estimate.mean == pytest.approx(0.08, abs=0.001)


def test_a_mechanism_at_the_floor_is_flat_for_another_reason() -> None:
    flat = ladder("hst", 0.0, 0.13, status="trivial")
    found = verdicts(named(*ladder("bigbird", 0.1), *ladder("longformer", 0.1), *flat), bottleneck.STUDY)
    assert {name for name, verdict in found.items() if verdict == "supports"} == {
        f"{name}: accuracy gained with each doubling of 1 + global tokens" for name in ("bigbird", "longformer")
    }


def test_the_control_has_as_many_slots_as_hst() -> None:
    """256 tokens in blocks of 64: HST owns four slots."""
    arms = named(*ladder("hst", 0.0, 0.9), *ladder("bigbird", 0.0, 0.4, (0, 4, 8, 36)), *ladder("longformer", 0.0, 0.4))
    found = [one for one in bottleneck.STUDY.findings(arms) if "shared slots" in one.claim]
    assert [re.findall(r"\d+", one.claim) for one in found] == [["4", "0"], ["8", "4"], ["36", "32"]]
    assert all(one.verdict == "supports" and one.estimate and abs(one.estimate.mean - 0.5) < 0.02 for one in found)


# --- topology ---------------------------------------------------------------------------------------------------------


def moved(label: str, flips: list[float], settings: dict[str, Any] | None = None, **changes: Any) -> Arm:
    one = arm(label, [0.8] * len(flips), settings, **changes)
    records = {
        seed: record.model_copy(
            update={"shifts": [ShiftPoint(shift=s, test=0.8, flips=flips[seed] * s, kl=0.1) for s in (1, 3)]}
        )
        for seed, record in one.records.items()
    }
    return Arm(one.label, one.settings, records, one.scores, one.asked)


def test_topology_compares_equal_dropout_and_leaves_the_controls_out() -> None:
    dropped = {"model.dropout": 0.1}
    arms = named(
        moved("hst", [0.10, 0.12, 0.11]), moved("hst+sar", [0.02, 0.03, 0.01]),
        moved("hst+sar", [0.10, 0.13, 0.11], {"sar.shift": "1..7"}),
        moved("hst", [0.10, 0.11, 0.12], dropped), moved("hst+rdrop", [0.05, 0.06, 0.055], dropped),
        moved("hst+sar", [0.09, 0.10, 0.096], dropped), moved("dense", [0.0, 0.0, 0.0]),
    )  # fmt: skip
    found = {one.claim: one for one in topology.STUDY.findings(arms)}
    against = {claim: one.estimate.mean for claim, one in found.items() if one.estimate}
    assert against == pytest.approx({
        "answers of hst, trained without SAR, change when the input moves against the grid": 0.22,
        "SAR, shift 1 lowers the flip rate of hst, against plain": -0.18,
        "SAR, shift 1..7 lowers the flip rate of hst, against plain": 1 / 150,
        "SAR, shift 1, dropout 0.1 lowers the flip rate of hst, against R-Drop, dropout 0.1": 0.0806667,
        "R-Drop, dropout 0.1 lowers the flip rate of hst, against plain, dropout 0.1": -0.11,
    }, abs=1e-4)  # fmt: skip


# --- ablation ---------------------------------------------------------------------------------------------------------


def test_ablation_names_the_arms_it_lacks_and_knows_twice_the_steps() -> None:
    arms = named(
        arm("hst+sar", [0.80, 0.82, 0.81]),
        arm("hst", [0.60, 0.63, 0.61]),
        arm("hst", [0.90, 0.93, 0.91], {"budget.steps": 1000}),
    )
    found = verdicts(arms, ablation.STUDY)
    assert found["accuracy: hst+sar - hst"] == "supports"
    assert found["accuracy: hst+sar - hst budget.steps=2x"] == "contradicts"
    lacking = [one.void for one in ablation.STUDY.findings(arms) if one.estimate is None]
    assert "no runs: bigbird" in lacking and len(lacking) == len(found) - 2


# --- every study ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", registry.names())
def test_a_study_has_a_suite_of_its_name_in_both_sizes(name: str) -> None:
    study, suite = registry.load(name), suites.load(name)
    assert study.name == suite.name == name and suite.tune.grid and len(suite.tune.grid["budget.lr"]) == 3
    assert suites.load(name, "attnbench-1").tuning is not None


@pytest.mark.parametrize("text", HOSTILE)
def test_the_page_shows_text_as_text_and_is_the_same_twice(text: str) -> None:
    one = arm("hst+sar", [0.8, 0.7, 0.75], {"window_blocks": text})
    answer = Answer.of(
        ablation.STUDY, named(one, arm("hst", [0.5, 0.6, 0.55])), suites.load("ablation"), f"attnbench {text}"
    )
    page = to_html(answer, list(pictures(answer)))
    assert page == to_html(answer, list(pictures(answer))) and "<script" not in page
    assert page.count("<img") == 1 and "http" not in re.sub(r"data:[^\"]*", "", page).replace("http-equiv", "")
    assert json.loads(as_json(answer))["arms"][one.name]["test"] == {"0": 0.8, "1": 0.7, "2": 0.75}


def test_the_page_tells_what_could_not_be_chosen() -> None:
    one = replace(arm("hst", [0.8, 0.7]), lost=["budget.lr=0.003 (failed)"])
    answer = Answer.of(ablation.STUDY, named(one), suites.load("ablation"), "")
    assert "; without budget.lr=0.003 (failed)</td>" in to_html(answer, [])
    assert json.loads(as_json(answer))["arms"]["hst"]["lost"] == ["budget.lr=0.003 (failed)"]


def test_figures_come_as_svg_and_png_and_only_where_there_is_something() -> None:
    arms = named(*ladder("bigbird", 0.1), *ladder("hst", 0.0))
    (drawn,) = pictures(Answer.of(bottleneck.STUDY, arms, suites.load("bottleneck", "attnbench-1"), ""))
    assert [name for name, _ in drawn.files] == [f"bottleneck-attnbench-1-accuracy.{kind}" for kind in ("png", "svg")]
    empty = {name: Arm(one.label, one.settings, {}, {}, 5) for name, one in arms.items()}
    assert list(pictures(Answer.of(bottleneck.STUDY, empty, suites.load("bottleneck"), ""))) == []


Call = Callable[..., tuple[int, str, str]]


def test_a_study_of_no_runs_has_a_page_that_says_so(call: Call, tmp_path: Path) -> None:
    code, out, err = call("study", "ablation", "--no-run", "--results", "results")
    assert (code, out.strip().splitlines()[-1]) == (0, "page: results/studies/ablation.html")
    page = (tmp_path / "results" / "studies" / "ablation.html").read_text("utf-8")
    assert "Incomplete: 0 of 75 runs" in page and "incomplete: 0 of 75" in err
    found = json.loads((tmp_path / "results" / "studies" / "ablation.json").read_text("utf-8"))
    assert {one["verdict"] for one in found["findings"]} == {"cannot tell"} and len(found["arms"]) == 15


OWN = """
name = "mine"
seeds = 2
tasks = ["recall"]
mechanisms = ["hst"]
regularizers = ["none", "sar"]
test_shifts = 2
[set]
block_size = 4
"task.train" = 40
"task.validation" = 10
"task.test" = 10
"model.dim" = 8
"budget.steps" = 2
"budget.batch" = 4
"budget.eval_every" = 2
"budget.warmup" = 0
"""


def test_a_study_runs_a_suite_of_ones_own_and_does_not_run_it_twice(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(OWN, "utf-8")
    words = ["study", "topology", "--suite", "mine.toml", "--results", "results"]
    assert call(*words)[0] == 0
    found = json.loads((tmp_path / "results" / "studies" / "mine.json").read_text("utf-8"))
    assert {name: len(one["test"]) for name, one in found["arms"].items()} == {"hst": 2, "hst+sar": 2}
    assert [one["estimate"]["seeds"] for one in found["findings"]] == [2, 2]
    page = (tmp_path / "results" / "studies" / "mine.html").read_bytes()
    records = sorted((tmp_path / "results" / "runs").rglob("*.json"))
    code, out, _ = call(*words, "--retry", "failed", "--json")
    assert code == 0 and json.loads(out)["findings"] == found["findings"]
    assert sorted((tmp_path / "results" / "runs").rglob("*.json")) == records and len(records) == 4
    assert (tmp_path / "results" / "studies" / "mine.html").read_bytes() == page


def test_a_study_is_of_one_task(call: Call, tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text('name = "two"\ntasks = ["recall", "needle"]\nmechanisms = ["hst"]\n', "utf-8")
    code, _, err = call("study", "topology", "--suite", "two.toml", "--no-run")
    assert code == 2 and err.strip() == "error: two: hst is there on two tasks; a study takes one"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["study", "abaltion"], "did you mean ablation"),
        (["study", "ablation", "--protocol", "lra-2021"], "ablation has sizes for"),
        (["study", "ablation", "--no-run", "--dry-run"], "take one"),
    ],
)
def test_a_faulty_request_is_one_line(call: Call, words: list[str], said: str) -> None:
    code, _, err = call(*words)
    assert code == 2 and said in err and len(err.strip().splitlines()) == 1
