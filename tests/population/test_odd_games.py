"""Populations, leagues, tournaments and evaluation in unusual games, and after changes of settings at a resume."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paceline.checkpoint import CheckpointFolder
from paceline.config import Config
from paceline.evaluation.evaluate import evaluate
from paceline.evaluation.evaluators import EvaluationOptions
from paceline.evaluation.tournament import both_ways, play_tournament
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.population.config import LeagueConfig, PBTConfig, PopulationConfig
from paceline.population.member import train_member
from paceline.population.ratings import Matches, elo_ratings
from paceline.session import train
from tests.population import odd_games


def config(game: str, steps: int = 512, **changes) -> Config:
    return dataclasses.replace(
        Config(
            env=f"{odd_games.__name__}:{game}",
            steps=steps,
            rollout_steps=16,
            device="cpu",
            pool=PoolConfig(kind="serial", num_envs=4),
            policy=PolicyConfig(hidden=(8,)),
            ppo=PPOConfig(epochs=1, minibatches=1),
        ),
        **changes,
    )


class Still:
    """An opponent that always takes the action 0."""

    def __init__(self, observation_space, action_space) -> None:
        """It plays every game with a number as action."""

    def __call__(self, obs):
        return torch.zeros(len(obs["obs"]), dtype=torch.int64)


@pytest.mark.parametrize("agents", [2, 3, 4])
def test_in_a_tournament_each_player_is_alone_equally_often(agents):
    fixtures = both_ways(24, agents, 3, 7)
    assert fixtures.shape == (24, agents)
    alone = [min((3, 7), key=match.tolist().count) for match in fixtures]
    if agents > 2:
        assert alone.count(3) == alone.count(7) == 12
    for agent in range(agents):
        assert (fixtures[:, agent] == 3).sum() == 12


def test_a_tournament_in_a_game_of_chance_finds_no_better_player(tmp_path):
    """With four players one is alone against three, and wins a quarter of the matches."""
    league, slow = LeagueConfig(past_share=0.5, every=300, keep=4), OptimizerConfig(learning_rate=1e-12)
    train(config("Dice", steps=1200, league=league, optimizer=slow), tmp_path)
    found = play_tournament(tmp_path, EvaluationOptions(episodes=160, sampled=True))
    assert len(found["players"]) >= 3
    for _, low, high in found["ratings"].values():
        assert low - 40 < 1000 < high + 40


def test_evaluation_ends_if_an_agent_never_plays(tmp_path, caplog):
    train(config("Guests", steps=128), tmp_path)
    with caplog.at_level(logging.WARNING):
        found = evaluate(tmp_path, episodes=24)
    assert "agents that played in no game: z" in caplog.text
    assert found["episodes"] == 16, "two of three agents play"


def test_agents_that_play_now_and_then_play_as_many_episodes_as_the_others(tmp_path):
    train(config("Regulars", steps=128), tmp_path)
    assert evaluate(tmp_path, episodes=24)["episodes"] == 24


def test_a_match_without_a_result_is_counted_by_returns(tmp_path):
    """Not even ratings were asked for."""
    run = train(config("Undecided", population=PopulationConfig(policies=2)), tmp_path)
    assert run.step >= 512


@pytest.mark.parametrize("had_population", [False, True])
def test_a_league_that_a_resume_switches_on_names_its_past_selves_by_their_steps(tmp_path, had_population):
    policies = PopulationConfig(policies=2 if had_population else 1)
    train(config("Guests", steps=512, population=policies), tmp_path)
    before = CheckpointFolder(tmp_path / "checkpoints").load()
    league = LeagueConfig(past_share=0.5, every=100)
    train(config("Guests", steps=1200, population=policies, league=league), tmp_path, resume="latest")
    steps = sorted(int(path.stem.rpartition("_")[2]) for path in (tmp_path / "past_selves").glob("policy_0_*"))
    assert steps and steps[0] > before.state["step"]
    first = load_file(tmp_path / "past_selves" / f"policy_0_step_{steps[0]}.safetensors")
    assert int(first["version"]) >= int(before.weights["version"])


def test_another_interval_of_past_selves_counts_from_a_resume_on(tmp_path):
    league = LeagueConfig(past_share=0.5, every=100_000)
    train(config("Guests", league=league), tmp_path)
    assert not (tmp_path / "past_selves").exists()
    league = dataclasses.replace(league, every=200)
    train(config("Guests", steps=1200, league=league), tmp_path, resume="latest")
    assert list((tmp_path / "past_selves").glob("policy_0_*"))


def test_other_opponents_at_a_resume_begin_new_matches(tmp_path, caplog):
    league = LeagueConfig(past_share=0.3, every=100, seats=2)
    train(config("Guests", league=league), tmp_path)
    league = dataclasses.replace(league, seats=1, opponents=(f"{__name__}:Still",), opponent_share=0.3)
    with caplog.at_level(logging.WARNING):
        run = train(config("Guests", steps=1024, league=league), tmp_path, resume="latest")
    assert run.step >= 1024 and "other opponents than its checkpoint: all matches are drawn anew" in caplog.text


def test_a_member_of_a_population_of_runs_may_play_against_past_selves(tmp_path):
    league = LeagueConfig(past_share=0.3, every=200)
    run = train_member(config("Guests", league=league, pbt=PBTConfig(every=256)), tmp_path / "member", tmp_path)
    assert run.step >= 512 and (tmp_path / "member" / "past_selves").exists()


def test_ratings_of_very_many_matches_are_found():
    """Rounding errors are then larger than the tolerance of the fit."""
    matches = Matches(["old", "new"])
    matches.add_counts("old", "new", wins=1_021_430, losses=1_851_189)
    found = elo_ratings(matches)
    expected = 400 * np.log10(1_851_189 / 1_021_430)
    assert found["new"].elo - found["old"].elo == pytest.approx(expected, abs=0.1)
