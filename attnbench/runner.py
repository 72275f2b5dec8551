"""One run: plan -> data -> training -> record in the store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnbench import assembly, data, judgement, recording, shifts
from attnbench.checkpoint import Checkpoint
from attnbench.contracts import Task
from attnbench.difference import question
from attnbench.errors import AttnbenchError, Unsupported, blame, describe, is_out_of_memory
from attnbench.estimate import Probe, projected
from attnbench.files import NotWritten, writing
from attnbench.memory import needed
from attnbench.model import Model
from attnbench.numerics import Mode, applied
from attnbench.plan import Plan, make
from attnbench.progress import say
from attnbench.questions import Predictions
from attnbench.randomness import seeded
from attnbench.record import Cost, Quality, Record, ShiftPoint, Spec, Status
from attnbench.recording import Subject
from attnbench.refusals import check_runnable
from attnbench.store import Store
from attnbench.train import Interrupted, Stopped, Trainer


@dataclass(frozen=True)
class Settings:
    """How to run, as against what: nothing here decides a number. `trial`: only train and validate, to choose by.
    `test_shifts`: test once more with the input moved by 1 to so many rows.
    """

    results: Path = Path("results")
    resume: bool = False
    max_seconds: float | None = None
    device: str = "auto"
    quiet: bool = False
    command: str = ""
    numerics: Mode = "fast"
    resume_older: bool = False
    trial: bool = False
    test_shifts: int = 0


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
    test_shifts: int = 0,
    quiet: bool = True,
) -> Record:
    """Trains and tests one cell and stores its record; the Python face of `attnbench run`.

    Args:
        options: as `--set`, e.g. {"block_size": 32, "sar.alpha": 0.5, "budget.steps": 100}.
        max_seconds: training time after which the run ends with the status `timeout`.
        numerics: fast or stock, see `attnbench.numerics`.
        test_shifts: the trained model is also tested with its input moved right by 1 to so many masked rows; see
            `Record.shifts`.

    Raises:
        AttnbenchError: a fault of the request. A run that fails gives a record with its status instead.
    """
    plan = make(mechanism, task, seed=seed, regularizer=regularizer, protocol=protocol, settings=options)
    if max_seconds is not None and not (isinstance(max_seconds, (int, float)) and max_seconds > 0):
        raise AttnbenchError(f"max_seconds is a time above 0, or None, got {max_seconds!r}")
    if not isinstance(test_shifts, int) or isinstance(test_shifts, bool) or test_shifts < 0:
        raise AttnbenchError(f"test_shifts is a whole number from 0 on, got {test_shifts!r}")
    asked = {"seed": seed, "regularizer": regularizer, "protocol": protocol, "options": options}
    asked |= {"test_shifts": test_shifts}
    usual = {"seed": 0, "regularizer": None, "protocol": "quick", "options": None, "test_shifts": 0}
    changed = [f", {name}={value!r}" for name, value in asked.items() if value != usual[name]]
    command = f"attnbench.run({mechanism!r}, {task!r}{''.join(changed)})"
    settings = Settings(
        Path(results).expanduser(), resume, max_seconds, device, quiet, command, numerics, test_shifts=test_shifts
    )
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
    if settings.trial and settings.test_shifts:
        raise AttnbenchError("a trial tests nothing: leave out --test-shifts")
    time = recording.now()
    with writing(settings.results):  # before hours of training, not after
        settings.results.mkdir(parents=True, exist_ok=True)
    # whatever draws from torch's own generators, the caller's are as before
    with (
        applied(settings.numerics, assembly.device_of(settings.device).type == "cpu") as in_force,
        seeded(plan.seed, "run"),
    ):
        return _execute(plan, settings, _Start(time, in_force))


def rehearse(plan: Plan, device: str = "auto", test_shifts: int = 0) -> dict[str, int | str | list[str]]:
    """Builds all but the data, as `run` would, and tells of the model.

    Raises:
        AttnbenchError: what `run` would refuse.
    """
    model = assembly.ready(plan, device, test_shifts)
    total, mixers = model.count_parameters()
    built: dict[str, int | str | list[str]] = {"attention path": assembly.implementation(model), "params_total": total}
    built |= {"params_mixer": mixers, "params_plain": model.plain_parameters()}
    return built | ({"notes": found} if (found := assembly.notes(plan, model)) else {})


def foresee(
    plan: Plan, data_key: str, device: str = "auto", *, build: bool = True, test_shifts: int = 0
) -> tuple[Subject, str | None]:
    """What the record of the run will say it is, and why the cell cannot run here, or None.

    Without `build` the mechanism is not built, so its path is not known.

    Raises:
        AttnbenchError: what `run` would refuse.
    """
    try:
        if not build:
            assembly.check_device(device, plan, test_shifts)
            check_runnable(plan, test_shifts)
            return assembly.subject_of(plan, assembly.spec_of(plan, data_key, assembly.UNKNOWN_PATH)), None
        model = assembly.ready(plan, device, test_shifts)
    except Unsupported as refusal:
        key = data.data_key(plan.task.plugin, plan.task.options)
        return assembly.subject_of(plan, assembly.spec_of(plan, key, assembly.UNKNOWN_PATH)), str(refusal)
    return assembly.subject_of(plan, assembly.spec_of(plan, data_key, assembly.implementation(model))), None


def _trainer(plan: Plan, settings: Settings) -> Trainer:
    """All that a run would train with, and no checkpoint."""
    model = assembly.ready(plan, settings.device, settings.test_shifts)
    prepared = data.load(plan.task.plugin, plan.task.options, workers=torch.get_num_threads())
    return Trainer(assembly.job_of(plan, prepared, model, settings.device, settings.max_seconds), quiet=True)


def probe(plan: Plan, device: str = "auto", numerics: Mode = "fast", test_shifts: int = 0) -> Probe:
    """A few steps and batches of an evaluation: what the run will take.

    Raises:
        AttnbenchError: what `run` would refuse.
    """
    with applied(numerics, assembly.device_of(device).type == "cpu"), seeded(plan.seed, "run"):
        trainer = _trainer(plan, Settings(device=device, test_shifts=test_shifts))
        began = time.monotonic()
        parts = trainer.glance()
        measured = time.monotonic() - began
    budget, splits = plan.rules.budget, trainer.job.data.splits
    batches = {name: -(-len(split) // budget.eval_batch) for name, split in splits.items()}
    seconds = projected(
        *parts,
        steps=budget.steps,
        eval_every=budget.eval_every,
        batches=(batches["validation"], batches["test"] * shifts.readings(test_shifts)),
    )
    on_gpu = trainer.accelerator.device.type == "cuda"
    return Probe(seconds=seconds, measured=measured, peak_bytes=judgement.peak_bytes(on_gpu))


def _execute(plan: Plan, settings: Settings, start: _Start) -> tuple[Record, Path]:
    task: Task = plan.task.plugin.object
    try:
        model = assembly.ready(plan, settings.device, settings.test_shifts)
        for note in assembly.notes(plan, model):
            say(note)
        prepared = data.load(plan.task.plugin, plan.task.options, workers=torch.get_num_threads())
    except Exception as error:
        refused = isinstance(error, Unsupported)
        if not (refused or is_out_of_memory(error)):
            raise
        spec = assembly.spec_of(plan, data.data_key(plan.task.plugin, plan.task.options), assembly.UNKNOWN_PATH)
        status: Status = "unsupported" if refused else "oom"
        reason = str(error) if refused else f"before the first step: {describe(error)}"
        return _store(plan, spec, settings, start, status=status, reason=reason)
    spec = assembly.spec_of(plan, prepared.key, assembly.implementation(model))
    checkpoint = _checkpoint(assembly.subject_of(plan, spec, settings.trial), settings)
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
        trainer = Trainer(
            assembly.job_of(plan, prepared, model, settings.device, settings.max_seconds), checkpoint, settings.quiet
        )
        trainer.resume()
    status: Status = "ok"
    quality = predictions = why = None
    points: list[ShiftPoint] = []
    try:
        trainer.fit()
        if not settings.trial:
            predictions = trainer.test()
            quality = judgement.quality_of(task, prepared, trainer, predictions)
            status, why = judgement.judge(quality, predictions.scores)
        cost = judgement.cost_of(trainer, model)  # before anything that was asked for beside the test
        points = shifts.measure(trainer, range(1, settings.test_shifts + 1))
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
        trainer=trainer, cost=cost, quality=quality, points=points, predictions=predictions,
    )  # fmt: skip
    checkpoint.remove()
    return stored


def _checkpoint(subject: Subject, settings: Settings) -> Checkpoint:
    return Checkpoint(
        path=Store(settings.results).unfinished(subject.identity)[0],
        identity=subject.identity,
        question=question(subject.spec, subject.seed),
        resume=settings.resume or settings.resume_older,
        older=settings.resume_older,
    )


def _store(
    plan: Plan, spec: Spec, settings: Settings, start: _Start, status: Status, reason: str | None = None,
    *, trainer: Trainer | None = None, cost: Cost | None = None, quality: Quality | None = None,
    points: Sequence[ShiftPoint] = (), predictions: Predictions | None = None,
) -> tuple[Record, Path]:  # fmt: skip
    return recording.store(
        settings.results, assembly.subject_of(plan, spec, settings.trial), status, reason, started=start.time,
        command=settings.command, numerics=start.numerics, curve=trainer.curve if trainer else [], cost=cost,
        quality=quality, shifts=points, predictions=predictions.arrays if predictions else None,
    )  # fmt: skip
