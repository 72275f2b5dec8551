"""Pictures of the HTML report: python scripts/screenshots.py [RESULTS] [FOLDER]. Needs playwright and Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

WIDE, LOW = {"width": 1280, "height": 1500}, {"width": 1280, "height": 800}


def open_first_cell(page: Page) -> None:
    """The first cell with a curve, scrolled to that."""
    page.locator("td.score button").first.click()
    page.locator("dialog .run").first.evaluate("run => { run.open = true; }")
    page.locator("dialog .curve").first.scroll_into_view_if_needed()


def main() -> None:
    results = sys.argv[1] if len(sys.argv) > 1 else "results"
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else "docs/images")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        report = ["report", "--results", results, "--format", "html", "--to", scratch]
        subprocess.run([sys.executable, "-m", "attnbench", *report], check=True)
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses a sandbox to root
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        for name, size, scheme in (("light", WIDE, "light"), ("dark", WIDE, "dark"), ("cell", LOW, "light")):
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto((Path(scratch) / "report.html").as_uri())
            if name == "cell":
                open_first_cell(page)
            page.screenshot(path=folder / f"report-{name}.png")
            page.close()
        browser.close()
    for path in sorted(folder.glob("report-*.png")):
        print(path)


if __name__ == "__main__":
    main()
