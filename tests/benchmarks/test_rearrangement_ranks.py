"""The tables of the benchmark of rearrangement on several ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("mujoco")

from benchmarks.rearrangement_ranks import QUICK, SYSTEMS, Plan, Timed, speed_table, step_tables, time_steps
from paceline.envs import resolve


@pytest.mark.parametrize("images", ["mujoco", "traced", "none"])
def test_a_plan_names_an_environment_that_exists(images):
    assert resolve(Plan(images=images).env).label == Plan(images=images).env


def test_the_median_of_rounds_counts():
    plan = Plan(ranks=(1,), rounds=3)
    speeds = dict(zip(SYSTEMS, (100.0, 150.0, 300.0, 240.0), strict=True))
    cells = {
        (1, system): [{"mean": speed * factor, "best": 2 * speed * factor} for factor in (1.0, 9.0, 0.1)]
        for system, speed in speeds.items()
    }
    row = speed_table(plan, cells).rows[0]
    assert row == ("1", "100 (200)", "150 (300)", "300 (600)", "240 (480)", "3.00", "2.00", "0.80")


def test_houses_are_ordered_by_their_median():
    timed = Timed({house: [house * 1e-3] * 3 for house in (9, 3, 5, 1, 2, 4, 8, 7)}, [0.05])
    steps, houses = step_tables(timed)
    assert [row[0] for row in steps.rows] == ["step", "reset"]
    assert [row[0] for row in houses.rows] == ["1", "2", "3", "7", "8", "9"]
    assert houses.rows[0][1:] == ("1.0", "1.0", "1.0", "1.0", "3")


def test_steps_are_timed_by_house(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = Plan(**{**vars(QUICK), "timed_steps": 5, "scenes": 1})
    timed = time_steps(plan)
    assert list(timed.steps) == [0] and len(timed.steps[0]) == 5
