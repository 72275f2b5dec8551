"""From a plan to the things that run: the model, its job, and what the record will say it is."""

from __future__ import annotations

import torch

from attnbench import data
from attnbench.contracts import Task
from attnbench.errors import AttnbenchError, Unsupported, blame
from attnbench.model import Model, shift_room
from attnbench.plan import Plan
from attnbench.protocol import SECTIONS
from attnbench.questions import question_of
from attnbench.randomness import seeded
from attnbench.record import MechanismSpec, PluginSpec, Spec, TaskSpec
from attnbench.recording import Subject
from attnbench.refusals import check_runnable
from attnbench.train import Job

#: The attention path of a run whose mechanism was never built.
UNKNOWN_PATH = "none"


def ready(plan: Plan, device: str, test_shifts: int = 0) -> Model:
    """The model, after everything that a run would be refused for.

    Raises:
        AttnbenchError: a fault of the request or of a plugin.
        Unsupported: this cell cannot run here.
    """
    check_device(device, plan, test_shifts)
    check_runnable(plan, test_shifts)
    model = build(plan)
    check_path(plan, model, device, test_shifts)
    return model


def check_device(device: str, plan: Plan, test_shifts: int = 0) -> None:
    """
    Raises:
        AttnbenchError: no such device here, or a shift that has no room.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise AttnbenchError(f"--device is auto, cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise AttnbenchError("--device cuda: PyTorch sees no CUDA device here; use --device cpu")
    room = shift_room(plan.tokens)
    for choice in plan.regularizers:
        with blame(f"regularizer {choice.plugin.name}: max_shift"):
            fits = choice.plugin.object.max_shift(choice.options) <= room
        if not fits:
            raise AttnbenchError(f"{choice.plugin.name}: shift goes beyond {room}, the rows kept free for it")
    if test_shifts > room:
        raise AttnbenchError(f"{test_shifts} test shifts go beyond {room}, the rows kept free for them; ask for fewer")


def device_of(device: str) -> torch.device:
    """Where a run that asks for auto, cpu or cuda runs."""
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def build(plan: Plan) -> Model:
    """
    Raises:
        AttnbenchError: the task or the mechanism failed, and how.
        Unsupported: the mechanism cannot be built so.
    """
    task: Task = plan.task.plugin.object
    options, name, mechanism = plan.task.options, plan.mechanism.plugin.name, plan.mechanism.plugin.object
    with blame(f"task {plan.task.plugin.name}"):
        head, vocab, length = task.head(options), task.vocab(options), task.max_length(options)
    with blame(f"mechanism {name}: building it failed"), seeded(plan.seed, "build"):
        return Model(plan.rules.model, mechanism, plan.mechanism.options, head, vocab, length)


def check_path(plan: Plan, model: Model, device: str, test_shifts: int = 0) -> None:
    """
    Raises:
        Unsupported: the execution path of the mechanism cannot run this cell on this device.
    """
    task: Task = plan.task.plugin.object
    moves = [choice.plugin.object.max_shift(choice.options) for choice in plan.regularizers]
    dtype = torch.bfloat16 if plan.rules.numerics.dtype == "bf16" else torch.float32
    length = task.max_length(plan.task.options)
    if reason := model.refusal(length, plan.masked or any((*moves, test_shifts)), dtype, device_of(device)):
        raise Unsupported(f"{plan.mechanism.plugin.name}: {reason}")


def implementation(model: Model) -> str:
    """The execution path of its mixers, as records have it."""
    return str(getattr(model.encoder.layers[0].mixer, "implementation", "module"))


def notes(plan: Plan, model: Model) -> list[str]:
    """In what the run falls short of what its protocol asks for."""
    protocol, found = plan.rules.spec, []
    if "tuning" in protocol.changes and plan.tuned is None:
        found.append(
            f"protocol {plan.rules.of} asks for tuned values, which `attnbench sweep` chooses; this run stands in a "
            f"table of its own, {protocol.name}"
        )
    size = model.count_parameters()[0] / model.plain_parameters()
    if protocol.parameters_within is not None and abs(size - 1) > protocol.parameters_within:
        found.append(
            f"{plan.label} has {size:.2f} times the parameters of the same model with plain attention, and protocol "
            f"{plan.rules.of} allows {protocol.parameters_within:.0%} more or less; tables say so"
        )
    return found


def spec_of(plan: Plan, data_key: str, implementation: str) -> Spec:
    task: Task = plan.task.plugin.object
    return Spec(
        task=TaskSpec(
            **plan.task.spec(),
            data_key=data_key,
            max_length=task.max_length(plan.task.options),
            vocab=task.vocab(plan.task.options),
        ),
        mechanism=MechanismSpec(**plan.mechanism.spec(), implementation=implementation),
        regularizer=[PluginSpec(**choice.spec()) for choice in plan.regularizers],
        protocol=plan.rules.spec,
        **{section: getattr(plan.rules, section).model_dump(mode="json") for section in SECTIONS},
    )


def job_of(plan: Plan, prepared: data.TaskData, model: Model, device: str, max_seconds: float | None = None) -> Job:
    task: Task = plan.task.plugin.object
    return Job(
        model=model,
        data=prepared,
        question=question_of(task.head(plan.task.options)),
        padded=task.padded,
        max_length=task.max_length(plan.task.options),
        budget=plan.rules.budget,
        numerics=plan.rules.numerics,
        padding=plan.rules.padding,
        regularizers=[(choice.plugin.object, choice.options) for choice in plan.regularizers],
        seed=plan.seed,
        device=device,
        max_seconds=max_seconds,
    )


def subject_of(plan: Plan, spec: Spec, trial: bool = False) -> Subject:
    """What the record will say was run."""
    homes = [choice.plugin.home for choice in (plan.mechanism, plan.task, *plan.regularizers)]
    return Subject(
        spec=spec,
        label=plan.label,
        seed=plan.seed,
        trial=trial,
        tuned=plan.tuned,
        origin={"mechanism": plan.mechanism.plugin.home.public, "task": plan.task.plugin.home.public},
        packages=[home.where.partition(" ")[0] for home in homes if home.how == "package"],
    )
