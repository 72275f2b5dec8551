"""One run: plan -> data -> training -> record in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnbench import data, judgement, recording
from attnbench.checkpoint import Checkpoint
from attnbench.contracts import Task
from attnbench.difference import question
from attnbench.errors import AttnbenchError, Unsupported, blame, describe, is_out_of_memory
from attnbench.estimate import Probe, projected
from attnbench.files import NotWritten, writing
from attnbench.memory import needed
from attnbench.model import Model, shift_room
from attnbench.numerics import Mode, applied
from attnbench.plan import Plan, check_runnable, make, regularizer_of
from attnbench.progress import say
from attnbench.protocol import SECTIONS
from attnbench.questions import Predictions, question_of
from attnbench.randomness import seeded
from attnbench.record import Cost, MechanismSpec, PluginSpec, Quality, Record, Spec, Status, TaskSpec
from attnbench.recording import Subject
from attnbench.store import Store
from attnbench.train import Interrupted, Job, Stopped, Trainer

#: The attention path of a run whose mechanism was never built.
_UNKNOWN_PATH = "none"


@dataclass(frozen=True)
class Settings:
    """How to run, as against what: nothing here decides a number. `trial`: only train and validate, to choose by."""

    results: Path = Path("results")
    resume: bool = False
    max_seconds: float | None = None
    device: str = "auto"
    quiet: bool = False
    command: str = ""
    numerics: Mode = "fast"
    resume_older: bool = False
    trial: bool = False


@dataclass(frozen=True)
class _Start:
    time: str
    numerics: dict[str, str]  # what is in force


def run(
    mechanism: str,
    task: str,
    *,
    seed: int = 0,
    regularizer: str | None = None,
    protocol: str = "quick",
    options: Mapping[str, Any] | None = None,
    results: str | Path = "results",
    resume: bool = False,
    max_seconds: float | None = None,
    device: str = "auto",
    numerics: Mode = "fast",
    quiet: bool = True,
) -> Record:
    """Trains and tests one cell and stores its record; the Python face of `attnbench run`.

    Args:
        options: as `--set`, e.g. {"block_size": 32, "sar.alpha": 0.5, "budget.steps": 100}.
        max_seconds: training time after which the run ends with the status `timeout`.
        numerics: fast or stock, see `attnbench.numerics`.

    Raises:
        AttnbenchError: a fault of the request. A run that fails gives a record with its status instead.
    """
    plan = make(mechanism, task, seed=seed, regularizer=regularizer, protocol=protocol, settings=options)
    if max_seconds is not None and not (isinstance(max_seconds, (int, float)) and max_seconds > 0):
        raise AttnbenchError(f"max_seconds is a time above 0, or None, got {max_seconds!r}")
    asked = {"seed": seed, "regularizer": regularizer, "protocol": protocol, "options": options}
    usual = {"seed": 0, "regularizer": None, "protocol": "quick", "options": None}
    changed = [f", {name}={value!r}" for name, value in asked.items() if value != usual[name]]
    command = f"attnbench.run({mechanism!r}, {task!r}{''.join(changed)})"
    settings = Settings(Path(results).expanduser(), resume, max_seconds, device, quiet, command, numerics)
    record, _ = execute(plan, settings)
    return record


def execute(plan: Plan, settings: Settings) -> tuple[Record, Path]:
    """Runs the plan; returns the record and where it was stored.

    Raises:
        AttnbenchError: a fault of the request or of the data, before training.
        NotWritten: the disk refuses the record or a checkpoint; what was trained until the last checkpoint is kept.
        Interrupted: SIGINT or SIGTERM; the checkpoint says how far it came.
    """
    if settings.trial and plan.tuned is None:
        raise AttnbenchError("a trial needs the grid it belongs to: --trial goes with --tuning")
    time = recording.now()
    with writing(settings.results):  # before hours of training, not after
        settings.results.mkdir(parents=True, exist_ok=True)
    # whatever draws from torch's own generators, the caller's are as before
    with applied(settings.numerics) as in_force, seeded(plan.seed, "run"):
        return _execute(plan, settings, _Start(time, in_force))


def rehearse(plan: Plan, device: str = "auto") -> dict[str, int | str | list[str]]:
    """Builds all but the data, as `run` would, and tells of the model.

    Raises:
        AttnbenchError: what `run` would refuse.
    """
    _check_device(device, plan)
    check_runnable(plan)
    model = _build(plan, plan.task.plugin.object)
    _check_path(plan, model, device)
    total, mixers = model.count_parameters()
    built: dict[str, int | str | list[str]] = {"attention path": _implementation(model), "params_total": total}
    built |= {"params_mixer": mixers, "params_plain": model.plain_parameters()}
    return built | ({"notes": notes} if (notes := _notes(plan, model)) else {})


def foresee(plan: Plan, data_key: str, device: str = "auto", *, build: bool = True) -> tuple[Subject, str | None]:
    """What the record of the run will say it is, and why the cell cannot run here, or None.

    Without `build` the mechanism is not built, so its path is not known.

    Raises:
        AttnbenchError: what `run` would refuse.
    """
    _check_device(device, plan)
    task: Task = plan.task.plugin.object
    try:
        check_runnable(plan)
        if not build:
            return subject_of(plan, _spec(plan, task, data_key, _UNKNOWN_PATH)), None
        model = _build(plan, task)
        _check_path(plan, model, device)
    except Unsupported as refusal:
        key = data.data_key(plan.task.plugin, plan.task.options)
        return subject_of(plan, _spec(plan, task, key, _UNKNOWN_PATH)), str(refusal)
    return subject_of(plan, _spec(plan, task, data_key, _implementation(model))), None


def _trainer(plan: Plan, settings: Settings) -> Trainer:
    """All that a run would train with, and no checkpoint."""
    _check_device(settings.device, plan)
    check_runnable(plan)
    task: Task = plan.task.plugin.object
    model = _build(plan, task)
    _check_path(plan, model, settings.device)
    prepared = data.load(plan.task.plugin, plan.task.options, workers=torch.get_num_threads())
    return Trainer(_job(plan, task, prepared, model, settings), quiet=True)


def probe(plan: Plan, device: str = "auto", numerics: Mode = "fast") -> Probe:
    """Two steps and one batch of an evaluation: what the run will take.

    Raises:
        AttnbenchError: what `run` would refuse.
    """
    with applied(numerics), seeded(plan.seed, "run"):
        trainer = _trainer(plan, Settings(device=device))
        parts = trainer.glance()
    budget, splits = plan.rules.budget, trainer.job.data.splits
    batches = {name: -(-len(split) // budget.eval_batch) for name, split in splits.items()}
    seconds = projected(
        *parts,
        steps=budget.steps,
        eval_every=budget.eval_every,
        batches=(batches["validation"], batches["test"]),
    )
    on_gpu = trainer.accelerator.device.type == "cuda"
    return Probe(seconds=seconds, measured=sum(parts), peak_bytes=judgement.peak_bytes(on_gpu))


def _execute(plan: Plan, settings: Settings, start: _Start) -> tuple[Record, Path]:
    _check_device(settings.device, plan)
    task: Task = plan.task.plugin.object
    try:
        check_runnable(plan)
        model = _build(plan, task)
        _check_path(plan, model, settings.device)
        for note in _notes(plan, model):
            say(note)
        prepared = data.load(plan.task.plugin, plan.task.options, workers=torch.get_num_threads())
    except Exception as error:
        refused = isinstance(error, Unsupported)
        if not (refused or is_out_of_memory(error)):
            raise
        spec = _spec(plan, task, data.data_key(plan.task.plugin, plan.task.options), _UNKNOWN_PATH)
        status: Status = "unsupported" if refused else "oom"
        reason = str(error) if refused else f"before the first step: {describe(error)}"
        return _store(plan, spec, settings, start, status=status, reason=reason)
    spec = _spec(plan, task, prepared.key, _implementation(model))
    checkpoint = _checkpoint(subject_of(plan, spec, settings.trial), settings)
    with checkpoint.held():
        if aside := checkpoint.set_aside():
            say(f"an unfinished run of this cell was not resumed; it is kept as {aside} (rename it back for --resume)")
        try:
            return _train(plan, task, prepared, model, spec, checkpoint, settings, start)
        except NotWritten as fault:
            raise NotWritten(f"{fault}{checkpoint.kept}") from None


def _train(
    plan: Plan, task: Task, prepared: data.TaskData, model: Model, spec: Spec, checkpoint: Checkpoint,
    settings: Settings, start: _Start,
) -> tuple[Record, Path]:  # fmt: skip
    """From the first step to the stored record."""
    with blame(f"{plan.label}: starting it failed"):
        trainer = Trainer(_job(plan, task, prepared, model, settings), checkpoint, settings.quiet)
        trainer.resume()
    status: Status = "ok"
    quality = predictions = why = None
    try:
        trainer.fit()
        if not settings.trial:
            predictions = trainer.test()
            quality = judgement.quality_of(task, prepared, trainer, predictions)
            status, why = judgement.judge(quality, predictions.scores)
    except Stopped as stopped:
        if stopped.status == "diverged":  # it would do so again
            checkpoint.remove()
        cost = judgement.cost_of(trainer, model)
        return _store(plan, spec, settings, start, stopped.status, stopped.reason, trainer=trainer, cost=cost)
    except (Interrupted, NotWritten):
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  a mechanism may fail in any way; the record says how and where
        if not is_out_of_memory(error):
            reason = f"step {trainer.step}: {describe(error)}"
            return _store(plan, spec, settings, start, "failed", reason, trainer=trainer)
        size, length = plan.rules.budget.batch // trainer.micro_batches, task.max_length(plan.task.options)
        reason = f"out of memory at step {trainer.step} with {size} x {length} tokens"
        if need := needed(error, judgement.peak_bytes(trainer.accelerator.device.type == "cuda")):
            reason += f"; it needs {need / 2**30:,.1f} GiB or more"
        return _store(plan, spec, settings, start, "oom", reason, trainer=trainer)
    stored = _store(
        plan, spec, settings, start, status, why,
        trainer=trainer, cost=judgement.cost_of(trainer, model), quality=quality, predictions=predictions,
    )  # fmt: skip
    checkpoint.remove()
    return stored


def _notes(plan: Plan, model: Model) -> list[str]:
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


def _check_device(device: str, plan: Plan) -> None:
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


def _build(plan: Plan, task: Task) -> Model:
    options = plan.task.options
    name, mechanism = plan.mechanism.plugin.name, plan.mechanism.plugin.object
    with blame(f"task {plan.task.plugin.name}"):
        head, vocab, length = task.head(options), task.vocab(options), task.max_length(options)
    with blame(f"mechanism {name}: building it failed"), seeded(plan.seed, "build"):
        return Model(plan.rules.model, mechanism, plan.mechanism.options, head, vocab, length)


def _check_path(plan: Plan, model: Model, device: str) -> None:
    """
    Raises:
        Unsupported: the execution path of the mechanism cannot run this cell on this device.
    """
    task: Task = plan.task.plugin.object
    shifted = any(choice.plugin.object.max_shift(choice.options) for choice in plan.regularizers)
    dtype = torch.bfloat16 if plan.rules.numerics.dtype == "bf16" else torch.float32
    where = torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
    if reason := model.refusal(task.max_length(plan.task.options), plan.masked or shifted, dtype, where):
        raise Unsupported(f"{plan.mechanism.plugin.name}: {reason}")


def _implementation(model: Model) -> str:
    return str(getattr(model.encoder.layers[0].mixer, "implementation", "module"))


def _spec(plan: Plan, task: Task, data_key: str, implementation: str) -> Spec:
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


def _checkpoint(subject: Subject, settings: Settings) -> Checkpoint:
    return Checkpoint(
        path=Store(settings.results).unfinished(subject.identity)[0],
        identity=subject.identity,
        question=question(subject.spec, subject.seed),
        resume=settings.resume or settings.resume_older,
        older=settings.resume_older,
    )


def _job(plan: Plan, task: Task, prepared: data.TaskData, model: Model, settings: Settings) -> Job:
    return Job(
        model=model,
        data=prepared,
        question=question_of(task.head(plan.task.options)),
        padded=task.padded,
        max_length=task.max_length(plan.task.options),
        budget=plan.rules.budget,
        numerics=plan.rules.numerics,
        padding=plan.rules.padding,
        regularizers=[regularizer_of(choice) for choice in plan.regularizers],
        seed=plan.seed,
        device=settings.device,
        max_seconds=settings.max_seconds,
    )


def subject_of(plan: Plan, spec: Spec, trial: bool = False) -> Subject:
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


def _store(
    plan: Plan, spec: Spec, settings: Settings, start: _Start, status: Status, reason: str | None = None,
    *, trainer: Trainer | None = None, cost: Cost | None = None, quality: Quality | None = None,
    predictions: Predictions | None = None,
) -> tuple[Record, Path]:  # fmt: skip
    return recording.store(
        settings.results, subject_of(plan, spec, settings.trial), status, reason, started=start.time,
        command=settings.command, numerics=start.numerics, curve=trainer.curve if trainer else [], cost=cost,
        quality=quality, predictions=predictions.stored if predictions else None,
    )  # fmt: skip
