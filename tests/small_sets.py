"""Small sets of all tasks that can be prepared here, and what a process of its own makes of them.

As a program: reads a request from standard input, prepares, trains, and prints what must not depend on the process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from attnbench import data, registry
from attnbench.options import field_names, parse

#: Each task gets those that are among its options.
SIZES = {
    "train": 60, "test": 30, "examples": 60, "validation_examples": 10, "test_examples": 10, "vocab_size": 300,
}  # fmt: skip
#: Folder of ATTNBENCH_TEST_DATA that a task reads.
SAMPLES = {"text": "imdb", "imdb": "imdb", "image": "cifar10_jpeg", "hyperpartisan": "hyperpartisan"}
#: Comes with scikit-learn.
INSTALLED = {"digits"}
#: `steps` is even: a run is stopped after the first.
TINY: dict[str, Any] = {
    "model.dim": 16, "model.mlp": 16, "model.layers": 1, "model.dropout": 0.1,
    "budget.steps": 6, "budget.eval_every": 3, "budget.warmup": 2, "budget.batch": 4,
}  # fmt: skip
SHORT = {"task.examples": 100, "task.min_length": 7, "task.max_length": 33, "task.max_depth": 3, "task.max_args": 5}


def generated() -> list[str]:
    """Tasks whose data need no file and no network."""
    names = registry.names("tasks")
    licences = {name: registry.load("tasks", name).object.source.licence for name in names}
    return [name for name in names if licences[name] == "generated" or name in INSTALLED]


def options(task: str, **more: Any) -> Any:
    kind = registry.load("tasks", task).object.options
    sizes = {name: size for name, size in SIZES.items() if name in field_names(kind)}
    return parse(f"task {task}", kind, {**sizes, **more})


def prepared(task: str, samples: Path | None = None) -> data.TaskData:
    source = samples / SAMPLES[task] if samples and task in SAMPLES else None
    return data.load(registry.load("tasks", task), options(task), source)


def _outcome(mechanism: str, task: str, folder: str, settings: dict[str, Any], **more: Any) -> Any:
    import attnbench

    record = attnbench.run(mechanism, task, results=Path(folder), options=TINY | settings, **more)
    quality = record.quality and record.quality.model_dump(mode="json")
    return [quality, [point.model_dump(mode="json") for point in record.curve], record.predictions_sha]


def _main(samples: str | None, results: str, shared: str, cells: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """`shared`: a folder for a run that one process begins and the next one ends."""
    places: list[tuple[str, Path | None]] = [(task, None) for task in generated()]
    places += [(task, Path(samples)) for task in SAMPLES] if samples else []
    sets = {task: prepared(task, where) for task, where in places}
    begun = Path(shared).exists()
    return {
        "hash": hash("attnbench"),
        "sets": {task: [found.key, found.card["sha256"]] for task, found in sets.items()},
        "runs": {name: _outcome(name, "recall", results, settings) for name, settings in cells},
        "whole": _outcome("dense", "listops", results, SHORT),
        "shared": _outcome("dense", "listops", shared, SHORT, **({"resume": True} if begun else {"max_seconds": 1e-9})),
    }


if __name__ == "__main__":
    print(json.dumps(_main(**json.load(sys.stdin))))
