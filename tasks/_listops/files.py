r"""The form in which Long Range Arena releases ListOps, written and read.

listops-1000 / basic_train.tsv, basic_val.tsv, basic_test.tsv: `Source\tTarget`, then one expression a row, CRLF.
"""

from __future__ import annotations

import filecmp
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from attnbench.contracts import Preparation
from attnbench.errors import AttnbenchError

from .. import _carving
from .._files import fields, lines, utf8
from .distinct import chunks_of, distinct, drawn
from .expressions import Malformed, parse, text
from .generator import CHUNK
from .options import RELEASED, SPLITS, Options, splits_of
from .tables import rows_of, table

FOLDER = "listops-1000"
NAMES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
#: Where the files lie below the folder that a user names: it is their own, the release at any depth, or S4's tree.
_PLACES = ("", FOLDER, f"lra_release/{FOLDER}", f"lra_release/lra_release/{FOLDER}", "listops")
_COLUMNS = [b"Source", b"Target"]
_LABELS = {str(value).encode(): value for value in range(10)}
_LONGEST_SHOWN = 30


class Row(NamedTuple):
    """An expression of a file; `where` names the file and the row."""

    where: str
    tokens: bytes
    label: int


def find(source: Path, preparation: Preparation) -> dict[str, Path]:
    """The file of each split, whether `source` is their folder or one of those around it.

    Raises:
        AttnbenchError: there are none, or some are missing, or two places hold different ones.
    """
    if not source.is_dir():
        what = "a file, not a folder; unpack it and name the folder" if source.exists() else "no such folder"
        raise AttnbenchError(f"{source}: {what}")
    copies = [files for place in _PLACES if (files := _in(source / place))]
    if not copies:
        raise AttnbenchError(f"{source}: no {', '.join(NAMES.values())} there or in {', '.join(_PLACES[1:])} below it")
    for files in copies:
        if missing := [NAMES[name] for name in SPLITS if name not in files]:
            raise AttnbenchError(f"{next(iter(files.values())).parent}: no {', '.join(missing)}; complete the folder")
    first, *others = copies
    for other in others:
        homes = f"{first['train'].parent} and {other['train'].parent}"
        if not all(filecmp.cmp(first[name], other[name], shallow=False) for name in SPLITS):
            raise AttnbenchError(f"{source}: two copies that differ, {homes}; name one of them with --from")
        preparation.note(f"{homes} hold the same; the first is read")
    return first


def _in(folder: Path) -> dict[str, Path]:
    """Those of the files that are there, packed by gzip or not."""
    found = {}
    for split, name in NAMES.items():
        there = [path for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
        if len(there) > 1:
            raise AttnbenchError(f"{there[0]} and {there[1].name}: two copies; take one away")
        if there:
            found[split] = there[0]
    return found


def read(options: Options, files: Mapping[str, Path], preparation: Preparation) -> Iterator[tuple[str, pa.Table]]:
    """The expressions that the options ask for, a thousand at a time, by split; tells what is odd about them.

    Raises:
        AttnbenchError: with file and row, at the first that is none or whose label is not its value.
    """
    counts = _counts(options, files, preparation)
    digests: dict[str, list[np.ndarray]] = {name: [] for name in SPLITS}
    cut: dict[str, float] = {}
    for name in SPLITS:
        rows = islice(_rows(files[name]), counts[name])
        overlong: list[Row] = []
        title = f"{files[name].name}, expressions, in thousands"
        for _ in preparation.progress(range(0, counts[name], CHUNK), title):
            part = list(islice(rows, CHUNK))
            overlong += [row for row in part if len(row.tokens) > options.max_length]
            digests[name].append(_carving.digests(0, [row.tokens for row in part]))
            yield name, _table(part, options.max_length)
        if overlong and options.overlong == "refuse":
            raise AttnbenchError(
                f"{overlong[0].where}: {len(overlong[0].tokens)} tokens, more than max_length={options.max_length}, as "
                f"in {len(overlong)} of {counts[name]} rows; --set max_length={max(len(r.tokens) for r in overlong)} "
                "reads all, --set overlong=cut cuts them as Long Range Arena does"
            )
        cut[name] = round(len(overlong) / counts[name], 4)
        if overlong:
            preparation.note(
                f"{name}: {len(overlong)} of {counts[name]} expressions are cut to {options.max_length} tokens"
            )
    preparation.fact("share_cut", cut)
    _carving.tell_duplicates(preparation, "expressions", {name: np.concatenate(digests[name]) for name in SPLITS})


def _table(rows: Sequence[Row], longest: int) -> pa.Table:
    kept = [row.tokens[:longest] for row in rows]
    tokens = np.frombuffer(b"".join(kept), np.uint8)
    return table(tokens, np.array([len(one) for one in kept]), np.array([row.label for row in rows], np.int64))


def _counts(options: Options, files: Mapping[str, Path], preparation: Preparation) -> dict[str, int]:
    """How many expressions of each split to read.

    Raises:
        AttnbenchError: a file has none, or fewer than were asked for.
    """
    there = {name: sum(1 for _ in _body(files[name])) for name in SPLITS}
    where = splits_of(np.arange(options.examples))
    wanted = {name: int((where == name).sum()) for name in SPLITS}
    for name in SPLITS:
        if not there[name]:
            raise AttnbenchError(f"{files[name]}: no row below the names of the columns")
        if there[name] < wanted[name] and options.examples != RELEASED:
            raise AttnbenchError(
                f"{files[name]}: {there[name]} expressions, and examples={options.examples} takes {wanted[name]} of "
                "this split; ask for fewer, or leave examples out to read all"
            )
    counts = {name: min(there[name], wanted[name]) for name in SPLITS}
    found, asked = sum(there.values()), options.examples
    if sum(counts.values()) != asked or found != asked:
        preparation.note(f"{found:,} expressions found, {asked:,} asked for, {sum(counts.values()):,} read")
    return counts


def _body(path: Path) -> Iterator[tuple[int, bytes]]:
    """Row numbers and rows below the names of the columns.

    Raises:
        AttnbenchError: the columns have other names; or as `lines`.
    """
    rows = lines(path)
    _, head = next(rows)
    if (found := head.split(b"\t")) != _COLUMNS:
        names = ", ".join(repr(name[:_LONGEST_SHOWN].decode("utf-8", "replace")) for name in found)
        raise AttnbenchError(f"{path}, row 1: columns {names}; expected Source and Target, parted by a tab")
    return rows


def _rows(path: Path) -> Iterator[Row]:
    """
    Raises:
        AttnbenchError: with file and row, at the first that is no expression or whose label is not its value.
    """
    for number, line in _body(path):
        where = f"{path}, row {number}"
        source, target = fields(path, number, line, len(_COLUMNS))
        if target not in _LABELS:
            shown = target[:_LONGEST_SHOWN].decode("utf-8", "replace")
            raise AttnbenchError(f"{where}: label {shown!r}, expected a digit")
        try:
            tokens, value = parse(utf8(where, source))
        except Malformed as error:
            raise AttnbenchError(f"{where}: {error}") from None
        if value != _LABELS[target]:
            raise AttnbenchError(f"{where}: label {_LABELS[target]}, but the expression is worth {value}")
        yield Row(where, tokens, value)


def write(options: Options, preparation: Preparation) -> None:
    """Writes the set into a folder of this form; files that are whole already stay, each appears when it is complete.

    Raises:
        AttnbenchError: the folder holds something else.
    """
    home = preparation.folder / FOLDER
    _claim(home, options)
    paths = {name: home / NAMES[name] for name in SPLITS if not (home / NAMES[name]).is_file()}
    partial = {name: path.with_suffix(".partial") for name, path in paths.items()}
    with ExitStack() as stack:
        outputs = {
            name: stack.enter_context(open(path, "w", encoding="ascii", newline="")) for name, path in partial.items()
        }
        for output in outputs.values():
            output.write("Source\tTarget\r\n")
        chunks = chunks_of(options) if paths else ()
        made = distinct(options, lambda chunk: drawn(options, chunk)) if paths else ()
        for parts, _ in zip_longest(made, preparation.progress(chunks, "expressions, in thousands")):
            for name, output in outputs.items():
                rows = zip(rows_of(parts[name]), parts[name].column("label").to_pylist(), strict=True)
                output.writelines(f"{text(tokens)}\t{label}\r\n" for tokens, label in rows)
    for name, path in partial.items():
        path.replace(paths[name])


def _claim(home: Path, options: Options) -> None:
    """Makes the folder of an export, or finds that it holds the beginning of this very one.

    Raises:
        AttnbenchError: it holds something else.
    """
    note = home / "export.json"
    if home.exists() and any(home.iterdir()):
        try:
            found = json.loads(note.read_text("utf-8"))
        except (OSError, ValueError):
            raise AttnbenchError(f"{home}: holds other files; choose another folder with --to") from None
        if found != asdict(options):
            raise AttnbenchError(f"{home}: holds an export with other options; choose another folder with --to")
    home.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(asdict(options), indent=1, sort_keys=True) + "\n", "utf-8")
