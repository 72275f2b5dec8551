"""`attnbench speed`: time and memory of mechanisms over lengths, and what changed between two measurements."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attnbench import screen
from attnbench.commands.shared import Json, Results, print_json, seconds_of
from attnbench.errors import AttnbenchError

if TYPE_CHECKING:
    from attnbench.speed.figures import Figures
    from attnbench.speed.measure import Measurement
    from attnbench.speed.result import SpeedResult

EXAMPLES = (
    "Examples:  attnbench speed -m dense -m hst --lengths 256,1k,4k   |   "
    "attnbench speed -m dense -m hst --lengths 1k,4k,16k --set hst.block_size=32 --threads 1 --rounds 20   |   "
    "attnbench speed -m ./mine.py -m dense --lengths 512 --mode step --device cuda --dtype bf16 --to new.json   |   "
    "attnbench speed --from benchmark.json --plots plots   |   attnbench speed --compare old.json new.json   |   "
    "attnbench speed --compare old.json"
)
_LENGTHS = "256,512,1k,2k,4k"


def speed(
    new: Annotated[
        Path | None, typer.Argument(metavar="[NEW.json]", help="With --compare: the newer result.", show_default=False)
    ] = None,
    mechanism: Annotated[
        list[str], typer.Option("--mechanism", "-m", help="A name, a .py file, or pkg.module:Class; repeat it.")
    ] = [],  # noqa: B006  typer copies it
    lengths: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Content rows; 4k is 4096.", show_default=_LENGTHS)
    ] = None,
    mode: Annotated[
        Literal["fwd", "fwdbwd", "step"],
        typer.Option(help="One mixer forward, or forward and backward; or a training step of an encoder of them."),
    ] = "fwdbwd",
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: CUDA where there is one.")] = "auto",
    batch: Annotated[int, typer.Option(min=1, help="Examples in a call.")] = 1,
    dim: Annotated[int, typer.Option(min=1, help="Width of a row.")] = 256,
    heads: Annotated[int, typer.Option(min=1)] = 4,
    layers: Annotated[int, typer.Option(min=1, help="Of the encoder, with --mode step.")] = 2,
    dtype: Annotated[Literal["fp32", "bf16"], typer.Option(help="bf16: autocast, as in training.")] = "fp32",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="the cores")] = None,
    numerics: Annotated[
        Literal["fast", "stock"], typer.Option(help="CPU settings: fast (as exact, checked at the start) or stock.")
    ] = "fast",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each cell, one sample each.")] = 10,
    warmup: Annotated[int, typer.Option(min=1, help="Calls before the first sample.")] = 3,
    max_time: Annotated[
        str, typer.Option("--max-time", metavar="TIME", help="For a cell to get ready, and for a turn.")
    ] = "2m",
    together: Annotated[
        int, typer.Option(min=1, help="Cells that take turns at a time; those of one length always do.")
    ] = 12,
    set_: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="An option; MECHANISM.KEY of one of several.")
    ] = [],  # noqa: B006
    baseline: Annotated[
        str | None, typer.Option(help="What others are held against.", show_default="the first exact one")
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Show a result, or a pytest-benchmark JSON file.")
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option("--compare", metavar="BASE", help="Compare with this result; without NEW, measure now."),
    ] = None,
    results: Results = Path("results"),
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="Where to store the result.", show_default="in results/")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option("--plots", metavar="DIR", help="Draw time and memory over length, as PNG and SVG.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be measured, and stop.")] = False,
    as_json_: Json = False,
) -> None:
    """Measure time and memory of mechanisms: each cell in its own process, taking turns, checked before it is timed.

    Out of memory and time-outs are results. Exit 0, or 1 when a cell failed or computes something wrong.
    """
    if from_ is not None:
        _refuse("--from", {"--compare": compare, "-m": mechanism, "--lengths": lengths, "NEW.json": new})
        return _show_file(from_, baseline, to, as_json_, plots)
    if compare is not None and new is not None:
        _refuse("--compare with two files", {"-m": mechanism, "--lengths": lengths, "--to": to, "--plots": plots})
        return _compare_files(compare, new, as_json_)
    if new is not None:
        raise AttnbenchError(f"{new}: a second file goes with --compare BASE; --from shows one")
    limit = seconds_of("--max-time", max_time)
    assert limit is not None
    if compare is not None:
        _refuse("--compare", {"--lengths": lengths, "--set": set_, "--plots": plots})
        measurement = _again(compare, mechanism, limit, together)
    else:
        shape: dict[str, Any] = {
            "mode": mode, "batch": batch, "dim": dim, "heads": heads, "layers": layers, "dtype": dtype,
            "numerics": numerics, "rounds": rounds, "warmup": warmup,
        }  # fmt: skip
        measurement = _asked(mechanism, lengths or _LENGTHS, set_, device, threads, shape, limit, together)
        _check_baseline(measurement, baseline)
    if dry_run:
        return _foretell(measurement, as_json_)
    if to is not None and to.exists():  # before the measuring, not after
        raise AttnbenchError(f"{to}: exists already; name another file")
    result = _measured(measurement)
    path = _stored(result, results, to)
    if compare is None:
        _show(result, baseline, as_json_, path, plots)
    else:
        print(f"result: {path}", file=sys.stderr)
        _compare_files(compare, path, as_json_)
    raise typer.Exit(1 if any(cell.status in ("failed", "wrong") for cell in result.cells) else 0)


def _refuse(what: str, others: dict[str, Any]) -> None:
    if given := [name for name, value in others.items() if value]:
        raise AttnbenchError(f"{what} measures nothing of its own, so {', '.join(given)} would have no effect")


def _asked(
    mechanisms: Sequence[str], lengths: str, set_: Sequence[str], device: str, threads: int | None,
    shape: dict[str, Any], seconds: float, together: int,
) -> Measurement:  # fmt: skip
    from attnbench.executor import cores
    from attnbench.settings import parse_pairs
    from attnbench.speed.plan import candidates, check_shape, lengths_of

    if not mechanisms:
        raise AttnbenchError("name at least one mechanism: -m dense -m hst; attnbench list shows all")
    wanted = lengths_of(lengths)
    chosen = candidates(mechanisms, parse_pairs(set_))
    from attnbench.speed.measure import Measurement
    from attnbench.speed.result import Setting

    setting = Setting(**shape, device=_device(device), threads=threads or cores())
    check_shape(chosen, setting, wanted)
    return Measurement(chosen, wanted, setting, seconds, together, shlex.join(["attnbench", *sys.argv[1:]]))


def _device(asked: str) -> Literal["cpu", "cuda"]:
    import torch

    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise AttnbenchError("--device cuda: PyTorch sees no CUDA device here")
    return "cuda" if there and asked != "cpu" else "cpu"


def _again(base: Path, mechanisms: Sequence[str], seconds: float, together: int) -> Measurement:
    """The cells of a result, here and now; `mechanisms` say where those that are files have their home."""
    from attnbench.speed.benchmark import read_any
    from attnbench.speed.measure import Measurement
    from attnbench.speed.plan import again

    known = read_any(base)
    if not known.interleaved:
        raise AttnbenchError(f"{base}: comes from pytest-benchmark, so compare it with another of its files")
    _device(known.setting.device)
    lengths = sorted({cell.length for cell in known.cells})
    command = shlex.join(["attnbench", *sys.argv[1:]])
    return Measurement(again(known, mechanisms), lengths, known.setting, seconds, together, command)


def _check_baseline(measurement: Measurement, baseline: str | None) -> None:
    from attnbench.errors import UnknownName

    names = [candidate.name for candidate in measurement.candidates]
    if baseline is not None and baseline not in names:
        raise UnknownName("--baseline", baseline, names)


def _foretell(measurement: Measurement, as_json: bool) -> None:
    from attnbench.options import as_json as plain

    facts: dict[str, Any] = {
        "mechanisms": {one.name: plain(one.choice.options) for one in measurement.candidates},
        "lengths": list(measurement.lengths),
        "setting": measurement.setting.model_dump(),
        "groups of cells that take turns": [[str(cell) for cell in group] for group in measurement.groups],
        "processes": len(measurement.candidates) * len(measurement.lengths) + len(measurement.groups),
    }
    print_json(facts) if as_json else screen.put(screen.pairs(screen.flat(facts)))


def _measured(measurement: Measurement) -> SpeedResult:
    from attnbench.progress import Bar

    with Bar("measuring", measurement.steps) as bar:
        return measurement(bar)


def _stored(result: SpeedResult, results: Path, to: Path | None) -> Path:
    from attnbench.speed.result import write

    return write(result, results, to)


def _show_file(path: Path, baseline: str | None, to: Path | None, as_json: bool, plots: Path | None) -> None:
    from attnbench.speed.benchmark import read_any

    result = read_any(path)
    _show(result, baseline, as_json, _stored(result, Path(), to) if to else None, plots)


def _show(result: SpeedResult, baseline: str | None, as_json: bool, path: Path | None, plots: Path | None) -> None:
    from attnbench.speed import table
    from attnbench.speed.figures import figures

    found = figures(result, baseline)
    if as_json:
        stored = {"path": str(path)} if path else {}
        drawn = {"plots": [str(one) for one in _draw(result, found, plots)]} if plots else {}
        return print_json({**stored, **drawn, "figures": found.as_json(), "result": result.model_dump(by_alias=True)})
    screen.put(table.cells(found))
    screen.put(table.growth(found))
    print("\n".join(table.closing(result, found)))
    if path:
        print(f"result: {path}")
    for one in _draw(result, found, plots) if plots else ():
        print(f"plot: {one}")
    return None


def _draw(result: SpeedResult, found: Figures, folder: Path) -> Iterator[Path]:
    from attnbench.files import overwrite
    from attnbench.reporting.plots import speed_pictures
    from attnbench.reporting.speeds import Measured

    for picture in speed_pictures(Measured(result, found)):
        for name, content in picture.files:
            overwrite(folder / name, content)
            yield folder / name


def _compare_files(base: Path, new: Path, as_json: bool) -> None:
    from attnbench.speed import regression
    from attnbench.speed.benchmark import read_any

    one, other = read_any(base), read_any(new)
    changes, notes = regression.compare(one, other), regression.other_circumstances(one, other)
    if as_json:
        return print_json({"notes": notes, "changes": [asdict(change) for change in changes]})
    screen.put(regression.table(changes))
    commits = [str(result.code.get("commit") or "unknown")[:12] + ("+" if result.code.get("dirty") else "")
               for result in (one, other)]  # fmt: skip
    print("\n".join([f"commits {commits[0]} and {commits[1]}; + has changes", *(f"note: {note}" for note in notes)]))
    return None
