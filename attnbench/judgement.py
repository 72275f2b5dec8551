"""What came out of a training: the quality of the test predictions, the status they earn, and what it cost."""

from __future__ import annotations

import resource
import sys

import numpy as np
import torch

from attnbench import data, statistics
from attnbench.contracts import Task
from attnbench.model import Model
from attnbench.questions import Predictions
from attnbench.record import Cost, Quality, Status
from attnbench.train import Trainer


def quality_of(task: Task, prepared: data.TaskData, trainer: Trainer, predictions: Predictions) -> Quality:
    scores = predictions.scores
    mean, low, high = statistics.score_interval(scores)
    return Quality(
        metric=task.metric,
        selected_on="validation" if trainer.job.budget.select == "best" else "last step",
        best_step=trainer.best_step,
        validation=trainer.best_validation,
        test=mean,
        interval=(low, high),
        examples=len(scores),
        predictions=predictions.count,
        more=predictions.more,
        controls=[task.controls.positive, task.controls.negative] if task.controls else [],
        chance=prepared.card["chance"],
        trivial=prepared.card["trivial"],
        p_above_chance=statistics.p_above(scores, prepared.card["chance"]),
    )


def judge(quality: Quality, scores: np.ndarray) -> tuple[Status, str | None]:
    level = statistics.ABOVE_CHANCE_LEVEL
    score = f"test score {quality.test:.3f} is not above"
    if quality.p_above_chance >= level:
        return "not_above_chance", f"{score} chance, {quality.chance:.3f}, at the {level} level"
    name, trivial = max(quality.trivial.items(), key=lambda item: item[1], default=("", 0.0))
    if name and statistics.p_above(scores, trivial) >= level:
        return "trivial", f"{score} the trivial predictor {name}, {trivial:.3f}, at the {level} level"
    return "ok", None


def cost_of(trainer: Trainer, model: Model) -> Cost:
    total, mixers = model.count_parameters()
    on_gpu = trainer.accelerator.device.type == "cuda"
    seconds = max(trainer.seconds, 1e-9)
    return Cost(
        params_total=total,
        params_mixer=mixers,
        params_plain=model.plain_parameters(),
        micro_batches=trainer.micro_batches,
        train_seconds=round(trainer.seconds, 3),
        samples_per_second=round(trainer.step * trainer.job.budget.batch / seconds, 3),
        peak_bytes=peak_bytes(on_gpu),
        peak_how="CUDA allocator, whole process" if on_gpu else "resident set, whole process",
    )


def peak_bytes(on_gpu: bool) -> int:
    """Of this process so far: on the GPU by its allocator, else resident."""
    if on_gpu:
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
