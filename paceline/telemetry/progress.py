"""The display of a run: a live table on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paceline.telemetry.clock import ACTIVITIES, bottleneck
from paceline.telemetry.console import console as shared_console
from paceline.telemetry.phases import Phases

_COLORS = dict(zip(ACTIVITIES, ("green", "cyan", "blue", "magenta", "yellow", "bright_black"), strict=True))
_COLUMNS = {
    "step": ("step", ",.0f"),
    "sps": ("sps", ",.0f"),
    "fps": ("fps", ",.0f"),
    "return": ("episode_return", ".1f"),
    "length": ("episode_length", ".1f"),
    "lag": ("policy_lag", ".1f"),
    "entropy": ("entropy", ".3f"),
}
_WIDE_COLUMNS = {
    "policy loss": ("policy_loss", ".4f"),
    "value loss": ("value_loss", ".4f"),
    "critic loss": ("critic_loss", ".4f"),
    "kl": ("approx_kl", ".4f"),
    "clipped": ("clip_fraction", ".0%"),
    "grad norm": ("grad_norm", ".2f"),
    "rate": ("learning_rate", ".2e"),
    "evaluation": ("evaluation_return", ".1f"),
    "elo": ("elo", ".0f"),
    "best policy": ("population/best", ".2f"),
}
"""Shown if the terminal is wide and the run reports them."""
_WIDE = 120
OTHER_LINES = 10
"""Lines of the display and of the prompt, without the rows of policies."""
POLICY_COLUMN = 16
"""Columns of the terminal that a number of a policy takes at most."""


class Progress:
    """A context in which the phases and the latest report of a run are shown."""

    def __init__(
        self, title: str, folder: Path, phases: Phases, *, line_seconds: float = 10.0, console: Console | None = None
    ) -> None:
        """Without a terminal a line is written every `line_seconds`."""
        self._title, self._folder, self._phases, self._line_seconds = title, folder, phases, line_seconds
        self._console = console or shared_console()
        self._began = time.monotonic()
        self._shown: tuple[Mapping[str, Any], float, float | None] | None = None
        self._closed = threading.Event()
        self._live = None
        if self._console.is_interactive:
            self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._render)
        self._thread = threading.Thread(target=self._write_lines, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        (self._live or self._thread).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._live is not None:
            with contextlib.suppress(OSError):  # the terminal was closed
                self._live.stop()
        elif self._thread.is_alive():
            self._thread.join()

    def show(self, report: Mapping[str, Any], share_done: float, seconds_left: float | None) -> None:
        """Show the latest report, the share of the run that is done, and the estimated time left."""
        self._shown = report, share_done, seconds_left

    def _render(self) -> RenderableType:
        head = f"{self._title}   {duration(time.monotonic() - self._began)}   {self._phases}"
        report = [] if self._shown is None else [render(*self._shown, *self._console.size)]
        foot = Text(f"run folder: {self._folder}", style="bright_black", overflow="fold")
        return Group(Text(head, style="bold"), *report, foot)

    def _write_lines(self) -> None:
        self._write(f"{self._title}; run folder: {self._folder}")
        while not self._closed.wait(self._line_seconds):
            report = "" if self._shown is None else line(*self._shown)
            parts = ", ".join(filter(None, [report, str(self._phases)])) or "preparing"
            self._write(f"[{duration(time.monotonic() - self._began)}] {parts}")

    def _write(self, text: str) -> None:
        file = self._console.file if self._console is not shared_console() else sys.stderr
        if file is not None:  # stderr may be closed
            file.write(text + "\n")
            file.flush()


def render(
    report: Mapping[str, Any], share_done: float, seconds_left: float | None, width: int, height: int = 24
) -> RenderableType:
    """One report, for a terminal of `width` columns and `height` lines."""
    columns = _COLUMNS if width < _WIDE else _COLUMNS | {n: c for n, c in _WIDE_COLUMNS.items() if c[0] in report}
    numbers = Table.grid(padding=(0, 3))
    numbers.add_row(*columns, style="bright_black")
    numbers.add_row(*(_number(report.get(key), digits) for key, digits in columns.values()), style="bold")
    left = "" if seconds_left is None else f", {duration(seconds_left)} left"
    bar = Table.grid(padding=(0, 2))  # a ProgressBar alone does not end its line
    label = f"{share_done:.0%}{left}"
    bar.add_row(ProgressBar(total=1.0, completed=share_done, width=max(10, width - len(label) - 4)), label)
    shares = _shares(report)
    advice = Text("; try: ".join(bottleneck(shares)), style="italic bright_black")
    policies = [_policy_table(report, width)] if 1 < len(_policies(report)) <= height - OTHER_LINES else []
    return Group(bar, numbers, *policies, share_bar(shares, width), advice)


def _policies(report: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """By policy: its own numbers."""
    found: dict[int, dict[str, Any]] = {}
    for key, value in report.items():
        policy, slash, name = key.partition("/")
        if slash and policy.startswith("policy_") and policy[7:].isdigit():
            found.setdefault(int(policy[7:]), {})[name] = value
    return dict(sorted(found.items()))


def _policy_table(report: Mapping[str, Any], width: int) -> Table:
    """One row for each policy: its results, its rating and its tuned hyper-parameters, as many as fit."""
    policies = _policies(report)
    names = dict.fromkeys(name for own in policies.values() for name in own)
    results = [name for name in names if name.startswith("episode_") and name != "episode_length"]
    tuned = [name for name in names if "." in name]
    shown = [*results, *(["elo"] if "elo" in names else []), *tuned][: max(1, width // POLICY_COLUMN - 1)]
    table = Table.grid(padding=(0, 3))
    labels = [name.removeprefix("episode_").rpartition(".")[2].replace("_", " ") for name in shown]
    table.add_row("policy", *labels, style="bright_black")
    best = _best_policy(report)
    for policy, own in policies.items():
        digits = {name: ".0f" if name == "elo" else ".3g" if name in tuned else ".2f" for name in shown}
        style = "bold" if policy == best else ""
        table.add_row(str(policy), *(_number(own.get(name), digits[name]) for name in shown), style=style)
    return table


def _best_policy(report: Mapping[str, Any]) -> int | None:
    """The policy with the population's best objective; None if the report does not say which it is."""
    best = report.get("population/best_policy")
    return None if best is None else int(best)


def share_bar(shares: Mapping[str, float], width: int) -> Text:
    """The time shares as one coloured bar with a legend."""
    legend = {name: f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.01}
    room = max(10, width - sum(len(text) + 1 for text in legend.values()) - 4)
    bar = Text(overflow="ellipsis", no_wrap=True)
    for name, share in shares.items():
        bar.append("█" * int(share * room), style=_COLORS[name])
    bar.append("  ")
    for name, text in legend.items():
        bar.append(f"{text} ", style=_COLORS[name])
    return bar


def line(report: Mapping[str, Any], share_done: float, seconds_left: float | None) -> str:
    """One report as one line of text."""
    parts = [f"step {report['step']:,} ({share_done:.0%})", f"sps {report['sps']:,.0f}", f"fps {report['fps']:,.0f}"]
    parts.append(f"return {_number(report.get('episode_return'), '.1f')}")
    if report.get("population/best") is not None:
        policy = _best_policy(report)
        which = "" if policy is None else f"policy {policy} with "
        parts.append(f"best: {which}{report['population/best']:.2f}")
    if report.get("policy_lag") is not None:
        parts.append(f"lag {report['policy_lag']:.1f}")
    if seconds_left is not None:
        parts.append(f"{duration(seconds_left)} left")
    return ", ".join([*parts, bottleneck(_shares(report))[0]])


def duration(seconds: float) -> str:
    """A time as a clock shows it: 42 s, 3:07, 1:02:30.

    >>> duration(3750)
    '1:02:30'
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _shares(report: Mapping[str, Any]) -> dict[str, float]:
    return {name: report.get(f"time/{name}", 0.0) for name in ACTIVITIES}


def _number(value: float | None, digits: str) -> str:
    return "-" if value is None else format(value, digits)
