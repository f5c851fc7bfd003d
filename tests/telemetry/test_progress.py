"""The live display on a terminal, and plain lines without one."""

from __future__ import annotations

import io
import logging
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.logging import RichHandler

from paceline.telemetry.clock import ACTIVITIES, Clock, bottleneck
from paceline.telemetry.console import console
from paceline.telemetry.phases import Phases
from paceline.telemetry.progress import Progress, line, render

REPORT = {
    "step": 24576,
    "sps": 3732.0,
    "fps": 14928.0,
    "seconds": 7.0,
    "episode_return": 162.8,
    "episode_length": None,
    "policy_lag": 0.0,
    "entropy": 0.496,
    "time/simulation": 0.7,
    "time/learning": 0.3,
}


def text_of(report, width: int = 110, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(render(report, 0.25, 90.0, width, height))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_every_part_has_its_own_line():
    lines = text_of(REPORT)
    assert len(lines) == 5
    assert lines[0].endswith("25%, 1:30 left")
    assert lines[1].split()[:3] == ["step", "sps", "fps"]
    assert lines[2].split()[:5] == ["24,576", "3,732", "14,928", "162.8", "-"]
    assert "simulation 70%" in lines[3] and "learning 30%" in lines[3]
    assert lines[4].startswith("simulation takes 70% of the time; try:")


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_display_uses_the_width_and_no_more(width):
    lines = text_of(REPORT | {"policy_loss": 0.01, "grad_norm": 0.5}, width)
    assert len(lines) in (5, 6), "only the advice may take a second line"
    assert max(map(len, lines)) <= width
    assert len(lines[0]) >= width - 4, "the bar goes from side to side"
    assert ("grad norm" in lines[1]) == (width >= 120)


def of_policies(count: int) -> dict[str, float]:
    """A report of several policies, the best of them policy 1."""
    report: dict[str, float] = {"population/best": 0.75, "population/best_policy": 1}
    for policy in range(count):
        own = {"episode_return": -1.5, "episode_win": 0.75 if policy == 1 else 0.25, "optimizer.learning_rate": 3e-4}
        report |= {f"policy_{policy}/{name}": value for name, value in {**own, "elo": 10.0, "policy_loss": 1.0}.items()}
    return REPORT | report


def test_each_policy_has_a_row_if_the_terminal_is_tall_enough():
    lines = text_of(of_policies(12))
    start = next(number for number, text in enumerate(lines) if text.startswith("policy "))
    assert lines[start].split() == ["policy", "return", "win", "elo", "learning", "rate"]
    assert [text.split()[0] for text in lines[start + 1 : start + 13]] == [str(policy) for policy in range(12)]
    assert lines[start + 2].split() == ["1", "-1.50", "0.75", "10", "0.0003"]
    assert len(text_of(of_policies(12), height=20)) == 5, "12 rows do not fit"
    assert len(text_of(of_policies(1))) == 5
    assert max(map(len, text_of(of_policies(3), width=60))) <= 60


def test_the_line_names_the_best_policy():
    """Also if another number of another policy happens to be the same."""
    assert "best: policy 1 with 0.75" in line(of_policies(3) | {"policy_0/entropy": 0.75}, 0.25, None)
    assert "best:" not in line(REPORT, 0.25, None)


def plain(phases: Phases, **options) -> tuple[Progress, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, width=20, force_terminal=False)
    return Progress("ddppo on gym:CartPole-v1", Path("runs/x"), phases, console=console, **options), file


def test_without_a_terminal_lines_are_plain_and_never_wrapped():
    phases = Phases()
    progress, file = plain(phases, line_seconds=0.01)
    phases.show("collecting", 35, 100)
    phases.show("learning", 2, 8, "mini-batches")
    progress.show(REPORT, 0.25, 90.0)  # before the first line, whenever that comes
    with progress:
        while file.getvalue().count("\n") < 3:
            time.sleep(0.005)
    first, second, *_ = file.getvalue().splitlines()
    assert first == "ddppo on gym:CartPole-v1; run folder: runs/x"
    assert "step 24,576 (25%), sps 3,732" in second and "return 162.8" in second and "1:30 left" in second
    assert "collecting 35%, learning 2 of 8 mini-batches" in second


def test_from_the_first_second_the_display_says_what_the_run_does():
    phases = Phases()
    phases.show("starting simulators", 12, 64)
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with Progress("appo on doom:basic", Path("runs/x"), phases, console=console):
        pass
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "starting simulators" in shown and "run folder: runs/x" in shown


def test_what_is_logged_appears_above_the_live_display(monkeypatch, request):
    """They share one console, so the display is drawn again below the message."""
    shared = Console(file=io.StringIO(), width=100, height=30, force_terminal=True)
    monkeypatch.setattr("paceline.telemetry.console.Console", lambda **_: shared)
    console.cache_clear()
    request.addfinalizer(console.cache_clear)
    handler = RichHandler(console=console(), show_path=False, show_time=False)
    record = logging.LogRecord(
        "x", logging.WARNING, "f", 1, "Traceback\n  File user.py, line 3\nZeroDivisionError", None, None
    )
    phases = Phases()
    phases.show("collecting", 1, 2)
    with Progress("title", Path("runs/x"), phases):
        handler.emit(record)
    text = shared.file.getvalue()  # type: ignore[attr-defined]
    message, below = text.index("ZeroDivisionError"), text.rindex("run folder")
    assert "user.py" in text and message < below


@pytest.mark.parametrize("activity", ACTIVITIES)
def test_every_bottleneck_has_advice(activity):
    phrase, advice = bottleneck({**dict.fromkeys(ACTIVITIES, 0.0), activity: 0.9})
    assert phrase == f"{activity} takes 90% of the time" and advice


def test_shares_add_up_and_start_over():
    clock = Clock()
    with clock.time("learning"):
        sum(range(20_000))
    shares = clock.take_shares()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["learning"] > 0
    assert clock.take_shares()["learning"] == 0.0
