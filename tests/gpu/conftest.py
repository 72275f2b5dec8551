"""One table of all checks on the GPU, whatever else pytest prints."""

from __future__ import annotations

import pytest

_HERE = "tests/gpu/"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [
        report
        for outcome in ("passed", "failed", "error", "skipped")
        for report in terminalreporter.stats.get(outcome, [])
        if report.nodeid.startswith(_HERE) and (report.when == "call" or report.outcome != "passed")
    ]
    if not reports or all(report.outcome == "skipped" for report in reports):
        return
    terminalreporter.section("checks on the GPU")
    terminalreporter.write_line(f"{'check':<90}{'result':<9}{'error':>9}{'seconds':>9}")
    for report in reports:
        error = dict(report.user_properties).get("error")
        shown = "" if error is None else f"{error:.1e}"
        name = report.nodeid.removeprefix(_HERE)
        terminalreporter.write_line(f"{name:<90}{report.outcome:<9}{shown:>9}{report.duration:>9.1f}")
