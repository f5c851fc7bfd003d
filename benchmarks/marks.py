"""When a run reported, and how far it was: what training speed is computed from."""

from __future__ import annotations

import time
from typing import Any

from paceline.run import Run


def note_reports() -> list[tuple[float, int]]:
    """The moment and the steps of every report that this process makes from now on; the list grows as it makes them."""
    marks: list[tuple[float, int]] = []
    plain_report = Run.report

    def report(self: Run, *arguments: Any) -> None:
        plain_report(self, *arguments)
        marks.append((time.perf_counter(), self.step))

    Run.report = report  # type: ignore[method-assign,assignment]
    return marks
