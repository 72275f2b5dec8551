"""The console script beyond a single good run: streams, exit codes, hostile words, broken folders, narrow terminals."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import attnbench
from attnbench import cli

TINY = [
    f"--set={pair}"
    for pair in (
        "model.dim=16", "model.layers=1", "budget.steps=3", "budget.batch=8",
        "task.train=200", "task.validation=40", "task.test=60", "task.length=16", "task.distance=2",
    )
]  # fmt: skip
RECALL = ["run", "-m", "dense", "-t", "recall"]

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Runs the console script in this process, in a folder of its own: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATTNBENCH_RESULTS", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["attnbench", *arguments])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return code, *capsys.readouterr()

    return run


def fresh(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "attnbench", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_json_is_all_that_goes_to_stdout_and_the_rest_to_stderr(tmp_path: Path) -> None:
    """In a process of its own, from an empty cache, so that everything which could speak does."""
    done = fresh(*RECALL, "--json", *TINY, "--results", str(tmp_path / "r"), ATTNBENCH_DATA=str(tmp_path / "d"))
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["command"].startswith("attnbench run -m dense -t recall --json")
    assert "preparing recall" in done.stderr and "Traceback" not in done.stderr
    assert json.loads(Path(record.pop("path")).read_text("utf-8")) == record


STATUSES = {
    "unsupported": ("requires=('no_such_package',)", "return x", 1),
    "failed": ("", "raise KeyError('x')", 1),
    "diverged": ("", "return x / 0", 1),
    "not_above_chance": ("", "return x * 0", 0),
}


@pytest.mark.parametrize("status", STATUSES)
def test_the_exit_code_tells_whether_the_run_finished(call: Call, tmp_path: Path, status: str) -> None:
    arguments, body, code = STATUSES[status]
    (tmp_path / "mine.py").write_text(
        "from attnbench import Mechanism\nfrom torch import nn\n"
        f"class Mixer(nn.Module):\n    def forward(self, x, mask=None, layout=None):\n        {body}\n"
        f"MECHANISM = Mechanism(summary='x', paper='x', build=lambda s, o: Mixer(), {arguments})\n"
    )
    found, out, _ = call("run", "-m", "./mine.py", "-t", "recall", *TINY)
    assert found == code
    lines = out.splitlines()
    assert any(line.split()[:2] == ["status", status] for line in lines)
    assert lines[-1].startswith("record: ") and Path(lines[-1].removeprefix("record: ")).is_file()


def test_time_out_has_exit_1_and_says_how_to_go_on(call: Call) -> None:
    code, out, _ = call(*RECALL, "--max-time", "0.000001s", *TINY)
    assert code == 1 and "timeout" in out and "--resume" in out
    assert call(*RECALL, "--resume", *TINY)[0] == 0


BAD = [
    ([*RECALL, "--set", "=3"], "takes key=value"),
    ([*RECALL, "--set", "batch=0"], "greater than 0"),
    ([*RECALL, "--set", "lr=inf"], "lr"),
    ([*RECALL, "--set", "model.dim=1e99"], "dim"),
    ([*RECALL, "--set", "positions=upside"], "positions"),
    ([*RECALL, "--set", "numerics.dtype=fp8"], "dtype"),
    ([*RECALL, "--set", "nowhere.dim=3"], "nowhere.dim"),
    ([*RECALL, "--max-time", ""], "--max-time takes a time"),
    ([*RECALL, "--max-time", "0"], "--max-time takes a time"),
    ([*RECALL, "--max-time", "-5s"], "--max-time takes a time"),
    ([*RECALL, "--max-time", "1d"], "--max-time takes a time"),
    ([*RECALL, "--max-time", "nan"], "--max-time takes a time"),
    ([*RECALL, "--max-time", "inf"], "--max-time takes a time"),
    ([*RECALL, "--resume", *TINY], "nothing to resume"),
    ([*RECALL, "--results", "file", *TINY], "file"),
    ([*RECALL, "-p", "folder.toml"], "folder.toml"),
    ([*RECALL, "-p", "bytes.toml"], "bytes.toml"),
    ([*RECALL, "-r", "sar+"], "regularizer"),
    (["run", "-m", "", "-t", "recall"], "mechanism"),
    (["run", "-m", "dense", "-t", ""], "task"),
    (["run", "-m", ".", "-t", "recall"], "'.'"),
    (["run", "-m", "./folder.toml", "-t", "recall"], "folder.toml"),
    (["run", "-m", "./file", "-t", "recall"], "file"),
    (["run", "-m", "os:path", "-t", "recall"], "not a torch nn.Module"),
    (["run", "-m", "os:", "-t", "recall"], "os"),
    (["run", "-m", ":x", "-t", "recall"], ":x"),
    (["run", "-m", "dense", "-t", "./none.py"], "none.py: no such file"),
    (["show", "./none.py"], "none.py: no such file"),
    (["show", ""], "unknown"),
    (["new", "mechanism", "class"], "cannot be a plugin's name"),
    (["new", "mechanism", "a/b"], "cannot be a plugin's name"),
    (["new", "task", "mine", "--to", "nowhere"], "nowhere: no such folder"),
    (["report", "--results", "file"], "file"),
    (["list", "runs", "--results", "file"], "file"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=[" ".join(arguments[:7]) for arguments, _ in BAD])
def test_a_bad_request_gets_one_line_and_exit_2(call: Call, tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"name = '\xff'")
    code, out, err = call(*arguments)
    lines = err.strip().splitlines()
    assert (code, out, len(lines)) == (2, "", 1), err
    assert lines[0].startswith("error: ") and said in lines[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["repotr"], ["list", "mechanismz"], ["run"], ["run", "-m", "dense"], [*RECALL, "--seed", "one"],
        [*RECALL, "--seed", "1.5"], [*RECALL, "--nonsense"], ["report", "--format", "pdf"], ["new", "mechanism"],
        ["show"], [*RECALL, "extra"],
    ],
)  # fmt: skip
def test_words_that_no_command_takes_have_exit_2_and_no_traceback(call: Call, arguments: list[str]) -> None:
    code, out, err = call(*arguments)
    assert code == 2 and out == "" and "Traceback" not in err
    assert "Error" in err and "Usage" in err


def test_the_help_of_every_command_has_examples_that_parse(call: Call) -> None:
    """Every example is a command that exists, with options it has."""
    import shlex

    import typer

    group = typer.main.get_command(cli.app)
    assert isinstance(group, typer.core.TyperGroup)
    assert set(group.commands) == {
        "list", "show", "run", "sweep", "new", "report", "check", "data", "speed", "compare", "diff", "reproduce",
        "merge", "study",
    }  # fmt: skip
    data = group.commands.pop("data")
    assert isinstance(data, typer.core.TyperGroup) and set(data.commands) == {"prepare", "verify", "export"}
    commands = {(name,): command for name, command in group.commands.items()}
    commands |= {("data", name): command for name, command in data.commands.items()}
    for names, command in commands.items():
        assert call(*names, "--help")[0] == 0 and call(*names, "-h")[0] == 0
        epilog = command.epilog or ""
        assert epilog.startswith("Examples:")
        for example in epilog.removeprefix("Examples:").split("|"):
            word, *rest = shlex.split(example)
            assert word == "attnbench"
            used = next(names for names in commands if tuple(rest[: len(names)]) == names)
            commands[used].make_context(used[-1], rest[len(used) :])


def test_version_and_the_bare_command(call: Call) -> None:
    assert call("--version")[1].strip() == f"attnbench {attnbench.__version__}"
    code, out, err = call()
    assert "Usage" in out + err and code in (0, 2)


def test_what_is_listed_can_be_shown(call: Call) -> None:
    for what in ("mechanisms", "tasks", "regularizers", "protocols"):
        rows = json.loads(call("list", what, "--json")[1])
        assert rows and all(row["summary"] for row in rows)
        for row in rows:
            code, out, _ = call("show", row["name"], "--json")
            assert code == 0 and json.loads(out)["summary"] == row["summary"]
            assert row["name"] in call("list", what)[1] and call("show", row["name"])[0] == 0


def test_square_brackets_in_words_of_others_are_shown_as_they_are(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugins" / "mechanisms").mkdir(parents=True)
    (tmp_path / "plugins" / "mechanisms" / "odd.py").write_text(
        "from attnbench import Mechanism\n"
        "MECHANISM = Mechanism(summary='[/red] x[0] [bold]y', paper='p', build=lambda s, o: None)\n"
    )
    monkeypatch.setenv("ATTNBENCH_PLUGINS", str(tmp_path / "plugins"))
    assert "[/red] x[0] [bold]y" in call("list")[1]
    assert "[/red] x[0] [bold]y" in call("show", "odd")[1]


@pytest.mark.parametrize("kind", ["mechanism", "task"])
def test_new_says_what_to_try_and_that_works(call: Call, tmp_path: Path, kind: str) -> None:
    """The command it prints, with a small budget, from the folder the user stands in."""
    import shlex

    (tmp_path / "plugins").mkdir()
    code, out, _ = call("new", kind, "fresh", "--to", "plugins", "--json")
    said = json.loads(out)
    assert code == 0 and (tmp_path / said["path"]).is_file()
    words = shlex.split(said["try"])
    small = TINY if kind == "mechanism" else TINY[:4]
    code, out, err = call(*words[1:], *small)
    assert code == 0, err


def test_a_new_mechanism_is_softmax_attention_until_it_is_changed(call: Call, tmp_path: Path) -> None:
    import torch

    call("new", "mechanism", "fresh")
    mine, dense = (
        attnbench.build_mechanism(name, dim=16, heads=2, length=9) for name in (str(tmp_path / "fresh.py"), "dense")
    )
    x, mask = torch.randn(3, 9, 16), torch.arange(9) < torch.tensor([[9], [4], [1]])
    torch.testing.assert_close(mine(x, mask)[mask], dense(x, mask)[mask])


@pytest.fixture
def results(call: Call, tmp_path: Path) -> Path:
    """Two finished cells of two seeds, and one that could not run."""
    (tmp_path / "needs.py").write_text(
        "from attnbench import Mechanism\nfrom torch import nn\n"
        "MECHANISM = Mechanism(summary='x', paper='x', requires=('no_such',), build=lambda s, o: nn.Identity())\n"
    )
    for mechanism in ("dense", "local"):
        for seed in ("0", "1"):
            assert call("run", "-m", mechanism, "-t", "recall", "--seed", seed, *TINY)[0] == 0
    assert call("run", "-m", "./needs.py", "-t", "recall", *TINY)[0] == 1
    return tmp_path / "results"


def test_every_form_of_the_report_says_the_same(call: Call, results: Path) -> None:
    records = {(r.label, r.seed): r for _, r in attnbench.store.Store(results).read_all()[0]}
    rows = list(csv.DictReader(io.StringIO(call("report", "--format", "csv")[1])))
    assert {row["label"] for row in rows} == {"dense", "local", "needs"}
    json.loads(call("report", "--json")[1], parse_constant=lambda name: pytest.fail(name))
    table = call("report", "--format", "md")[1]
    assert table == call("report")[1]
    for label in ("dense", "local"):
        scores = [records[label, seed].quality for seed in (0, 1)]
        mean = sum(score.test for score in scores if score) / 2
        [row] = [row for row in rows if row["label"] == label]
        assert any(abs(float(v) - mean) < 1e-4 for v in row.values() if v and _is_number(v)), row
        assert f"{100 * mean:.1f}" in table or f"{mean:.3f}" in table
    for form in ("md", "csv"):
        path = Path(call("report", "--format", form, "--to", "out")[1].strip())
        assert path == Path("out") / f"report.{form}"
        assert path.read_bytes().decode() == call("report", "--format", form)[1]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_a_damaged_record_is_named_and_the_others_are_shown(call: Call, results: Path) -> None:
    (results / "runs" / "cut.json").write_text('{"schema": 1,')
    for arguments in (["list", "runs", "--json"], ["report", "--json"]):
        code, out, err = call(*arguments)
        assert code == 0 and "cut.json" in err and len(err.splitlines()) == 1
        json.loads(out)
    assert len(json.loads(call("list", "runs", "--json")[1])) == 5


def test_a_dry_run_prints_what_would_run_and_touches_nothing(call: Call, tmp_path: Path) -> None:
    code, out, _ = call(*RECALL, "--dry-run", "--json", *TINY)
    plan = json.loads(out)
    assert code == 0 and plan["budget"]["steps"] == 3 and plan["task"]["options"]["train"] == 200
    assert list(tmp_path.iterdir()) == []
    shown = call(*RECALL, "--dry-run", *TINY)[1]
    assert "budget.steps" in shown and "budget.changes.budget.steps" not in shown
    record = json.loads(call(*RECALL, "--json", *TINY)[1])
    for part in ("model", "budget", "numerics", "padding", "protocol", "regularizer"):
        assert plan[part] == record["spec"][part], "what was announced is what ran"


def test_a_reader_that_closes_the_pipe_is_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "attnbench", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.wait(timeout=60)


def test_a_narrow_terminal_breaks_no_path(tmp_path: Path) -> None:
    done = fresh(*RECALL, *TINY, "--results", str(tmp_path / "a folder with a long name"), COLUMNS="30")
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("record: ")]
    assert Path(line.removeprefix("record: ")).is_file()
