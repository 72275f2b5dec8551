"""The output is a function of seed, weights and input, and of nothing else: no earlier call, no process, no dice."""

from __future__ import annotations

import copy
import io
import json
import os
import subprocess
import sys

import torch
from torch import Tensor

from attnbench.conformance.check import Case, Check, Mismatch, agree
from attnbench.conformance.subject import Subject, full, real_rows, rows
from attnbench.options import as_json

_SECONDS = 120


def repeatable(subject: Subject, case: Case) -> None:
    """Two copies give the same for one input in evaluation: a random graph is drawn when building, not when calling."""
    one, x = subject.build(case), rows(case)
    other = copy.deepcopy(one)
    agree(real_rows(other, x), real_rows(one, x), "equal outputs of two equal copies", "called with one input")


def stateless(subject: Subject, case: Case) -> None:
    """Calls with other inputs and other lengths in between change nothing: no call leaves a trace."""
    fresh, x = subject.build(case), rows(case)
    used = copy.deepcopy(fresh)
    first = real_rows(fresh, x)
    used(rows(case, seed=3))
    used(x[:, : max(1, case.length // 2)])
    agree(real_rows(used, x), first, "the output of a first call", "after calls with other inputs")


def train_as_eval(subject: Subject, case: Case) -> None:
    """Training mode gives what evaluation gives. The encoder drops the mixer's output itself; a graph or projection
    that differs between the two trains another model than the one that is tested.
    """
    mixer, x = subject.build(case), rows(case)
    evaluated = real_rows(mixer, x)
    agree(real_rows(mixer.train(), x), evaluated, "the output of evaluation", "in training mode")


def survives_saving(subject: Subject, case: Case) -> None:
    """A copy built from another seed gives the same once it has loaded the saved weights: all that was drawn is in
    the state_dict, or follows from the options.
    """
    saved, x = subject.build(case), rows(case)
    file = io.BytesIO()
    torch.save(saved.state_dict(), file)
    file.seek(0)
    loaded = subject.build(case, init_seed=1)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    agree(real_rows(loaded, x), real_rows(saved, x), "the output of the saved weights", "after loading them")


def same_in_every_process(subject: Subject) -> None:
    """A second process, with another hash seed, builds the same from the same seed: no `hash()`, no order of a set."""
    ours = output_of(subject).flatten()
    request = {
        "reference": subject.reference,
        "options": as_json(subject.choice.options),
        "path": sys.path,
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "attnbench.conformance.elsewhere"],
        input=json.dumps(request),
        env={**os.environ, "PYTHONHASHSEED": "random"},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    promise = "equal outputs in two processes"
    if done.returncode:
        raise Mismatch(promise, f"the second process ended with {(done.stderr.splitlines() or ['no word'])[-1]}")
    theirs = torch.tensor(json.loads(done.stdout.splitlines()[-1]), dtype=torch.float64)
    agree(theirs, ours, promise, "built from one seed")


def output_of(subject: Subject) -> Tensor:
    """What both processes compute."""
    case = Case(length=subject.length, batch=1)
    with torch.no_grad():
        return real_rows(subject.build(case), rows(case))


CHECKS = (
    Check(repeatable, needs=("shape_and_dtype",), cases=full),
    Check(stateless, needs=("repeatable",), cases=full),
    Check(train_as_eval, needs=("stateless",), cases=full),
    Check(survives_saving, needs=("stateless",), cases=full),
    Check(same_in_every_process, needs=("stateless",)),
)
