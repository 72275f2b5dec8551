"""Equal tuning: the same grid for every cell, judged on validation alone, and kept apart from what was not tuned."""

from __future__ import annotations

import csv
import io
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from factories import make_record
from stage import HEAD, Answer, Play, Stage, words

from attnbench import board, data, load_records, plan
from attnbench.errors import AttnbenchError
from attnbench.outcomes import Run
from attnbench.record import Record, Tuned, Tuning
from attnbench.recording import Subject
from attnbench.report import build
from attnbench.runner import Settings, execute
from attnbench.store import read
from attnbench.studies.arms import of_sweep
from attnbench.sweep import Sweep
from attnbench.tables import to_csv, to_markdown

TUNED = HEAD + "[tune]\nbudget.lr = [0.1, 0.2, 0.3]\n"
GRID = Tuning(grid={"budget.lr": [0.1, 0.2, 0.3]}, seeds=[0])
SMALL = {
    "task.train": 60, "task.validation": 20, "task.test": 20, "model.dim": 8, "model.layers": 1, "budget.steps": 4,
    "budget.batch": 4, "budget.eval_every": 2,
}  # fmt: skip


def lr(subject: Subject) -> float:
    assert subject.tuned is not None
    return float(subject.tuned.chosen["budget.lr"])


def best_at(best: dict[str, float]) -> Callable[[Subject], Answer]:
    """On validation each mechanism is best at its own rate; on the test split it would be at another."""
    return lambda subject: ("ok", (0.9 if subject.trial else 0.1) if lr(subject) == best[subject.label] else 0.5)


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)


@pytest.fixture
def asking(tmp_path: Path) -> str:
    """A protocol that asks for the grid."""
    path = tmp_path / "asking.toml"
    path.write_text(
        'name = "asking"\nversion = 1\nsummary = "s"\n[tuning]\nseeds = [0]\n'
        '[tuning.grid]\n"budget.lr" = [0.1, 0.2, 0.3]\n'
    )
    return str(path)


# --- a protocol that asks for it --------------------------------------------------------------------------------------


def test_what_a_protocol_asks_for_is_it_and_anything_else_is_another(asking: str) -> None:
    def name(tuning: Tuning | None, **settings: float) -> tuple[str, dict[str, Any]]:
        spec = plan.make("dense", "recall", protocol=asking, tuning=tuning, settings=settings).rules.spec
        return spec.name, spec.changes

    assert name(GRID, **{"budget.lr": 0.2}) == name(GRID, **{"budget.lr": 0.3}) == ("asking", {})
    untuned, changes = name(None)
    assert untuned != "asking" and changes == {"tuning": None}
    other = Tuning(grid={"budget.lr": [0.1, 0.2]}, seeds=[0])
    assert len({"asking", untuned, name(other, **{"budget.lr": 0.2})[0]}) == 3


def test_a_sweep_takes_the_grid_of_its_protocol_unless_it_has_its_own(play: Play, asking: str) -> None:
    play(f'protocol = "{asking}"\n' + HEAD, stage := Stage(best_at({"dense": 0.3, "local": 0.2})))
    assert sum("--trial" in job.words for job in stage.jobs) == 6
    assert set(words(stage, "--tuning")) == {GRID.model_dump_json()}
    play(f'protocol = "{asking}"\n' + HEAD + "[tune]\nbudget.lr = [0.1, 0.2]\n", stage := Stage())
    assert sum("--trial" in job.words for job in stage.jobs) == 4


def test_a_run_that_is_not_tuned_says_so_and_stands_apart(
    asking: str, call: Callable[..., tuple[int, str, str]]
) -> None:
    said = {}
    for name, more in {"untuned": [], "tuned": ["--set", "budget.lr=0.2", "--tuning", GRID.model_dump_json()]}.items():
        code, out, _ = call("run", "-m", "dense", "-t", "digits", "-p", asking, "--dry-run", "--json", *more)
        assert code == 0
        said[name] = json.loads(out)["built"].get("notes", [])
    assert said["tuned"] == [] and len(said["untuned"]) == 1
    assert said["untuned"][0].startswith("protocol asking asks for tuned values, which `attnbench sweep` chooses")


def test_tables_of_such_a_protocol_say_what_was_chosen_from() -> None:
    tuned = Tuned(**GRID.model_dump(), trials=3, chosen={"budget.lr": 0.2})
    with_it = make_record(protocol="asking").model_copy(update={"tuning": tuned})
    without = make_record(protocol="asking-1", protocol_changes={"tuning": None})
    said = {table.protocol: table.tuning for table in build([with_it, without]).tables}
    assert said["asking"] == "budget.lr from 0.1, 0.2, 0.3; by validation on seed 0"
    assert said["asking-1"] == "no, though the protocol asks for it"


@pytest.mark.parametrize("text", ['"budget.steps" = [1, 2]', '"budget.lr" = [0.1]', '"budget.lr" = [0.1, "x"]'])
def test_a_protocol_with_a_grid_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(f'name = "bad"\nversion = 1\nsummary = "s"\n[tuning]\nseeds = [0]\n[tuning.grid]\n{text}\n')
    with pytest.raises(AttnbenchError):
        plan.make("dense", "recall", protocol=str(path))


@pytest.mark.parametrize("seeds", [[], [0, 0], [-1]])
def test_trials_are_on_different_seeds(seeds: list[int]) -> None:
    with pytest.raises(AttnbenchError, match="seed"):
        plan.make("dense", "recall", settings={"budget.lr": 0.1}, tuning=Tuning(grid=GRID.grid, seeds=seeds))


def test_a_grid_may_be_written_as_a_table(asking: str) -> None:
    wanted = plan.make("dense", "recall", protocol=asking).rules
    Path(asking).write_text(Path(asking).read_text("utf-8").replace('"budget.lr"', "budget.lr"))
    assert plan.make("dense", "recall", protocol=asking).rules == wanted


@pytest.mark.parametrize("place", ["[set]\n'budget.lr' = 0.5\n", "[options]\n'budget.lr' = [0.5]\n"])
def test_a_sweep_that_sets_what_its_protocol_chooses_is_refused(play: Play, asking: str, place: str) -> None:
    with pytest.raises(AttnbenchError, match=r"budget.lr is set, and protocol .* chooses it by validation"):
        play(f'protocol = "{asking}"\n' + HEAD + place, Stage())


@pytest.mark.parametrize(
    "edited", [{"seeds": 3}, {"parameters_within": 0.1}, {"tuning": None}, {"tuning": {"budget.lr": [0.1, 0.2]}}]
)
def test_an_edited_file_of_the_same_name_has_a_table_of_its_own(edited: dict[str, Any]) -> None:
    """Rows that chose from different grids, or from none, are no equal comparison."""
    chosen = {"trials": 3, "chosen": {"budget.lr": 0.1}}
    first = make_record(protocol="mine").model_copy(update={"tuning": Tuned(**GRID.model_dump(), **chosen)})
    spec, tuning = first.spec, first.tuning
    if "tuning" in edited:
        tuning = edited["tuning"] and Tuned(grid=edited["tuning"], seeds=[0], **chosen)
    else:
        spec = spec.model_copy(update={"protocol": spec.protocol.model_copy(update=edited)})
    other = first.model_copy(update={"id": "other", "spec": spec, "tuning": tuning})
    assert len(build([first, other]).tables) == 2 and len(build([first, first]).tables) == 1


# --- choosing ---------------------------------------------------------------------------------------------------------


def chosen(sweep: Sweep) -> list[float]:
    return [one["values"]["budget.lr"] for one in board.choices(sweep)]


def test_every_cell_tries_the_whole_grid_and_runs_what_validation_chose(play: Play) -> None:
    sweep = play(TUNED, stage := Stage(best_at({"dense": 0.3, "local": 0.2}), workers=2))
    tried = [(job.words[2], job.words[job.words.index("--set") + 1]) for job in stage.jobs if "--trial" in job.words]
    grid = [f"budget.lr={rate}" for rate in (0.1, 0.2, 0.3)]
    assert tried == [("dense", one) for one in grid] + [("local", one) for one in grid]
    assert words(stage, "--seed")[:6] == ["0"] * 6, "trials are on the first seed, for all"
    assert len(set(words(stage, "--tuning"))) == 1
    ran = [(job.words[2], job.words[job.words.index("--set") + 1]) for job in stage.jobs if "--trial" not in job.words]
    assert ran == [("dense", "budget.lr=0.3"), ("local", "budget.lr=0.2")] * 2
    assert board.choices(sweep) == [
        {"cell": "dense on recall", "values": {"budget.lr": 0.3}, "trials": 3, "lost": []},
        {"cell": "local on recall", "values": {"budget.lr": 0.2}, "trials": 3, "lost": []},
    ]


def test_of_equals_the_first_is_chosen_and_seeds_are_averaged(play: Play) -> None:
    sweep = play(TUNED, Stage(lambda subject: ("ok", 0.5)))
    assert chosen(sweep) == [0.1, 0.1]

    def answer(subject: Subject) -> Answer:
        return ("ok", {0.1: 0.6, 0.2: 0.5 + 0.4 * subject.seed, 0.3: 0.65}[lr(subject)])

    sweep = play(TUNED + "seeds = [0, 1]\n", Stage(answer))
    assert chosen(sweep) == [0.2, 0.2] and [one["trials"] for one in board.choices(sweep)] == [6, 6]


def test_cells_that_share_a_choice_run_what_the_trials_of_the_first_chose(play: Play) -> None:
    text = TUNED + 'share = ["task.length"]\n[options]\n"task.length" = [64, 72, 80]\n'
    sweep = play(text, stage := Stage(best_at({"dense": 0.3, "local": 0.2})))
    tried = [job.words for job in stage.jobs if "--trial" in job.words]
    assert len(tried) == 2 * 3 and all("task.length=64" in found for found in tried)
    rates = {"dense": "budget.lr=0.3", "local": "budget.lr=0.2"}
    ran = [job.words for job in stage.jobs if "--trial" not in job.words]
    assert len(ran) == 2 * 3 * 2 and all(rates[found[2]] in found for found in ran)
    tuned_by = [read(out.path).tuning for run, out in sweep.outcomes.items() if out.path and run.trial is None]
    assert {(one.trials, *one.share) for one in tuned_by if one} == {(3, "task.length")}
    alone = play(TUNED + '[options]\n"task.length" = [64, 72, 80]\n', Stage())
    assert sum(run.trial is not None for run in alone.runs) == 2 * 3 * 3
    names = {read(out.path).spec.protocol.name for one in (sweep, alone) for out in one.outcomes.values() if out.path}
    assert len(names) == 2, "a shared choice is another rule"


def test_a_value_that_fails_on_a_seed_is_out_and_is_no_failure_of_the_sweep(play: Play) -> None:
    def answer(subject: Subject) -> Answer:
        return ("diverged", 0.99) if lr(subject) == 0.3 else ("ok", lr(subject))

    sweep = play(TUNED, Stage(answer))
    assert chosen(sweep) == [0.2, 0.2]
    assert sweep.failed == [] and [one["lost"] for one in board.choices(sweep)] == [[], []]


def test_a_trial_that_was_lost_is_told_wherever_the_choice_is(play: Play) -> None:
    """A value that the machine took away did not lose, so the sweep has failed, and whoever reads the choice knows."""

    def answer(subject: Subject) -> Answer:
        lost = subject.trial and lr(subject) == 0.3 and subject.label == "local"
        return -signal.SIGKILL if lost else ("ok", lr(subject))

    sweep = play(TUNED, Stage(answer))
    assert chosen(sweep) == [0.3, 0.2] and [one["lost"] for one in board.choices(sweep)] == [
        [],
        ["budget.lr=0.3 (failed)"],
    ]
    assert [(run.cell, run.trial) for run in sweep.failed] == [(1, 2)]
    (line,) = [one for one in board.closing(sweep) if one.startswith("local on recall: ")]
    assert line == "local on recall: budget.lr=0.2, by validation over 3 trials; without budget.lr=0.3 (failed)"
    assert [one.lost for one in of_sweep(sweep).values()] == [[], ["budget.lr=0.3 (failed)"]]
    assert chosen(play(TUNED, Stage(), retry=frozenset({"failed"}))) == [0.3, 0.3]


def test_what_waits_for_a_trial_that_was_stopped_is_not_begun(play: Play) -> None:
    def answer(subject: Subject) -> Answer:
        return 130 if subject.trial and lr(subject) == 0.3 and subject.label == "local" else ("ok", lr(subject))

    sweep = play(TUNED, Stage(answer))
    assert {out.how for run, out in sweep.outcomes.items() if run.cell == 1 and run.trial is None} == {"not begun"}
    assert {out.how for run, out in sweep.outcomes.items() if run.cell == 0} == {"ran"} and chosen(sweep) == [0.3]
    assert chosen(play(TUNED, Stage(lambda subject: ("ok", lr(subject))))) == [0.3, 0.3]


def test_a_cell_whose_trials_all_fail_is_not_run_and_says_so(play: Play) -> None:
    def answer(subject: Subject) -> Answer:
        return ("diverged", 0.0) if subject.label == "dense" else ("ok", 0.5)

    sweep = play(TUNED, stage := Stage(answer))
    outcome = sweep.outcomes[Run(0, 1)]
    assert (outcome.how, outcome.status) == ("not run", "diverged") and outcome.path is not None
    assert outcome.reason == "none of the values to choose from finished all trials; diverged: played"
    assert len(sweep.failed) == 2 and [job.words[2] for job in stage.jobs[6:]] == ["local"] * 2
    again = play(TUNED, retried := Stage(), retry=frozenset({"diverged"}))
    assert len(retried.jobs) == 3 + 2 and again.failed == []


def test_trials_are_not_repeated_and_nothing_runs_before_they_are_over(play: Play) -> None:
    first = play(TUNED, stage := Stage(lambda subject: ("ok", lr(subject))), budget=25)
    assert len(stage.jobs) == 3 and {out.how for run, out in first.outcomes.items() if run.trial is None} == {
        "not begun"
    }
    play(TUNED, rest := Stage(lambda subject: ("ok", lr(subject))))
    assert len(rest.jobs) == 3 + 4
    play(TUNED, none := Stage())
    assert none.jobs == []


# --- identity ---------------------------------------------------------------------------------------------------------


def tuned(mechanism: str, rate: float, tuning: Tuning | None = GRID, **settings: Any) -> plan.Plan:
    return plan.make(mechanism, "recall", settings={"budget.lr": rate, **settings}, tuning=tuning)


def test_the_grid_makes_the_protocol_and_what_was_chosen_does_not() -> None:
    one, other = tuned("dense", 0.1).rules, tuned("local", 0.3).rules
    assert one.spec == other.spec and one.budget.lr != other.budget.lr
    assert one.spec.changes == {"tuning": {"grid": {"budget.lr": [0.1, 0.2, 0.3]}, "seeds": [0]}}
    names = [
        rules.spec.name
        for rules in (
            one,
            tuned("dense", 0.1, None).rules,
            plan.make("dense", "recall").rules,
            tuned("dense", 0.1, Tuning(grid={"budget.lr": [0.1, 0.2]}, seeds=[0])).rules,
            tuned("dense", 0.1, Tuning(grid=GRID.grid, seeds=[0, 1])).rules,
            tuned("dense", 0.1, **{"budget.steps": 7}).rules,
        )
    ]
    assert len(set(names)) == len(names)


def test_how_a_value_is_written_does_not_matter() -> None:
    said = Tuning(grid={"budget.lr": ["1e-1", "0.20", 0.3]}, seeds=[0])
    assert tuned("dense", 0.1, said).rules == tuned("dense", 0.1).rules


@pytest.mark.parametrize("settings", [{"budget.lr": 0.15}, {}])
def test_what_was_chosen_stands_in_the_grid(settings: dict[str, float]) -> None:
    with pytest.raises(AttnbenchError, match=r"give one of \[0.1, 0.2, 0.3\] with --set budget.lr="):
        plan.make("dense", "recall", settings=settings, tuning=GRID)


def record(label: str, test: float = 0.8, *, rate: float = 0.1, trial: bool = False, seed: int = 0) -> Record:
    changes = {"tuning": GRID.model_dump(mode="json")}
    made = make_record(label=label, mechanism=label, test=test, protocol_changes=changes, seed=seed)
    budget = made.spec.budget | {"lr": rate}
    found = Tuned(grid=GRID.grid, seeds=GRID.seeds, trials=3, chosen={"budget.lr": rate})
    update = {"tuning": found, "spec": made.spec.model_copy(update={"budget": budget})}
    return made.model_copy(update=update | ({"kind": "trial", "quality": None} if trial else {}))


def test_a_table_leaves_trials_out_and_shows_the_grid_and_what_each_row_chose() -> None:
    records = [record("dense", rate=0.1), record("local", 0.7, rate=0.3), record("dense", rate=0.2, trial=True)]
    (table,) = build(records).tables
    assert [(row.label, row.options) for row in table.rows] == [("dense", ""), ("local", "")]
    assert table.notes == (), "rows that were tuned alike are no unfair comparison"
    page = to_markdown(build(records))
    assert "Tuned: budget.lr from 0.1, 0.2, 0.3; by validation on seed 0" in page
    assert "| local | 32,768 | 3: recall budget.lr=0.3 | 0.700" in page
    rows = csv.DictReader(io.StringIO(to_csv(build(records))))
    assert [(row["label"], row["trials"], row["chosen"]) for row in rows] == [
        ("dense", "3", "budget.lr=0.1"), ("local", "3", "budget.lr=0.3"),
    ]  # fmt: skip


def test_a_table_tells_which_value_could_not_be_chosen() -> None:
    runs = [record("dense", rate=0.1, seed=seed) for seed in range(2)]
    lost = record("dense", rate=0.3, trial=True).model_copy(update={"status": "failed", "id": "lost"})
    (table,) = build([*runs, lost]).tables
    assert table.notes == ("dense, recall: budget.lr=0.3 could not be chosen, its trial on seed 0 ended as failed",)
    for better in (
        [lost.model_copy(update={"status": "diverged"})],
        [lost, record("dense", rate=0.3, trial=True)],  # it was tried again
    ):
        (table,) = build([*runs, *better]).tables
        assert table.notes == ()
    (table,) = build([*runs, lost, record("dense", rate=0.2, trial=True)]).tables
    assert len(table.notes) == 1


def test_tuned_and_untuned_never_share_a_table() -> None:
    assert len(build([record("dense"), make_record(label="dense")]).tables) == 2
    untuned = make_record(label="dense", protocol_changes={"tuning": "something else"})
    assert build([untuned]).tables[0].tuning == '"something else"'


# --- a trial ----------------------------------------------------------------------------------------------------------


class NoTest(dict[str, Any]):
    """Splits of which the test split may not be touched."""

    def __getitem__(self, name: str) -> Any:
        assert name != "test", "the test split was read"
        return super().__getitem__(name)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], tuple[Record, Path]]:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))
    made = tuned("dense", 0.1, **SMALL)

    def run(trial: bool) -> tuple[Record, Path]:
        return execute(made, Settings(tmp_path / "results", quiet=True, trial=trial))

    return run


Small = Callable[[bool], tuple[Record, Path]]


def test_a_trial_never_reads_the_test_split(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = data.load

    def spied(*arguments: Any, **more: Any) -> data.TaskData:
        found = load(*arguments, **more)
        return data.TaskData(found.key, NoTest(found.splits), found.card, found.folder)

    whole, _ = small(False)
    monkeypatch.setattr(data, "load", spied)
    found, path = small(True)
    assert (found.kind, found.status, found.quality, found.predictions) == ("trial", "ok", None, None)
    assert (found.curve, found.spec, found.tuning) == (whole.curve, whole.spec, whole.tuning)
    assert not list(path.parent.glob(f"{found.id}*.npz")) and not list((tmp_path / "results/unfinished").iterdir())
    assert small(False)[0].status == "failed", "the spy sees a reading"
    frame = load_records(tmp_path / "results")
    assert sorted(frame["kind"]) == ["train", "train", "trial"] and frame[frame["kind"] == "trial"]["test"].isna().all()


def test_a_trial_belongs_to_a_grid_and_has_no_score(tmp_path: Path, small: Small) -> None:
    with pytest.raises(AttnbenchError, match="--trial goes with --tuning"):
        execute(plan.make("dense", "recall"), Settings(tmp_path, trial=True))
    _, path = small(True)
    told = json.loads(path.read_text("utf-8"))
    for change in ({"quality": make_record().quality.model_dump(mode="json")}, {"tuning": None}):  # type: ignore[union-attr]
        path.write_text(json.dumps(told | change), "utf-8")
        with pytest.raises(AttnbenchError, match="trial"):
            read(path)


def test_a_tuned_run_and_a_trial_are_found_again(call: Callable[..., tuple[int, str, str]]) -> None:
    options = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    tuning = ["--tuning", json.dumps(GRID.model_dump(mode="json")), "--set", "budget.lr=0.2", "--results", "results"]
    for more in ([], ["--trial"]):
        code, out, err = call("run", "-m", "dense", "-t", "recall", *options, *tuning, *more, "--json")
        assert code == 0, err
        again = call("reproduce", json.loads(out)["id"], "--results", "results", "--json")
        assert again[0] == 0, again
        assert read(json.loads(again[1])["again"]).spec == read(json.loads(out)["path"]).spec
    listed = json.loads(call("list", "runs", "--results", "results", "--json")[1])
    assert [run["test"] for run in listed].count("trial") == 2


@pytest.mark.parametrize("text", ["x", "{}", '{"grid": 3, "seeds": [0]}', '{"grid": {"budget.lr": [1, 2]}}'])
def test_a_grid_that_is_none_is_one_line(call: Callable[..., tuple[int, str, str]], text: str) -> None:
    code, out, err = call("run", "-m", "dense", "-t", "recall", "--tuning", text)
    assert (code, out) == (2, "") and err.startswith("error: --tuning takes JSON such as") and err.count("\n") == 1
