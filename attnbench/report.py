"""Tables from records: one per protocol. Same records, same bytes; what does not belong together is never averaged."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.apart import Path, by_numbers, describe, differing, dotted, flatten_json, is_source, sources, values_of
from attnbench.comparison import Difference
from attnbench.record import DECIDED, FINISHED, Quality, Record, Tuning, as_words, canonical
from attnbench.statistics import summarise

ONE_MODEL = "this trained model only"


@dataclass(frozen=True)
class Column:
    """A task with its options. `options` names what sets it apart from other columns of that task.

    `chance` and `trivial` (the best trivial predictor's score) are None while no run has a score. `controls` are who
    must solve it and who cannot; `separates` says whether they differ (attnbench.standing).
    """

    task: str
    options: str
    metric: str
    chance: float | None
    trivial: float | None
    trivial_name: str
    controls: tuple[str, ...] = ()
    separates: str = ""

    @property
    def title(self) -> str:
        return f"{self.task} ({self.options})" if self.options else self.task


@dataclass(frozen=True)
class Entry:
    """All seeds of one spec.

    Attributes:
        seeds: those with a test score; `mean`, `sd`, `low` and `high` are about them.
        runs: seeds run in all.
        statuses: how many seeds ended how, by name.
        low, high: 95 % interval; `scope` says of what: over seeds, or with one seed over test examples.
        mixer_params: parameters of all token mixers together.
        asked: seeds that the protocol asks for at the least.
        size: parameters as a multiple of those with plain attention; None where that is not on record.
        trials: runs that its values were chosen by, on validation; 0 without tuning.
        chosen: the values, by key.
        shifts: the points of the records' tests with moved input, each with its seed.
        ids: the records counted; `scored` are those with a score, by seed.
        tied: the best of its column, or its difference from the best does not show and some run is above the trivial
            predictors where the best is; None before that is judged.
    """

    spec_hash: str
    seeds: tuple[int, ...]
    runs: int
    statuses: tuple[tuple[str, int], ...]
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    scope: str
    mixer_params: int | None
    ids: tuple[str, ...]
    scored: tuple[tuple[int, str], ...] = ()
    tied: bool | None = None
    asked: int = 1
    size: float | None = None
    trials: int = 0
    chosen: str = ""
    shifts: tuple[dict[str, float], ...] = ()

    @property
    def count(self) -> str:
        """Seeds with a score, and how many the protocol asks for where they are fewer."""
        found = len(self.seeds)
        if found < self.asked:
            return f"{found} of {self.asked} seeds"
        return "1 seed" if found == 1 else str(found)

    @property
    def status(self) -> str:
        """`ok`, or every other status with its count."""
        others = [(name, count) for name, count in self.statuses if name != "ok"]
        return ", ".join(n if self.runs == 1 else f"{count} of {self.runs} {n}" for n, count in others) or "ok"

    @property
    def text(self) -> str:
        """What stands in a table."""
        if self.mean is None:
            return self.status
        if self.sd is None:
            score = f"{self.mean:.3f} [{self.low:.2f}, {self.high:.2f}] ({self.count})"
        else:
            score = f"{self.mean:.3f} ± {self.sd:.3f} ({self.count})"
        return score if self.status == "ok" else f"{score}, {self.status}"


@dataclass(frozen=True)
class Row:
    """One label; `options` names what sets it apart from its other rows. `entries` follow the table's columns.

    `rank` is the mean of its ranks, where it has a score on every task.
    """

    label: str
    options: str
    stale: bool
    entries: tuple[Entry | None, ...]
    rank: float | None = None

    @property
    def name(self) -> str:
        return f"{self.label} ({self.options})" if self.options else self.label


@dataclass(frozen=True)
class Table:
    """One protocol; `changes` are the values the user set otherwise, `tuning` the grid that every cell chose from.

    `differences` are those of all pairs of live rows, column by column.
    """

    protocol: str
    version: int
    changes: str
    tuning: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    differences: tuple[tuple[Difference, ...], ...] = ()


@dataclass(frozen=True)
class Report:
    tables: tuple[Table, ...]


_Key = tuple[str, int, str, str]


@dataclass(frozen=True)
class _Run:
    """A record with what the tables group by."""

    record: Record
    question: tuple[str, str]
    values: Mapping[Path, str]
    stale: bool

    @property
    def quality(self) -> Quality | None:
        return self.record.quality if self.record.status in FINISHED else None


def build(records: Iterable[Record]) -> Report:
    """Groups records into tables: by protocol and its version, then label (rows) and task with options (columns).

    Trials are left out. The table with most records comes first. Records share an entry only if their spec hash is
    equal. A record is stale when the newest record with the same mechanism under this label, task, data, regularizer or
    engine has another source.
    """
    known = sorted(records, key=lambda record: (record.started, record.id))
    lost = _lost_trials([record for record in known if record.kind == "trial"])
    ordered = [record for record in known if record.kind != "trial"]
    newest = {key: value for record in ordered for key, value in sources(record)}
    protocols: dict[_Key, list[_Run]] = defaultdict(list)
    for record in ordered:
        stale = any(newest[key] != value for key, value in sources(record))
        protocols[_key(record)].append(_Run(record, _question(record), values_of(record), stale))
    listed = sorted(protocols, key=lambda one: (-len(protocols[one]), one))
    return Report(tuple(_table(*one[:3], protocols[one], lost.get(one, [])) for one in listed))


def _key(record: Record) -> _Key:
    """What records of one table have in common: the protocol, also where its file was edited."""
    protocol = record.spec.protocol
    tuning = record.tuning and record.tuning.asked.model_dump(mode="json")
    asked = canonical([protocol.seeds, protocol.parameters_within, tuning])
    return protocol.name, protocol.version, canonical(protocol.changes), asked


def _question(record: Record) -> tuple[str, str]:
    return record.spec.task.name, canonical(record.spec.task.options)


def _lost_trials(trials: Iterable[Record]) -> dict[_Key, list[str]]:
    """By table, a line for every value that a cell could not choose: its trial did not end. One that diverged lost."""
    finished, lost = set(), {}
    for trial in trials:
        # neither the code nor the path it took: where a process died, nobody knows which
        values = {path: value for path, value in values_of(trial).items() if not is_source(path)}
        values.pop(("mechanism", "implementation"), None)
        same = (_key(trial), trial.label, trial.seed, _question(trial), frozenset(values.items()))
        if trial.status in FINISHED:
            finished.add(same)
        elif trial.status not in DECIDED and trial.tuning:
            tried = as_words(trial.tuning.chosen)
            where = f"{trial.label}, {trial.spec.task.name}"
            lost[same] = f"{where}: {tried} could not be chosen, its trial on seed {trial.seed} ended as {trial.status}"
    notes: dict[_Key, list[str]] = defaultdict(list)
    for same, said in lost.items():
        if same not in finished:
            notes[same[0]].append(said)
    return notes


def _table(protocol: str, version: int, changes: str, runs: list[_Run], lost: list[str]) -> Table:
    questions = sorted({run.question for run in runs}, key=lambda one: (one[0], by_numbers(one[1]), one))
    columns = tuple(_column(question, questions, runs) for question in questions)
    cells: dict[tuple[Any, ...], dict[tuple[str, str], list[_Run]]] = defaultdict(lambda: defaultdict(list))
    apart = _apart(runs)
    for run in runs:
        paths = {path for path in apart[run.record.label] if run.stale or not is_source(path)}
        exactly = sorted(canonical([list(path), run.values[path]]) for path in paths if path in run.values)
        row = (run.record.label, run.stale, describe(run.values, paths), tuple(exactly))
        cells[row][run.question].append(run)
    rows = []
    notes = _unequal_settings(columns, questions, runs) + lost
    for row in sorted(cells, key=lambda row: (*row[:2], by_numbers(row[2]), row)):
        entries = []
        for column, question in zip(columns, questions, strict=True):
            chosen, repeated = _one_per_seed(cells[row].get(question, []))
            entries.append(_entry(chosen) if chosen else None)
            notes += [f"{row[0]}, {column.title}: seed {seed} ran {n} times; one counts" for seed, n in repeated]
        rows.append(Row(label=row[0], stale=row[1], options=row[2], entries=tuple(entries)))
    within = runs[0].record.spec.protocol.parameters_within
    notes += [note for row in rows for note in _oversized(row, columns, within)]
    changed = {path: value for path, value in flatten_json(changes).items() if path[0] != "tuning"}
    tuning = _describe_tuning(json.loads(changes), runs)
    return Table(protocol, version, describe(changed, changed), tuning, columns, tuple(rows), tuple(notes))


def _oversized(row: Row, columns: tuple[Column, ...], within: float | None) -> list[str]:
    """A line per entry whose model is larger or smaller than the protocol allows."""
    return [
        f"{row.label}, {column.title}: {entry.size:.2f} times the parameters of plain attention; the protocol allows "
        f"{within:.0%} more or less"
        for column, entry in zip(columns, row.entries, strict=True)
        if within is not None and entry and entry.size is not None and abs(entry.size - 1) > within
    ]


def _describe_tuning(changes: Mapping[str, Any], runs: list[_Run]) -> str:
    """What every cell chose from: the protocol's, or the user's in its stead."""
    tuned = [run.record.tuning.asked for run in runs if run.record.tuning]
    found = changes["tuning"] if "tuning" in changes else next((one.model_dump() for one in tuned), None)
    if found is None:
        return "no, though the protocol asks for it" if "tuning" in changes else ""
    try:
        tuning = Tuning.model_validate(found)
    except ValueError:  # of another program
        return canonical(found)
    grid = ", ".join(f"{key} from {', '.join(map(str, values))}" for key, values in tuning.grid.items())
    shared = f"; one choice for cells that differ in {', '.join(tuning.share)} only" if tuning.share else ""
    return f"{grid}; by validation on seed {', '.join(map(str, tuning.seeds))}{shared}"


def _apart(runs: list[_Run]) -> dict[str, set[Path]]:
    """By label: the paths that tell apart specs which would otherwise share an entry."""
    groups: dict[tuple[str, tuple[str, str]], list[Mapping[Path, str]]] = defaultdict(list)
    for run in runs:
        groups[run.record.label, run.question].append(run.values)
    apart: dict[str, set[Path]] = defaultdict(set)
    for (label, _), specs in groups.items():
        apart[label] |= differing(specs)
    return apart


def _column(question: tuple[str, str], questions: list[tuple[str, str]], runs: list[_Run]) -> Column:
    task, options = question
    same_task = [flatten_json(other) for name, other in questions if name == task]
    live = [run.quality for run in runs if run.question == question and not run.stale and run.quality is not None]
    trivial = max(((score, name) for quality in live for name, score in quality.trivial.items()), default=(None, ""))
    return Column(
        task=task,
        options=describe(flatten_json(options), differing(same_task)),
        metric=", ".join(sorted({quality.metric for quality in live})),
        chance=max((quality.chance for quality in live), default=None),
        trivial=trivial[0],
        trivial_name=trivial[1],
        controls=next((tuple(quality.controls) for quality in reversed(live) if quality.controls), ()),
    )


def _unequal_settings(columns: tuple[Column, ...], questions: list[tuple[str, str]], runs: list[_Run]) -> list[str]:
    """A line per column and setting outside the mechanism in which its rows differ: a comparison that is not fair."""
    notes = []
    for column, question in zip(columns, questions, strict=True):
        live = [run for run in runs if run.question == question and not run.stale]
        paths = differing(run.values for run in live)
        chosen = {tuple(key.split(".")) for run in live if run.record.tuning for key in run.record.tuning.chosen}
        for path in sorted(paths - chosen, key=dotted):
            if path[0] in ("model", "budget", "numerics", "padding"):
                found = sorted({f"{run.record.label} {run.values.get(path, 'none')}" for run in live})
                notes.append(f"{column.title}: rows differ in {dotted(path)}: {', '.join(found)}")
    return notes


def _one_per_seed(runs: list[_Run]) -> tuple[list[Record], list[tuple[int, int]]]:
    """One record per seed, and the seeds run more than once with how often.

    The newest run that shows how training ends counts; a run that the machine stopped counts only if there is none.
    """
    by_seed: dict[int, list[Record]] = defaultdict(list)
    for run in runs:
        by_seed[run.record.seed].append(run.record)
    chosen = []
    for seed in sorted(by_seed):
        trained = [record for record in by_seed[seed] if record.status in (*FINISHED, "diverged")]
        chosen.append((trained or by_seed[seed])[-1])
    return chosen, [(seed, len(found)) for seed, found in sorted(by_seed.items()) if len(found) > 1]


def _entry(records: list[Record]) -> Entry:
    scored = [(record.seed, record.quality) for record in records if record.status in FINISHED and record.quality]
    costs = [record.cost for record in records if record.cost is not None]
    sizes = [cost.params_total / cost.params_plain for cost in costs if cost.params_plain]
    summary = summarise([quality.test for _, quality in scored]) if scored else None
    tuned = records[0].tuning
    one_model = scored[0][1].interval if len(scored) == 1 else None
    return Entry(
        spec_hash=records[0].spec.hash,
        seeds=tuple(seed for seed, _ in scored),
        runs=len(records),
        statuses=tuple(sorted(Counter(record.status for record in records).items())),
        mean=summary.mean if summary else None,
        sd=summary.sd if summary else None,
        low=one_model[0] if one_model else summary.low if summary else None,
        high=one_model[1] if one_model else summary.high if summary else None,
        scope=ONE_MODEL if one_model else "mean over seeds" if summary else "",
        mixer_params=max((cost.params_mixer for cost in costs), default=None),
        ids=tuple(record.id for record in records),
        scored=tuple((record.seed, record.id) for record in records if record.status in FINISHED and record.quality),
        asked=records[0].spec.protocol.seeds,
        size=max(sizes, default=None),
        trials=tuned.trials if tuned else 0,
        chosen=", ".join(f"{key}={value}" for key, value in tuned.chosen.items()) if tuned else "",
        shifts=tuple({"seed": record.seed, **point.model_dump()} for record in records for point in record.shifts),
    )
