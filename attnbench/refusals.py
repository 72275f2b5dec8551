"""Why a plan cannot run, and what in it could change nothing."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING

from attnbench.choice import Choice, check_packages, declared, honours, is_bound
from attnbench.contracts import Classify, Head, Match, Task
from attnbench.errors import AttnbenchError, Unsupported, blame

if TYPE_CHECKING:
    from attnbench.plan import Plan


def of(plan: Plan) -> str | None:
    """Why this mechanism cannot run this task with this model and these regularizers, or None."""
    name = plan.mechanism.plugin.name
    if plan.rules.model.causal and plan.mechanism.plugin.object.causal == "no":
        return f"{name} has no causal form, and model.causal=true asks for one"
    if plan.masked and (reason := _padding(plan)):
        return f"{name} {reason}"
    return next(filter(None, (shift_refusal(plan.mechanism, choice) for choice in plan.regularizers)), None)


def _padding(plan: Plan) -> str | None:
    """Why this mechanism cannot be given masked rows, or None."""
    task, padded, padding = plan.task.plugin.name, plan.task.plugin.object.padded, plan.rules.padding
    to_max = "--set padding.rule=max"
    if not honours(plan.mechanism):
        if padding.unmasked:
            return None
        why = f"the examples of {task} differ in length" if padded else "padding.mask_zeros=true masks tokens of id 0"
        return (
            f"ignores masks and {why}; {to_max} --set padding.unmasked=true runs it all the same, with padding for "
            "content"
        )
    if padded and is_bound(plan.mechanism) and padding.rule != "max":
        return (
            f"depends on the padded length, and with padding.rule={padding.rule} an example of {task} is padded to "
            f"the longest of its batch; {to_max} pads all alike"
        )
    return None


def shift_refusal(mechanism: Choice, regularizer: Choice) -> str | None:
    """Why this regularizer cannot move the input of this mechanism, or None."""
    shifts = regularizer.plugin.object.max_shift(regularizer.options)
    return _unmovable(mechanism, regularizer.plugin.name) if shifts else None


def _unmovable(mechanism: Choice, mover: str) -> str | None:
    name = mechanism.plugin.name
    if not honours(mechanism):
        return f"{mover} shifts the input behind masked rows, and {name} ignores masks"
    if is_bound(mechanism):
        return f"{mover} shifts the input, and the output of {name} depends on the padded length"
    return None


def check_runnable(plan: Plan, test_shifts: int = 0) -> None:
    """
    Raises:
        Unsupported: the cell cannot run, or not with a test that moves the input, with the reason.
    """
    for choice in (plan.mechanism, plan.task):
        check_packages(choice.plugin)
    if reason := of(plan) or (_unmovable(plan.mechanism, "--test-shifts") if test_shifts else None):
        raise Unsupported(reason)


def refuse_dead(plan: Plan) -> None:
    """Combinations in which something that was asked for could change nothing."""
    (head, length), model = _described(plan.task), plan.rules.model
    if not isinstance(head, Classify | Match) and model.pooling != "mean":
        raise AttnbenchError(
            f"{plan.task.plugin.name} asks at single tokens, so model.pooling={model.pooling} pools "
            "nothing; leave it out, or --set model.pooling=mean"
        )
    if not isinstance(head, Match) and model.match != "products":
        raise AttnbenchError(
            f"{plan.task.plugin.name} is not about two documents, so model.match={model.match} joins "
            "nothing; leave it out"
        )
    if plan.tokens.block_size > length:
        raise AttnbenchError(
            f"block_size={plan.tokens.block_size} is more than the {length} tokens of {plan.task.plugin.name}: one "
            f"block would hold all of them; --set block_size=... up to {length}"
        )
    for choice in plan.regularizers:
        if reason := idle(plan.mechanism, choice, max(model.dropout, model.attention_dropout)):
            raise AttnbenchError(f"{choice.plugin.name}: {reason}")


def idle(mechanism: Choice, regularizer: Choice, dropout: float) -> str | None:
    """Why this regularizer, or an option of it, changes nothing at this dropout of the model, or None."""
    contract, options = regularizer.plugin.object, regularizer.options
    with blame(f"regularizer {regularizer.plugin.name}: idle"):
        if reason := contract.idle(options, dropout):
            return str(reason)
        unmoved = contract.idle_unmoved(options, dropout)
    if unmoved and declared(mechanism, "shift_invariant", mechanism.plugin.object.shift_invariant):
        return f"a shift of the input changes nothing in {mechanism.plugin.name}, and {unmoved}"
    return None


def _described(choice: Choice) -> tuple[Head, int]:
    """The head and the longest input of a task."""
    task: Task = choice.plugin.object
    name, options = choice.plugin.name, choice.options
    with blame(f"task {name}"):
        head, vocab, length = task.head(options), task.vocab(options), task.max_length(options)
    if not isinstance(head, Head):
        raise AttnbenchError(f"task {name}: head returned a {type(head).__name__}, not one of attnbench.contracts")
    for what, count in {"vocab": vocab, "max_length": length}.items():
        if not isinstance(count, Integral) or count < 1:  # of numpy too
            raise AttnbenchError(f"task {name}: {what} returned {count!r}, not a whole number from 1 on")
    return head, length
