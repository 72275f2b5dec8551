"""A set larger than the memory it may take: prepared, checked and read in batches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SET_BYTES, BUDGET = 2 << 30, 500 << 20

TASK = f"""
import datasets
import numpy as np
import pyarrow as pa
from attnbench.contracts import Classify, Source, Task

LENGTH, TRAIN = 16_384, {SET_BYTES} // (16_384 * 4)

def write(path, count):
    # in parts; a generator of rows would take minutes
    generator, part = np.random.default_rng(count), 64
    with pa.OSFile(path, "wb") as file, pa.RecordBatchStreamWriter(file, KINDS.arrow_schema) as writer:
        for start in range(0, count, part):
            values = pa.array(generator.integers(0, 1 << 16, part * LENGTH, dtype=np.int32))
            tokens = pa.ListArray.from_arrays(pa.array(np.arange(0, part * LENGTH + 1, LENGTH, dtype=np.int32)), values)
            labels = pa.array(generator.integers(0, 2, part, dtype=np.int8))
            writer.write_batch(pa.record_batch([tokens, labels], schema=KINDS.arrow_schema))

KINDS = datasets.Features({{"tokens": datasets.List(datasets.Value("int32")), "label": datasets.Value("int8")}})

def prepare(options, preparation):
    made = {{}}
    for name, count in {{"train": TRAIN, "validation": 64, "test": 64}}.items():
        write(path := str(preparation.folder / f"{{name}}.arrow"), count)
        made[name] = datasets.Dataset.from_file(path)
    return datasets.DatasetDict(made)

TASK = Task(summary="x", source=Source(citation="x", licence="x"), head=lambda o: Classify(2), vocab=lambda o: 1 << 16,
            max_length=lambda o: LENGTH, prepare=prepare)
"""

READ = """
import json, sys, threading, time
from attnbench import data, registry
from attnbench.batches import Batches
from attnbench.config import Padding
from attnbench.questions import question_of

def anonymous():
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("RssAnon")).split()[1]) * 1024

peaks, over = {"start": anonymous()}, threading.Event()
stage = ["prepared"]
def watch():
    while not over.wait(0.01):
        peaks[stage[0]] = max(peaks.get(stage[0], 0), anonymous())
threading.Thread(target=watch, daemon=True).start()
plugin = registry.load("tasks", sys.argv[1])
options = plugin.object.options()
found = data.load(plugin, options)
stage[0] = "read"
batches = Batches(found.splits["train"], question_of(plugin.object.head(options)), Padding(), False, 16_384)
seen = total = 0
for step in range(200):
    seen += len(batches.collate(batches.drawn(0, 32, step)).indices)
for batch in batches.in_order(64):
    total += len(batch.indices)
over.set()
size = sum(file.stat().st_size for file in found.folder.rglob("*.arrow"))
print(json.dumps({"peaks": peaks, "seen": seen, "total": total, "size": size}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_set_of_two_gigabytes_takes_less_than_half_a_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of its own, that is; pages of the file are the system's to drop."""
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "data"))
    path = tmp_path / "large.py"
    path.write_text(TASK)
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["size"] > SET_BYTES and found["total"] == SET_BYTES // (16_384 * 4) and found["seen"] == 200 * 32
    assert {"prepared", "read"} <= found["peaks"].keys()
    assert max(found["peaks"].values()) < BUDGET, found["peaks"]
