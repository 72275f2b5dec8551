"""The numbers themselves: the softmax they must equal, their scale, low precision, large inputs.

Shape letters: B batch, R rows, H heads, D head width, C = H * D.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.conformance.check import Case, Check, Mismatch, agree, applies, finite
from attnbench.conformance.subject import Subject, full, lengths, mask_of, masked, rows, weighted
from attnbench.contracts import Layout, Mechanism
from attnbench.layers import QKVMixer, attention
from attnbench.model import StandaloneMixer, standalone

_HEAD_WIDTHS = (8, 16, 64)
_SOFTMAX = 0.98  # the least squared correlation of log weights with q.k
_BF16_FACTOR = 4.0
_BF16_EPS = 2.0**-8


def dense_oracle(subject: Subject, case: Case) -> None:
    """Where `exact` is declared: equals softmax attention written out in float64 with the same projections, and so
    does the gradient of the input.
    """
    applies(subject.mechanism.exact, "it declares exact=False")
    mixer, x, mask = subject.build(case), rows(case), mask_of(case)
    applies(isinstance(mixer.mixer, QKVMixer), "it does not use QKVMixer's projections, which a reference needs")
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, wanted = mixer(ours, mask), softmax_attention(mixer, theirs, mask)
    real = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    agree(y[real], wanted[real], "softmax attention", "in the output")
    found, truth = (torch.autograd.grad(weighted(out[real]), leaf)[0] for out, leaf in ((y, ours), (wanted, theirs)))
    agree(found, truth, "softmax attention", "in the gradient of the input")


def softmax_attention(mixer: StandaloneMixer, x: Tensor, mask: Tensor | None) -> Tensor:
    """Written out, so that it shares nothing with the mechanism but its weights."""
    rows_BRC, mask_BR, layout = mixer.specials.insert(x, mask)
    module = mixer.mixer
    assert isinstance(module, QKVMixer)
    qkv = rows_BRC @ module.qkv.weight.T + module.qkv.bias
    q, k, v = (part.unflatten(-1, (module.shape.heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    logits_BHRR = q @ k.transpose(-1, -2) / module.shape.head_dim**0.5
    hidden = torch.zeros_like(logits_BHRR, dtype=torch.bool)
    if mask_BR is not None:
        hidden = hidden | ~mask_BR[:, None, None, :]
    if module.shape.causal:
        hidden = hidden | torch.ones_like(hidden[0, 0]).triu(1)
    y = logits_BHRR.masked_fill(hidden, float("-inf")).softmax(-1) @ v
    out: Tensor = y.transpose(1, 2).flatten(-2) @ module.out.weight.T + module.out.bias
    return out[:, layout.specials :]


def logit_scale(subject: Subject) -> str:
    """For unit-normal queries and keys the logits have a variance of about 1 at every head width, as q.k / sqrt(width)
    has. Seen from outside: one-hot values make the output the weights, and their logarithm is the logit up to a
    constant of the row. Weights that are no softmax of q.k have no logits to look at.
    """
    measured = {width: _logit_variance(subject, width) for width in _HEAD_WIDTHS}
    text = "variance " + ", ".join(f"{value:.3g} at head width {width}" for width, value in measured.items())
    if not all(0.5 <= value <= 2 for value in measured.values()):
        raise Mismatch("logits of variance about 1 (q.k / sqrt(head width))", text)
    return text


def _logit_variance(subject: Subject, width: int) -> float:
    case = Case(batch=1, length=48, dim=2 * width, heads=2)
    mixer = subject.build(case).mixer
    applies(
        isinstance(mixer, QKVMixer) and type(mixer).forward is QKVMixer.forward,
        "it has a forward of its own, so queries and keys cannot be handed to it",
    )
    assert isinstance(mixer, QKVMixer)
    layout = Layout(mixer.shape.tokens, case.length)
    shape = (1, case.heads, layout.rows, width)
    q, k = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    columns = []
    for first in range(0, layout.rows, width):  # as many keys at a time as a value has room for
        values = torch.eye(layout.rows, dtype=q.dtype)[:, first : first + width]
        values = F.pad(values, (0, width - values.shape[1]))
        with torch.no_grad():
            columns.append(mixer.mix(q, k, values.expand(shape).clone(), None, layout))
    weights_RR = torch.cat(columns, dim=-1)[0, 0, :, : layout.rows]
    slope, softmax = _regress(weights_RR, (q @ k.transpose(-1, -2))[0, 0])
    applies(softmax, "its weights are no softmax of q.k")
    return slope**2 * width


def _regress(weights_RR: Tensor, product_RR: Tensor) -> tuple[float, bool]:
    """Slope of the log weights on q.k within rows, over the pairs that see each other, and whether a line fits."""
    seen = weights_RR > 0
    count = seen.sum(-1, keepdim=True).clamp(min=1)

    def centred(values: Tensor) -> Tensor:
        values = values.where(seen, 0)
        return (values - values.sum(-1, keepdim=True) / count).where(seen, 0)

    log_weight, product = centred(weights_RR.clamp(min=1e-300).log()), centred(product_RR)
    together, spread = (log_weight * product).sum(), product.square().sum()
    if not spread or not log_weight.square().sum():
        return 0.0, False
    fit = together.square() / (spread * log_weight.square().sum())
    return float(together / spread), bool(fit > _SOFTMAX)


def bfloat16(subject: Subject, case: Case) -> str:
    """Under bf16 autocast, as the engine trains, the error against float64 with the same weights stays below
    4 times that of dense attention of the same size.
    """
    reference = standalone(PLAIN, None, dim=case.dim, heads=case.heads, length=case.length)
    ours = _bf16_error(subject.build(case, dtype=torch.float32), case)
    theirs = _bf16_error(reference, case)
    text = f"relative error {ours:.2g}, dense attention {theirs:.2g}"
    if not ours <= _BF16_FACTOR * max(theirs, _BF16_EPS):
        raise Mismatch(f"an error of at most {_BF16_FACTOR:.0f} times that of dense attention", text)
    return text


class _Plain(QKVMixer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return attention(q, k, v)


#: softmax attention, whose error in low precision others are held against
PLAIN = Mechanism(summary="", paper="", build=lambda shape, options: _Plain(shape))


def _bf16_error(mixer: StandaloneMixer, case: Case) -> float:
    x = rows(case, dtype=torch.float32)
    with torch.no_grad():
        truth = copy.deepcopy(mixer).double()(x.double())
        with torch.autocast("cpu", torch.bfloat16):
            found = mixer(x)
    return float((found.double() - truth).norm() / truth.norm())


def large_inputs(subject: Subject, case: Case) -> None:
    """Inputs a thousand times as large give finite outputs and finite gradients in float32."""
    mixer, x = subject.build(case, dtype=torch.float32), (1e3 * rows(case, dtype=torch.float32)).requires_grad_()
    y = mixer(x)
    finite(y, "the output", "finite numbers", "for inputs near 1e3")
    weighted(y).backward()
    for name, tensor in [("the input", x), *mixer.named_parameters()]:
        if tensor.grad is not None:
            finite(tensor.grad, f"the gradient of {name}", "finite numbers", "for inputs near 1e3")


def _with_and_without_masks(subject: Subject) -> list[Case]:
    return lengths(subject) + (masked(subject) if subject.honours else [])


CHECKS = (
    Check(dense_oracle, needs=("shape_and_dtype",), cases=_with_and_without_masks),
    Check(logit_scale, needs=("repeatable",)),
    Check(bfloat16, needs=("stateless",), cases=full),
    Check(large_inputs, needs=("shape_and_dtype",), cases=full),
)
