"""Who may not influence whom: padding, batch-mates, later rows."""

from __future__ import annotations

import torch

from attnbench.conformance.check import Case, Check, Mismatch, agree, applies, finite
from attnbench.conformance.subject import Subject, full, lengths, mask_of, masked, real_rows, rows, weighted


def _needs_masks(subject: Subject) -> None:
    declared = "with these options" if subject.mechanism.honours_masks else "it declares honours_masks=False:"
    applies(subject.honours, f"{declared} it ignores masks, so padded tasks and shifted passes are refused")


def padding_content(subject: Subject, case: Case) -> None:
    """Whatever numbers stand in masked rows, small or huge, real rows (special ones included) come out the same."""
    _fill_padding(subject, case, {"other numbers": 1.0, "numbers near 1e4": 1e4, "numbers near 1e30": 1e30})


def padding_not_finite(subject: Subject, case: Case) -> None:
    """NaN and infinity in masked rows reach no real row: a zero weight times NaN is NaN, so they must be cleared."""
    _fill_padding(subject, case, {"infinity": float("inf"), "NaN": float("nan")})


def _fill_padding(subject: Subject, case: Case, fillers: dict[str, float]) -> None:
    _needs_masks(subject)
    mixer, x, mask = subject.build(case), rows(case), mask_of(case)
    assert mask is not None
    clean, other = real_rows(mixer, x, mask), rows(case, seed=3)
    for name, scale in fillers.items():
        filled = x.where(mask[..., None], other * scale)
        agree(real_rows(mixer, filled, mask), clean, "real rows that ignore masked ones", f"with {name} in masked rows")


def padding_behind(subject: Subject, case: Case) -> None:
    """Padding behind the content, one row or many, changes no real row: the length a batch is padded to says nothing
    about an example.
    """
    _needs_masks(subject)
    declared = "it declares length_bound=True:" if subject.mechanism.length_bound else "with these options"
    applies(not subject.is_bound, f"{declared} the padded length counts")
    mixer, x = subject.build(case), rows(case)
    alone = real_rows(mixer, x)
    longest = max(subject.length, case.length)
    for padded in sorted({case.length + 1, case.length + subject.block, longest}):
        if not case.length < padded <= longest:
            continue
        behind = rows(Case(batch=case.batch, length=padded - case.length, dim=case.dim), seed=3)
        mask = (torch.arange(padded) < case.length).expand(case.batch, -1)
        found = real_rows(mixer, torch.cat([x, behind], dim=1), mask)
        agree(found, alone, "real rows as without padding", f"padded from {case.length} to {padded} rows")


def batch_mates(subject: Subject, case: Case) -> None:
    """An example comes out the same alone, beside ordinary examples, beside ones a hundred times as loud, and beside
    ones without any real row.
    """
    mixer, x = subject.build(case), rows(case)
    mask = mask_of(case) if subject.honours else None
    alone = real_rows(mixer, x[:1], None if mask is None else mask[:1])
    mates = [("ordinary", 1.0, True), ("loud", 100.0, True)]
    if mask is not None:
        mates.append(("fully masked", 1.0, False))
    for name, scale, real in mates:
        x_all = torch.cat([x[:1], scale * x[1:]])
        mask_all = None if mask is None else torch.cat([mask[:1], mask[1:] & real])
        found = real_rows(mixer, x_all, mask_all)[: len(alone)]
        agree(found, alone, "an example as it is alone", f"beside {case.batch - 1} {name} examples")


def empty_example(subject: Subject, case: Case) -> None:
    """An example without a real row has finite outputs and leaves all gradients finite: one softmax over nothing is
    NaN in every weight after the next step.
    """
    _needs_masks(subject)
    promise = "finite numbers"
    mixer, x, mask = subject.build(case), rows(case).requires_grad_(), mask_of(case)
    assert mask is not None
    mask = torch.cat([torch.zeros_like(mask[:1]), mask[1:]])
    y = mixer(x, mask, keep_special=True)
    finite(y, "the output", promise, "with a fully masked example")
    weighted(y).backward()
    for name, tensor in [("the input", x), *mixer.named_parameters()]:
        if tensor.grad is not None:
            finite(tensor.grad, f"the gradient of {name}", promise, "with a fully masked example")


def causal(subject: Subject, case: Case) -> None:
    """In the causal form a row depends on itself and earlier rows only: later rows are changed, and the gradient that
    reaches them is looked at.
    """
    applies(subject.mechanism.causal != "no", 'it declares causal="no"')
    promise = "rows that do not depend on later ones"
    mixer, x = subject.build(case, causal=True), rows(case)
    for last in sorted({0, case.length // 2, case.length - 2} & set(range(case.length - 1))):
        changed = torch.cat([x[:, : last + 1], 10 * rows(case, seed=3)[:, last + 1 :]], dim=1)
        agree(mixer(changed)[:, : last + 1], mixer(x)[:, : last + 1], promise, f"with other rows behind row {last}")
        leaf = x.clone().requires_grad_()
        weighted(mixer(leaf)[:, last]).backward()
        assert leaf.grad is not None
        leak = leaf.grad[:, last + 1 :].abs().amax().item()
        if leak:
            raise Mismatch(promise, f"row {last} has a gradient of up to {leak:.2g} to later rows")


def _short(subject: Subject) -> list[Case]:
    return [case for case in lengths(subject) if case.length < subject.length]


def _holes(subject: Subject) -> list[Case]:
    return [Case(length=subject.length, mask="holes")]


_COMPARABLE = ("shape_and_dtype", "repeatable", "stateless")

CHECKS = (
    Check(padding_content, needs=_COMPARABLE, cases=masked),
    Check(padding_not_finite, needs=("padding_content",), cases=masked),
    Check(padding_behind, needs=("padding_content",), cases=_short),
    Check(batch_mates, needs=_COMPARABLE, cases=_holes),
    Check(empty_example, needs=("shape_and_dtype",), cases=_holes),
    Check(causal, needs=_COMPARABLE, cases=full),
)
