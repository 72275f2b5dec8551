"""Runs, records and sweeps with `test_shifts`: what it adds, and that it decides nothing else."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from books import Tree, book
from factories import make_record
from stage import HEAD, Play, Stage, words

import attnbench
from attnbench import data, reproduction, runner, shifts, survey, tables
from attnbench.errors import AttnbenchError
from attnbench.plan import make
from attnbench.record import Record, ShiftPoint, from_json
from attnbench.report import build
from attnbench.reporting.html import to_html
from attnbench.runner import Settings, execute
from attnbench.store import Store
from attnbench.sweep import Sweep

Call = Callable[..., tuple[int, str, str]]
TINY: dict[str, Any] = {
    "task.train": 60, "task.validation": 20, "task.test": 25, "task.length": 24, "task.distance": 4, "model.dim": 8,
    "model.layers": 1, "budget.steps": 6, "budget.batch": 4, "budget.eval_batch": 8, "budget.eval_every": 3,
}  # fmt: skip
SET = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
LOCAL = {"block_size": 8, "window_blocks": 1, "model.dropout": 0.1}


def run(folder: Path, **more: Any) -> Record:
    options = TINY | LOCAL | more.pop("options", {})
    return attnbench.run("local", "recall", options=options, results=folder, **more)


def file_of(record: Record, folder: Path) -> Path:
    return next(folder.rglob(f"{record.id}.json"))


def with_points(record: Record, count: int) -> Record:
    points = [ShiftPoint(shift=n, test=0.7, flips=0.01 * n, kl=0.1 * n) for n in range(1, count + 1)]
    return record.model_copy(update={"shifts": points})


# --- what it decides: nothing else ------------------------------------------------------------------------------------


@pytest.mark.parametrize("regularizer", [None, "sar"])
def test_a_run_is_the_same_with_and_without(tmp_path: Path, regularizer: str | None) -> None:
    """Byte for byte but for the shifts, clocks, and what it was called with."""
    plain, moved = (run(tmp_path / str(n), regularizer=regularizer, seed=3, test_shifts=n) for n in (0, 8))
    assert [point.shift for point in moved.shifts] == [*range(1, 9)] and max(point.kl for point in moved.shifts) > 1e-6
    assert moved.shifts[-1].kl < 1e-9
    texts = [json.loads(file_of(record, tmp_path).read_text("utf-8")) for record in (plain, moved)]
    assert "shifts" not in texts[0] and len(texts[1].pop("shifts")) == 8
    for text in texts:
        for key in ("id", "command", "started", "finished", "predictions"):
            del text[key]
        del text["machine"]["load_before"], text["cost"]
    assert texts[0] == texts[1] and plain.spec.hash == moved.spec.hash
    packed = [file_of(record, tmp_path).with_suffix(".predictions.npz").read_bytes() for record in (plain, moved)]
    assert packed[0] == packed[1]
    assert moved.command.endswith("test_shifts=8)") and "test_shifts" not in plain.command


def test_peak_memory_and_time_are_those_of_the_run_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    cost, measure = runner.judgement.cost_of, shifts.measure
    monkeypatch.setattr(runner.judgement, "cost_of", lambda *given: order.append("cost") or cost(*given))
    monkeypatch.setattr(shifts, "measure", lambda *given: order.append("shifts") or measure(*given))
    run(tmp_path, test_shifts=1)
    assert order == ["cost", "shifts"]


def killed_in_the_test_of(shift: int, work: Callable[[], object]) -> None:
    """Runs `work` in a child of this process, which is killed when it reads a second batch at this shift."""
    child = os.fork()
    if child == 0:
        calls, logits = [], shifts._logits

        def dies(passes: Any, at: int) -> Any:
            calls.append(at)
            if calls.count(shift) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return logits(passes, at)

        shifts._logits = dies
        try:
            work()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_run_killed_while_it_measures_goes_on_to_the_same_end(tmp_path: Path) -> None:
    whole, cut = run(tmp_path / "whole", test_shifts=3), tmp_path / "cut"
    killed_in_the_test_of(2, lambda: run(cut, test_shifts=3))
    assert not list(cut.rglob("*.json")) and list(cut.glob("unfinished/*.safetensors"))
    again = run(cut, test_shifts=3, resume=True)
    assert (again.shifts, again.quality, again.curve) == (whole.shifts, whole.quality, whole.curve)
    assert again.predictions_sha == whole.predictions_sha
    assert not list(cut.glob("unfinished/*.safetensors"))


@pytest.mark.parametrize("shifts", [0, 4])
def test_a_checkpoint_is_that_of_the_run_whatever_shifts_are_asked_for(tmp_path: Path, shifts: int) -> None:
    killed_in_the_test_of(1, lambda: run(tmp_path, test_shifts=2))
    assert len(run(tmp_path, test_shifts=shifts, resume=True).shifts) == shifts


# --- what is refused --------------------------------------------------------------------------------------------------

PLUGIN = """
from attnbench import Mechanism
from torch import nn

class Mixer(nn.Module):
    def forward(self, x, mask=None, layout=None):
        {forward}
        return x

MECHANISM = Mechanism(summary="x", paper="x", {arguments}build=lambda shape, options: Mixer())
"""


def plugin(folder: Path, forward: str = "pass", arguments: str = "") -> str:
    (folder / "mine.py").write_text(PLUGIN.format(forward=forward, arguments=arguments), "utf-8")
    return str(folder / "mine.py")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("honours_masks=False, ", "--test-shifts shifts the input behind masked rows, and mine ignores masks"),
        ("length_bound=True, ", "--test-shifts shifts the input, and the output of mine depends on the padded length"),
    ],
)
def test_what_sar_cannot_move_is_unsupported(tmp_path: Path, call: Call, arguments: str, said: str) -> None:
    path = plugin(tmp_path, arguments=arguments)
    record = attnbench.run(path, "recall", options=TINY, results=tmp_path, test_shifts=2)
    assert (record.status, record.reason, record.quality, record.shifts) == ("unsupported", said, None, [])
    assert attnbench.run(path, "recall", options=TINY, results=tmp_path).quality is not None
    code, out, err = call("run", "-m", path, "-t", "recall", "--test-shifts", "2", "--dry-run")
    assert (code, out) == (2, "") and err.splitlines()[-1] == f"error: {said}"


@pytest.mark.parametrize(("block_size", "most"), [(8, 64), (16, 64), (80, 80)])
def test_there_are_as_many_shifts_as_rows_are_free(tmp_path: Path, call: Call, block_size: int, most: int) -> None:
    cell = ("run", "-m", "local", "-t", "recall", "--set", f"block_size={block_size}", "--set", "task.length=96")
    assert call(*cell, "--test-shifts", str(most), "--dry-run")[0] == 0
    for dry in ([], ["--dry-run"]):
        code, out, err = call(*cell, "--test-shifts", str(most + 1), *dry)
        said = f"error: {most + 1} test shifts go beyond {most}, the rows kept free for them; ask for fewer\n"
        assert (code, out, err) == (2, "", said)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("given", [-1, True, 1.5, "2", None])
def test_a_number_that_is_none_is_one_line(tmp_path: Path, given: Any) -> None:
    with pytest.raises(AttnbenchError, match=r"^test_shifts is a whole number from 0 on, got "):
        run(tmp_path, test_shifts=given)


def test_a_trial_tests_nothing(call: Call) -> None:
    tuning = json.dumps({"grid": {"budget.lr": [0.1, 0.2]}, "seeds": [0]})
    cell = ("run", "-m", "dense", "-t", "recall", "--set", "budget.lr=0.1", "--tuning", tuning)
    code, out, err = call(*cell, "--trial", "--test-shifts", "1")
    assert (code, out, err) == (2, "", "error: a trial tests nothing: leave out --test-shifts\n")


@pytest.mark.parametrize("forward", ["1 / (3 - layout.shift)", "x = x / abs(3 - layout.shift)"])
def test_a_mechanism_that_fails_at_a_shift_is_failed_and_its_score_not_lost(tmp_path: Path, forward: str) -> None:
    path, results = plugin(tmp_path, forward), tmp_path / "results"
    record = attnbench.run(path, "recall", options=TINY, results=results, test_shifts=4)
    assert record.status == "failed" and record.quality is None
    assert (record.reason or "").startswith("step 6: test moved by 3 rows: ")
    again = attnbench.run(path, "recall", options=TINY, results=results, resume=True)
    assert again.quality == attnbench.run(path, "recall", options=TINY, results=tmp_path / "other").quality


# --- records ----------------------------------------------------------------------------------------------------------


def test_an_older_record_reads_as_it_was_and_a_newer_one_as_well() -> None:
    plain = make_record()
    assert "shifts" not in plain.to_json() and from_json(plain.to_json(), "here").shifts == []
    moved = with_points(plain, 3)
    assert from_json(moved.to_json(), "here") == moved
    assert json.loads(moved.to_json())["shifts"][2] == {"shift": 3, "test": 0.7, "flips": 0.03, "kl": 0.1 * 3}
    assert moved.spec.hash == plain.spec.hash


@pytest.mark.parametrize(
    "change",
    [
        {"shifts": [{"shift": 2, "test": 0.5, "flips": 0, "kl": 0}]},
        {"shifts": [{"shift": 0, "test": 0.5, "flips": 0, "kl": 0}]},
        {"shifts": [{"shift": 1, "test": 0.5, "flips": 1.5, "kl": 0}]},
        {"shifts": [{"shift": 1, "test": 0.5, "flips": 0, "kl": -1}]},
        {"shifts": [{"shift": 1, "test": 0.5, "flips": 0, "kl": 1e999}]},
        {"status": "failed", "quality": None},
    ],
    ids=str,
)
def test_points_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    told = json.loads(with_points(make_record(), 1).to_json()) | change
    with pytest.raises(AttnbenchError, match="here"):
        from_json(json.dumps(told), "here")


def test_diff_and_reproduce_look_at_them(call: Call, tmp_path: Path) -> None:
    results = ("--results", "results")
    cell = ("run", "-m", "local", "-t", "recall", *SET, "--set", "block_size=8", *results, "--json")
    plain, moved = (json.loads(call(*cell, "--test-shifts", n)[1]) for n in ("0", "3"))
    assert "shifts" not in plain and [point["shift"] for point in moved["shifts"]] == [1, 2, 3]
    found = json.loads(call("diff", plain["id"], moved["id"], "--json", *results)[1])
    assert (found["question"], found["answer"], found["circumstances"]) == ([], [], [["test_shifts", 0, 3]])
    code, out, _ = call("reproduce", moved["id"], "--json", *results)
    again = json.loads(Path(json.loads(out)["again"]).read_text("utf-8"))
    assert code == 0 and again["shifts"] == moved["shifts"]
    path = Path(moved["path"])
    moved["shifts"][1]["kl"] *= 1.0000001
    path.write_text(json.dumps({key: value for key, value in moved.items() if key != "path"}), "utf-8")
    code, out, _ = call("reproduce", str(path), *results)
    assert code == 1 and "shifts.1.kl" in out


def test_merge_takes_them_along(call: Call) -> None:
    path = Store(Path("other")).write(with_points(make_record(), 2))
    Path("results").mkdir()
    assert call("merge", "other", "--results", "results")[0] == 0
    assert Path("results", path.relative_to("other")).read_bytes() == path.read_bytes()
    assert call("merge", "other", "--results", "results")[1].startswith("0 records taken, 1 here already")


def test_the_final_screen_tells_them(call: Call) -> None:
    code, out, err = call("run", "-m", "local", "-t", "recall", *SET, "--set", "block_size=8", "--test-shifts", "2")
    assert code == 0, err
    assert "test moved by 1" in out and "test moved by 2" in out and "of the predictions flip, KL" in out


def test_a_probe_counts_the_readings(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    counted, projected = [], runner.projected
    monkeypatch.setattr(runner, "projected", lambda *a, **k: counted.append(k["batches"]) or projected(*a, **k))
    for number in ("0", "3"):
        code, out, _ = call(
            "run", "-m", "local", "-t", "recall", *SET, "--set", "block_size=8", "--test-shifts", number, "--dry-run",
            "--probe", "--json",
        )  # fmt: skip
        assert code == 0 and json.loads(out).get("test_shifts", 0) == int(number)
    assert counted == [(3, 4), (3, 4 * 5)]


# --- reports ----------------------------------------------------------------------------------------------------------


def test_a_seed_that_ran_again_for_its_shifts_counts_once_and_the_page_lists_them() -> None:
    old = make_record(started="2026-01-01T00:00:00Z")
    new = with_points(make_record(started="2026-02-01T00:00:00Z"), 2)
    other = make_record(seed=1, started="2026-01-03T00:00:00Z")
    (table,) = build([new, old, other]).tables
    ((entry,),) = [row.entries for row in table.rows]
    assert entry is not None and (entry.seeds, entry.runs, entry.ids) == ((0, 1), 2, (new.id, other.id))
    assert table.notes == ("dense, recall: seed 0 ran 2 times; one counts",)
    told = json.loads(tables.to_json(build([new, old, other])))["tables"][0]["rows"][0]["entries"][0]["shifts"]
    assert told == [{"seed": 0, **point.model_dump()} for point in new.shifts]
    tree = Tree(to_html(book([new, old, other])))
    ((_, text),) = [found for found in tree.all("script") if found[0].get("type") == "application/json"]
    first, second = (dict(one["facts"]) for one in json.loads(text)["cells"][0]["runs"])
    assert first["test moved by 2"] == "0.7000; 2.00% of the predictions flip, KL 0.2"
    assert "test moved by 1" in first and not [name for name in second if name.startswith("test moved")]


def test_the_table_of_records_is_as_it_was(tmp_path: Path) -> None:
    plain = make_record()
    Store(tmp_path / "a").write(plain)
    Store(tmp_path / "b").write(with_points(plain, 2))
    a, b = (attnbench.load_records(tmp_path / name).drop(columns="path") for name in ("a", "b"))
    assert a.equals(b)


# --- sweeps -----------------------------------------------------------------------------------------------------------


#: Two runs.
ONE = HEAD.replace("seeds = 2", "seeds = 1")


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)


def hows(sweep: Sweep) -> list[str]:
    return [sweep.outcomes[one].how for one in sweep.runs if one.trial is None]


def asking(shifts: int) -> str:
    return f"test_shifts = {shifts}\n" + ONE


def test_a_record_with_fewer_shifts_is_not_done(play: Play) -> None:
    play(ONE)
    assert hows(play(asking(3), stage := Stage())) == ["ran"] * 2
    assert words(stage, "--test-shifts") == ["3"] * 2
    for fewer in (asking(3), asking(2), ONE):
        assert hows(play(fewer, stage := Stage())) == ["done"] * 2 and stage.jobs == []
    assert hows(play(asking(4), Stage())) == ["ran"] * 2
    newest = play(asking(4), run=False).history.records.values()
    assert [len(record.shifts) for _, record in newest] == [4] * 2
    assert len(Store(play.folder / "results").read_all()[0]) == 6


def test_what_failed_for_want_of_shifts_is_kept_and_done_for_who_asks_for_none(play: Play) -> None:
    play(ONE)
    failing = Stage(lambda subject: ("failed", 0.0))
    assert hows(play(asking(1), failing)) == ["ran"] * 2 and hows(play(asking(1), Stage())) == ["kept"] * 2
    assert hows(play(ONE, Stage())) == ["done"] * 2
    assert hows(play(asking(1), Stage(), retry=frozenset({"failed"}))) == ["ran"] * 2
    assert hows(play(asking(1), Stage())) == ["done"] * 2


def test_trials_are_not_asked_and_count_without(play: Play) -> None:
    tune = "[tune]\nbudget.lr = [0.1, 0.2]\n"
    play(asking(2) + tune, stage := Stage())
    asked = [("--trial" in job.words, "--test-shifts" in job.words) for job in stage.jobs]
    assert sorted(set(asked)) == [(False, True), (True, False)]
    again = play(asking(5) + tune, stage := Stage())
    assert len(stage.jobs) == 2 and not any("--trial" in job.words for job in stage.jobs)
    assert {again.outcomes[one].how for one in again.runs if one.trial is not None} == {"done"}


def test_a_cell_that_cannot_be_moved_is_not_run(play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(plugin(tmp_path, arguments="honours_masks=False, ")).name
    text = f'name = "a"\ntasks = ["recall"]\nseeds = 1\nmechanisms = ["{path}"]\n'
    sweep = play("test_shifts = 2\n" + text, stage := Stage())
    (outcome,) = sweep.outcomes.values()
    assert (outcome.how, outcome.status, stage.jobs) == ("not run", "unsupported", [])
    assert outcome.reason == "--test-shifts shifts the input behind masked rows, and mine ignores masks"
    assert hows(play(text, Stage())) == ["ran"]
    monkeypatch.setattr(data, "load", None)  # for such a cell no data is prepared
    assert survey.take(play("test_shifts = 3\n" + text, run=False).suite).cells[0].refusal == outcome.reason


@pytest.mark.parametrize(
    ("value", "said"),
    [("-1", "greater than or equal to 0"), ('"3"', "integer"), ("true", "integer"), ("1.5", "integer")],
)
def test_a_value_that_is_none_is_one_line(play: Play, value: str, said: str) -> None:
    with pytest.raises(AttnbenchError, match=rf"mine.toml: test_shifts: .*{said}") as caught:
        play(f"test_shifts = {value}\n" + ONE)
    assert "\n" not in str(caught.value)


def test_more_than_fit_is_one_line_before_anything_runs(play: Play) -> None:
    with pytest.raises(AttnbenchError, match=r"^dense on recall: 65 test shifts go beyond 64") as caught:
        play(asking(65))
    assert "\n" not in str(caught.value)


def test_reproducing_takes_the_settings_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("local", "recall", settings=TINY)
    record, _ = execute(made, Settings(tmp_path, quiet=True, test_shifts=2))
    given: list[Settings] = []
    monkeypatch.setattr(reproduction, "execute", lambda _, settings: given.append(settings) or (record, tmp_path))
    assert reproduction.reproduce(record, Settings(tmp_path, test_shifts=9)).equal
    assert given == [replace(Settings(tmp_path), test_shifts=2)]
