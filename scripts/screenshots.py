"""Pictures of the HTML report: python scripts/screenshots.py [RESULTS] [FOLDER]. Needs playwright and Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


def pictures(page: Page, folder: Path, name: str) -> None:
    """The top of the page, and its first cell with a curve, opened."""
    page.screenshot(path=folder / f"report-{name}.png")
    page.locator("td.score button").first.click()
    page.locator("dialog .run").first.evaluate("run => { run.open = true; }")
    page.locator("dialog .curve").first.scroll_into_view_if_needed()
    page.screenshot(path=folder / f"report-{name}-cell.png")


def main() -> None:
    results = sys.argv[1] if len(sys.argv) > 1 else "results"
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else "docs/images")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        command = [
            sys.executable,
            "-m",
            "attnbench",
            "report",
            "--results",
            results,
            "--format",
            "html",
            "--to",
            scratch,
        ]
        subprocess.run(command, check=True)
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses a sandbox to root
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        for name, size, scheme in (("light", WIDE, "light"), ("dark", WIDE, "dark"), ("phone", PHONE, "light")):
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto((Path(scratch) / "report.html").as_uri())
            pictures(page, folder, name)
            page.close()
        browser.close()
    for path in sorted(folder.glob("report-*.png")):
        print(path)


if __name__ == "__main__":
    main()
