"""The benchmark of task plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rearrangement_plans import STILL, WITH, WITHOUT, Plan, agents, draw, show, wilson
from paceline.errors import UsageError


def test_the_interval_of_a_share():
    assert wilson(0.5, 100) == pytest.approx((0.404, 0.596), abs=1e-3)
    low, high = wilson(0.0, 20)
    assert low == 0.0 and high == pytest.approx(0.161, abs=1e-3)


def test_agents_have_the_runs_of_their_skills():
    pick, still, navigate = Path("a"), Path("b"), Path("c")
    found = agents(Plan(pick=pick, navigate=navigate, pick_without_base=still))
    assert found[WITH].skills == {"pick": pick, "navigate": navigate} and found[WITH].navigation
    assert found[WITHOUT].skills == {"pick": pick} and not found[WITHOUT].navigation
    assert found[STILL].skills == {"pick": still, "navigate": navigate}
    assert list(agents(Plan())) == [WITH, WITHOUT]
    with pytest.raises(UsageError, match="allowed: 'TP-SRL'"):
        agents(Plan(agents=("PPO",)))


def test_the_table_and_the_plot_have_every_interaction(tmp_path, capsys):
    result = {"measures": ["success", "pick_1", "place_1"], "success": 0.5, "pick_1": 1.0, "place_1": 0.5}
    found = {WITH: {**result, "episodes": 10}, WITHOUT: {**result, "episodes": 10}}
    table = show(Plan(), found)
    assert [row[0] for row in table.rows] == ["pick 1", "place 1", "scenario"]
    assert table.rows[1][1] == "0.50 (0.24 to 0.76)"
    draw(found, tmp_path / "plans.png")
    assert (tmp_path / "plans.png").stat().st_size > 1000
