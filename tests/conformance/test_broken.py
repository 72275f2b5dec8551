"""Deliberately broken mechanisms: each is caught by the right check, and by no other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from attnbench.conformance.runner import CHECKS, examine

HEAD = """\
import torch
from torch import nn
from attnbench import Mechanism
from attnbench.layers import QKVMixer, attention


def softmax(q, k, v, mask, scale=None):
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], -1e30)
    return scores.softmax(-1) @ v

"""

#: All but those that take seconds.
QUICK = [check for check in CHECKS if check not in ("same_in_every_process", "trains_under_every_head")]


@dataclass(frozen=True)
class Broken:
    """`code` defines a class Mixer; `words` stand in the message of the one check that fails."""

    check: str
    words: tuple[str, ...]
    code: str
    declared: str = ""

    def write(self, path: Path) -> Path:
        build = "build=lambda shape, options: Mixer(shape)"
        path.write_text(f"{HEAD}{self.code}\nMECHANISM = Mechanism(summary='', paper='', {build}{self.declared})\n")
        return path


BROKEN = {
    "mask ignored": Broken(
        "padding_content",
        ("real rows that ignore masked ones", "with other numbers in masked rows the largest difference is"),
        """
class Mixer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.linear = nn.Linear(shape.dim, shape.dim)

    def forward(self, x, mask=None, layout=None):
        return self.linear(softmax(x[:, None], x[:, None], x[:, None], None)[:, 0])
""",
    ),
    "mask forgotten behind cleared rows": Broken(
        "padding_behind",
        ("real rows as without padding", "padded from 1 to 2 rows", "length 1"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        return softmax(q, k, v, None)
""",
    ),
    "scale missing": Broken(
        "logit_scale",
        ("variance about 1", "variance 8 at head width 8, 16 at head width 16, 64 at head width 64"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        return softmax(q, k, v, mask, scale=1)
""",
    ),
    "scale applied twice": Broken(
        "logit_scale",
        ("variance 0.125 at head width 8, 0.0625 at head width 16, 0.0156 at head width 64",),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        return softmax(q, k, v, mask, scale=1 / q.shape[-1])
""",
    ),
    "batch mixed": Broken(
        "batch_mates",
        ("an example as it is alone", "beside 1 loud examples", "length 1, batch 2, dim 2"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        y = softmax(q, k, v, mask)
        return y / y.abs().amax().clamp(min=1e-3)
""",
    ),
    "NaN on empty rows": Broken(
        "empty_example",
        ("finite numbers", "numbers of the output are not finite", "length 1, batch 1, dim 2"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        return scores.softmax(-1) @ v
""",
    ),
    "causal leak": Broken(
        "causal",
        ("rows that do not depend on later ones", "with other rows behind row 0", "length 2"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(2)  # one row too many
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5)
        if self.shape.causal:
            scores = scores.masked_fill(later, -1e30)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -1e30)
        return scores.softmax(-1) @ v
""",
        declared=", causal='capable'",
    ),
    "dependence on padded length": Broken(
        "padding_behind",
        ("real rows as without padding", "rows the largest difference is"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        return softmax(q, k, v, mask) * q.shape[2] ** 0.5
""",
    ),
    "state kept between calls": Broken(
        "stateless",
        ("the output of a first call", "after calls with other inputs"),
        """
class Mixer(QKVMixer):
    seen = 0.0

    def attend(self, q, k, v, mask):
        self.seen = 0.9 * self.seen + v.detach().abs().mean()
        return softmax(q, k, v, mask) / self.seen
""",
    ),
    "graph redrawn per call": Broken(
        "repeatable",
        ("equal outputs of two equal copies", "called with one input"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        hidden = torch.rand(q.shape[2], q.shape[2]) < 0.5
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -1e30)
        return scores.masked_fill(hidden, -1e30).softmax(-1) @ v
""",
    ),
    "graph drawn anew for training": Broken(
        "train_as_eval",
        ("the output of evaluation", "in training mode"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        return softmax(q, k.roll(1, 1) if self.training else k, v, mask)
""",
    ),
    "graph left out of the saved weights": Broken(
        "survives_saving",
        ("the output of the saved weights", "after loading them"),
        """
class Mixer(QKVMixer):
    def __init__(self, shape):
        super().__init__(shape)
        self.projection = torch.randn(shape.head_dim, shape.head_dim)

    def attend(self, q, k, v, mask):
        return softmax(q, k, v @ self.projection.to(v), mask)
""",
    ),
    "graph from the hash of a text": Broken(
        "same_in_every_process",
        ("equal outputs in two processes", "built from one seed"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        return softmax(q, k, v, mask) * (1 + hash("path") % 1009)
""",
    ),
    "dead parameter": Broken(
        "gradient_reaches_parameters",
        ("a gradient for every parameter", "none reaches mixer.spare.weight, mixer.spare.bias"),
        """
class Mixer(QKVMixer):
    def __init__(self, shape):
        super().__init__(shape)
        self.spare = nn.Linear(shape.dim, shape.dim)

    def attend(self, q, k, v, mask):
        return softmax(q, k, v, mask)
""",
    ),
    "wrong backward": Broken(
        "right_gradients",
        ("gradients equal to finite differences", "Jacobian"),
        """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        return Twice.apply(softmax(q, k, v, mask))
""",
    ),
    "silent dense fall-back": Broken(
        "declared_cost",
        ("a cost of n", "aten::bmm makes a tensor of shape", "2048, 2048", "memory as n^1.9"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        return softmax(q, k, v, mask)
""",
        declared=", complexity='n'",
    ),
    "silent dense fall-back to the fused kernel": Broken(
        "declared_cost",
        ("a cost of n log n", "makes a tensor of shape", "2048, 2048"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        return attention(q, k, v, None if mask is None else mask[:, None, None, :])
""",
        declared=", complexity='n log n'",
    ),
    "dense in pieces": Broken(
        "declared_cost",
        ("a cost of n, n^1.00 from 512 to 2048 rows", "operations grow as n^1.9"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        return torch.cat([softmax(part, k, v, mask) for part in q.split(64, dim=2)], dim=2)
""",
        declared=", complexity='n'",
    ),
    "another softmax than declared": Broken(
        "dense_oracle",
        ("softmax attention", "in the output the largest difference is", "length 1"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        near = (torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])).abs() < 2
        visible = near if mask is None else near & mask[:, None, None, :]
        return attention(q, k, v, visible) * 1.01
""",
        declared=", exact=True",
    ),
    "overflow": Broken(
        "large_inputs",
        ("finite numbers", "for inputs near 1e3", "are not finite"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).exp()  # no maximum taken off
        if mask is not None:
            weights = weights * mask[:, None, None, :]
        return weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-9)
""",
    ),
    "padding weighted by zero": Broken(
        "padding_not_finite",
        ("real rows that ignore masked ones", "with infinity in masked rows", "nan"),
        """
class Mixer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.linear = nn.Linear(shape.dim, shape.dim)

    def forward(self, x, mask=None, layout=None):
        weight = torch.ones_like(x[..., :1]) if mask is None else mask[..., None].to(x)
        mean = (x * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(min=1)
        return self.linear(mean + x.nan_to_num(0, 0, 0))
""",
    ),
    "half the precision": Broken(
        "bfloat16",
        ("4 times that of dense attention", "relative error"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        y = softmax(q, k, v, mask)
        return (y + 100) - 100 if y.dtype == torch.bfloat16 else y
""",
    ),
    "wrong shape": Broken(
        "shape_and_dtype",
        ("the shape and type that went in", "(1, 1, 2) torch.float32 came back as (1, 1, 3) torch.float32"),
        """
class Mixer(QKVMixer):
    def forward(self, x, mask=None, layout=None):
        return nn.functional.pad(x, (0, 1))
""",
    ),
    "a head that cannot be trained": Broken(
        "trains_under_every_head",
        ("Classify with regularizer none", "ZeroDivisionError"),
        """
class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        if torch.is_grad_enabled() and self.training and mask is not None:
            1 / 0
        return softmax(q, k, v, mask)
""",
    ),
    "options that JSON changes": Broken(
        "options_survive_json",
        ("came back from JSON as",),
        """
from dataclasses import dataclass
from typing import Annotated
from pydantic import PlainSerializer

@dataclass(frozen=True)
class Options:
    rate: Annotated[float, PlainSerializer(lambda rate: round(rate, 1))] = 0.25

class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        return softmax(q, k, v, mask)
""",
        declared=", options=Options",
    ),
}  # fmt: skip


@pytest.mark.parametrize("checks", [QUICK, pytest.param(list(CHECKS), marks=pytest.mark.slow)], ids=len)
@pytest.mark.parametrize("name", BROKEN)
def test_one_fault_gives_one_failure_that_names_it(name: str, checks: list[str], tmp_path: Path) -> None:
    """The quick form leaves out checks that take seconds, unless they are what must fail."""
    broken = BROKEN[name]
    path = broken.write(tmp_path / "mine.py")
    wanted = dict.fromkeys([*checks, broken.check])
    failed = {found.check: found.text for found in examine(str(path), only=wanted) if found.status == "fail"}
    assert list(failed) == [broken.check], failed
    text = failed[broken.check]
    assert text.startswith("expected ") and "\n" not in text
    assert [word for word in broken.words if word not in text] == [], text


def test_every_check_has_a_mechanism_that_only_it_catches() -> None:
    assert {broken.check for broken in BROKEN.values()} == set(CHECKS)
