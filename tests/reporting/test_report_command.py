"""`attnbench report` with the formats and pictures made here."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from factories import make_record
from speed.speed_data import grown, result

from attnbench.speed.result import write
from attnbench.store import Store

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "results"
    monkeypatch.setenv("ATTNBENCH_RESULTS", str(folder))
    for seed in (0, 1):
        Store(folder).write(make_record(seed=seed))
    return folder


@pytest.mark.parametrize(("form", "name"), [("html", "report.html"), ("latex", "report.tex")])
def test_a_form_goes_to_stdout_or_into_a_folder(call: Call, results: Path, form: str, name: str) -> None:
    code, shown, _ = call("report", "--format", form)
    assert code == 0 and "dense" in shown
    assert call("report", "--format", form, "--to", "out")[1] == f"out/{name}\n"
    assert Path("out", name).read_bytes().decode() == shown


def test_values_of_the_literature_lie_beside_the_runs(call: Call, results: Path) -> None:
    assert "Values of the literature" not in call("report", "--format", "html")[1]
    (results / "literature").mkdir()
    table = results / "literature" / "mine.csv"
    table.write_text("source,table,model,task,metric,value,mark,note\nX 2020,Old,Net,recall,accuracy,12.5,S,\n")
    page = call("report", "--format", "html")[1]
    assert "Values of the literature" in page and "12.5" in page and "Not comparable" in page
    assert "12.5" not in call("report", "--format", "csv")[1]
    table.write_text("source\n")
    code, out, err = call("report", "--format", "latex")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"error: {table}: columns are ['source'], not source,table,")


def test_plots_go_into_the_folder_and_need_one(call: Call, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnbench.reporting import plots

    monkeypatch.setattr(plots, "FIGURES", {"heat-map": plots.FIGURES["heat-map"]})
    code, _, err = call("report", "--plots")
    assert (code, err) == (2, "error: --plots needs a folder to draw into: add --to DIR\n")
    code, out, _ = call("report", "--plots", "--to", "out")
    assert code == 0
    assert out.split() == ["out/report.md", "out/quick-1-heat-map.png", "out/quick-1-heat-map.svg"]
    assert sorted(path.name for path in Path("out").iterdir()) == sorted(Path(line).name for line in out.split())


def test_results_of_speed_are_shown_and_drawn_into_the_page(
    call: Call, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnbench.reporting import plots

    monkeypatch.setattr(plots, "FIGURES", {})
    stored = write(result(grown("dense", lambda n: 1e-9 * n**2, [256, 512, 1024])), results)
    (stored.parent / "bad.json").write_text("{")
    assert "<img" not in call("report", "--format", "html")[1]
    written = []
    for folder in ("one", "two"):
        code, out, err = call("report", "--format", "html", "--plots", "--to", folder)
        assert code == 0 and "bad.json: cut off" in err
        names = [Path(line).name for line in out.split()]
        written.append([Path(folder, name).read_bytes() for name in names])
    assert names == ["report.html", *(f"speed-{stored.parent.name}-scaling.{kind}" for kind in ("png", "svg"))]
    assert written[0] == written[1]
    page, png, svg = written[0]
    assert base64.b64encode(min(png, svg, key=len)) in page
