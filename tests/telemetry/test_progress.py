"""The live display: readable lines, and nothing at all where nobody looks."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from paceline.telemetry.bottleneck import bottleneck
from paceline.telemetry.clock import ACTIVITIES, Clock
from paceline.telemetry.progress import Progress, render

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


def text_of(report) -> list[str]:
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    console.print(render("ddppo on gym:CartPole-v1", report, 0.5))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_every_part_has_its_own_line():
    lines = text_of(REPORT)
    assert len(lines) == 6
    assert lines[2].split()[:3] == ["step", "sps", "fps"]
    assert lines[3].split()[:5] == ["24,576", "3,732", "14,928", "162.8", "-"]
    assert "simulation 70%" in lines[4] and "learning 30%" in lines[4]
    assert lines[5].startswith("simulation takes 70% of the time; try:")


def test_quiet_when_not_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=False)
    with Progress("title", console) as progress:
        progress.show(REPORT, 0.5)
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]


@pytest.mark.parametrize("activity", ACTIVITIES)
def test_every_bottleneck_has_advice(activity):
    assert bottleneck({**dict.fromkeys(ACTIVITIES, 0.0), activity: 0.9}).startswith(
        f"{activity} takes 90% of the time; try: "
    )


def test_shares_add_up_and_start_over():
    clock = Clock()
    with clock.time("learning"):
        sum(range(20_000))
    shares = clock.take_shares()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["learning"] > 0
    assert clock.take_shares()["learning"] == 0.0
