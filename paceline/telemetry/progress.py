"""The live display of a run: quiet when the output is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paceline.telemetry.bottleneck import bottleneck
from paceline.telemetry.clock import ACTIVITIES

_COLORS = dict(zip(ACTIVITIES, ("green", "cyan", "blue", "magenta", "yellow", "bright_black"), strict=True))
_BAR_WIDTH = 60


class Progress:
    """Shows the latest report. Use as a context manager."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._title = title
        self._console = console or Console()
        self._live = Live(console=self._console, refresh_per_second=4, transient=False) if self._shown() else None

    def _shown(self) -> bool:
        return self._console.is_terminal and sys.stdout.isatty()

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, report: Mapping[str, Any], share_done: float) -> None:
        if self._live is not None:
            self._live.update(render(self._title, report, share_done))


def render(title: str, report: Mapping[str, Any], share_done: float) -> RenderableType:
    """The display of one report."""
    numbers = Table.grid(padding=(0, 3))
    numbers.add_row("step", "sps", "fps", "return", "length", "lag", "entropy", style="bright_black")
    numbers.add_row(
        f"{report['step']:,}",
        f"{report['sps']:,.0f}",
        f"{report['fps']:,.0f}",
        _number(report.get("episode_return")),
        _number(report.get("episode_length")),
        _number(report.get("policy_lag")),
        _number(report.get("entropy"), 3),
        style="bold",
    )
    bar = Table.grid()  # on a line of its own, which a bare ProgressBar does not end
    bar.add_row(ProgressBar(total=1.0, completed=share_done, width=_BAR_WIDTH))
    shares = {name: report.get(f"time/{name}", 0.0) for name in ACTIVITIES}
    return Group(
        Text.assemble((title, "bold"), f"   {report['seconds']:.0f} s"),
        bar,
        numbers,
        share_bar(shares),
        Text(bottleneck(shares), style="italic bright_black"),
    )


def share_bar(shares: Mapping[str, float]) -> Text:
    """The time shares as one coloured bar with its legend."""
    bar = Text()
    for name, share in shares.items():
        bar.append("█" * round(share * _BAR_WIDTH), style=_COLORS[name])
    bar.append("  ")
    for name, share in shares.items():
        if share >= 0.01:
            bar.append(f"{name} {share:.0%} ", style=_COLORS[name])
    return bar


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
