"""The table of accelerations: how ratios are measured, and that no acceleration is missing."""

from __future__ import annotations

from pathlib import Path

import paceline
from benchmarks.accelerations import Case, Plan, amx_cases, arm_cases, cases, compare, cuda_cases, interval
from benchmarks.accelerations_work import Pair

TABLE = Path(__file__).parents[2] / "docs" / "benchmarks" / "accelerations.md"


def test_a_ratio_is_the_plain_time_over_the_fast_time():
    asked = []

    def way(name: str, times: list[float]):
        def measured(seconds: float) -> float:
            asked.append(name)
            return times.pop(0)

        return measured

    pair = Pair(way("plain", [9.0, 2.0, 4.0, 6.0]), way("fast", [9.0, 1.0, 1.0, 2.0]))
    found = compare(Case("name", "workload", lambda: pair), Plan(rounds=3))
    assert found == {"ratio": 3.0, "interval": (2.0, 4.0), "rounds": 3}
    assert asked == ["plain", "fast", "plain", "fast", "fast", "plain", "plain", "fast"]


def test_an_interval_leaves_out_the_extremes_of_many_values():
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    low, high = interval([float(number) for number in range(100)])
    assert (low, high) == (40.0, 59.0)


def test_every_acceleration_has_a_line_in_the_table():
    text = TABLE.read_text()
    settings = {"__init__", "config", "processor"}
    for path in (Path(paceline.__file__).parent / "accel").glob("*.py"):
        assert path.stem in settings or f"accel/{path.name}" in text, path
    for case in [*cases(), *arm_cases(), *amx_cases(), *cuda_cases()]:
        assert f"| {case.name} |" in text, case.name
