"""The HTML page as a file: its structure, what may not get out of text, its bytes and its size."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from books import HOSTILE, Tree, book, curve, grid, hostile_record, picture
from factories import make_quality, make_record
from speed.speed_data import grown, result

from attnbench.record import Record
from attnbench.report import build
from attnbench.reporting import literature
from attnbench.reporting.book import Book
from attnbench.reporting.details import CURVE_POINTS
from attnbench.reporting.html import to_html
from attnbench.speed.result import SpeedResult
from attnbench.standing import Examples, judge
from attnbench.store import Store

ROOT = Path(__file__).parents[2]
OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


def page(records: list[Record]) -> Tree:
    return Tree(to_html(book(records)))


def data_of(tree: Tree) -> dict[str, Any]:
    ((_, text),) = [found for found in tree.all("script") if found[0].get("type") == "application/json"]
    data: dict[str, Any] = json.loads(text)
    return data


def facts(things: dict[str, Any]) -> dict[str, str]:
    return dict(things["facts"])


def cells(tree: Tree) -> list[str]:
    """What the buttons of the leaderboard say."""
    return [text for attributes, text in tree.all("button") if "data-cell" in attributes]


def measured() -> SpeedResult:
    return result(grown("dense", lambda n: 1e-9 * n**2, [256, 512, 1024]))


def everything() -> list[Record]:
    """Scores, stale and failed and missing cells, two protocols, tuned values, all of an average's tasks."""
    records = [
        make_record(label=name, mechanism=name, task=task, seed=seed, test=0.5 + 0.1 * seed, seeds=3)
        for name in ("dense", "hst")
        for task in ("listops", "text", "retrieval", "image", "pathfinder")
        for seed in range(2)
    ]
    records += [make_record(label="local", mechanism="local", task="listops", status="oom")]
    records += [make_record(label="old", mechanism="old", mechanism_sha=sha, started=day, task="listops")
                for sha, day in (("a" * 64, OLD), ("b" * 64, NEW))]  # fmt: skip
    return [*records, make_record(protocol="other", protocol_changes={"budget": {"steps": 3}})]


# --- structure --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole() -> Tree:
    records = everything()
    made = book(records, literature.read(ROOT / "results" / "literature"), [measured()])
    return Tree(to_html(made, [picture("protocol-1"), picture("protocol-2"), picture("speed-1")]))


def test_every_tag_ends_and_ids_are_unique(whole: Tree) -> None:
    assert whole.errors == []
    ids = [attributes["id"] for _, attributes, _ in whole.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) > 5
    named = {a[key] for _, a, _ in whole.elements for key in ("aria-labelledby",) if key in a}
    links = {(a["href"] or "").removeprefix("#") for a, _ in whole.all("a")}
    assert named | links <= set(ids)


def test_tables_are_for_screen_readers(whole: Tree) -> None:
    tables, captions = whole.all("table"), whole.all("caption")
    assert len(tables) == len(captions) >= 4
    assert all(text for _, text in captions)
    assert all(attributes.get("scope") in ("row", "col") for attributes, _ in whole.all("th"))
    assert all(attributes.get("type") for attributes, _ in whole.all("button") + whole.all("input"))
    assert [attributes.get("lang") for attributes, _ in whole.all("html")] == ["en"]
    assert (whole.all("a")[0][0]["href"], whole.all("a")[0][1]) == ("#main", "Skip to the tables")
    assert all(a.get("tabindex") == "0" and a.get("role") == "region" for a, _ in whole.all("div") if "class" in a)


def test_rows_of_a_board_have_as_many_cells_as_its_head(whole: Tree) -> None:
    counts: list[list[int]] = []
    for name, _, _ in whole.elements:
        if name == "table":
            counts.append([])
        elif name == "tr":
            counts[-1].append(0)
        elif name in ("th", "td"):
            counts[-1][-1] += 1
    assert all(len(set(rows)) == 1 for rows in counts)


def test_nothing_is_loaded_and_the_policy_allows_what_is_there_alone(whole: Tree) -> None:
    (policy,) = [a["content"] or "" for a, _ in whole.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy and "http" not in policy
    ((_, style),) = whole.all("style")
    (script,) = ("".join(t) for name, a, t in whole.elements if name == "script" and not a)
    (styled,) = ("".join(t) for name, _, t in whole.elements if name == "style")
    for text in (script, styled):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    assert "url(" not in style and "@import" not in style
    sources = [a.get(key) for _, a, _ in whole.elements for key in ("src", "href", "action", "srcset") if key in a]
    assert all(str(source).startswith(("data:,", "data:image/png;base64,", "#")) for source in sources)
    assert "img-src data:;" in policy


def test_no_element_carries_style_or_handlers(whole: Tree) -> None:
    """The policy would refuse them."""
    names = {key for _, attributes, _ in whole.elements for key in attributes}
    assert not [name for name in names if name == "style" or name.startswith("on")]


# --- what a cell says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["diverged", "oom", "timeout", "unsupported", "failed"])
def test_a_cell_without_a_score_says_why(status: str) -> None:
    tree = page([make_record(status=status)])
    assert cells(tree) == [status]
    (cell,) = data_of(tree)["cells"]
    assert facts(cell)["status"] == status
    assert facts(cell["runs"][0])["reason"] == f"{status} in a test"


def test_a_missing_cell_says_so_and_opens_nothing() -> None:
    tree = page([make_record(label="a", task="x"), make_record(label="b", mechanism="b", task="y")])
    assert [text for a, text in tree.all("td") if a.get("class") == "missing"] == ["no run", "no run"]
    assert len(data_of(tree)["cells"]) == len(cells(tree)) == 2


def test_a_stale_row_says_so_in_the_row_and_in_its_cells() -> None:
    records = [make_record(mechanism_sha=sha * 64, started=day) for sha, day in (("a", OLD), ("b", NEW))]
    tree = page(records)
    assert [text for _, text in tree.all("strong")] == ["stale"]
    live, stale = data_of(tree)["cells"]
    assert "stale" not in facts(live) and "not comparable" in facts(stale)["stale"]


def test_a_cell_opens_all_there_is_to_know() -> None:
    records = [
        make_record(seed=seed, test=test, seeds=3, regularizers=("sar",)).model_copy(
            update={"machine": {"cpu": "a CPU", "load_before": seed}, "command": f"attnbench run --seed {seed}"}
        )
        for seed, test in enumerate((0.7, 0.8))
    ]
    data = data_of(page(records))
    (cell,) = data["cells"]
    known = facts(cell)
    assert known["accuracy"] == "0.7500 ± 0.0707"
    assert known["seeds with a score"] == "0, 1; the protocol asks for 3"
    assert (known["chance"], known["best trivial predictor"]) == ("0.1250", "0.1520 (bag of tokens)")
    assert known["cell"] == records[0].spec.hash
    first, second = cell["runs"]
    assert [run["seed"] for run in (first, second)] == [0, 1]
    assert second["command"] == "attnbench run --seed 1"
    assert facts(second)["load before"] == "1"
    assert first["environment"] == second["environment"] and first["configuration"] == second["configuration"]
    titles = [data["parts"][place][0][0] for place in first["configuration"] + first["environment"]]
    assert titles == ["mechanism", "regularizer", "task", "training", "protocol", "machine", "software", "code"]
    training = dict(data["parts"][first["configuration"][3]])
    assert (training["budget.optimiser.lr"], training["model.dim"]) == ("0.001", "64")


def test_a_long_curve_keeps_its_ends() -> None:
    short, long = (make_record(seed=n).model_copy(update={"curve": curve(n * 500 + 7)}) for n in (0, 1))
    runs = data_of(page([short, long]))["cells"][0]["runs"]
    assert runs[0]["curve"]["step"] == [50 * n for n in range(1, 8)]
    thinned = runs[1]["curve"]
    assert len(thinned["step"]) == len(thinned["loss"]) == CURVE_POINTS
    assert (thinned["step"][0], thinned["step"][-1], thinned["of"]) == (50, 50 * 507, 507)
    assert thinned["validation"][-1] == pytest.approx(1 - 1 / 507, abs=1e-4)


def test_standing_ranks_and_separation_are_shown(tmp_path: Path) -> None:
    """Of 100 examples `good` is right on 90, `bad` on the first 30 of them, `nil` on 10; two tasks, three seeds."""
    store = Store(tmp_path)
    for label, right in (("good", 90), ("bad", 30), ("nil", 10)):
        for task in ("a", "b"):
            for seed in range(3):
                score = (np.arange(100) < right - seed).astype(np.float32)
                quality = make_quality(float(score.mean()), controls=["good", "bad"])
                record = make_record(label=label, mechanism=label, task=task, seed=seed, quality=quality)
                store.write(record, {"unit": np.arange(100), "score": score})
    found, _ = store.read_all()
    records = [record for _, record in found]
    tree = Tree(to_html(Book.of(judge(build(records), Examples.of(found)), records)))
    bad, good, nil = (facts(data_of(tree)["cells"][place]) for place in (0, 2, 4))
    assert good["standing"] == "the best score of its column"
    assert bad["standing"].startswith("-0.6000 [") and "the difference shows" in bad["standing"]
    assert nil["standing"].startswith("-0.8000 [")
    assert good["task separates"] == "yes"
    stars = [a for a, _ in tree.all("span") if a.get("class") == "star"]
    assert len(stars) == 2 + 1  # the best of each column, and the legend's
    ranks = [a.get("data-sort") for a, text in tree.all("td") if text in ("1.0", "2.0", "3.0")]
    assert ranks == ["2.0", "1.0", "3.0"]
    assert [text for _, text in tree.all("td")].count("yes") == 2


# --- text from elsewhere ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(text: str) -> None:
    published = literature.Published(
        text, ((text, text),), ((text, (literature.Value("1", "S", text, text),)),)
    )  # fmt: skip
    plain = Tree(to_html(book([hostile_record("plain")], [published])))
    tree = Tree(to_html(book([hostile_record(text)], [published])))
    assert tree.errors == []
    assert [name for name, _, _ in tree.elements] == [name for name, _, _ in plain.elements]
    assert [list(a) for _, a, _ in tree.elements] == [list(a) for _, a, _ in plain.elements]
    shown = " ".join(text.split())
    assert shown in [found for _, found in tree.all("th")] or any(f.startswith(shown) for _, f in tree.all("th"))
    cell = data_of(tree)["cells"][0]
    assert cell["runs"][0]["command"] == shown
    (raw,) = [found for a, found in tree.all("script") if a.get("type") == "application/json"]
    assert not set(raw) & set("<>&")


def test_characters_that_hide_or_turn_text_are_left_out() -> None:
    html = to_html(book([hostile_record("ab\u202ec\u200bd\x00\ud800e")]))
    html.encode()
    assert "abcde" in html and not re.search("[\u202e\u200b\x00]", html)


# --- bytes ------------------------------------------------------------------------------------------------------


def test_same_records_same_bytes_in_any_order() -> None:
    records = everything()
    pages = {to_html(book(random.Random(seed).sample(records, len(records)))) for seed in range(3)}
    assert len(pages) == 1


def test_no_records() -> None:
    tree = page([])
    assert tree.errors == []
    assert "No records." in [text for _, text in tree.all("p")]


def test_two_thousand_records_fit_into_ten_megabytes() -> None:
    html = to_html(book(grid(34, 20)))
    assert len(html.encode()) < 10e6
    data = data_of(Tree(html))
    assert sum(len(cell["runs"]) for cell in data["cells"]) == 34 * 20 * 3
    assert len(data["parts"]) == 34 + 20 + 1 + 1 + 3  # mechanisms, tasks, training, protocol, environment
