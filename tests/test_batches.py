"""Batches: which examples a step sees, in what order, and that a set much larger than memory can be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest

from attnbench.batches import GROUPED, Batches
from attnbench.columns import Ragged, Split
from attnbench.config import Padding
from attnbench.contracts import Classify, Match
from attnbench.questions import question_of

Rule = Literal["max", "batch", "grouped"]


def ragged(rows: list[np.ndarray]) -> Ragged:
    return Ragged(pa.chunked_array([pa.array([row.tolist() for row in rows], pa.list_(pa.int64()))]))


def batches(rule: Rule, examples: int = 400, documents: int = 1) -> Batches:
    """Documents of 1 to 200 tokens; each token is the number of its example."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 201, (documents, examples))
    columns = [ragged([np.full(n, number) for number, n in enumerate(row)]) for row in lengths]
    head = Classify(2) if documents == 1 else Match(2)
    return Batches(Split(columns, np.arange(examples) % 2), question_of(head), Padding(rule=rule), True, 200)


def test_grouping_sees_the_examples_of_the_same_steps_in_another_order() -> None:
    plain, grouped = batches("batch"), batches("grouped")
    for group in range(3):
        steps = range(group * GROUPED, (group + 1) * GROUPED)
        seen = [np.concatenate([made.drawn(3, 8, step) for step in steps]) for made in (plain, grouped)]
        assert np.array_equal(*map(np.sort, seen)) and not np.array_equal(*seen)


def test_grouping_pads_less_and_does_not_deal_out_by_length() -> None:
    plain, grouped = batches("batch"), batches("grouped")
    widths = {
        name: np.array([made.collate(made.drawn(0, 8, step)).documents[0][0].shape[1] for step in range(2 * GROUPED)])
        for name, made in (("plain", plain), ("grouped", grouped))
    }
    assert widths["grouped"].sum() < 0.75 * widths["plain"].sum()
    assert (np.diff(widths["grouped"][:GROUPED]) < 0).any() and (np.diff(widths["grouped"][:GROUPED]) > 0).any()


def test_a_grouped_step_is_a_function_of_seed_and_step() -> None:
    first = [batches("grouped").drawn(0, 8, step) for step in range(GROUPED)]
    backwards = [batches("grouped").drawn(0, 8, step) for step in reversed(range(GROUPED))][::-1]
    assert all(np.array_equal(a, b) for a, b in zip(first, backwards, strict=True))
    assert not np.array_equal(first[0], batches("grouped").drawn(1, 8, 0))


@pytest.mark.parametrize("documents", [1, 2])
@pytest.mark.parametrize("rule", ["max", "batch", "grouped"])
def test_evaluation_shows_every_example_once_and_fills_as_the_rule_says(rule: Rule, documents: int) -> None:
    made = batches(rule, examples=50, documents=documents)
    seen, padding = [], 0
    for batch in made.in_order(8):
        seen += batch.indices.tolist()
        for column, (tokens, mask) in zip(made.split.documents, batch.documents, strict=True):
            assert mask is not None
            longest = max(len(column[i]) for i in batch.indices)
            assert tokens.shape == (len(batch.indices), 200 if rule == "max" else longest)
            assert all((tokens[row][mask[row]] == i).all() for row, i in enumerate(batch.indices))
            assert [len(column[i]) for i in batch.indices] == mask.sum(1).tolist()
            padding += int((~mask).sum())
        assert batch.asked.labels.tolist() == (batch.indices % 2).tolist()
    assert sorted(seen) == list(range(50)) and padding > 0


_READ_IT_ALL = """
import resource, sys
import numpy as np, pyarrow as pa
from pathlib import Path
import datasets
from attnbench.batches import Batches
from attnbench.columns import read_split
from attnbench.config import Padding
from attnbench.contracts import Classify
from attnbench.questions import question_of

folder, rows, length, allowed = Path(sys.argv[1]), *map(int, sys.argv[2:])
split = read_split(folder, ["tokens"], "label", [])
made = Batches(split, question_of(Classify(2)), Padding(), False, length)
made.collate([0])
held = int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (held + allowed, held + allowed))
total = sum(int(batch.documents[0][0].sum()) for batch in made.in_order(32))
for step in range(200):
    total += int(made.collate(made.drawn(0, 32, step)).documents[0][0].sum())
try:
    bytearray(allowed)
except MemoryError:
    print("read", total)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's accounting of memory")
def test_a_set_of_two_gigabytes_is_read_in_a_hundred_megabytes(tmp_path: Path) -> None:
    """All examples in order, then batches from everywhere; the limit itself is shown to bite."""
    import datasets

    rows, length, pieces = 2_000, 4_096, 128
    files = tmp_path / "split"
    files.mkdir()
    schema = pa.schema({"tokens": pa.list_(pa.uint16()), "label": pa.int64()})
    with pa.OSFile(str(tmp_path / "made.arrow"), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * length)
        for piece in range(pieces):
            tokens = pa.ListArray.from_arrays(offsets, pa.array(np.full(rows * length, piece % 7, dtype=np.uint16)))
            writer.write_batch(pa.record_batch([tokens, pa.array(np.zeros(rows, dtype=np.int64))], schema=schema))
    datasets.Dataset.from_file(str(tmp_path / "made.arrow")).save_to_disk(str(files), num_proc=None)
    (tmp_path / "made.arrow").unlink()
    assert sum(path.stat().st_size for path in files.glob("*.arrow")) > 2_000_000_000
    arguments = [str(files), str(rows), str(length), str(100 << 20)]
    done = subprocess.run([sys.executable, "-c", _READ_IT_ALL, *arguments], capture_output=True, text=True)
    assert done.stdout.startswith("read"), done.stderr[-1000:]
