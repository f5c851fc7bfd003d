"""The table of a population of runs: on a terminal a live one, elsewhere a plain line every few seconds."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table

from paceline.population.launch import MemberProcess
from paceline.telemetry.console import console as shared_console
from paceline.telemetry.console import print_line
from paceline.telemetry.progress import duration

TAIL_BYTES = 16 * 1024
"""The last report of a run is within this many bytes from the end of metrics.jsonl."""
REFRESH_SECONDS = 1.0


class PopulationTable:
    """A context in which `update` shows the members."""

    def __init__(
        self, title: str, members: Sequence[MemberProcess], objective: str, line_seconds: float, console: Console | None
    ) -> None:
        self._title, self._members, self._objective, self._line_seconds = title, members, objective, line_seconds
        self._console = console or shared_console()
        self._began = self._shown_at = time.monotonic()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_interactive else None

    def __enter__(self) -> PopulationTable:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):  # the terminal was closed
                self._live.update(self._table(), refresh=True)
                self._live.stop()

    def update(self) -> None:
        """Show the present state, if the last one was shown some time ago."""
        now = time.monotonic()
        if now - self._shown_at < (self._line_seconds if self._live is None else REFRESH_SECONDS):
            return
        self._shown_at = now
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.update(self._table(), refresh=True)
        else:
            print_line(f"[{duration(now - self._began)}] " + "; ".join(map(self._line, self._members)))

    def _table(self) -> RenderableType:
        table = Table(title=self._title, title_justify="left")
        for column in ("member", "status", "step", "sps", self._objective, "learning rate", "restarts"):
            table.add_column(column, justify="left" if column in ("member", "status") else "right")
        for member in self._members:
            report = last_report(member.plan.folder)
            table.add_row(
                member.plan.name,
                member.status,
                _number(report.get("step"), ",.0f"),
                _number(report.get("sps"), ",.0f"),
                _number(report.get(f"episode_{self._objective}"), ".2f"),
                _number(report.get("learning_rate"), ".2e"),
                str(member.restarts),
            )
        return table

    def _line(self, member: MemberProcess) -> str:
        report = last_report(member.plan.folder)
        step, result = _number(report.get("step"), ",.0f"), _number(report.get(f"episode_{self._objective}"), ".2f")
        return f"{member.plan.name} {member.status}, step {step}, {self._objective} {result}"


def last_report(folder: Path) -> dict[str, Any]:
    """The last complete line of a run's metrics.jsonl; empty if there is none."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
        report = json.loads(lines[-1])
    except (OSError, IndexError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


def _number(value: Any, digits: str) -> str:
    return format(value, digits) if isinstance(value, int | float) else "-"
