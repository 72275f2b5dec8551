"""What everything else builds on: options, shapes, types."""

from __future__ import annotations

import json

import torch

from attnbench.conformance.check import Case, Check, Mismatch, finite
from attnbench.conformance.subject import Subject, lengths, rows
from attnbench.options import as_json, parse


def options_survive_json(subject: Subject) -> str:
    """Defaults and presets are valid, and all options written to a record and read again are equal."""
    mechanism, owner = subject.mechanism, f"mechanism {subject.name}"
    forms = {"the options chosen": subject.choice.options, "the defaults": parse(owner, mechanism.options, {})}
    for preset in mechanism.presets:
        forms[f"preset {preset}"] = parse(owner, mechanism.options, {"preset": preset}, mechanism.presets)
    for form, options in forms.items():
        again = parse(owner, mechanism.options, json.loads(json.dumps(as_json(options))))
        if again != options:
            raise Mismatch(f"{options}", f"{form} came back from JSON as {again}")
    return f"defaults and {len(mechanism.presets)} presets"


def shape_and_dtype(subject: Subject, case: Case) -> None:
    """(batch, rows, dim) in float32 and float64 comes back in the same shape and type, finite, at full, odd and
    block-filling lengths and at length 1.
    """
    for dtype in (torch.float32, torch.float64):
        x = rows(case, dtype=dtype)
        y = subject.build(case, dtype=dtype)(x)
        if (y.shape, y.dtype) != (x.shape, dtype):
            raise Mismatch(
                "the shape and type that went in",
                f"{tuple(x.shape)} {dtype} came back as {tuple(y.shape)} {y.dtype}",
            )
        finite(y, "the output", "finite numbers", f"for unit-normal {dtype}")


CHECKS = (
    Check(options_survive_json),
    Check(shape_and_dtype, cases=lengths),
)
