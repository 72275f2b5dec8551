"""What the cells of a suite will be, before any of them runs: label, spec, refusal.

Plugins are anybody's code, so `take_apart` does it in a process of its own: a mechanism that ends its process when it
is built costs its cell and not the sweep.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from attnbench import suite as suites
from attnbench.errors import AttnbenchError, Terminated, Unsupported, describe, is_out_of_memory
from attnbench.executor import cores, ending
from attnbench.record import Tuning, canonical
from attnbench.recording import Subject
from attnbench.suite import Asked, Suite, as_text

_BUILDING = "building "


class Variant(BaseModel, frozen=True):
    """A cell with values of the grid, {} without tuning. The subject is that of seed 0."""

    values: dict[str, Any]
    subject: Subject


class Planned(BaseModel, frozen=True):
    """A cell. Where a plugin could not be loaded it has a refusal and no variant."""

    mechanism: str
    task: str
    regularizer: str | None
    settings: tuple[tuple[str, str], ...]
    own: tuple[tuple[str, str], ...]
    label: str
    refusal: str | None
    variants: tuple[Variant, ...]

    @property
    def task_name(self) -> str:
        return self.variants[0].subject.spec.task.name if self.variants else self.task

    def group(self, share: Collection[str]) -> str:
        """Equal for cells that differ in these settings only."""
        rest = [(key, value) for key, value in self.settings if key not in share]
        return canonical([self.mechanism, self.task, self.regularizer, sorted(rest)])

    @property
    def detail(self) -> str:
        """What sets this cell apart besides its label and task."""
        return " ".join(f"{key}={value}" for key, value in self.own)


class Survey(BaseModel, frozen=True):
    """`duplicates`: cells that were asked for twice, by whatever name. `gpus`: how many a run could use."""

    cells: tuple[Planned, ...]
    duplicates: int = 0
    gpus: int = 0


class _Request(BaseModel):
    suite: str
    protocol: str | None
    device: str
    prepare: bool
    unbuilt: set[str] = set()


def take(
    suite: Suite, device: str = "auto", *, prepare: bool = True, unbuilt: set[str] | frozenset[str] = frozenset(),
    at: Callable[[str], None] = lambda where: None,
) -> Survey:  # fmt: skip
    """Loads the plugins, prepares the data that is not there yet (with `prepare`), and builds every mechanism once.

    Cells whose titles are in `unbuilt` are not built. `at` is told what comes next.

    Raises:
        AttnbenchError: a plugin, setting or combination that cannot be, or data that cannot be prepared.
    """
    import torch

    cells: list[Planned] = []
    seen: set[str] = set()
    asked = suites.expand(suite, at)
    for one in asked:
        found = _look(suite, one, device, prepare, one.title not in unbuilt, at)
        key = found.variants[0].subject.spec.hash if found.variants else one.title
        if key not in seen:
            cells.append(found)
        seen.add(key)
    gpus = torch.cuda.device_count() if device != "cpu" else 0
    return Survey(cells=tuple(cells), duplicates=len(asked) - len(cells), gpus=gpus)


def _look(suite: Suite, asked: Asked, device: str, prepare: bool, build: bool, at: Callable[[str], None]) -> Planned:
    if asked.refusal is not None:
        return _planned(asked, Path(asked.mechanism).stem, asked.refusal, [])
    try:
        return _variants(suite, asked, device, prepare, build, at)
    except AttnbenchError as fault:
        raise AttnbenchError(f"{asked.title}: {fault}") from None


def _variants(
    suite: Suite, asked: Asked, device: str, prepare: bool, build: bool, at: Callable[[str], None]
) -> Planned:
    """The path is a matter of the mechanism and its options, so that one variant is built and says it for all."""
    from attnbench import plan as plans
    from attnbench.runner import foresee

    tuning: Tuning | None = suite.tuning
    variants: list[Variant] = []
    refusal = None
    for values in tuning.points if tuning else [{}]:
        settings = dict((*asked.settings, *as_text(values)))
        plan = plans.make(
            asked.mechanism, asked.task, regularizer=asked.regularizer, protocol=suite.where(suite.protocol),
            settings=settings, tuning=tuning,
        )  # fmt: skip
        key = _data_key(plan, suite.test_shifts, prepare, at)
        at(_BUILDING + asked.title)
        try:
            subject, reason = foresee(plan, key, device, build=build and not variants, test_shifts=suite.test_shifts)
        except Exception as error:
            if not is_out_of_memory(error):  # in a process of its own it may fit
                raise
            subject, reason = foresee(plan, key, device, build=False, test_shifts=suite.test_shifts)
        if not variants:
            refusal = reason
        else:
            spec = subject.spec
            path = variants[0].subject.spec.mechanism.implementation
            mechanism = spec.mechanism.model_copy(update={"implementation": path})
            subject = subject.model_copy(update={"spec": spec.model_copy(update={"mechanism": mechanism})})
        variants.append(Variant(values=plan.tuned.chosen if plan.tuned else {}, subject=subject))
    return _planned(asked, variants[0].subject.label, refusal, variants)


def _planned(asked: Asked, label: str, refusal: str | None, variants: list[Variant]) -> Planned:
    return Planned(
        mechanism=asked.mechanism, task=asked.task, regularizer=asked.regularizer, settings=asked.settings,
        own=asked.own, label=label, refusal=refusal, variants=tuple(variants),
    )  # fmt: skip


def _data_key(plan: Any, test_shifts: int, prepare: bool, at: Callable[[str], None]) -> str:
    """Of a cell that can run: as its data is, or would be."""
    from attnbench import data
    from attnbench.refusals import check_runnable

    task, options = plan.task.plugin, plan.task.options
    try:
        check_runnable(plan, test_shifts)
    except Unsupported:
        return ""
    if not prepare and data.card(task, options) is None:
        return data.data_key(task, options)
    at(f"preparing {task.name}")
    return data.load(task, options, workers=cores()).key


def take_apart(reference: str, device: str = "auto", *, prepare: bool = True, protocol: str | None = None) -> Survey:
    """`take` in a process of its own, again without the mechanism that ended it.

    Raises:
        AttnbenchError: besides, the process ended while it loaded plugins or prepared data.
    """
    request = _Request(suite=reference, protocol=protocol, device=device, prepare=prepare)
    while True:
        with tempfile.TemporaryDirectory(prefix="attnbench-") as scratch:
            code = _call(request, Path(scratch))
            result, place = Path(scratch, "result"), Path(scratch, "at")
            if result.is_file():
                found = json.loads(result.read_text("utf-8"))
                if "fault" in found:
                    raise AttnbenchError(found["fault"])
                return Survey.model_validate(found)
            at = place.read_text("utf-8") if place.is_file() else "starting"
        title = at.removeprefix(_BUILDING)
        if title == at or title in request.unbuilt:
            raise AttnbenchError(f"{reference}: {at} ended the process ({ending(code)})")
        request.unbuilt.add(title)


def _call(request: _Request, scratch: Path) -> int:
    command = [sys.executable, "-P", "-m", "attnbench.survey", request.model_dump_json(), str(scratch)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
    try:
        return process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise


def _main(request: str, folder: str) -> None:
    scratch = Path(folder)
    wanted = _Request.model_validate_json(request)

    def at(where: str) -> None:
        (scratch / "at").write_text(where, "utf-8")

    try:
        suite = suites.load(wanted.suite, wanted.protocol)
        found: dict[str, Any] = take(
            suite, wanted.device, prepare=wanted.prepare, unbuilt=wanted.unbuilt, at=at
        ).model_dump(mode="json")
    except (Exception, Terminated) as fault:  # noqa: BLE001  plugins may fail in any way
        found = {"fault": f"{wanted.suite}: {describe(fault)}".removeprefix(f"{wanted.suite}: {wanted.suite}: ")}
    (scratch / "result").write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
