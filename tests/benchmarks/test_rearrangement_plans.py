"""The benchmark of task plans."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import rearrangement_plans
from benchmarks.rearrangement_plans import STILL, WITH, WITHOUT, Plan, agents, draw, measure, show, wilson
from benchmarks.report import context
from paceline.errors import UsageError
from paceline.sims.rearrangement.evaluation.plan_episodes import PlanAgent, config_of_runs


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


@pytest.mark.parametrize(
    ("env", "tier"), [("rearrange:tidy_house", "full"), ("rearrange:tidy_house?tier=small", "small")]
)
def test_an_agent_without_runs_plays_in_the_houses_of_the_others(tmp_path, monkeypatch, capsys, env, tier):
    run = SimpleNamespace(config=SimpleNamespace(env="rearrange:navigate?tier=full&slide=false"))
    monkeypatch.setattr(PlanAgent, "loaded", lambda agent: dict.fromkeys(agent.skills, run))
    played = []

    def evaluate_plan(agent, options):
        played.append(config_of_runs(options.env, agent.loaded()))
        about = {"episodes": 2, "scenes": 1, "split": "val", "tier": played[-1].tier}
        return {"measures": ["success", "pick_1"], "success": 0.0, "pick_1": 0.0, **about}

    monkeypatch.setattr(rearrangement_plans, "evaluate_plan", evaluate_plan)
    measure(Plan(env=env, navigate=tmp_path, plot=tmp_path / "plans.png"), context())
    assert [(config.tier, config.slide) for config in played] == [(tier, False)] * 2


def test_the_table_and_the_plot_have_every_interaction(tmp_path, capsys):
    result = {"measures": ["success", "pick_1", "place_1"], "success": 0.5, "pick_1": 1.0, "place_1": 0.5}
    found = {WITH: {**result, "episodes": 10}, WITHOUT: {**result, "episodes": 10}}
    table = show(Plan(), found)
    assert [row[0] for row in table.rows] == ["pick 1", "place 1", "scenario"]
    assert table.rows[1][1] == "0.50 (0.24 to 0.76)"
    draw(found, tmp_path / "plans.png")
    assert (tmp_path / "plans.png").stat().st_size > 1000
