"""Times and steps of the reports of a run, from which benchmarks compute the training speed."""

from __future__ import annotations

import time
from typing import Any

from paceline.run import Run


def note_reports() -> list[tuple[float, int]]:
    """The time and the steps of every report that this process makes from now on. The list grows with each report."""
    marks: list[tuple[float, int]] = []
    plain_report = Run.report

    def report(self: Run, *arguments: Any) -> None:
        plain_report(self, *arguments)
        marks.append((time.perf_counter(), self.step))

    Run.report = report  # type: ignore[method-assign,assignment]
    return marks
