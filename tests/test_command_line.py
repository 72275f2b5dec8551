"""The command line as a user meets it: output, exit codes, one-line errors, plugins of their own."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from factories import make_record, portable_mechanisms

import attnbench
from attnbench import cli
from attnbench.store import Store

TINY_MODEL = ["--set=model.dim=16", "--set=model.layers=1", "--set=budget.steps=3", "--set=budget.batch=8"]
TINY_TASK = ["train=200", "validation=40", "test=60", "length=16", "distance=2"]
TINY = [*TINY_MODEL, *(f"--set=task.{setting}" for setting in TINY_TASK)]


class Said:
    """What one call printed, and how it ended."""

    def __init__(self, code: int, out: str, err: str):
        self.code, self.out, self.err = code, out, err


Call = Callable[..., Said]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Runs the console script in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNBENCH_RESULTS", str(tmp_path / "results"))

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["attnbench", *arguments])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        return Said(code, *capsys.readouterr())

    return run


@pytest.mark.parametrize("mechanism", portable_mechanisms())
@pytest.mark.parametrize("task", ["recall", "digits"])
def test_every_mechanism_runs_on_the_small_tasks(call: Call, mechanism: str, task: str) -> None:
    said = call("run", "-m", mechanism, "-t", task, "--json", *(TINY if task == "recall" else TINY_MODEL))
    assert said.code == 0, said.err
    record = json.loads(said.out)
    assert record["label"] == mechanism and record["status"] in ("ok", "not_above_chance", "trivial")
    low, high = record["quality"]["interval"]
    assert low <= record["quality"]["test"] <= high
    assert record["cost"]["params_total"] > record["cost"]["params_mixer"] > 0
    assert record["command"].startswith("attnbench run -m " + mechanism)
    assert Path(record["path"]).is_file() and Path(record["path"]).with_suffix(".predictions.npz").is_file()
    assert "preparing" not in said.out
    assert str(Path(attnbench.__file__).parent.parent) not in Path(record["path"]).read_text(), "no path of the machine"


def test_pathfinder_runs_from_an_empty_cache(call: Call) -> None:
    said = call(
        "run", "-m", "ernie_sparse", "-t", "pathfinder", "--set", "examples=100", "--set", "budget.steps=2",
        "--set", "budget.batch=4", "--set", "model.layers=1", "--set", "model.dim=16",
    )  # fmt: skip
    assert said.code == 0, said.err
    for shown in (
        "status",
        "test accuracy",
        "95 % interval",
        "chance",
        "trivial: majority",
        "samples/s",
        "peak memory",
    ):
        assert shown in said.out
    assert "in the mixers" in said.out and "results/runs/quick-" in said.out.replace("\n", "")


BAD = [
    (["run", "-m", "densse", "-t", "recall"], "did you mean dense"),
    (["run", "-m", "dense", "-t", "recal"], "did you mean recall"),
    (["run", "-m", "dense", "-t", "recall", "-r", "saar"], "unknown regularizer 'saar'; did you mean sar"),
    (["run", "-m", "dense", "-t", "recall", "-r", "sar+sar"], "takes different ones"),
    (["run", "-m", "ernie_sparse", "-t", "recall", "-r", "rdrop"], "use --mechanism hst --regularizer rdrop"),
    (["run", "-m", "dense", "-t", "recall", "-p", "quik"], "did you mean quick"),
    (["run", "-m", "dense", "-t", "recall", "-p", "no.toml"], "no.toml: no such file"),
    (["run", "-m", "dense", "-t", "recall", "--set", "budget.stesp=1"], "did you mean steps"),
    (["run", "-m", "dense", "-t", "recall", "--set", "budget.steps=0"], "steps: Input should be greater than 0"),
    (["run", "-m", "dense", "-t", "recall", "--set", "budget.steps=many"], "found 'many'"),
    (["run", "-m", "dense", "-t", "recall", "--set", "steps"], "takes key=value"),
    (["run", "-m", "dense", "-t", "recall", "--set", "steps=1", "--set", "steps=2"], "given twice"),
    (["run", "-m", "dense", "-t", "recall", "--set", "model.heads=3"], "heads=3 does not divide dim=64"),
    (["run", "-m", "dense", "-t", "recall", "--set", "accumulate=3"], "does not divide batch=32"),
    (["run", "-m", "hst", "-t", "recall", "--set", "window_blocks=2"], "a window of blocks is odd"),
    (["run", "-m", "hst", "-t", "recall", "--set", "preset=ltieral"], "did you mean literal"),
    (["run", "-m", "hst", "-t", "recall", "-r", "sar", "--set", "sar.shift=9..2"], "got 9..2"),
    (["run", "-m", "hst", "-t", "recall", "-r", "sar", "--set", "sar.shift=65"], "shift goes beyond 64"),
    (["run", "-m", "dense", "-t", "recall", "--seed", "-1"], "seed is a whole number from 0 on"),
    (["run", "-m", "dense", "-t", "recall", "--max-time", "soon"], "90s, 10m or 2h"),
    (["run", "-m", "dense", "-t", "recall", "--device", "tpu"], "auto, cpu or cuda"),
    (["run", "-m", "./none.py", "-t", "recall"], "none.py: no such file"),
    (["run", "-m", "no.module:Class", "-t", "recall"], "needs the package 'no'"),
    (["run", "-m", "dense", "-t", "recall", "--set", "pairs=9"], "at least as many keys"),
    (["show", "hstt"], "did you mean hst"),
    (["new", "mechanism", "1x"], "cannot be a plugin's name"),
    (["new", "mechansim", "x"], "did you mean mechanism"),
    (["report", "--results", "nowhere"], "nowhere: no such folder"),
    (["list", "runs", "--results", "nowhere"], "nowhere"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_a_bad_request_gets_one_line_and_exit_2(call: Call, arguments: list[str], said: str) -> None:
    found = call(*arguments)
    assert found.code == 2
    lines = found.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and said in lines[0]
    assert found.out == ""


@pytest.mark.parametrize(
    "arguments", [["rnu"], ["run", "--task", "recall"], ["list", "everything"], ["run", "--sed", "1"]]
)
def test_wrong_words_are_named_with_exit_2(call: Call, arguments: list[str]) -> None:
    found = call(*arguments)
    assert found.code == 2 and "Error" in found.err and "Traceback" not in found.err


MINE = """
from torch import Tensor
from attnbench import Mechanism
from attnbench.layers import QKVMixer

class Mixer(QKVMixer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -1e30)
        return scores.softmax(-1) @ v

MECHANISM = Mechanism(
    summary="Softmax attention by hand", paper="mine", build=lambda shape, options: Mixer(shape)
)
"""


def test_a_mechanism_of_15_lines_outside_the_repository_runs_by_path(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    mine = json.loads(call("run", "-m", "./mine.py", "-t", "recall", "--json", *TINY).out)
    dense = json.loads(call("run", "-m", "dense", "-t", "recall", "--json", *TINY).out)
    assert mine["label"] == "mine"
    assert mine["code"]["origin"] == {"mechanism": "file mine.py", "task": "built-in"}
    for ours, theirs in zip(mine["curve"], dense["curve"], strict=True):
        assert ours["validation_loss"] == pytest.approx(theirs["validation_loss"], rel=1e-3), "it is dense, by hand"


def test_a_package_offers_a_mechanism_a_task_and_a_regularizer_by_entry_points(tmp_path: Path) -> None:
    (tmp_path / "third_party.py").write_text(
        MINE
        + "from attnbench.regularizers.rdrop import REGULARIZER as REG\n"
        + "from attnbench.tasks.recall import TASK as JOB\n"
    )
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[attnbench.mechanisms]\nby_hand = third_party:MECHANISM\nlost = third_party:NOTHING\n"
        "[attnbench.tasks]\nmy_recall = third_party:JOB\n[attnbench.regularizers]\nmine = third_party:REG\n"
    )
    run = [sys.executable, "-m", "attnbench"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def start(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*run, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path)

    listed = {row["name"]: row["home"] for row in json.loads(start("list", "--json").stdout)}
    assert listed["by_hand"] == "package" and listed["dense"] == "built-in"
    done = start("run", "-m", "by_hand", "-t", "my_recall", "-r", "mine", "--json", "--set=model.dropout=0.1", *TINY)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["label"] == "by_hand+mine" and record["spec"]["task"]["name"] == "my_recall"
    lost = start("run", "-m", "lost", "-t", "recall")
    assert lost.returncode == 2 and lost.stderr.count("\n") == 1 and "third-party" in lost.stderr


@pytest.mark.parametrize("kind", ["mechanism", "task"])
def test_what_new_writes_runs_as_it_is(call: Call, tmp_path: Path, kind: str) -> None:
    made = call("new", kind, "fresh")
    assert made.code == 0 and (tmp_path / "fresh.py").is_file()
    chosen = ["-m", "./fresh.py", "-t", "digits"] if kind == "mechanism" else ["-m", "dense", "-t", "./fresh.py"]
    assert call("run", *chosen, "--set", "budget.steps=2", "--set", "model.dim=16").code == 0
    again = call("new", kind, "fresh")
    assert again.code == 2 and "exists already" in again.err


def test_a_cell_that_cannot_run_here_gives_a_record_and_exit_1(call: Call, tmp_path: Path) -> None:
    needs = MINE.replace('paper="mine",', 'paper="mine", requires=("no_such_package",),')
    (tmp_path / "needs.py").write_text(needs)
    said = call("run", "-m", "./needs.py", "-t", "recall", "--json", *TINY)
    record = json.loads(said.out)
    assert said.code == 1 and record["status"] == "unsupported" and "no_such_package" in record["reason"]


def test_a_mechanism_that_ignores_masks_is_refused_where_masks_matter(call: Call, tmp_path: Path) -> None:
    (tmp_path / "blind.py").write_text(MINE.replace('paper="mine",', 'paper="mine", honours_masks=False,'))
    said = call("run", "-m", "./blind.py", "-t", "recall", "-r", "sar", "--json", *TINY)
    assert said.code == 1 and "ignores masks" in json.loads(said.out)["reason"]
    assert call("run", "-m", "./blind.py", "-t", "recall", *TINY).code == 0


def test_a_dry_run_prints_every_value_and_runs_nothing(call: Call, tmp_path: Path) -> None:
    said = call("run", "-m", "ernie_sparse", "-t", "recall", "--dry-run", "--json", "--set", "sar.alpha=0.5")
    plan = json.loads(said.out)
    assert plan["mechanism"]["name"] == "hst" and plan["mechanism"]["options"]["block_size"] == 8
    assert plan["regularizer"][0]["options"]["alpha"] == 0.5 and plan["budget"]["steps"] == 900
    named = {"name": "quick", "version": 1, "changes": {}}
    assert plan["protocol"] == named | {"seeds": 1, "parameters_within": None}
    assert not (tmp_path / "results").exists()


def test_the_report_shows_the_runs(call: Call, tmp_path: Path) -> None:
    for mechanism in ("dense", "local"):
        assert call("run", "-m", mechanism, "-t", "recall", *TINY).code == 0
    table = call("report").out
    assert "| dense |" in table and "| local |" in table and "chance" in table
    rows = list(csv.DictReader(io.StringIO(call("report", "--format", "csv").out)))
    assert [row["label"] for row in rows] == ["dense", "local"] and rows[0]["task"] == "recall"
    assert json.loads(call("report", "--json").out)["tables"][0]["columns"][0]["task"] == "recall"
    assert len(json.loads(call("list", "runs", "--json").out)) == 2
    written = call("report", "--to", str(tmp_path / "out")).out.strip()
    assert Path(written).read_text("utf-8") == table


@pytest.mark.parametrize("command", ["list", "show", "run", "new", "report", "check"])
def test_every_command_explains_itself_with_examples(call: Call, command: str) -> None:
    said = call(command, "--help")
    assert said.code == 0 and "Examples" in said.out and f"attnbench {command}" in said.out


@pytest.mark.parametrize(
    "arguments", [["list"], ["list", "tasks"], ["list", "protocols"], ["--help"], ["run", "--help"]]
)
def test_listing_and_help_load_no_torch(arguments: list[str]) -> None:
    code = f"import sys; sys.argv[1:] = {arguments!r}\nfrom attnbench.cli import main\n"
    code += "try: main()\nexcept SystemExit as end: assert not end.code\nprint('torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip().splitlines()[-1] == "False"


def test_show_tells_what_a_plugin_is(call: Call) -> None:
    hst = json.loads(call("show", "hst", "--json").out)
    assert hst["options"]["reps_per_block"] == 1 and hst["presets"]["literal"]["merge"] == "replace"
    recall = json.loads(call("show", "recall", "--json").out)
    assert recall["head"] == "TagTokens" and recall["source"]["licence"] == "generated"
    assert json.loads(call("show", "ernie_sparse", "--json").out)["regularizer"] == "sar"
    assert json.loads(call("show", "quick", "--json").out)["version"] == 1


def test_two_homes_for_one_name_are_both_named(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugins" / "mechanisms").mkdir(parents=True)
    (tmp_path / "plugins" / "mechanisms" / "dense.py").write_text(MINE)
    monkeypatch.setenv("ATTNBENCH_PLUGINS", str(tmp_path / "plugins"))
    said = call("run", "-m", "dense", "-t", "recall", *TINY)
    assert said.code == 2 and "two homes" in said.err and "plugins/mechanisms/dense.py" in said.err
    listed = {row["name"]: row["home"] for row in json.loads(call("list", "--json").out)}
    assert listed["dense"] == "broken" and listed["local"] == "built-in"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("MECHANISM = 3", "is a int, not a Mechanism or Cell"),
        ("x = 1", "defines no MECHANISM"),
        ("1/0", "ZeroDivisionError"),
        ("def (", "SyntaxError"),
    ],
)
def test_a_broken_file_is_one_line(call: Call, tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    found = call("run", "-m", "./broken.py", "-t", "recall")
    assert found.code == 2 and said in found.err and found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('lost')", "KeyError: 'lost' (odd.py:"),
        ("return v[:, :, :1]", "the mechanism returned (8, 1, 16) for rows of shape (8, 16, 16)"),
        ("return None", "AttributeError: 'NoneType'"),
    ],
)
def test_a_mechanism_that_breaks_is_a_failed_run(call: Call, tmp_path: Path, body: str, said: str) -> None:
    (tmp_path / "odd.py").write_text(MINE.replace("return scores.softmax(-1) @ v", body))
    found = call("run", "-m", "./odd.py", "-t", "recall", "--json", *TINY)
    assert found.code == 1 and "Traceback" not in found.err
    record = json.loads(found.out)
    assert record["status"] == "failed" and record["reason"].startswith(f"step 0: {said}")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("1 / 0", "prepare failed: ZeroDivisionError: division by zero (odd_task.py:"),
        ("return None", "prepare returned a NoneType, not a datasets.DatasetDict"),
    ],
)
def test_a_task_that_breaks_is_one_line(call: Call, tmp_path: Path, body: str, said: str) -> None:
    call("new", "task", "odd_task")
    path = tmp_path / "odd_task.py"
    path.write_text(path.read_text().replace("    made = {}\n", f"    {body}\n    made = {{}}\n"))
    found = call("run", "-m", "dense", "-t", "./odd_task.py")
    assert found.code == 2 and said in found.err.strip().splitlines()[-1] and "Traceback" not in found.err


def test_a_results_folder_that_cannot_be_is_refused_before_training(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    found = call("run", "-m", "dense", "-t", "recall", "--results", "file/results", *TINY)
    assert found.code == 2 and found.err.count("\n") == 1 and found.err.startswith("error: ")


def test_show_knows_the_kind_of_a_file(call: Call, tmp_path: Path) -> None:
    call("new", "task", "my_task")
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "my_loss.py").write_text(
        "from attnbench import Regularizer\n"
        "REGULARIZER = Regularizer(summary='by path', paper='x', loss=lambda o: None)\n"
    )
    shown = {name: json.loads(call("show", f"./{name}.py", "--json").out) for name in ("my_task", "mine", "my_loss")}
    assert shown["my_task"]["head"].startswith("Classify") and shown["my_loss"]["summary"] == "by path"
    assert shown["mine"]["summary"] == "Softmax attention by hand"
    broken = call("show", "torch.nn:Identitty")
    assert broken.code == 2 and "did you mean Identity" in broken.err


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (["dense", "--set", "model.heads=3"], "heads=3 does not divide dim=64"),
        (["dense", "--device", "cuda"], "PyTorch sees no CUDA device here"),
        (["hst", "-r", "sar", "--set", "sar.shift=65"], "shift goes beyond 64"),
        (["./odd.py"], "mechanism odd: building it failed: ZeroDivisionError"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_dry_run_refuses_what_a_run_refuses(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: list[str], said: str
) -> None:
    """Though it prepares no data, it builds the model."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "odd.py").write_text(MINE.replace("Mixer(shape)", "1 / 0"))
    whole, dry = (call("run", "-t", "recall", "-m", *request_, *more) for more in ([], ["--dry-run"]))
    assert whole.code == dry.code == 2 and said in dry.err and dry.err == whole.err and dry.out == ""


def test_a_dry_run_tells_of_the_model_that_a_run_builds(call: Call) -> None:
    built = json.loads(call("run", "-m", "hst", "-t", "recall", "--dry-run", "--json", *TINY).out)["built"]
    record = json.loads(call("run", "-m", "hst", "-t", "recall", "--json", *TINY).out)
    assert built["attention path"] == record["spec"]["mechanism"]["implementation"]
    assert all(built[name] == record["cost"][name] for name in ("params_total", "params_mixer"))


def test_what_cannot_run_here_cannot_run_dry(call: Call, tmp_path: Path) -> None:
    (tmp_path / "needs.py").write_text(MINE.replace('paper="mine",', 'paper="mine", requires=("no_such_package",),'))
    said = call("run", "-m", "./needs.py", "-t", "recall", "--dry-run")
    assert said.code == 2 and "needs the package no_such_package" in said.err and said.out == ""


LONG = "word " * 60 + "end"


@pytest.mark.parametrize(
    "arguments", [["list", "runs"], ["show", "./wide.py"], ["run", "-m", "./wide.py", "-t", "recall", "--dry-run"]]
)
def test_what_is_piped_has_whole_lines(tmp_path: Path, arguments: list[str]) -> None:
    """However narrow the terminal beside the pipe, and with colours forced, as many CI services do."""
    record = make_record(label=LONG)
    Store(tmp_path / "results").write(record)
    options = f"from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Options:\n    text: str = {LONG!r}\n"
    (tmp_path / "wide.py").write_text(options + MINE.replace('paper="mine",', 'paper="mine", options=Options,'))
    done = subprocess.run(
        [sys.executable, "-m", "attnbench", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "ATTNBENCH_RESULTS": "results", "COLUMNS": "40", "FORCE_COLOR": "1"},
    )
    assert done.returncode == 0, done.stderr
    line = next((line for line in done.stdout.splitlines() if LONG in line), "cut")
    if arguments[0] == "list":
        assert all(part in line for part in (record.id, "recall", "quick", "ok", "0.8000"))
    else:
        assert "options.text" in line
    assert all(line == line.rstrip() for line in done.stdout.splitlines())


def test_a_label_that_is_no_valid_text_breaks_nothing(call: Call, tmp_path: Path) -> None:
    """A lone surrogate: JSON can hold it, and no terminal can be sent it."""
    results = tmp_path / "results"
    Store(results).write(make_record(label="odd\ud800", mechanism="odd\udcff"))
    Store(results).write(make_record(label="dense"))
    listed = call("list", "runs")
    assert listed.code == 0 and "odd\\ud800" in listed.out and " dense " in listed.out
    for arguments in (["report"], ["report", "--format", "csv"], ["report", "--json"], ["list", "runs", "--json"]):
        said = call(*arguments)
        assert said.code == 0 and "odd" in said.out and "dense" in said.out
        assert said.err.count("\n") == (arguments[0] == "report")  # the note that there are no scores of examples
    assert sorted(attnbench.load_records(results)["label"]) == ["dense", "odd\ud800"]


FAULTS = [KeyError("one\ntwo"), RuntimeError("one\ntwo"), MemoryError("one\ntwo"), RecursionError("one\ntwo")]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_fault_nobody_foresaw_is_one_line_unless_all_of_it_is_asked_for(
    call: Call, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def breaks(*arguments: object) -> None:
        raise fault

    monkeypatch.setattr(cli.scaffold, "create", breaks)
    monkeypatch.delenv("ATTNBENCH_DEBUG", raising=False)
    said = call("new", "mechanism", "mine")
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith(f"error: {type(fault).__name__}: ") and "ATTNBENCH_DEBUG=1 shows where" in said.err
    assert "(test_command_line.py:" in said.err
    monkeypatch.setenv("ATTNBENCH_DEBUG", "1")
    with pytest.raises(type(fault)):
        call("new", "mechanism", "mine")


def test_a_tilde_in_the_results_folder_is_the_home(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path / "kept").write(make_record())
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(json.loads(call("list", "runs", "--json", "--results", "~/kept").out)) == 1
    monkeypatch.setenv("ATTNBENCH_RESULTS", "~/kept")
    assert "dense" in call("report").out
    assert len(attnbench.load_records("~/kept")) == 1


SLOW = """
import time
import datasets
from attnbench.contracts import Classify, Source, Task

def prepare(options, preparation):
    part = preparation.folder / "part.txt"
    if not part.exists():
        part.write_text("from the first time")
        while True:
            time.sleep(0.05)
    preparation.note(f"found: {part.read_text()}")
    rows = {"tokens": [[1, 2]] * 20, "label": [0, 1] * 10}
    return datasets.DatasetDict({n: datasets.Dataset.from_dict(rows) for n in ("train", "validation", "test")})

TASK = Task(summary="x", source=Source(citation="x", licence="x"), head=lambda o: Classify(2), vocab=lambda o: 3,
            max_length=lambda o: 2, prepare=prepare)
"""


def test_a_preparation_that_was_terminated_goes_on_with_what_it_wrote(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "attnbench", "run", "-m", "dense", "-t", "./slow.py", *TINY_MODEL]
    place: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "ATTNBENCH_DATA": str(tmp_path / "data")}}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **place)
    try:
        deadline = time.monotonic() + 120
        while not (parts := list(tmp_path.glob("data/slow/*.partial/files/part.txt"))):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (143, "") and "Traceback" not in err and parts[0].is_file()
    again = subprocess.run(command, capture_output=True, text=True, timeout=120, **place)
    assert again.returncode == 0 and "going on" in again.stderr, again.stderr
    assert "found: from the first time" in again.stderr
