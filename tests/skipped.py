"""One line at the end of a test run: how many tests were skipped, and why."""

from __future__ import annotations

from collections import Counter
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many tests were skipped for each reason; with pytest-xdist the reports of all workers are counted."""
    reasons = Counter(reason_of(report) for report in terminalreporter.stats.get("skipped", ()))
    if reasons:
        counts = (f"{count} ({reason})" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"skipped: {', '.join(counts)}")


def reason_of(report: Any) -> str:
    """Return why a test, or a file of tests, was skipped."""
    _, _, reason = report.longrepr
    return " ".join(str(reason).removeprefix("Skipped: ").split())
