"""mqar, copying, induction, needle as a user meets them: refused options, runs, controls, and the table by depth."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from attnbench.tasks import copying, induction, mqar, needle
from published import options

from attnbench import data, plan
from attnbench.errors import AttnbenchError
from attnbench.model import Model
from attnbench.randomness import initialise

Call = Callable[..., tuple[int, str, str]]
MODULES: dict[str, Any] = {"mqar": mqar, "copying": copying, "induction": induction, "needle": needle}
#: So many tokens in front are all in which an answer may stand.
FRONT: dict[str, Callable[[Any], int]] = {
    "mqar": lambda o: 2 * o.pairs, "copying": lambda o: o.spread, "induction": lambda o: o.room + 1,
    "needle": lambda o: o.room,
}  # fmt: skip
#: --set for a run that takes seconds.
TINY = ["budget.steps=2", "budget.batch=4", "budget.eval_every=2", "model.dim=16", "model.layers=1"]
TINY += ["task.train=40", "task.validation=8", "task.test=30"]


def words(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.parametrize(
    ("task", "settings", "said"),
    [
        ("mqar", ["keys=7"], "keys of an example differ, so pairs=8 needs keys >= 8, not 7"),
        ("mqar", ["values=3"], "values of an example differ, so pairs=8 needs values >= 8, not 3"),
        (
            "mqar",
            ["distance=17"],
            "length=48 leaves 7 places for 8 queries behind 8 pairs and distance=17; it takes 49",
        ),
        ("mqar", ["length=10"], "length=10 leaves 0 places for 8 queries"),
        ("mqar", ["power=0"], "power: Input should be greater than 0"),
        ("mqar", ["power=1.5"], "power: Input should be less than or equal to 1"),
        ("mqar", ["fill=noise"], "fill: Input should be 'blank' or 'random'"),
        ("mqar", ["pairs=1", "values=1"], "values: Input should be greater than or equal to 2"),
        ("copying", ["alphabet=1"], "alphabet: Input should be greater than or equal to 2"),
        ("copying", ["spread=7"], "spread=7 has no room for symbols=8"),
        ("copying", ["spread=56"], "length=64 is too short: spread=56, the mark and 8 rows that ask take 65"),
        ("induction", ["distance=30"], "length=32 leaves no place for the trigger and its answer next to distance=30"),
        ("induction", ["symbols=1"], "symbols: Input should be greater than or equal to 2"),
        (
            "induction",
            ["symbols=2", "trigger=any"],
            "symbols=2 leaves one answer only where the trigger is one of them",
        ),
        ("needle", ["facts=9"], "keys of a text differ, so facts=9 needs keys >= 9, not 4"),
        ("needle", ["distance=124"], "length=128 leaves 3 places for facts=4 next to distance=124 and the question"),
        ("needle", ["values=1"], "values: Input should be greater than or equal to 2"),
        ("needle", ["depth=1.01"], "depth: Input should be less than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(task: str, settings: list[str], said: str, call: Call) -> None:
    code, out, err = call("data", "prepare", task, *words(settings))
    (line,) = [line for line in err.splitlines() if not line.startswith("preparing")]
    assert (code, out) == (2, "") and f"task {task}: " in line and said in line


@pytest.mark.parametrize("task", MODULES)
def test_a_task_runs_from_an_empty_cache_with_dense_bigbird_and_ernie_sparse(task: str, call: Call) -> None:
    for mechanism in ("dense", "bigbird", "ernie_sparse"):
        code, out, err = call("run", "-m", mechanism, "-t", task, *words(TINY), "--json")
        assert code == 0, err
        record = json.loads(out)
        assert record["status"] in ("ok", "not_above_chance", "trivial") and record["quality"]["examples"] == 30
        assert len(record["quality"]["trivial"]) == 2


@pytest.mark.parametrize("causal", [True, False])
def test_zoologys_sizes_also_causal(causal: bool, call: Call) -> None:
    sizes = ["length=64", "pairs=4", "keys=4095", "values=4096", "distance=0", f"model.causal={causal}"]
    code, out, err = call("run", "-m", "dense", "-t", "mqar", *words(TINY + sizes), "--json")
    assert code == 0, err
    assert json.loads(out)["spec"]["task"]["vocab"] == 8192


def logits(task: str, mechanism: str, texts: np.ndarray, asked: np.ndarray) -> torch.Tensor:
    """Of an untrained model as `quick` has it, at the rows that ask."""
    made = plan.make(mechanism, task)
    thing, chosen = made.task.plugin.object, made.task.options
    model = Model(
        made.rules.model, made.mechanism.plugin.object, made.mechanism.options, thing.head(chosen), thing.vocab(chosen),
        thing.max_length(chosen),
    )  # fmt: skip
    initialise(model, 0)
    with torch.no_grad():
        found: torch.Tensor = model([(torch.from_numpy(texts.astype(np.int64)), None)], torch.from_numpy(asked))
    return found


@pytest.mark.parametrize("task", MODULES)
@pytest.mark.parametrize(("mechanism", "sees"), [("dense", True), ("local", False), ("disjoint_local", False)])
def test_the_negative_control_cannot_see_where_an_answer_may_stand(task: str, mechanism: str, sees: bool) -> None:
    """Whatever stands there, what `local` says is the same to the last bit; so no training can help it."""
    o = options(task)
    drawn = MODULES[task].examples(o, 50, np.random.default_rng(0))
    texts, asked = drawn["tokens"], drawn["targets"] != -100
    front = FRONT[task](o)
    changed = texts.copy()
    changed[:, :front] = (changed[:, :front] + 1) % o.vocab
    assert not asked[:, :front].any()
    same = torch.equal(logits(task, mechanism, texts, asked), logits(task, mechanism, changed, asked))
    assert same != sees


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "scripts" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_accuracy_of_needle_by_depth(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the texts themselves; a record of another task, or of other texts, is refused."""
    _, out, _ = call("run", "-m", "dense", "-t", "needle", *words(TINY), "--json")
    path = Path(json.loads(out)["path"])
    table = script("needle_by_depth").by_depth(path)
    found = np.load(path.with_suffix(".predictions.npz"))
    o = options("needle", train=40, validation=8, test=30)
    drawn = needle.examples(o, 1000, np.random.Generator(np.random.PCG64([0, 2])))
    parts: dict[int, list[bool]] = {}
    for text, predicted, target in zip(drawn["tokens"].tolist(), found["predicted"], found["target"], strict=False):
        key = text[-1] - o.first_question
        place = next(n for n, t in enumerate(text) if o.words <= t < o.first_question and (t - o.words) // 4 == key)
        parts.setdefault(min(4, 5 * place // 94), []).append(predicted == target)
    assert dict(table) == {
        f"{part / 5:.1f} to {(part + 1) / 5:.1f}": pytest.approx(np.mean(right))
        for part, right in sorted(parts.items())
    }
    _, out, _ = call("run", "-m", "dense", "-t", "copying", *words(TINY), "--json")
    with pytest.raises(AttnbenchError, match="a run of copying, not of needle"):
        script("needle_by_depth").by_depth(Path(json.loads(out)["path"]))
    monkeypatch.setattr(data, "data_key", lambda *asked: "another")
    with pytest.raises(AttnbenchError, match="its texts were made by another version of needle"):
        script("needle_by_depth").by_depth(path)


def test_dense_learns_to_copy_and_local_does_not(call: Call) -> None:
    """The cheapest of the controls; the others are marked slow."""
    fewer = words(["budget.steps=150", "task.train=5000"])
    _, solved, _ = call("run", "-m", "dense", "-t", "copying", *fewer, "--json")
    _, blind, _ = call("run", "-m", "local", "-t", "copying", *fewer, "--json")
    assert json.loads(solved)["quality"]["test"] > 0.99
    assert json.loads(blind)["status"] == "not_above_chance"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["mqar", "induction", "needle"])
def test_dense_solves_it_under_quick(task: str, call: Call) -> None:
    code, out, err = call("run", "-m", "dense", "-t", task, "--json")
    assert code == 0 and json.loads(out)["quality"]["test"] > 0.99, err
