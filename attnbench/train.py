"""One training under a budget: curve, best weights by validation, one reading of the test split."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor

from attnbench.batches import Batches
from attnbench.checkpoint import Checkpoint
from attnbench.config import Budget, Numerics, Padding
from attnbench.contracts import Loss, Regularizer
from attnbench.data import TaskData
from attnbench.diagnosis import first_non_finite
from attnbench.errors import AttnbenchError, describe
from attnbench.estimate import seconds_of_a_call
from attnbench.memory import in_parts
from attnbench.model import Model
from attnbench.passes import Passes
from attnbench.progress import Bar, say
from attnbench.questions import Predictions, Question
from attnbench.randomness import initialise, key
from attnbench.record import CurvePoint, Status
from attnbench.signals import heard

Penalty = Callable[[Any, Tensor, Tensor], Loss]
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """All that one training needs. `regularizers` are (contract, options) pairs."""

    model: Model
    data: TaskData
    question: Question
    padded: bool
    max_length: int
    budget: Budget
    numerics: Numerics
    padding: Padding
    regularizers: list[tuple[Regularizer, Any]]
    seed: int
    device: str = "auto"
    max_seconds: float | None = None

    def batches(self, split: str) -> Batches:
        return Batches(self.data.splits[split], self.question, self.padding, self.padded, self.max_length)

    def judged(self, split: str, said: list[dict[str, np.ndarray]], loss: float) -> Predictions:
        """What was said to all batches of a split, with its scores."""
        answers = {name: np.concatenate([part[name] for part in said]) for name in said[0]}
        return self.question.judge(self.data.splits[split], answers, loss)


class Stopped(Exception):
    """The run ended before its last step, with this status of a record."""

    def __init__(self, status: Status, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


class Interrupted(Exception):
    """A signal ended the run; the checkpoint says how far it came."""


@dataclass
class Trainer:
    """The loop. What a resumed run needs is in the model, the optimizer and the fields below; none is random state.

    `micro_batches` are those of a step, at the least the budget's `accumulate`, and more where memory asked for it.
    """

    job: Job
    checkpoint: Checkpoint | None = None
    quiet: bool = False
    step: int = 0
    curve: list[CurvePoint] = field(default_factory=list)
    best_step: int = -1
    best_validation: float = -math.inf
    seconds: float = 0.0
    micro_batches: int = 0
    _loss_sum: float = 0.0
    _loss_steps: int = 0
    _stop_signal: int | None = None

    def __post_init__(self) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)  # a process may train several cells
        precision = "bf16" if self.job.numerics.dtype == "bf16" else "no"
        self.accelerator = Accelerator(mixed_precision=precision, cpu=self.job.device == "cpu")
        initialise(self.job.model, self.job.seed)
        self.model: Model = self.job.model
        b = self.job.budget
        parameters = [p for p in self.model.parameters() if p.numel()]
        self._raw_optimizer = torch.optim.AdamW(
            parameters, lr=b.lr, betas=(b.beta1, b.beta2), eps=b.eps, weight_decay=b.weight_decay, fused=True
        )
        self.run_model, self.optimizer = self.accelerator.prepare(self.model, self._raw_optimizer)
        self.losses = [regularizer.loss(options) for regularizer, options in self.job.regularizers]
        self.best_weights = self._weights()
        self.micro_batches = self.micro_batches or b.accumulate
        self._eval_parts = 1

    def resume(self) -> None:
        """Goes back to what the checkpoint holds, when it is to be resumed."""
        if self.checkpoint and (state := self.checkpoint.read()):
            try:
                self._restore(state)
            except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                what, then = describe(error), self.checkpoint.way_out
                raise AttnbenchError(f"{self.checkpoint.path}: damaged ({what}); {then}") from error

    def fit(self) -> None:
        """Trains to the last step, or raises `Stopped`; either way the checkpoint holds what was done."""
        budget, started = self.job.budget, time.monotonic() - self.seconds
        with (
            heard((signal.SIGINT, signal.SIGTERM), self._told),
            Bar("training", budget.steps, self.step, self.quiet) as bar,
        ):
            self._validate_when_due()
            while self.step < budget.steps:
                loss = self._train_step()
                self.seconds = time.monotonic() - started
                self._validate_when_due()
                shown = f"validation {self.curve[-1].validation:.3f}" if self.curve else ""
                rate = self.step * budget.batch / max(self.seconds, 1e-9)
                bar.advance(note=f"loss {loss:.3f} {shown} {rate:.0f} samples/s")
                self._check_limits()

    def test(self) -> Predictions:
        """The test split with the weights of the best validation, or of the last step where the budget says so."""
        self.model.load_state_dict(self.best_weights)
        return self.predict("test")

    def _train_step(self) -> float:
        """One update; returns the mean loss of its micro-batches."""
        return in_parts(self._update, self.micro_batches, self.job.budget.batch, self._split)

    def _split(self, micro_batches: int) -> None:
        size = self.job.budget.batch // micro_batches
        say(f"step {self.step}: memory does not hold the batch; from here on in micro-batches of {size}")
        self.micro_batches = micro_batches
        self.optimizer.zero_grad()

    def _update(self, micro_batches: int) -> float:
        job, budget = self.job, self.job.budget
        for group in self.optimizer.param_groups:
            group["lr"] = budget.learning_rate(self.step)
        self.model.train()
        batches, total = job.batches("train"), 0.0
        torch.manual_seed(key(job.seed, "plugin", self.step))  # for randomness a plugin brings itself
        parts = np.split(batches.drawn(job.seed, budget.batch, self.step), micro_batches)
        runs = [Passes(self, batches.collate(part), micro) for micro, part in enumerate(parts)]
        predictions = sum(len(run.labels) for run in runs)
        for run in runs:
            if not len(run.labels):
                continue
            loss = run.loss() * (len(run.labels) / predictions)
            if not torch.isfinite(loss):
                raise self._diverged(run, f"loss is {loss.item()}")
            self.accelerator.backward(loss)
            total += loss.item()
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), budget.clip or math.inf)
        if not torch.isfinite(norm):
            raise self._diverged(run, f"gradient norm is {norm.item()}")
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self._loss_sum, self._loss_steps = self._loss_sum + total, self._loss_steps + 1
        return total

    def _diverged(self, run: Passes, what: str) -> Stopped:
        return Stopped("diverged", f"step {self.step}: {what}; {first_non_finite(self.model, run.forward)}")

    def _validate_when_due(self) -> None:
        """After every `eval_every` steps and after the last; also when the run was stopped while it validated."""
        due = self.step and (self.step % self.job.budget.eval_every == 0 or self.step == self.job.budget.steps)
        if due and not (self.curve and self.curve[-1].step == self.step):
            self._validate()
            self._save()

    def _validate(self) -> None:
        found = self.predict("validation")
        score = float(found.scores.mean())
        self.curve.append(
            CurvePoint(
                step=self.step,
                examples=self.step * self.job.budget.batch,
                loss=self._loss_sum / max(1, self._loss_steps),
                validation=score,
                validation_loss=found.loss,
            )
        )
        self._loss_sum, self._loss_steps = 0.0, 0
        if self.job.budget.select == "last" or score > self.best_validation:
            self.best_step, self.best_validation, self.best_weights = self.step, score, self._weights()

    def predict(self, split: str) -> Predictions:
        """Every example once."""
        return self.in_batches(lambda size: self._predict(split, size))

    def in_batches(self, work: Callable[[int], T]) -> T:
        """An evaluation in batches as large as the budget's or as memory allows; `work` is told how large."""
        size = self.job.budget.eval_batch
        return in_parts(lambda parts: work(size // parts), self._eval_parts, size, self._split_evaluation)

    def _split_evaluation(self, parts: int) -> None:
        size = self.job.budget.eval_batch // parts
        say(f"memory does not hold a batch of the evaluation; from here on in batches of {size}")
        self._eval_parts = parts

    @torch.no_grad()
    def _predict(self, split: str, size: int) -> Predictions:
        job, said, loss_sum, count = self.job, [], 0.0, 0
        for run in self.read(split, size):
            logits = run.raw()
            loss_sum += F.cross_entropy(run.join(logits), run.labels, reduction="sum").item()
            count += len(run.labels)
            if not math.isfinite(loss_sum):
                raise self._diverged(run, f"evaluation loss is {loss_sum}")
            said.append(job.question.say(logits.cpu().numpy(), run.asked))
        return job.judged(split, said, loss_sum / count)

    def read(self, split: str, size: int) -> Iterator[Passes]:
        """The batches of a split in order, for an evaluation."""
        self.model.eval()
        torch.manual_seed(key(self.job.seed, "plugin", "evaluation"))
        for batch in self.job.batches(split).in_order(size):
            self._stop_when_told()
            yield Passes(self, batch, 0)

    def glance(self) -> tuple[float, float, float]:
        """Seconds of a first step, of a later one, and of one batch of an evaluation. The trainer is spent by it."""
        began = time.monotonic()
        self._train_step()
        first = time.monotonic() - began
        step = seconds_of_a_call(self._train_step)
        self.model.eval()
        with torch.no_grad():
            batch = next(self.job.batches("validation").in_order(self.job.budget.eval_batch))
            return first, step, seconds_of_a_call(lambda: Passes(self, batch, 0).raw().cpu())

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _stop_when_told(self) -> None:
        if self._stop_signal is not None:
            self._save()
            raise Interrupted(f"stopped by {signal.Signals(self._stop_signal).name} after step {self.step}")

    def _check_limits(self) -> None:
        self._stop_when_told()
        limit = self.job.max_seconds
        if limit is not None and self.seconds > limit and self.step < self.job.budget.steps:
            self._save()
            raise Stopped("timeout", f"{self.seconds:.0f} s of {limit:.0f} s used at step {self.step}")

    def _told(self, number: int) -> None:
        """The first SIGINT or SIGTERM ends the loop after the present step; a second SIGINT ends it at once."""
        if self._stop_signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._stop_signal = number

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        tensors = {f"model.{name}": value for name, value in self._weights().items()}
        tensors |= {f"best.{name}": value for name, value in self.best_weights.items()}
        for index, state in self._raw_optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
        self.checkpoint.write(
            tensors,
            {
                "step": self.step,
                "curve": [point.model_dump() for point in self.curve],
                "best_step": self.best_step,
                "best_validation": self.best_validation if self.curve else None,
                "seconds": self.seconds,
                "micro_batches": self.micro_batches,
                "loss_sum": self._loss_sum,
                "loss_steps": self._loss_steps,
            },
        )

    def _restore(self, state: tuple[dict[str, Tensor], dict[str, Any]]) -> None:
        tensors, values = state

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        self.model.load_state_dict(part("model."))
        self.best_weights = part("best.")
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in part("optimizer.").items():
            index, _, field_name = name.partition(".")
            moments.setdefault(int(index), {})[field_name] = value
        self._raw_optimizer.load_state_dict({**self._raw_optimizer.state_dict(), "state": moments})
        self.step, self.seconds = values["step"], values["seconds"]
        self.micro_batches = max(self.micro_batches, values["micro_batches"])
        self.curve = [CurvePoint.model_validate(point) for point in values["curve"]]
        self.best_step = values["best_step"]
        self.best_validation = -math.inf if values["best_validation"] is None else values["best_validation"]
        self._loss_sum, self._loss_steps = values["loss_sum"], values["loss_steps"]
