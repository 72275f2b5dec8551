"""What a path computes, held against float64 before it may be timed: a wrong result can be had at any speed.

The same mechanism at a small shape, of the width, heads, device and precision that will be timed. The reference is, as
far as there is one: softmax attention written out, for a mechanism that declares to equal it; the same pattern by the
path that computes all pairs, for one that runs a pattern; else the mechanism itself in float64 on the CPU, which finds
faults of a device or a precision only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from attnbench.choice import Choice
from attnbench.conformance.check import Case
from attnbench.conformance.subject import Subject, rows, weighted
from attnbench.conformance.values import PLAIN, softmax_attention
from attnbench.errors import Unsupported
from attnbench.layers import QKVMixer
from attnbench.model import StandaloneMixer, standalone
from attnbench.sparse import PATHS
from attnbench.sparse.mixer import SparseMixer
from attnbench.speed.result import Checked, Setting
from attnbench.speed.work import autocast

#: Relative error (of norms) that is allowed in float32.
_FLOAT32 = 1e-4
#: In bfloat16, how many times that of dense attention: choices near a tie fall otherwise. Float32 is checked as well.
_BF16_FACTOR, _BF16_EPS = 16.0, 2.0**-8
#: The path that defines what is correct, and what its records say.
EMULATION = "dense emulation"

Forward = Callable[[Tensor], Tensor]


class Wrong(Exception):
    """The result is not what it must be; the text says by how much."""


def check(choice: Choice, setting: Setting) -> Checked:
    """
    Raises:
        Wrong: an error beyond what is allowed.
        Unsupported: the path does not run here at all.
    """
    subject = Subject(choice.plugin.name, choice)
    try:
        return _check(subject, setting, subject.length)
    except Unsupported:  # a path may take whole blocks only
        return _check(subject, setting, 4 * subject.block)


def _check(subject: Subject, setting: Setting, length: int) -> Checked:
    case = Case(batch=2, length=length, dim=setting.dim, heads=setting.heads)
    mixer = subject.build(case, dtype=torch.float32)
    name, truth = _reference(subject, mixer)
    found = _judged(name, _errors(mixer, truth, case, setting.model_copy(update={"dtype": "fp32"})), _FLOAT32)
    if setting.dtype == "bf16":
        plain = standalone(PLAIN, None, dim=case.dim, heads=case.heads, length=case.length).eval()
        dense = max(_errors(plain, copy.deepcopy(plain).double(), case, setting))
        found = _judged(name, _errors(mixer, truth, case, setting), _BF16_FACTOR * max(dense, _BF16_EPS))
    return found


def _judged(name: str, errors: list[float], allowed: float) -> Checked:
    if not max(errors) <= allowed:
        what = " and ".join(f"{error:.2g} in the {kind}" for error, kind in zip(errors, _KINDS, strict=False))
        raise Wrong(f"relative error {what} against {name}, {allowed:.2g} is allowed, so it was not timed")
    return Checked(
        reference=name, error=errors[0], gradient_error=errors[1] if len(errors) > 1 else None, allowed=allowed
    )


_KINDS = ("output", "gradient of the input")


def _reference(subject: Subject, mixer: StandaloneMixer) -> tuple[str, Forward]:
    """Its name, and the function of x in float64; weights are those of `mixer`."""
    exact = copy.deepcopy(mixer).double()
    if subject.mechanism.exact and isinstance(mixer.mixer, QKVMixer):
        return "softmax attention written out in float64", lambda x: softmax_attention(exact, x, None)
    if isinstance(exact.mixer, SparseMixer):
        exact.mixer.run_path = next(path for path in PATHS.values() if path.implementation == EMULATION)
        return "all pairs with its pattern, in float64", exact
    return "itself in float64 on the CPU", exact


def _errors(mixer: StandaloneMixer, truth: Forward, case: Case, setting: Setting) -> list[float]:
    """Relative, of the output and, where a backward pass will be timed, of the gradient of the input."""
    backward = setting.mode != "fwd"
    mixer = copy.deepcopy(mixer).to(setting.device)
    x, exact = rows(case, dtype=torch.float32).to(setting.device), rows(case, dtype=torch.float32).double()
    found, wanted = _results(mixer, x, setting, backward), _results(truth, exact, None, backward)
    return [float((a.double().cpu() - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)]


def _results(run: Forward, x: Tensor, setting: Setting | None, backward: bool) -> list[Tensor]:
    with torch.set_grad_enabled(backward):
        x.requires_grad_(backward)
        if setting is None:
            y = run(x)
        else:
            with autocast(setting):
                y = run(x)
        if not backward:
            return [y]
        return [y.detach(), torch.autograd.grad(weighted(y), x)[0]]
