"""The page in Chromium: sorting, filtering, opening cells, colours, a phone, and that nothing leaves it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from books import HOSTILE, book, grid, hostile_record
from factories import make_record
from speed.speed_data import grown, result

from attnbench.record import Record
from attnbench.reporting import literature
from attnbench.reporting.html import to_html
from attnbench.reporting.picture import Picture
from attnbench.reporting.plots import speed_pictures
from attnbench.reporting.speeds import newest
from attnbench.speed.result import SpeedResult

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
ROOT = Path(__file__).parents[2]
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
Open = Callable[..., "Page"]

#: Own texts of all elements that can be seen, with the ratio of their contrast (WCAG 2.2).
CONTRASTS = """() => {
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = rgb => rgb.reduce((sum, v, n) => sum + linear(v / 255) * [0.2126, 0.7152, 0.0722][n], 0);
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const found = numbers(getComputedStyle(e).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found.slice(0, 3);
    }
    return numbers(getComputedStyle(document.body).backgroundColor);
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = Array.from(element.childNodes).filter(n => n.nodeType === 3).map(n => n.data.trim()).join("");
    if (!own || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName) || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const text = light(numbers(element instanceof SVGElement ? style.fill : style.color).slice(0, 3));
    const back = light(behind(element));
    found.push([own.slice(0, 40), (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05)]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if path is None:
        pytest.skip("no Chromium: apt-get install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses a sandbox to root
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens the page of these records. In the end, nothing may have left it, failed, or popped up."""
    requests: list[str] = []
    faults: list[str] = []
    contexts = []

    def opened(records: list[Record], papers: Any = (), speed: Any = (), pictures: Any = (), **settings: Any) -> Page:
        path = tmp_path / "report.html"
        path.write_text(to_html(book(records, papers, speed), pictures), "utf-8")
        contexts.append(browser.new_context(**settings))
        page = contexts[-1].new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(f"alert: {dialog.message}"))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert set(requests) == {(tmp_path / "report.html").as_uri()}
    assert faults == []


def record(label: str, task: str, test: float | None, **changes: Any) -> Record:
    status = "oom" if test is None else "ok"
    return make_record(label=label, mechanism=label, task=task, test=test or 0.5, status=status, **changes)


def small() -> list[Record]:
    """On task a: hst 0.9, dense 0.5, local 0.7, failed none; big misses it. One row is stale."""
    records = [
        record("hst", "a", 0.9),
        record("dense", "a", 0.5),
        record("local", "a", 0.7),
        record("failed", "a", None),
    ]
    records += [record("big", "b", 0.3), record("dense", "b", 0.6)]
    return [*records, record("local", "a", 0.2, mechanism_sha="0" * 64, started="2025-01-01")]


def shown(page: Page) -> list[str]:
    """Names of the rows that can be seen, in their order."""
    heads = page.locator("table.board tbody tr:visible th")
    return [text.replace("\n", " ").split(" (")[0].strip() for text in heads.all_inner_texts()]


# --- sorting and filtering --------------------------------------------------------------------------------------


def test_sorting_by_a_task_keeps_cells_without_a_score_at_the_end(show: Open) -> None:
    page = show(small())
    head = page.get_by_role("columnheader", name="a accuracy")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    down = shown(page)
    assert [name.split()[0] for name in down] == ["hst", "local", "dense", "local", "big", "failed"]
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert [name.split()[0] for name in shown(page)] == ["local", "dense", "local", "hst", "big", "failed"]
    assert page.locator("th[aria-sort=ascending], th[aria-sort=descending]").count() == 1
    assert "sorted by a, ascending" in page.locator("output").inner_text()


def test_sorting_by_name_and_by_keyboard(show: Open) -> None:
    page = show([record(f"m{n}", "a", 0.5) for n in (10, 9, 1)])
    button = page.get_by_role("columnheader", name="Mechanism").get_by_role("button")
    button.press("Enter")
    assert shown(page) == ["m1", "m9", "m10"]
    button.press("Space")
    assert shown(page) == ["m10", "m9", "m1"]


def test_filtering_rows_and_tasks(show: Open) -> None:
    page = show(small())
    box = page.get_by_role("searchbox", name="Mechanisms")
    box.fill("LOC")
    assert [name.split()[0] for name in shown(page)] == ["local", "local"]
    assert page.locator("output").inner_text() == "2 of 6 rows"
    page.get_by_role("checkbox", name="stale rows").uncheck()
    assert shown(page) == ["local"]
    box.fill("no such")
    assert shown(page) == []
    box.fill("")
    assert len(shown(page)) == 5
    page.get_by_role("searchbox", name="Tasks").fill("b")
    assert page.get_by_role("columnheader", name="b accuracy").is_visible()
    assert page.get_by_role("columnheader", name="a accuracy").count() == 0
    assert page.get_by_role("columnheader", name="Mixer parameters").is_visible()


# --- cells ------------------------------------------------------------------------------------------------------


def test_a_cell_opens_its_runs_and_gives_the_focus_back(show: Open) -> None:
    page = show(grid(2, 1, seeds=2))
    cell = page.locator("td button").first
    cell.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="mech000 on task00")
    assert dialog.is_visible()
    assert "the protocol asks for 2" in dialog.inner_text()
    dialog.locator("summary", has_text="Seed 1").click()
    run = dialog.locator(".run").nth(1)
    assert run.locator("code").inner_text() == "attnbench run"
    assert run.get_by_role("img", name="Learning curve of seed 1: validation 0 at step 50").is_visible()
    assert run.locator("polyline").count() == 2
    run.locator("summary", has_text="Configuration").click()
    run.get_by_text("options.block_size").wait_for()
    run.get_by_text("budget.optimiser.lr").wait_for()
    run.locator("summary", has_text="Environment").click()
    run.get_by_text("python").wait_for()
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert cell.evaluate("element => element === document.activeElement")


def test_a_failed_cell_opens_its_reason(show: Open) -> None:
    page = show(small())
    page.get_by_role("button", name="oom").click()
    assert "oom in a test" in page.get_by_role("dialog").inner_text()
    page.get_by_role("button", name="Close").click()
    assert page.get_by_role("dialog").count() == 0


# --- text from elsewhere ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_a_name_is_shown_as_text_and_runs_nothing(show: Open, text: str) -> None:
    page = show([hostile_record(text)])
    assert page.locator("tbody th").first.inner_text().startswith(" ".join(text.split()))
    page.locator("td button").first.click()
    page.evaluate("for (const e of document.querySelectorAll('dialog details')) e.open = true")
    page.wait_for_function("document.querySelectorAll('dialog dl').length > 5")
    assert page.get_by_role("dialog").inner_text().count(" ".join(text.split())) > 10
    assert page.locator("img").count() == 0


def test_the_policy_lets_no_script_run_and_nothing_out(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(to_html(book(small())), "utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.evaluate("""() => {
      const script = document.createElement("script");
      script.textContent = "window.ran = true";
      document.body.append(script);
      document.body.insertAdjacentHTML("beforeend", "<p id=p onclick='window.ran = true'>x</p>");
      document.getElementById("p").click();
    }""")
    assert page.evaluate("window.ran") is None
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'out', error => 'refused')") == "refused"
    said = (
        "new Promise(done => { document.addEventListener('securitypolicyviolation', e => done(e.effectiveDirective)); "
    )
    assert page.evaluate(f"{said} new Image().src = 'http://127.0.0.1:9/x.png'; }})") == "img-src"
    page.close()


# --- speed and pictures -----------------------------------------------------------------------------------------


def scaling() -> tuple[list[SpeedResult], list[Picture]]:
    """On 256, 512 and 1,024: dense is fastest at first, local last. With its picture, as SVG and as PNG."""
    cells = grown("dense", lambda n: 1e-9 * n**2, [256, 512, 1024]) + grown("local", lambda n: 5e-7 * n, [256, 1024])
    made = [result(cells)]
    (drawn,) = speed_pictures(newest(made)[0], "speed-1")
    larger = b"<svg/>".ljust(len(drawn.png) + 1)
    return made, [drawn, replace(drawn, svg=larger)]


def test_pictures_inside_the_page_are_shown_and_ask_for_nothing(show: Open) -> None:
    speed, pictures = scaling()
    page = show(small(), speed=speed, pictures=pictures, color_scheme="dark")
    image = page.locator("img").first
    assert not image.is_visible()
    page.locator("summary", has_text="2 plots").press("Enter")
    assert image.is_visible()
    assert [one.split(";")[0] for one in page.evaluate("[...document.images].map(i => i.src)")] == [
        "data:image/svg+xml",
        "data:image/png",
    ]
    page.wait_for_function("[...document.images].every(i => i.complete && i.naturalWidth > 300)")
    assert image.evaluate("i => getComputedStyle(i).backgroundColor") == "rgb(255, 255, 255)"
    assert page.get_by_role("img", name="Time of a call, median and quartiles").count() == 2


def test_the_table_of_speed_is_sorted_and_filtered(show: Open) -> None:
    speed, _ = scaling()
    page = show(small(), speed=speed)
    table = page.locator("#speed-1-table")
    table.get_by_role("button", name="ms").click()
    shown = table.locator("tbody tr:visible")
    assert [text.split()[:2] for text in shown.all_inner_texts()] == [
        ["dense", "256"], ["local", "256"], ["dense", "512"], ["local", "1024"], ["dense", "1024"],
    ]  # fmt: skip
    page.get_by_role("searchbox", name="Mechanisms").last.fill("loc")
    assert shown.count() == 2


# --- looks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(show: Open, scheme: str) -> None:
    tasks = ("listops", "text", "retrieval", "image", "pathfinder")
    records = [*small(), *(record("dense", task, 0.5) for task in tasks)]
    page = show(records, literature.read(ROOT / "results" / "literature"), *scaling(), color_scheme=scheme)
    page.evaluate("for (const e of document.querySelectorAll('details')) e.open = true")
    found = page.evaluate(CONTRASTS)
    page.locator("td button").first.click()
    page.evaluate("for (const e of document.querySelectorAll('dialog details')) e.open = true")
    page.wait_for_function("document.querySelectorAll('dialog dl').length > 5")
    opened = page.evaluate(CONTRASTS)
    assert len(opened) > len(found) > 100
    assert [(text, round(ratio, 2)) for text, ratio in opened if ratio < 4.5] == []


def test_the_switch_of_colours(show: Open) -> None:
    page = show(small(), color_scheme="dark")
    back = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(back)
    page.get_by_role("button", name="Light colours").click()
    assert page.evaluate(back) == "rgb(255, 255, 255)" != dark
    page.get_by_role("button", name="Dark colours").click()
    assert page.evaluate(back) == dark


def test_a_phone_scrolls_the_table_and_not_the_page(show: Open) -> None:
    page = show(grid(5, 8, seeds=1), literature.read(ROOT / "results" / "literature"), *scaling(), **PHONE)
    page.evaluate("for (const e of document.querySelectorAll('details')) e.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    scroll = page.locator(".scroll").first
    assert scroll.evaluate("e => e.scrollWidth > e.clientWidth")
    scroll.evaluate("e => { e.scrollLeft = 400; }")
    first = page.locator("tbody th").first.bounding_box()
    assert first and 0 <= first["x"] < 20  # the names stay in view
    page.locator("td button").last.click()
    box = page.get_by_role("dialog").bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_the_first_key_leads_past_the_head_of_the_page(show: Open) -> None:
    page = show(small())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the tables"
    assert page.locator(".skip").bounding_box()["x"] >= 0  # type: ignore[index]
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_without_scripts_the_tables_are_there(show: Open) -> None:
    page = show(small(), java_script_enabled=False)
    assert page.get_by_role("rowheader", name="hst").is_visible()
    assert "Scripts are off" in page.locator("noscript").inner_text()
    assert not page.locator("form").first.is_visible()


# --- size -------------------------------------------------------------------------------------------------------


def test_ten_thousand_records(show: Open) -> None:
    page = show(grid(168, 20))
    assert page.locator("td button").count() == 168 * 20
    head = page.get_by_role("columnheader", name="task07 accuracy")
    head.get_by_role("button").click()
    scores = page.evaluate("[...document.querySelectorAll('tbody tr')].map(r => Number(r.cells[8].dataset.sort))")
    assert scores == sorted(scores, reverse=True) and len(set(scores)) > 5
    page.get_by_role("searchbox", name="Mechanisms").fill("mech16")
    assert len(shown(page)) == 8
    page.get_by_role("searchbox", name="Tasks").fill("task07")
    page.locator("td button:visible").last.click()
    assert page.get_by_role("dialog").locator(".run").count() == 3
