"""Evaluation: which episodes count, recurrent state, and the report."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from rich.console import Console

from paceline.cli.eval import Eval
from paceline.envs.factory import Factory
from paceline.errors import UsageError
from paceline.evaluation.evaluate import confidence_interval, evaluate, play, summarize, table
from paceline.evaluation.evaluators import SEED, EvaluationOptions
from paceline.evaluation.player import Player
from paceline.evaluation.saved import SavedRun
from paceline.evaluation.seated_players import quotas
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool import make_pool
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import Episode
from tests.evaluation.runs import STEPS, make_run
from tests.forks import run_paceline
from tests.pool.faulty import Counting, Faulty
from tests.pool.multi_agent import LIVES, Mortal

CPU = torch.device("cpu")


class Counter:
    """A policy whose state and most likely action count its decisions in the episode."""

    def initial_state(self, count: int) -> torch.Tensor:
        return torch.zeros(count, 1)

    def play(self, obs, state, generator=None):
        return {"action": state[:, 0].long()}, state + 1


def player(pool) -> Player:
    return Player(Counter(), pool.spec.num_slots, CPU)


def counting_pool(lengths: list[int], **config):
    factory = Factory(make=lambda env: Counting(env, lengths[env]))
    return make_pool(factory, PoolConfig(kind="serial", num_envs=len(lengths), **config))


@pytest.fixture(scope="session")
def cartpole(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "cartpole", "gym:CartPole-v1")


@pytest.fixture(scope="session")
def recurrent(tmp_path_factory):
    policy = PolicyConfig(hidden=(8,), core=CoreConfig(kind="lstm", hidden=8))
    return make_run(tmp_path_factory.mktemp("runs") / "memory", "paceline.envs.memory:Memory?length=7", policy)


def test_quotas_are_even_and_add_up():
    assert quotas(10, 4).tolist() == [3, 3, 2, 2]
    assert quotas(2, 4).tolist() == [1, 1, 0, 0]


def test_short_episodes_are_not_counted_more_often_than_long_ones():
    """Nine of the first 10 episodes to end are short. Half of those that count must be long."""
    with counting_pool([1, 9]) as pool:
        played = play(pool, player(pool), 10)
    assert [episode.length for episode in played.episodes] == [1] * 5 + [9] * 5
    # Each slot's first five, whatever else the fast one plays: `info["score"]` is the episode's number.
    assert [episode.info["score"] for episode in played.episodes] == [*range(5), *range(5)]


def test_exactly_as_many_episodes_as_asked_for():
    for num_episodes in (1, 2, 5):
        with counting_pool([3, 2, 4]) as pool:
            assert len(play(pool, player(pool), num_episodes).episodes) == num_episodes


@pytest.mark.parametrize("max_slots", [None, 1, 2])
def test_hidden_state_is_kept_between_calls_and_restarted_with_episodes(max_slots):
    """The state must not restart at every call, and not continue in the next episode, for batches of any slots."""
    with counting_pool([5, 3, 4]) as pool:
        watched = player(pool)
        for _ in range(40):
            batch = pool.recv(max_slots=max_slots)
            actions = watched.act(batch, on_device=False)
            steps_so_far = batch.obs["obs"][:, 2]
            assert actions["action"].tolist() == steps_so_far.tolist()
            pool.send(actions, batch.slots)


def test_a_decision_moves_the_hidden_state_once(recurrent):
    """Only acting advances a state, so that evaluation is the same as training."""
    run = SavedRun.load(recurrent)
    with run.pool(run.config.env, num_envs=2, seed=0, device=CPU) as pool:
        policy = run.policy(pool.spec, CPU)
        watched = Player(policy, 2, CPU)
        state = policy.initial_state(2)
        for _ in range(6):
            batch = pool.recv(min_slots=None)
            params, _, state = policy.act({"obs": torch.from_numpy(batch.obs["obs"].copy())}, state)
            actions = watched.act(batch, on_device=False)
            assert actions["action"].tolist() == policy.head.mode(params)["action"].tolist()
            torch.testing.assert_close(watched._state, state)
            pool.send(actions, batch.slots)


def test_a_lost_simulators_episode_does_not_count(tmp_path):
    mark = str(tmp_path / "failed")
    factory = Factory(make=lambda env: Faulty(env, "raise", at=3, only=1, mark=mark))
    with make_pool(factory, PoolConfig(kind="serial", num_envs=2, on_error="restart")) as pool:
        played = play(pool, player(pool), 4)
    assert played.num_lost == 1
    assert [episode.slot for episode in played.episodes] == [0, 0, 1, 1]
    assert {episode.length for episode in played.episodes} == {5}


def test_episodes_that_do_not_end_are_warned_of_once(monkeypatch, caplog):
    monkeypatch.setattr("paceline.evaluation.evaluate.PATIENCE_SECONDS", -1.0)
    with counting_pool([4, 5]) as pool:
        play(pool, player(pool), 4)
    assert caplog.text.count("no episode has ended") == 1 and "time limit" in caplog.text


def test_episodes_that_end_are_not_warned_of(caplog):
    with counting_pool([4, 5]) as pool:
        play(pool, player(pool), 4)
    assert not caplog.text


def test_agents_that_are_out_of_the_game_do_not_count_until_they_play_again():
    with make_pool(Factory(make=Mortal), PoolConfig(kind="serial", num_envs=2)) as pool:
        played = play(pool, player(pool), 12)
    assert [episode.length for episode in played.episodes] == [n for n in list(LIVES.values()) * 2 for _ in range(2)]
    assert summarize(played.episodes)["info"] == {"lived": 3.0}


def test_an_agent_that_returns_has_a_fresh_state():
    with make_pool(Factory(make=Mortal), PoolConfig(kind="serial", num_envs=1)) as pool:
        watched = player(pool)
        for _ in range(12):
            batch = pool.recv(min_slots=None)
            actions = watched.act(batch, on_device=False)
            living = np.flatnonzero(batch.active)
            assert actions["action"][living].tolist() == batch.obs["obs"][living, 3].tolist()
            pool.send({"action": actions["action"] % 5}, batch.slots)


def test_environments_with_all_episodes_done_are_not_stepped():
    made = []
    factory = Factory(make=lambda env: made.append(Counting(env, 2 + 7 * env)) or made[-1])
    with make_pool(factory, PoolConfig(kind="serial", num_envs=2)) as pool:
        play(pool, player(pool), 2)
    assert made[0].episode == 1 and made[0].steps == 0


def test_statistics_against_numpy():
    returns, lengths = [1.0, 5.0, 3.0, 11.0], [2, 4, 4, 9]
    episodes = [Episode(0, r, n, {"won": r > 3}) for r, n in zip(returns, lengths, strict=True)]
    episodes.append(Episode(0, 0.0, 1))
    report = summarize(episodes)
    assert report["episodes"] == 5
    assert report["mean_return"] == 4.0 and report["median_return"] == 3.0
    assert (report["min_return"], report["max_return"]) == (0.0, 11.0)
    assert report["std_return"] == pytest.approx(np.std([*returns, 0.0], ddof=1))
    assert report["mean_length"] == 4.0 and report["max_length"] == 9.0
    assert report["info"] == {"won": 0.5}  # of the four that say so
    low, high = report["ci95_info"]["won"]
    assert 0 <= low < 0.5 < high <= 1
    low, high = report["ci95_return"]
    assert 0.0 <= low < 4.0 < high <= 11.0


def test_the_interval_is_about_that_of_the_normal_distribution():
    data = np.random.default_rng(1).normal(10.0, 2.0, 400)
    low, high = confidence_interval(data)
    assert (high - low) / 2 == pytest.approx(1.96 * data.std() / 20, rel=0.1)
    assert confidence_interval(data[:1]) is None


def test_one_seed_is_one_result(cartpole):
    first, again, other = (evaluate(cartpole, episodes=6, sampled=True, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first["mean_return"] != other["mean_return"]


def test_deterministic_and_sampled_actions_differ(cartpole):
    modes, samples = (evaluate(cartpole, episodes=6, seed=3, sampled=sampled) for sampled in (False, True))
    assert modes["mean_length"] != samples["mean_length"]
    assert not modes["sampled"] and samples["sampled"]


def test_recurrent_policies_are_evaluated(recurrent):
    report = evaluate(recurrent, episodes=9, num_envs=2)
    assert report["episodes"] == 9 and report["mean_length"] == 7.0 and report["std_length"] == 0.0


def test_another_environment_can_be_asked_for(recurrent):
    report = evaluate(recurrent, episodes=2, env="paceline.envs.memory:Memory?length=11")
    assert report["mean_length"] == 11.0
    with pytest.raises(UsageError, match=r"needs the shape \[3\] of the observation 'obs'; here it is \[4\]"):
        evaluate(recurrent, episodes=2, env="gym:CartPole-v1")


def test_values_that_are_not_finite_are_null(tmp_path):
    run = make_run(tmp_path / "run", "tests.evaluation.runs:Reach")
    report = evaluate(run, episodes=1)
    assert report["info"] == {"bad": None, "odd": 0.0} and report["ci95_info"] == {"bad": None, "odd": None}
    assert report["std_return"] is None and report["ci95_return"] is None
    json.dumps(report, allow_nan=False)
    console = Console(record=True, quiet=True)
    console.print(table(report))


def test_the_device_pool_is_evaluated():
    with make_pool("tensor:cartpole", PoolConfig(num_envs=3)) as pool:
        steady = player(pool)
        steady._policy.mode = lambda params: {"action": params[:, 0].long() % 2}
        assert len(play(pool, steady, 7).episodes) == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episodes": 0}, "at least 1"),
        ({"num_envs": 0}, "at least 1"),
        ({"seed": -1}, "at least 0"),
        ({"checkpoint": "newest"}, "allowed: latest, best, step_N"),
    ],
)
def test_impossible_requests_say_what_is_allowed(cartpole, options, message):
    with pytest.raises(UsageError, match=message):
        evaluate(cartpole, **options)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not the folder of a run"):
        evaluate(tmp_path)


def test_the_command_prints_one_json_object_or_a_table(cartpole):
    done = run_paceline("eval", cartpole, "--episodes", 3, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["episodes"] == 3 and report["checkpoint"] == f"step_{STEPS}" and report["info"] == {}
    done = run_paceline("eval", cartpole, "--episodes", 3)
    assert "95 % interval" in done.stdout and "return" in done.stdout


def test_one_json_object_is_printed_where_stderr_is_closed(cartpole):
    paceline = [sys.executable, "-m", "paceline", "eval", str(cartpole), "--episodes", "3", "--json"]
    done = subprocess.run(["sh", "-c", '"$@" 2>&-', "sh", *paceline], stdout=subprocess.PIPE, timeout=120)
    assert done.returncode == 0 and json.loads(done.stdout)["episodes"] == 3


def test_the_commands_default_seed_is_the_functions(cartpole):
    assert Eval().options == EvaluationOptions() and Eval().options.seed == SEED
    assert evaluate(cartpole, episodes=1)["seed"] == SEED


def test_games_and_agents_are_counted_apart(tmp_path):
    """Three agents in each game: five episodes of two environments take part in two games, ten in four."""
    folder = make_run(tmp_path / "run", "tests.pool.multi_agent:mortals")
    for episodes, games in ((5, 2), (10, 4)):
        report = evaluate(folder, episodes=episodes, num_envs=2)
        assert report["episodes"] == episodes and report["agents"] == len(LIVES) == 3 and report["games"] == games
    console = Console(width=300, record=True)
    console.print(table(report))
    console.print(table({**report, "games": 1}))
    text = console.export_text()
    assert "an episode is one agent's, and 4 games of 3 agents were played" in text
    assert "and 1 game of 3 agents was played" in text
