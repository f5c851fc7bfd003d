"""Evaluation of navigation: the fixed list of episodes, recurrent state, and the output of the command."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from paceline.cli import main as cli
from paceline.config import Config
from paceline.errors import UsageError
from paceline.evaluation.evaluate import evaluate
from paceline.evaluation.evaluators import EvaluationOptions, evaluate_baseline
from paceline.evaluation.player import Player
from paceline.evaluation.saved import SavedRun
from paceline.learner.config import PPOConfig
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.session import train
from paceline.sims.navigation.evaluation import policy_episodes as module
from paceline.sims.navigation.evaluation.episode_list import fixed_episodes, play
from paceline.sims.navigation.evaluation.pointnav import EVALUATION, EVALUATOR
from paceline.sims.navigation.evaluation.policy_episodes import (
    env_config,
    env_id_of,
    play_policy,
    split_config,
)
from paceline.sims.navigation.evaluation.routes import Recorder
from paceline.sims.navigation.layout import FORWARD, STOP
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.simulator import Navigation, load_bank
from tests.evaluation.runs import make_run

ENV = "pointnav:small?resolution=36&scenes=2&max_episode_steps=40"
CPU = torch.device("cpu")


def make_navigation_run(folder: Path) -> Path:
    """A run of 256 steps with depth images and a recurrent policy that has learned nothing."""
    config = Config(
        env=ENV,
        steps=256,
        rollout_steps=16,
        device="cpu",
        pool=PoolConfig(num_envs=8),
        policy=PolicyConfig(encoder_size=16, hidden=(8,), core=CoreConfig(kind="lstm", hidden=8)),
        ppo=PPOConfig(epochs=1, minibatches=1),
    )
    train(config, folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_navigation_run(tmp_path_factory.mktemp("runs") / "pointnav")


class Counter:
    """A policy whose state counts its decisions in the episode. It stops at the third."""

    def initial_state(self, count: int) -> torch.Tensor:
        return torch.zeros(count, 1)

    def play(self, obs, state, generator=None):
        return {"action": torch.where(state[:, 0] >= 2, STOP, FORWARD)}, state + 1


def test_the_state_starts_from_zero_with_each_episode_and_at_no_other_time():
    player = Player(Counter(), 3, CPU)
    for began, counted in (("111", [1, 1, 1]), ("000", [2, 2, 2]), ("010", [3, 1, 3]), ("001", [4, 2, 1])):
        player.decide({}, torch.tensor([digit == "1" for digit in began]))
        assert player._state[:, 0].tolist() == counted


def test_every_episode_of_a_stream_is_played_with_a_fresh_state(run):
    config = split_config(env_config(ENV))
    simulator = Navigation(4, "cpu", config)
    scenes, numbers = fixed_episodes(simulator.bank, 11)
    player = Player(Counter(), 4, CPU)
    recorder = Recorder(simulator, lambda obs, began: player.decide(obs, began)["action"])
    measures = play(simulator, recorder.act, scenes, numbers)
    assert measures["steps"].tolist() == [3.0] * 11
    routes = recorder.routes(11)
    assert [route.actions.tolist() for route in routes] == [[FORWARD, FORWARD, STOP]] * 11
    starts = simulator.bank.episodes[scenes, numbers, :3].numpy()
    np.testing.assert_array_equal(np.stack([route.poses[0] for route in routes]), starts)
    np.testing.assert_array_equal([route.distances[-1] for route in routes], measures["distance_to_goal"])
    for route, scene, number in zip(routes, scenes, numbers, strict=True):
        goal = simulator.bank.episodes[scene, number, 3:5].numpy()
        expected = Graph.of(simulator.bank.scene(scene)).between_points(route.poses[1:, :2], goal[None])[:, 0]
        np.testing.assert_allclose(route.distances[:-1], expected, atol=1e-4)


def test_policies_and_baselines_play_the_same_episodes_whatever_was_trained_on(run):
    saved = SavedRun.load(run)
    done = play_policy(saved, split_config(env_config(saved.config.env)), EvaluationOptions(episodes=70))
    assert done.bank.num_scenes == 64 and done.config.split == "val"
    bank = load_bank(env_config("pointnav:small"))
    scenes, numbers = fixed_episodes(bank, 70)
    assert (done.scenes, done.numbers) == (scenes, numbers)
    np.testing.assert_array_equal(done.measures["geodesic"], bank.episodes[scenes, numbers, 5].numpy())
    policy = evaluate(run, episodes=70)
    options = EvaluationOptions(env="pointnav:small?max_episode_steps=40", episodes=70)
    _, baseline = evaluate_baseline("goal-follower", options)
    for name in ("from", "to", "episodes"):
        assert [part[name] for part in policy["by_distance"]] == [part[name] for part in baseline["by_distance"]]
    assert baseline["success"] > policy["success"]
    assert set(baseline) - {"agent"} < set(policy)
    measures = EVALUATION.measures
    assert {"episodes", "by_distance", *measures, *(f"{name}_ci95" for name in measures)} < set(policy)


def test_the_split_is_the_one_that_is_asked_for(run):
    reports = [evaluate(run, episodes=4, split=split) for split in ("val", "test")]
    assert [report["split"] for report in reports] == ["val", "test"]
    assert reports[0]["by_distance"] != reports[1]["by_distance"]
    assert evaluate(run, episodes=4) == reports[0]
    with_env = evaluate(run, episodes=4, env="pointnav:small?resolution=36&scenes=3&max_episode_steps=40")
    assert with_env["scenes"] == 3 and with_env["split"] == "val"


def test_samples_of_one_episode_count_as_one(run):
    saved = SavedRun.load(run)
    config = split_config(env_config(saved.config.env))
    done = play_policy(saved, config, EvaluationOptions(episodes=5, samples=3, sampled=True, seed=2))
    assert len(done.routes) == len(done.measures["steps"]) == 5
    first, again, other = (evaluate(run, episodes=5, samples=3, sampled=True, seed=seed) for seed in (2, 2, 3))
    assert first == again != other | {"seed": 2}
    assert first["episodes"] == 5 and first["samples"] == 3
    assert first["collisions"] == pytest.approx(done.measures["collisions"].mean())


def test_all_episodes_are_played_unless_fewer_are_asked_for(run, monkeypatch):
    asked = []

    def ask(config, bank, count, *, usual):
        assert usual is None
        asked.append(len(fixed_episodes(bank, count)[0]))
        return fixed_episodes(bank, 8)

    monkeypatch.setattr(module, "listed_episodes", ask)
    evaluate(run)
    assert asked == [64 * 256]


def call(monkeypatch, *arguments: object) -> int:
    """The command line's exit code."""
    monkeypatch.setattr(sys, "argv", ["paceline", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_command_evaluates_runs_and_baselines(run, monkeypatch, capsys):
    assert call(monkeypatch, "eval", run, "--split", "test", "--episodes", 6, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["split"] == "test" and report["episodes"] == 6 and report["checkpoint"] == "step_256"
    options = ("--env", "pointnav:small?scenes=4", "--split", "val", "--episodes", 9)
    assert call(monkeypatch, "eval", "--agent", "oracle", *options, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["agent"] == "oracle" and report["spl"] > 0.9 and report["success"] == 1.0
    assert call(monkeypatch, "eval", "--agent", "forward", *options) == 0
    shown = capsys.readouterr().out
    assert "95 % interval" in shown and "soft spl" in shown and "forward" in shown


def test_a_report_of_a_policy_is_printed(run):
    console = Console(record=True, file=io.StringIO(), width=120)
    console.print(EVALUATOR.table(evaluate(run, episodes=4, sampled=True, samples=2)))
    shown = console.export_text()
    assert "4 episodes" in shown and "95 % interval" in shown and "success" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "--agent", "oracle"], "not both"),
        ([], "nothing to evaluate: give a run folder or --agent"),
        (["--agent", "nobody"], "allowed: random, forward, goal-follower, map-and-plan, oracle in pointnav"),
        (["--agent", "random", "--env", "gym:CartPole-v1"], "does not play"),
        (["--agent", "random", "--env", "pointnav:huge"], "allowed: small, full"),
        (["--agent", "random", "--sampled"], "for the policy of a run"),
        (["RUN", "--split", "exam"], "allowed: train, val, test"),
        (["RUN", "--episodes", "0"], "at least 1"),
        (["RUN", "--episodes", "99999"], "allowed: 1 to 16384"),
        (["RUN", "--samples", "2"], "--sampled"),
        (
            ["RUN", "--env", "pointnav:small?scenes=2&split=test", "--episodes", "4"],
            'with resolution 36, and the images here have resolution 64; allowed: --env "pointnav:small?scenes=2&'
            'split=test&resolution=36"',
        ),
        (
            ["RUN", "--env", "flee:small?scenes=2&resolution=36", "--episodes", "4"],
            "needs the observation 'goal', which this environment does not have; it has: depth, previous_action",
        ),
    ],
)
def test_bad_usage_exits_2_and_says_what_is_allowed(run, monkeypatch, capsys, arguments, message):
    arguments = [run if word == "RUN" else word for word in arguments]
    assert call(monkeypatch, "eval", *arguments) == 2
    assert message in capsys.readouterr().err


def test_other_environments_have_no_splits(tmp_path, monkeypatch, capsys):
    folder = make_run(tmp_path / "run", "gym:CartPole-v1")
    for option in (["--split", "val"], ["--samples", "2"]):
        assert call(monkeypatch, "eval", folder, *option) == 2
        message = f"{option[0]} does not apply to gym:CartPole-v1; allowed in: pointnav"
        assert message in capsys.readouterr().err
    assert call(monkeypatch, "eval", folder, "--episodes", 3, "--json") == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 3


def test_an_episode_of_the_split_is_filmed(run, tmp_path):
    report = evaluate(run, episodes=2, video=tmp_path / "episode.gif")
    assert report["video"] == str(tmp_path / "episode.gif") and (tmp_path / "episode.gif").stat().st_size > 0
    config = split_config(env_config(ENV))
    assert env_config(env_id_of(config)) == config


def test_only_navigation_has_these_options():
    with pytest.raises(UsageError, match="is no navigation task; allowed: pointnav"):
        env_config("tensor:cartpole")
