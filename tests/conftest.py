"""What every test gets: private folders, one thread, hypothesis without surprises, and the data for tests.

More threads cost time on tiny tensors.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_scratch = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Runs before any test module is imported, since torch and datasets read these when they are."""
    # as a terminal has them: under nohup or in the background they are ignored, which children inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config.stash[_scratch] = scratch = tempfile.TemporaryDirectory(prefix="attnbench-tests-")
    os.environ["ATTNBENCH_DATA"] = os.path.join(scratch.name, "data")
    os.environ["ATTNBENCH_RESULTS"] = os.path.join(scratch.name, "results")
    os.environ["HF_HOME"] = os.path.join(scratch.name, "huggingface")
    os.environ.pop("ATTNBENCH_PLUGINS", None)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_scratch].cleanup()


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of samples and references that some tests compare with."""
    named = os.environ.get("ATTNBENCH_TEST_DATA")
    if not named:
        pytest.skip("ATTNBENCH_TEST_DATA names no folder")
    if not Path(named).is_dir():
        pytest.fail(f"ATTNBENCH_TEST_DATA={named} is no folder")
    return Path(named)


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in an empty folder with an empty cache of data: exit code, stdout, stderr."""
    from attnbench import cli

    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["attnbench", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run
