"""Results of `attnbench speed` in a report: the newest of each machine and shape, apart from all scores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from attnbench.record import Record
from attnbench.speed import table
from attnbench.speed.figures import Figures, figures
from attnbench.speed.result import SpeedResult
from attnbench.store import file_name

LEGEND = (
    "What attnbench speed measured: times of a call, cells in turns; not the runs of the tables above. ms: median and "
    "quartiles over rounds. Peak MiB: what a call adds to the memory in use. Of matmul peak: share of the best rate of "
    "a product of square matrices in the same rounds. x baseline: time over the baseline's, in shared rounds. Grows "
    "as: fitted over the upper half of the lengths, with its 95 % interval. Dense emulations get no score: they "
    "compute all pairs, whatever their pattern. Results of other machines, shapes or settings cannot be compared."
)


@dataclass(frozen=True)
class Measured:
    """A result with its figures. `notes`: what has to be known beside them."""

    result: SpeedResult
    figures: Figures
    notes: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """Of the names of its files."""
        return file_name(f"speed-{self.result.folder}")

    @property
    def title(self) -> str:
        return table.setting(self.result)

    @property
    def machine(self) -> str:
        facts = self.result.machine
        names = [str(facts[key]) for key in ("gpu", "cpu") if facts.get(key)]
        return f"{', '.join(names) or 'unknown'} ({facts.get('id', 'unknown')})"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Where, when, how and with what it was measured."""
        result = self.result
        found = [
            ("machine", "; ".join([self.machine, *_described(result.machine)])),
            ("clock", table.clock(result)),
            ("baseline", self.figures.baseline),
            ("matmul peak", table.matmul_peak(result, self.figures)),
            ("peak memory", result.peak_how),
            ("load before and after", table.loads(result)),
            ("commit", _commit(result.code)),
            ("software", ", ".join(f"{name} {version}" for name, version in sorted(result.software.items()))),
            ("started", result.started),
            ("command", result.command),
            ("result", f"speed/{result.folder}/{result.id}.json"),
        ]
        return [(name, value) for name, value in found if value]

    @property
    def untimed(self) -> list[str]:
        return table.untimed(self.result)

    @property
    def cells(self) -> list[list[str]]:
        return [table.cell_line(one) for one in self.figures.cells]

    @property
    def growth(self) -> list[list[str]]:
        return [table.growth_line(one, self.figures.baseline) for one in self.figures.mechanisms]


def _described(machine: dict[str, Any]) -> list[str]:
    """Cores, memory and system, as far as they are known."""
    ram = machine.get("ram_bytes")
    return [
        *([f"{machine['cores']} cores"] if machine.get("cores") else []),
        *([f"{ram / 2**30:.0f} GiB"] if isinstance(ram, int) and ram < 2**63 else []),
        *([str(machine["system"])] if machine.get("system") else []),
    ]


def _commit(code: dict[str, Any]) -> str:
    changed = ", with changes" if code.get("dirty") else ""
    return f"{str(code.get('commit') or 'unknown')[:12]}{changed}"


def newest(results: Iterable[SpeedResult], records: Iterable[Record] = ()) -> list[Measured]:
    """The newest result of each machine and shape, by its folder. A note says where mechanisms had other source code
    than in the newest of the records.
    """
    groups: dict[str, list[SpeedResult]] = {}
    for result in sorted(results, key=lambda one: (one.started, one.id)):
        groups.setdefault(result.folder, []).append(result)
    sources = {
        record.spec.mechanism.name: record.spec.mechanism.source_sha
        for record in sorted(records, key=lambda one: (one.started, one.id))
    }
    return [_measured(groups[folder][-1], len(groups[folder]) - 1, sources) for folder in sorted(groups)]


def _measured(result: SpeedResult, earlier: int, sources: dict[str, str]) -> Measured:
    notes = []
    measured = {cell.mechanism: cell.source_sha for cell in result.cells}
    if other := sorted(name for name, sha in measured.items() if sources.get(name, sha) != sha):
        notes.append(f"measured with other source code than that of the newest runs: {', '.join(other)}")
    if earlier:
        many = "an earlier result" if earlier == 1 else f"{earlier} earlier results"
        notes.append(f"{many} of the same machine and shape not shown")
    return Measured(result, figures(result), tuple(notes))
