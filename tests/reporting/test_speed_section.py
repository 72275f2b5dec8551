"""Results of speed in the report: which, what of them, apart from scores; and pictures inside the page."""

from __future__ import annotations

import base64
import random
import re
from typing import Any

import pytest
from books import HOSTILE, PIXEL, Tree, book, grid, hostile_record, picture
from factories import make_record
from speed.speed_data import cell, grown, result, samples

from attnbench.reporting.html import to_html
from attnbench.reporting.latex import to_latex
from attnbench.reporting.markdown import to_markdown
from attnbench.reporting.speeds import newest
from attnbench.speed.result import Setting, SpeedResult
from attnbench.tables import to_csv, to_json

LENGTHS = [256, 512, 1024, 2048]


def measured(**more: Any) -> SpeedResult:
    """dense takes 1e-9 n^2 s and 1,024 n bytes; mine runs out of memory; all_pairs computes whatever its pattern."""
    cells = [
        cell("dense", n, samples(1e-9 * n**2), peak_bytes=1024 * n, flops=n * n, source_sha="a" * 64) for n in LENGTHS
    ]
    cells.append(cell("mine", 256, reason="needs 9 GiB"))
    cells.append(cell("all_pairs", 256, status="emulation"))
    return result(cells, samples(0.02), **more)


def hostile_result(text: str) -> SpeedResult:
    cells = [cell(text, n, samples(1e-9 * n**2), options={text: text}) for n in LENGTHS]
    cells.append(cell(text, 9, reason=text))
    facts: dict[str, Any] = {"id": text, "cpu": text, "cores": text, "ram_bytes": text, "system": text}
    return result(
        cells, machine=facts, software={text: text}, code={"commit": text, "dirty": True}, command=text, started=text,
        clock=text, peak_how=text, id=text, conditions={"before": {"load": [text]}, "after": text},
    )  # fmt: skip


def rows(tree: Tree) -> list[list[str]]:
    """Texts of the cells of every row that has some."""
    found: list[list[str]] = []
    for name, _, text in tree.elements:
        if name == "tr":
            found.append([])
        elif name in ("th", "td"):
            found[-1].append("".join(text))
    return found


# --- which ------------------------------------------------------------------------------------------------------


def test_the_newest_of_each_machine_and_shape_is_shown_in_whatever_order_files_are_read() -> None:
    made = [measured(id=f"r{n}", started=f"2026-0{n}-01") for n in (1, 2, 3)]
    made.append(measured(id="other", started="2025-01-01", setting=Setting(mode="fwd")))
    made.append(measured(id="elsewhere", started="2025-01-01", machine={"id": "babe"}))
    shown = {
        tuple((one.result.id, one.notes) for one in newest(random.Random(seed).sample(made, len(made))))
        for seed in range(5)
    }
    assert shown == {
        (
            ("elsewhere", ()),
            ("other", ()),
            ("r3", ("2 earlier results of the same machine and shape not shown",)),
        )
    }


@pytest.mark.parametrize(("runs", "differs"), [("ab", True), ("ba", False), ("a", False), ("", False)])
def test_other_source_code_than_that_of_the_newest_runs_is_said(runs: str, differs: bool) -> None:
    records = [make_record(mechanism_sha=sha * 64, started=f"2026-0{n + 1}-01") for n, sha in enumerate(runs)]
    (one,) = newest([measured()], records)
    assert [note.endswith("newest runs: dense") for note in one.notes] == [True] * differs


# --- what -------------------------------------------------------------------------------------------------------


def test_the_page_shows_times_growth_and_why_cells_have_no_time() -> None:
    tree = Tree(to_html(book([make_record()], speed=[measured()])))
    found = rows(tree)
    assert ["dense", "1024", "1.049", "1.049 to 1.049", "976,562", "1.0", "0.00105", "1%", "1.00"] in found
    growth = next(row for row in found if row[0] == "dense" and row[1].startswith("n^"))
    assert growth[1].startswith("n^2.00") and growth[2].startswith("n^1.00") and growth[-1] == "is it (dense)"
    said = [text for _, text in tree.all("li")]
    assert "mine at 256: out of memory: needs 9 GiB" in said
    assert "all_pairs at 256: no score, dense emulation" in said
    assert [row[1] for row in found if row[0] in ("mine", "all_pairs")] == ["too few lengths"] * 2
    facts = [text for _, text in tree.all("dd")]
    assert {"x (cafe)", "abc", "attnbench speed", "dense"} <= set(facts)


def test_columns_are_ordered_by_numbers() -> None:
    tree = Tree(to_html(book([], speed=[measured()])))
    orders = [a["data-sort"] for a, _ in tree.all("td") if "data-sort" in a][:8]
    assert [float(order or "nan") for order in orders] == pytest.approx(
        [256, 6.5536e-5, 6.5536e-5, 256 / 6.5536e-5, 2**18, 65536, 65536 / 6.5536e-5 / 1e11, 1], rel=1e-6
    )


def test_markdown_and_latex_have_the_same_figures() -> None:
    made = book([make_record()], speed=[measured()])
    text = to_markdown(made)
    assert "| dense | 1024 | 1.049 | 1.049 to 1.049 | 976,562 | 1.0 | 0.00105 | 1% | 1.00 |" in text.splitlines()
    assert text.index("## quick") < text.index("## Speed")
    assert "- commit: abc" in text.splitlines()
    latex = to_latex(made)
    assert r"dense & ms & 0.06554 & 0.2621 & 1.049 & 4.194 & $n^{2.00}\pm0.00$ & \textendash{} \\" in latex
    assert r" & MiB & 0.2 & 0.5 & 1.0 & 2.0 & $n^{1.00}\pm0.00$ &  \\" in latex


def test_scores_are_as_they_are_without() -> None:
    """No row, no column, no number of a table of scores knows of speed."""
    alone, beside = book([make_record()]), book([make_record()], speed=[measured()])
    assert (to_csv(alone.report), to_json(alone.report)) == (to_csv(beside.report), to_json(beside.report))
    assert to_markdown(beside).startswith(to_markdown(alone)) and "Speed" not in to_markdown(alone)
    assert "Speed" not in to_html(alone) and "Time of a call" not in to_latex(alone)


# --- text from elsewhere, bytes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(text: str) -> None:
    trees, markdowns, latexes = [], [], []
    for words in ("plain", text):
        made = book([hostile_record("run")], speed=[hostile_result(words)])
        trees.append(Tree(to_html(made, [picture("speed-1", words)])))
        markdowns.append(to_markdown(made))
        latexes.append(to_latex(made))
    plain, hostile = trees
    assert hostile.errors == []
    assert [name for name, _, _ in hostile.elements] == [name for name, _, _ in plain.elements]
    assert [list(a) for _, a, _ in hostile.elements] == [list(a) for _, a, _ in plain.elements]
    assert " ".join(text.split()) in [found for _, found in hostile.all("th")]
    assert [a["alt"] for a, _ in hostile.all("img")] == [" ".join(text.split())]
    cells = [[len(re.findall(r"(?<!\\)\|", line)) for line in one.splitlines()] for one in markdowns]
    assert cells[0] == cells[1] and not re.search(r"(?<!\\)<", markdowns[1])
    commands = re.compile(r"\\(?:begin|end|toprule|midrule|bottomrule|input)\b")
    read = ["\n".join(line for line in one.splitlines() if not line.startswith("%")) for one in latexes]
    assert commands.findall(read[0]) == commands.findall(read[1])


def test_same_files_same_bytes_in_any_order() -> None:
    made = [measured(id=f"r{n}", machine={"id": f"m{n}"}, software={"b": "1", "a": "2"}) for n in range(3)]
    turned = [one.model_copy(update={"software": {"a": "2", "b": "1"}}) for one in made[::-1]]
    written = {(to_html(b), to_markdown(b), to_latex(b)) for b in (book([], speed=made), book([], speed=turned))}
    assert len(written) == 1


# --- pictures inside the page -----------------------------------------------------------------------------------


def test_each_part_of_the_page_holds_its_pictures_the_smaller_form_of_them() -> None:
    made = book([make_record(), make_record(protocol="other")], speed=[measured()])
    shown = [picture("speed-1", "third"), picture("protocol-2", "second"), picture("protocol-1", "first")]
    small = shown[0].__class__("protocol-1", "n", "fourth", "fourth", PIXEL, b"<svg/>")
    page = to_html(made, [*shown, small])
    tree = Tree(page)
    assert [a["alt"] for a, _ in tree.all("img")] == ["first", "fourth", "second", "third"]
    data = [(a["src"] or "").split(",") for a, _ in tree.all("img")]
    assert data[0] == ["data:image/png;base64", base64.b64encode(PIXEL).decode()]
    assert data[1] == ["data:image/svg+xml;base64", base64.b64encode(b"<svg/>").decode()]
    order = [page.index(f'id="{name}"') for name in ("protocol-1", "protocol-2", "speed-1")]
    alts = [page.index(f'alt="{name}"') for name in ("first", "second", "third")]
    assert order[0] < alts[0] < order[1] < alts[1] < order[2] < alts[2]
    assert [text for _, text in tree.all("summary") if "plot" in text] == ["2 plots", "1 plot", "1 plot"]


def test_the_page_without_pictures_has_none() -> None:
    tree = Tree(to_html(book([make_record()], speed=[measured()])))
    assert not tree.all("img") and not tree.all("figure")


def test_what_is_drawn_of_a_table_has_a_text_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnbench.reporting import plots

    monkeypatch.setattr(plots, "FIGURES", {"heat-map": plots.FIGURES["heat-map"]})
    made = book(grid(14, 1, seeds=1), speed=[result(grown("dense", lambda n: 1e-9 * n**2, LENGTHS))])
    heat, scaling = plots.pictures(made)
    assert (heat.of, scaling.of) == ("protocol-1", "speed-1")
    assert "Mechanisms: mech000, mech001" in heat.alt and "and 2 more. Tasks: task00." in heat.alt
    assert "Mechanisms: dense." in scaling.alt
    width, height = scaling.size
    assert 300 < height < width < 1500
