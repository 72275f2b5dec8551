"""Question answering end to end: from files to a record, resumed, the same everywhere, in bounded memory, learnt."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import qa_files
from attnbench.tasks import squad, triviaqa, wikihop
from attnbench.tasks._subwords import Subwords
from qa_files import options, prepared

import attnbench
from attnbench import store
from attnbench.contracts import Preparation
from attnbench.options import as_json

SMALL: dict[str, dict[str, Any]] = {
    "squad": {"vocab_size": 300, "max_length": 96, "max_question": 24, "overlap": 8, "held_out": "paragraphs"},
    "triviaqa": {"vocab_size": 300, "max_length": 128, "max_question": 40, "overlap": 16, "max_windows": 2},
    "wikihop": {"vocab_size": 300, "max_length": 256},
}
TINY = {
    "budget.steps": 4,
    "budget.eval_every": 2,
    "budget.warmup": 1,
    "budget.batch": 4,
    "model.dim": 16,
    "model.mlp": 16,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory, test_data: Path) -> dict[str, Path]:
    """The real data, laid out as released."""
    home, folder = test_data / "qa_samples", tmp_path_factory.mktemp("samples")
    with tarfile.open(home / "triviaqa-sample.tgz") as archive:
        archive.extractall(folder / "triviaqa", filter="data")
    for task, file, names in (
        ("squad", "squad.json", ("train-v1.1.json", "dev-v1.1.json")),
        ("wikihop", "qangaroo.json", ("train.json", "dev.json")),
    ):
        (folder / task).mkdir()
        for name in names:
            shutil.copyfile(home / file, folder / task / name)
    return {task: folder / task for task in SMALL}


def exactly(task: str, **values: Any) -> dict[str, Any]:
    """All options of the task, so that the protocol sets none."""
    return {f"{task}.{name}": value for name, value in as_json(options(task, **values)).items()}


@pytest.mark.parametrize("task", SMALL)
@pytest.mark.parametrize("mechanism", ["dense", "bigbird", "ernie_sparse"])
def test_from_files_to_a_record(tmp_path: Path, samples: dict[str, Path], task: str, mechanism: str) -> None:
    found = prepared(task, samples[task], **SMALL[task])
    blocks = {} if mechanism == "dense" else {"block_size": 16}
    settings = {**TINY, **exactly(task, **SMALL[task]), **blocks}
    record = attnbench.run(mechanism, task, options=settings, results=tmp_path / "results")
    assert record.status in ("ok", "not_above_chance", "trivial"), record.reason
    assert record.quality is not None and record.spec.task.data_key == found.key
    assert record.quality.metric == ("accuracy" if task == "wikihop" else "f1")
    assert record.quality.examples == found.card["facts"]["questions"]["test"]
    assert record.quality.chance == (0 if task != "wikihop" else pytest.approx((1 / 18 + 1 / 4) / 2))
    arrays = store.load_predictions(next((tmp_path / "results").rglob(f"{record.id}.json")))
    assert len({len(values) for values in arrays.values()}) == 1
    if task != "wikihop":
        assert record.quality.more.keys() == {"exact_match"} and arrays["f1"].mean() == pytest.approx(
            record.quality.test
        )


LEARNING = {"budget.steps": 150, "budget.eval_every": 50, "budget.lr": 2e-3, "budget.warmup": 20}


def learnt(task: str, folder: Path, results: Path, **more: Any) -> Any:
    prepared(task, folder, **more)
    settings = {**LEARNING, **exactly(task, **more)}
    record = attnbench.run("dense", task, options=settings, results=results)
    assert record.quality is not None and record.status == "ok", record.reason
    return record.quality


def test_spans_are_learnt_for_paragraphs_never_seen(tmp_path: Path) -> None:
    """Two guessers without attention stay at one half, for they do not know what was asked for."""
    shape = {"vocab_size": 500, "max_length": 64, "max_question": 16, "overlap": 8}
    quality = learnt("squad", qa_files.squad_of_two_kinds(tmp_path / "squad"), tmp_path / "results", **shape)
    assert quality.test > 0.9 and quality.more["exact_match"] > 0.9 and max(quality.trivial.values()) < 0.6


def test_choices_are_learnt_for_questions_never_seen(tmp_path: Path) -> None:
    shape = {"vocab_size": 500, "max_length": 64}
    quality = learnt("wikihop", qa_files.hop_of_two_kinds(tmp_path / "hop"), tmp_path / "results", **shape)
    assert quality.test > 0.9 and quality.chance == 0.25 and max(quality.trivial.values()) < 0.6


@pytest.mark.slow
def test_windows_are_learnt_across_documents(tmp_path: Path) -> None:
    """Distant supervision, several windows a question, most of them without an answer: seen questions are known."""
    tree = qa_files.trivia(tmp_path / "triviaqa", questions=30, test=6)
    shutil.copyfile(tree / "qa" / "wikipedia-train.json", tree / "qa" / "wikipedia-dev.json")
    shape = {"vocab_size": 400, "max_length": 96, "max_question": 24, "overlap": 16}
    prepared("triviaqa", tree, **shape)
    settings = {**LEARNING, "budget.steps": 600, "budget.eval_every": 600, **exactly("triviaqa", **shape)}
    record = attnbench.run("dense", "triviaqa", options=settings, results=tmp_path / "results")
    assert record.quality is not None and record.quality.examples == 30
    reachable = 1 - 7 / 30  # the answers of seven stand nowhere; three questions are for validation
    assert record.quality.more["exact_match"] > reachable - 0.15


TREES = {"squad": qa_files.squad, "triviaqa": qa_files.trivia, "wikihop": qa_files.hop}
MODULES = {"squad": squad, "triviaqa": triviaqa, "wikihop": wikihop}


class Stop(Exception):
    pass


def made(task: str, folder: Path, source: Path, pieces: int | None = None) -> Any:
    """What `prepare` makes in this folder; it is interrupted when it has made so many pieces."""
    folder.mkdir(exist_ok=True)

    def progress(items: Sequence[Any], title: str) -> Iterator[Any]:
        for number, item in enumerate(items):
            if number == pieces:
                raise Stop
            yield item

    chosen = options(task, **{**SMALL[task], "vocab_size": 280})
    return MODULES[task].prepare(chosen, Preparation(folder, source, progress, lambda text: None))


@pytest.mark.parametrize("task", TREES)
def test_an_interrupted_preparation_goes_on_and_gives_the_same(
    tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULES[task], "_AT_ONCE", 5)
    source, folder = TREES[task](tmp_path / "files"), tmp_path / "work"
    whole = {split: rows.to_list() for split, rows in made(task, tmp_path / "whole", source).items()}
    with pytest.raises(Stop):
        made(task, folder, source, pieces=3)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert sum(path.suffix == ".json" and path.parent.name == "pieces" for path in before) == 3
    (folder / "pieces" / "train-000000015-train.partial").write_bytes(b"half a piece")
    again = made(task, folder, source)
    assert {split: rows.to_list() for split, rows in again.items()} == whole
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


@pytest.mark.parametrize("task", TREES)
def test_other_files_take_nothing_from_an_interrupted_preparation(
    tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULES[task], "_AT_ONCE", 5)
    source, folder = TREES[task](tmp_path / "files"), tmp_path / "work"
    with pytest.raises(Stop):
        made(task, folder, source, pieces=3)
    shutil.rmtree(source)
    TREES[task](source, 16, 5)
    fresh = {split: rows.to_list() for split, rows in made(task, tmp_path / "fresh", source).items()}
    assert {split: rows.to_list() for split, rows in made(task, folder, source).items()} == fresh


PREPARE = """
import sys; from pathlib import Path; import qa_files
print(qa_files.prepared(sys.argv[1], Path(sys.argv[2]), workers=int(sys.argv[3]), vocab_size=300).card["sha256"])
"""


def test_the_set_is_the_same_in_every_process_and_with_any_workers(tmp_path: Path) -> None:
    source, hashes = qa_files.trivia(tmp_path / "files"), set()
    for salt, workers in (("0", 1), ("1", 2)):
        environment = {**os.environ, "PYTHONHASHSEED": salt, "ATTNBENCH_DATA": str(tmp_path / salt)}
        environment["PYTHONPATH"] = str(Path(qa_files.__file__).parent)
        command = [sys.executable, "-c", PREPARE, "triviaqa", str(source), str(workers)]
        hashes.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(hashes) == 1


WITHIN = """
import resource, sys
from pathlib import Path
import qa_files

task, small, large, allowed = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
qa_files.prepared(task, small, data_seed=1)
held = int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (held + allowed, held + allowed))
found = qa_files.prepared(task, large)
try:
    bytearray(allowed)
except MemoryError:
    print(sum(path.stat().st_size for path in found.folder.rglob("*.arrow")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's accounting of memory")
def test_a_set_is_made_in_less_memory_than_it_takes(tmp_path: Path) -> None:
    """1,500 questions; what the libraries hold is not counted, and the limit itself is shown to bite."""
    small, large = (qa_files.trivia(tmp_path / str(count), count, 40, filler=600) for count in (30, 1500))
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    environment |= {"ATTNBENCH_DATA": str(tmp_path / "cache"), "PYTHONPATH": str(Path(qa_files.__file__).parent)}
    command = [sys.executable, "-c", WITHIN, "triviaqa", str(small), str(large), str(40 << 20)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout) > 50_000_000, done.stderr[-1000:]


def test_threads_of_the_tokenizers_are_as_many_as_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    encode = Subwords.encode

    def watched(self: Subwords, texts: Sequence[str]) -> Any:
        seen.append(os.environ.get("TOKENIZERS_PARALLELISM"))
        return encode(self, texts)

    monkeypatch.setattr(Subwords, "encode", watched)
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    source = qa_files.squad(tmp_path / "files")
    for workers, wanted in ((1, "false"), (2, "true")):
        prepared("squad", source, workers=workers, **{**SMALL["squad"], "data_seed": workers})
        assert set(seen) == {wanted} and "TOKENIZERS_PARALLELISM" not in os.environ
        seen.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "shape", "test", "trained"),
    [
        ("squad", {"articles": 450, "test": 50, "paragraphs": 5, "facts": 2}, 500, 4050),
        ("triviaqa", {"questions": 2000, "test": 300}, 300, 1350),
        ("wikihop", {"questions": 4000, "test": 500, "documents": 14}, 500, 3600),
    ],
)
def test_thousands_of_questions(tmp_path: Path, task: str, shape: dict[str, int], test: int, trained: int) -> None:
    """Of the 1,800 that TriviaQA trains on, each fourth is answered nowhere."""
    found = prepared(task, TREES[task](tmp_path / "files", **shape), vocab_size=1000)
    for split, count in (("train", trained), ("test", test)):
        ids = {row["id"] for row in qa_files.rows(found, split)}
        assert len(ids) == pytest.approx(count, abs=0 if task != "triviaqa" or split == "test" else 40)
    asked = found.card["facts"]["questions"]
    assert asked["validation"] == (asked["train"] + asked["validation"]) // 10 and asked["test"] == test


def test_the_command_line_from_an_empty_cache(tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    source = qa_files.squad(tmp_path / "files")
    small = [f"--set={name}={value}" for name, value in SMALL["squad"].items()]
    code, _, said = call("run", "-m", "dense", "-t", "squad", *small)
    assert code == 2 and "squad: not read in yet; get train-v1.1.json" in said and "--from DIR (or --download)" in said
    code, out, said = call("data", "prepare", "squad", "--from", str(source), "--json", *small)
    assert code == 0 and json.loads(out)["facts"]["questions"] == {"train": 66, "validation": 6, "test": 18}, said
    code, out, _ = call("data", "verify", "squad", "--json", *small)
    assert code == 0 and json.loads(out)["on record"] == "none"
    (source / "dev-v1.1.json").write_bytes(b"<html>")
    code, _, said = call("data", "prepare", "squad", "--from", str(source), "--seed", "1", *small)
    assert code == 2 and said.count("error:") == 1 and "a web page in place of data" in said
