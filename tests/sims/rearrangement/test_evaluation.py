"""Evaluation of rearrangement: the fixed list of episodes, baselines and the policy of a run."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from paceline.cli import main as cli
from paceline.config import Config
from paceline.errors import UsageError
from paceline.evaluation.evaluators import EvaluationOptions, evaluate_baseline, evaluator_of
from paceline.learner.config import PPOConfig
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.session import train
from paceline.sims.navigation.evaluation.policy_episodes import play_samples
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.evaluation.evaluator import EVALUATOR, Setting
from paceline.sims.rearrangement.evaluation.plan_episodes import PlanAgent, config_of_runs
from paceline.sims.rearrangement.simulator import Rearrangement

ENV = "rearrange:pick?sensors=blind&scenes=4&max_episode_steps=8"


def test_the_family_has_its_evaluator():
    assert evaluator_of("rearrange:pick") is EVALUATOR
    assert EVALUATOR.baselines == ("random", "oracle", "plan")


def test_a_baseline_reports_the_measures_of_its_task_with_intervals():
    _, result = evaluate_baseline("random", EvaluationOptions(env=ENV, episodes=6))
    assert result["episodes"] == 6
    assert result["split"] == "val"
    assert result["task"] == "pick"
    assert result["measures"] == ["success", "picked", "mistake", "collisions"]
    low, high = result["success_ci95"]
    assert low <= result["success"] <= high
    console = Console(file=io.StringIO(), width=120)
    console.print(EVALUATOR.table(result))
    assert "picked" in console.file.getvalue()


def test_the_list_does_not_depend_on_the_number_of_streams():
    results = [evaluate_baseline("oracle", EvaluationOptions(env=ENV, episodes=6, num_envs=num))[1] for num in (2, 6)]
    assert results[0]["collisions"] == results[1]["collisions"]


def test_the_command_prints_json(monkeypatch, capsys):
    arguments = ["--agent", "random", "--env", ENV, "--split", "val", "--episodes", "3", "--json"]
    monkeypatch.setattr(sys, "argv", ["paceline", "eval", *arguments])
    cli.main()
    assert json.loads(capsys.readouterr().out)["agent"] == "random"


def test_the_split_of_the_id_counts_unless_another_is_given():
    assert Setting.of(ENV).config.split == "val"
    assert Setting.of(f"{ENV}&split=test").config.split == "test"
    assert Setting.of(f"{ENV}&split=test", "train").config.split == "train"


def test_wrong_agents_and_tasks_are_refused():
    with pytest.raises(UsageError, match=r"task '' of 'rearrange' does not exist; allowed: navigate"):
        evaluate_baseline("random", EvaluationOptions(env="rearrange"))
    with pytest.raises(UsageError, match="agent 'plan' does not play pick; allowed: random, oracle"):
        evaluate_baseline("plan", EvaluationOptions(env="rearrange:pick"))
    with pytest.raises(UsageError, match="no rearrangement task"):
        EVALUATOR.evaluate_baseline("random", EvaluationOptions(env="pointnav:small"))


@pytest.fixture(scope="module")
def picking(tmp_path_factory):
    """A run of pick that has learned nothing."""
    config = Config(
        env=ENV,
        steps=64,
        rollout_steps=8,
        device="cpu",
        pool=PoolConfig(num_envs=4),
        policy=PolicyConfig(hidden=(8,)),
        ppo=PPOConfig(epochs=1, minibatches=1),
    )
    folder = tmp_path_factory.mktemp("runs") / "pick"
    train(config, folder)
    return folder


def test_the_policy_of_a_run_plays_the_list(picking):
    result = EVALUATOR.evaluate_policy(picking, EvaluationOptions(env=f"{ENV}&split=val", episodes=4))
    assert result["episodes"] == 4
    assert 0.0 <= result["success"] <= 1.0
    assert result["scenes"] == 4


def test_a_run_of_another_simulator_is_played_only_if_the_id_says_so():
    run = SimpleNamespace(folder="runs/a", config=SimpleNamespace(env="rearrange_mujoco:open_fridge?scenes=4"))
    with pytest.raises(UsageError, match="runs/a was trained in rearrange_mujoco:.*; allowed: a run of rearrange, or"):
        Setting.of_run(run, EvaluationOptions())
    assert Setting.of_run(run, EvaluationOptions(env="rearrange:open_fridge")).task == "open_fridge"
    assert evaluator_of(run.config.env) is evaluator_of("gym:CartPole-v1"), "its own evaluation is the general one"


def test_all_samples_of_an_episode_have_the_same_target_and_start(kitchens):
    simulator = Rearrangement(
        2, "cpu", "pick", RearrangementConfig(sensors="blind", max_episode_steps=1), bank=kitchens
    )
    seen = []

    def act(obs, began):
        seen.append(obs["target"])
        return torch.zeros(2, simulator.actions.size)

    play_samples(simulator, act, [0, 1, 2], [5, 6, 7], 2)
    first, second = torch.cat(seen).split(3)
    assert torch.equal(first, second) and len(first.unique(dim=0)) == 3


SCENARIO = "rearrange:tidy_house?scenes=4&max_episode_steps=12"


def test_a_plan_has_scripts_for_skills_without_a_run(picking):
    options = EvaluationOptions(env=SCENARIO, episodes=3, num_envs=2)
    _, result = evaluate_baseline(f"plan?pick={picking}&navigation=false", options)
    assert result["measures"] == ["success", *(f"{skill}_{n}" for n in range(1, 6) for skill in ("pick", "place"))]
    assert result["skills"] == {"pick": str(picking)} and result["navigation"] is False
    assert "sensors=blind" in result["env"], "as in the run"
    assert 0.0 <= result["success"] <= result["pick_1"] <= 1.0


def test_the_oracle_of_a_scenario_is_its_plan_of_scripts():
    options = EvaluationOptions(env=SCENARIO.replace("tidy_house?scenes=4", "set_table?scenes=2"), episodes=2)
    _, result = evaluate_baseline("oracle", options)
    assert result["measures"][:4] == ["success", "open_drawer_1", "pick_1", "place_1"]
    assert result["agent"] == "oracle" and result["skills"] == {}


def test_folders_of_a_plan_are_taken_literally():
    agent = PlanAgent.parse("plan?pick=runs/a+b&place=runs/50%20=c&sampled=true")
    assert agent.skills == {"pick": Path("runs/a+b"), "place": Path("runs/50%20=c")} and agent.sampled


def test_skills_of_different_tiers_need_a_tier_in_the_id():
    runs = {
        skill: SimpleNamespace(config=SimpleNamespace(env=f"rearrange:{skill}?tier={tier}"))
        for skill, tier in (("pick", "full"), ("place", "small"))
    }
    with pytest.raises(UsageError, match="place was trained in tier small, pick in full; allowed: the same, or a tier"):
        config_of_runs("rearrange:tidy_house", runs)
    assert config_of_runs("rearrange:tidy_house?tier=small", runs).tier == "small"
    assert config_of_runs("rearrange:tidy_house", {"pick": runs["pick"]}).tier == "full"


def test_wrong_plans_are_refused(picking):
    def refuse(agent, message, env=SCENARIO):
        with pytest.raises(UsageError, match=message):
            evaluate_baseline(agent, EvaluationOptions(env=env, episodes=2))

    refuse("plan?lift=runs/a", r"has lift=runs/a; allowed: plan\?SKILL=RUN&..., with navigate=RUN, pick=RUN")
    refuse("plan?navigation=no", "has navigation=no; allowed")
    refuse("plan?pick", "has pick=; allowed")
    refuse(f"plan?place={picking}", "was trained in rearrange:pick.*; allowed as place: rearrange:place")
    refuse(f"plan?pick={picking}", "trained with sensors blind; the scenario has depth", f"{SCENARIO}&sensors=depth")
