"""A sweep on the terminal: a live table on stderr, plain lines where that is no terminal, and the closing summary."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from attnbench.estimate import in_words
from attnbench.outcomes import Outcome, Run
from attnbench.progress import console, say
from attnbench.record import FINISHED, as_words
from attnbench.screen import listing
from attnbench.survey import Variant
from attnbench.sweep import Sweep

#: A seed's place in a cell of the live table.
_MARKS = {"running": "»", "waiting": "·", "not begun": "-", "stopped": "-", "elsewhere": "?"}


class Board:
    """Shows a sweep while it runs; pass it as `watch`. Use as a context manager."""

    def __init__(self) -> None:
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._told: set[Run] = set()

    def __enter__(self) -> Board:
        if console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, sweep: Sweep) -> None:
        for run, outcome in sweep.outcomes.items():
            if run not in self._told:
                self._told.add(run)
                self._tell(sweep, run, outcome)
        if console.is_terminal:
            self._live.update(_table(sweep), refresh=True)

    def _tell(self, sweep: Sweep, run: Run, outcome: Outcome) -> None:
        """A line for what ended now; what ended earlier stands in the summary."""
        if outcome.how not in ("ran", "not run"):
            return
        say(f"[{len(self._told)}/{len(sweep.runs)}] {sweep.title(run)}: {_said(outcome)}")


def _said(outcome: Outcome) -> str:
    parts: list[str] = [outcome.status or outcome.how]
    parts += [f"{outcome.score:.4f}"] if outcome.score is not None else []
    parts += [f"({in_words(outcome.seconds)})"] if outcome.seconds is not None and outcome.how == "ran" else []
    parts += [f"- {outcome.reason}"] if outcome.reason and not outcome.finished else []
    return " ".join(parts)


def _table(sweep: Sweep) -> Group:
    """One row a mechanism, one column a task; in a cell the seeds with their scores or what they are at."""
    left = sweep.seconds_left(sweep.pending)
    stopping = ", stopping" if sweep.stopped_by is not None else ""
    title = f"{sweep.suite.name}: {len(sweep.outcomes)} of {len(sweep.runs)}, {len(sweep.running)} under way{stopping}"
    rows: dict[tuple[str, str], dict[str, list[str]]] = {}
    now = {one.run: sweep.clock() - one.since for one in sweep.running.values()}
    for run in sweep.runs:
        cell = sweep.survey.cells[run.cell]
        task = f"trials {cell.task_name}" if run.trial is not None else cell.task_name
        rows.setdefault((cell.label, cell.detail), {}).setdefault(task, []).append(
            f"{_MARKS['running']}{now[run]:.0f}s" if run in now else _mark(sweep.outcomes.get(run))
        )
    tasks = list(dict.fromkeys(task for row in rows.values() for task in row))
    lines = [[label, *(" ".join(row.get(task, [])) for task in tasks), detail] for (label, detail), row in rows.items()]
    title += f", about {in_words(left)} left" if left else ""
    return Group(Text(title, style="bold"), listing(lines, ["mechanism", *tasks, ""]))


def _mark(outcome: Outcome | None) -> str:
    if outcome is None:
        return _MARKS["waiting"]
    if outcome.score is not None:
        return f"{outcome.score:.3f}"
    return outcome.status or _MARKS[outcome.how]


def summary(sweep: Sweep) -> Table:
    """What every run of the suite came to."""
    rows = []
    for run, outcome in _in_order(sweep):
        cell = sweep.survey.cells[run.cell]
        score = "" if outcome.score is None else f"{outcome.score:.4f}"
        trial = "" if run.trial is None else "trial "
        values = as_words(cell.variants[run.trial].values) if run.trial is not None else ""
        reason = None if outcome.finished else outcome.reason
        detail = " ".join(filter(None, (cell.detail, trial + values, reason)))
        rows.append([cell.label, cell.task_name, str(run.seed), outcome.how, outcome.status or "", score, detail])
    return listing(rows, ["mechanism", "task", "seed", "outcome", "status", "score", ""])


def closing(sweep: Sweep) -> list[str]:
    """Lines below the summary: counts, what was chosen, and how to go on."""
    counts = Counter(outcome.how for run, outcome in sweep.outcomes.items() if run.trial is None)
    lines = [", ".join(f"{number} {how}" for how, number in counts.items())]
    for one in choices(sweep):
        without = f"; without {', '.join(one['lost'])}" if one["lost"] else ""
        lines.append(f"{one['cell']}: {as_words(one['values'])}, by validation over {one['trials']} trials{without}")
    if sweep.survey.duplicates:
        lines.append(f"{sweep.survey.duplicates} cells stand in the suite twice; each was run once")
    kept = sorted({outcome.status or "" for run, outcome in sweep.outcomes.items() if outcome.how == "kept"})
    if kept:
        lines.append(f"kept as they ended earlier; run again with: {' '.join(f'--retry {name}' for name in kept)}")
    if counts["stopped"] or counts["not begun"]:
        lines.append("the same command goes on")
    return lines


def choices(sweep: Sweep) -> list[dict[str, Any]]:
    """Of every tuned cell the values that validation chose, the number of its trials, and which of them were lost."""
    found = []
    for place, cell in enumerate(sweep.survey.cells):
        variant = sweep.variant(Run(place, sweep.suite.seeds[0])) if sweep.suite.tuning else None
        if isinstance(variant, Variant) and cell.refusal is None and variant.subject.tuned:
            name = " ".join(filter(None, (cell.label, "on", cell.task_name, cell.detail)))
            trials, lost = variant.subject.tuned.trials, sweep.lost(place)
            found.append({"cell": name, "values": variant.values, "trials": trials, "lost": lost})
    return found


def _in_order(sweep: Sweep) -> list[tuple[Run, Outcome]]:
    return [(run, sweep.outcomes[run]) for run in sweep.runs if run in sweep.outcomes]


def as_json(sweep: Sweep) -> dict[str, Any]:
    """The summary for programs."""
    runs = []
    for run, outcome in _in_order(sweep):
        cell = sweep.survey.cells[run.cell]
        runs.append(
            {
                "label": cell.label,
                "mechanism": cell.mechanism,
                "regularizer": cell.regularizer,
                "task": cell.task,
                "settings": dict(cell.settings),
                "seed": run.seed,
                "trial": None if run.trial is None else cell.variants[run.trial].values,
                "how": outcome.how,
                "status": outcome.status,
                "reason": outcome.reason,
                "score": outcome.score,
                "path": None if outcome.path is None else str(outcome.path),
            }
        )
    finished = sum(outcome.status in FINISHED for run, outcome in sweep.outcomes.items() if run.trial is None)
    return {
        "suite": sweep.suite.name,
        "runs": runs,
        "finished": finished,
        "failed": len(sweep.failed),
        "chosen": choices(sweep),
        "duplicates": sweep.survey.duplicates,
    }
