"""What a sweep will take, before it starts: by short probes, one for every cell that has runs left."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from attnbench import machine
from attnbench.estimate import Probe, in_words, makespan
from attnbench.executor import Ended, Job
from attnbench.outcomes import Run
from attnbench.progress import Bar
from attnbench.screen import listing
from attnbench.survey import Variant
from attnbench.sweep import Sweep, printed


@dataclass(frozen=True)
class Forecast:
    """Of one cell: runs and trials that are left, and how many were done or kept as they had ended.

    `seconds` and `peak_bytes` are of one run; None where nothing is left or was measured. `fault` says what went wrong.
    """

    label: str
    task: str
    settings: str
    runs: int
    trials: int
    done: int
    kept: int
    seconds: float | None = None
    peak_bytes: int | None = None
    fault: str | None = None


def take(sweep: Sweep, *, probe: bool) -> list[Forecast]:
    """One for every cell. Without `probe`, times are those of earlier runs. The sweep is not to be run afterwards."""
    sweep.settle()
    found = [_counts(sweep, place) for place in range(len(sweep.survey.cells))]
    left = [place for place, one in enumerate(found) if one.runs + one.trials and not one.fault]
    if probe:
        for place, ended in _probe(sweep, left).items():
            found[place] = _with_probe(found[place], ended)
    else:
        for place in left:
            if seconds := sweep.history.seconds.get(place):
                found[place] = replace(found[place], seconds=statistics.fmean(seconds))
    return found


def _counts(sweep: Sweep, place: int) -> Forecast:
    cell = sweep.survey.cells[place]
    left = [run for run in sweep.pending if run.cell == place]
    known = [out.how for run, out in sweep.outcomes.items() if run.cell == place and run.trial is None]
    return Forecast(
        label=cell.label,
        task=cell.task_name,
        settings=cell.detail,
        runs=sum(run.trial is None for run in left),
        trials=sum(run.trial is not None for run in left),
        done=known.count("done"),
        kept=known.count("kept"),
        fault=cell.refusal and f"unsupported: {cell.refusal}",
    )


def _probe(sweep: Sweep, places: Sequence[int]) -> dict[int, Ended]:
    """As many at once as runs will be, so that they share the machine as the runs will."""
    waiting = list(places)
    ended: dict[int, Ended] = {}
    with Bar("probing", len(places)) as bar:
        try:
            while len(ended) < len(places):
                while waiting and len(places) - len(waiting) - len(ended) < sweep.executor.workers:
                    sweep.executor.start(_job(sweep, waiting.pop(0)))
                for one in sweep.executor.wait(1.0):
                    ended[int(one.job.name)] = one
                    bar.advance()
        except BaseException:
            sweep.executor.kill()
            raise
    return ended


def _job(sweep: Sweep, place: int) -> Job:
    run = next(run for run in sweep.pending if run.cell == place)
    variant = sweep.variant(run)
    if not isinstance(variant, Variant):
        variant = sweep.survey.cells[place].variants[0]
    return Job(str(place), (*sweep.words(replace(run, trial=None), variant), "--dry-run", "--probe"))


def _with_probe(one: Forecast, ended: Ended) -> Forecast:
    try:
        probe = Probe.model_validate(printed(ended.output)["probe"])
    except (ValueError, KeyError):
        return replace(one, fault=f"the probe ended with code {ended.code}: {ended.last_line}")
    return replace(one, seconds=ended.seconds - probe.measured + probe.seconds, peak_bytes=probe.peak_bytes)


def total(sweep: Sweep, found: Sequence[Forecast], runs: Sequence[Run] | None = None) -> float | None:
    """Seconds until these runs are done, all that are left by default; what could not be measured counts as usual."""
    known = [one.seconds for one in found if one.seconds is not None]
    if not known:
        return None
    usual = statistics.fmean(known)
    left = [run for run in (sweep.pending if runs is None else runs) if sweep.survey.cells[run.cell].refusal is None]
    each = (found[run.cell].seconds for run in left)
    return makespan([], [usual if seconds is None else seconds for seconds in each], sweep.executor.workers)


def seeds_within(sweep: Sweep, found: Sequence[Forecast], budget: float) -> list[int]:
    """The seeds that a budget would begin and end."""
    fitting: list[int] = []
    for seed in sweep.suite.seeds:
        runs = [run for run in sweep.pending if run.trial is not None or run.seed in (*fitting, seed)]
        need = total(sweep, found, runs)
        if need is not None and need > budget:
            break
        fitting.append(seed)
    return fitting


def table(found: Sequence[Forecast]) -> Table:
    header = ["mechanism", "task", "runs", "trials", "done", "kept", "a run takes", "peak memory", ""]
    rows = [
        [
            one.label,
            one.task,
            *(str(count or "") for count in (one.runs, one.trials, one.done, one.kept)),
            "" if one.seconds is None else in_words(one.seconds),
            "" if one.peak_bytes is None else f"{one.peak_bytes / 2**20:,.0f} MiB",
            " ".join(filter(None, (one.settings, one.fault))),
        ]
        for one in found
    ]
    return listing(rows, header)


def closing(sweep: Sweep, found: Sequence[Forecast], budget: float | None) -> list[str]:
    """Lines below the table: the whole, and what does not fit."""
    workers, seconds = sweep.executor.workers, total(sweep, found)
    lines = [f"{len(sweep.pending)} runs left, {workers} at a time"]
    if seconds is not None:
        lines[0] += f": about {in_words(seconds)}"
        lines.append("estimates by a few steps on a machine as busy as it was; a run may take much less or more")
    peaks = sorted((one.peak_bytes for one in found if one.peak_bytes), reverse=True)[:workers]
    ram = machine.describe_machine()["ram_bytes"]
    if ram and sum(peaks) > ram and not sweep.survey.gpus:
        lines.append(f"the {len(peaks)} largest runs together may need {sum(peaks) >> 20:,} MiB of {ram >> 20:,} MiB")
    if budget is not None and seconds is not None:
        seeds = ", ".join(map(str, seeds_within(sweep, found, budget))) or "none"
        lines.append(f"whole seeds within {in_words(budget)}: {seeds}")
    return lines
