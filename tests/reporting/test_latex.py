"""LaTeX: tables that compile, and text that stays text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from books import HOSTILE, book, hostile_record
from factories import make_record

from attnbench.reporting import literature
from attnbench.reporting.latex import escape, to_latex

ROOT = Path(__file__).parents[2]


def tables(text: str) -> list[list[list[str]]]:
    """Cells of every row of every tabular."""
    found = re.findall(r"\\begin\{tabular\}\{(l r*)\}\n(.*?)\\end\{tabular\}".replace(" ", ""), text, re.DOTALL)
    rows = [[line[:-3] for line in body.splitlines() if line.endswith(r" \\")] for _, body in found]
    cells = [[re.split(r"(?<!\\) & ", line) for line in lines] for lines in rows]
    assert all(len(row) == len(columns) for (columns, _), table in zip(found, cells, strict=True) for row in table)
    return cells


def balanced(text: str) -> bool:
    bare = re.sub(r"\\[{}\\]", "", "\n".join(line for line in text.splitlines() if not line.startswith("%")))
    depth = 0
    for letter in bare:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth < 0:
            return False
    return depth == 0


def test_a_table_as_a_whole() -> None:
    records = [make_record(seed=seed, test=test) for seed, test in enumerate([0.80, 0.81, 0.82])]
    records.append(make_record(label="hst+sar", mechanism="hst", regularizers=("sar",), status="not_above_chance"))
    text = to_latex(book(records))
    assert r"\usepackage{booktabs,graphicx}" in text.splitlines()[0]
    (table,) = tables(text)
    assert table == [
        ["mechanism", "mixer parameters", "recall, accuracy"],
        ["dense", "32,768", r"0.810 $\pm$ 0.010 (3)"],
        ["hst+sar", "32,768", r"0.800 {[}0.78, 0.82] (1 seed), not\_above\_chance"],
        [r"\emph{chance}", "", "0.125"],
        [r"\emph{best trivial}", "", "0.152"],
    ]
    rules = re.findall(r"\\(?:top|mid|bottom)rule", text)
    assert rules == [r"\toprule", r"\midrule", r"\midrule", r"\bottomrule"]


def test_stale_rows_missing_cells_views_and_papers() -> None:
    shas = (("a" * 64, "2026-01-01"), ("b" * 64, "2026-02-01"))
    tasks = ("listops", "text", "retrieval", "image", "pathfinder")
    records = [make_record(task=task) for task in tasks]
    records += [make_record(label="x", task="wikihop", mechanism_sha=sha, started=day) for sha, day in shas]
    text = to_latex(book(records, literature.read(ROOT / "results" / "literature")))
    board, view, *papers = tables(text)
    assert [row[0] for row in board[1:4]] == ["dense", "x", r"x (mechanism.source\_sha=aaaaaaaaaaaa) \emph{stale}"]
    assert board[1][-1] == "--"
    assert view[1][-1] == "80.00 (1 seed)"
    assert "our interpretation" in text
    assert len(papers) == 5 and "not comparable" in text.lower()
    assert balanced(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(text: str) -> None:
    plain, hostile = (to_latex(book([hostile_record(words)])) for words in ("plain", text))
    assert balanced(hostile)
    commands = re.compile(r"\\(?:begin|end|toprule|midrule|bottomrule|input)\b.*")
    assert commands.findall(hostile) == commands.findall(plain)
    assert [[len(row) for row in table] for table in tables(hostile)] == [
        [len(row) for row in table] for table in tables(plain)
    ]


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("a_b & c%", r"a\_b \& c\%"),
        ("\\", r"\textbackslash{}"),
        ("--set", "-{}-set"),
        ("---", "-{}-{}-"),
        ("[1] *", "{[}1] {*}"),
        ("two\nlines", "two lines"),
        ("{x}^2 ~ $", r"\{x\}\textasciicircum{}2 \textasciitilde{} \$"),
    ],
)
def test_escape(text: str, latex: str) -> None:
    assert escape(text) == latex


def test_no_records() -> None:
    assert tables(to_latex(book([]))) == []
