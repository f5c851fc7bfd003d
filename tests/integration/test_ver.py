"""VER as a whole: reproducible, resumable to the bit, survives its simulators, and learns."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from paceline.checkpoint import CheckpointFolder
from paceline.collect.config import BatchingConfig
from paceline.config import Config
from paceline.errors import UsageError
from paceline.learner.config import PPOConfig
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.schedule.config import VERConfig
from paceline.session import train
from tests.integration.learning import BALANCED, REMEMBERED, balancing, learns, remembering, train_until
from tests.integration.ranks import on_ranks
from tests.integration.test_training import assert_equal, tiny, weights

HALVES = BatchingConfig(minimum=0.25, maximum=0.5)
"""With the serial pool: at the end of a rollout some slots have answered and were not taken yet."""


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("batching", [BatchingConfig(), HALVES], ids=["all", "halves"])
def test_resumed_after_sigterm_in_mid_rollout_is_bit_equal(tmp_path, core, batching):
    """2N steps at once = N, SIGTERM in the middle of a rollout, resume, N; with steps in flight at a rollout's end."""
    marker = tmp_path / "stopped"
    config = tiny(
        core,
        env=f"tests.integration.test_training:Stopping?marker={marker}",
        system="ver",
        batching=batching,
        rollout_steps=15,
    )
    stopped = train(config, tmp_path / "parts")
    assert stopped.interrupted and 0 < stopped.step < config.steps
    resumed = train(config, tmp_path / "parts", resume="latest")
    assert resumed.step >= config.steps and not resumed.interrupted
    train(config, tmp_path / "whole")
    assert_equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))


def test_checkpoints_in_mid_run_have_every_simulator(tmp_path):
    """Not deterministic, in worker processes: everything in flight is taken in first, and a run goes on from there."""
    config = Config(
        env="synthetic:lognormal?mean=0.002&obs=4&dtype=float32&episode_length=20",
        system="ver",
        steps=1000,
        rollout_steps=16,
        device="cpu",
        threads=1,
        pool=PoolConfig(num_envs=4, kind="process", workers=2),
        policy=PolicyConfig(hidden=(8,), core=CoreConfig(kind="gru", hidden=8)),
        checkpoint=dataclasses.replace(Config().checkpoint, seconds=0.2),
    )
    train(config, tmp_path)
    saved = CheckpointFolder(tmp_path / "checkpoints").load()
    assert saved.state["ranks"][0]["agent"]["rollout"] is not None
    resumed = train(dataclasses.replace(config, steps=1300), tmp_path, resume="latest")
    assert resumed.step >= 1300


@pytest.mark.parametrize("variable", [True, False], ids=["ver", "nover"])
def test_fast_environments_give_more_steps_unless_all_give_the_same(tmp_path, variable, monkeypatch):
    collected = []
    from paceline.experience.layouts import Variable

    plain = Variable._weights

    def noting(self):
        collected.append(self.collected.copy())
        return plain(self)

    monkeypatch.setattr(Variable, "_weights", noting)
    config = Config(
        env="synthetic:minority?mean=0.04&slow=10&fraction=0.25&obs=4&dtype=float32&episode_length=20",
        system="ver",
        ver=VERConfig(variable=variable),
        steps=3 * 16 * 4,
        rollout_steps=16,
        device="cpu",
        threads=1,
        pool=PoolConfig(num_envs=4, kind="process", workers=4),
        policy=PolicyConfig(hidden=(8,)),
    )
    train(config, tmp_path)
    assert all(counts.sum() == 64 for counts in collected)
    if variable:
        assert max(counts.max() for counts in collected) > 2 * min(counts.min() for counts in collected)
    else:
        assert all((counts == 16).all() for counts in collected)


@pytest.mark.parametrize("workers", [2, 1], ids=["one lost", "all lost"])
def test_a_killed_simulator_loses_only_its_unfinished_episode(tmp_path, caplog, workers):
    marker = tmp_path / "killed"
    config = tiny(
        env=f"tests.integration.envs:Killed?marker={marker}",
        system="ver",
        deterministic=False,
        pool=PoolConfig(num_envs=4, kind="process", workers=workers, on_error="restart"),
    )
    run = train(config, tmp_path / "run")
    assert "replacing a simulator" in caplog.text and "SIGKILL" in caplog.text
    assert run.step == config.steps, "every rollout was full all the same"
    lengths = [
        json.loads(line)["episode_length"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert all(length in (None, 7.0) for length in lengths), "no episode was cut short or joined to another"


@pytest.mark.parametrize("variable", [True, False], ids=["ver", "nover"])
@pytest.mark.parametrize("maximum", [1.0, 0.5])
def test_agents_out_of_the_game_do_not_hold_up_the_others(tmp_path, variable, maximum):
    """They take part in their environment's steps, and nothing of it is experience."""
    config = tiny(
        "gru",
        env="tests.pool.multi_agent:Mortal?env=1",
        system="ver",
        ver=VERConfig(variable=variable),
        batching=BatchingConfig(minimum=0.25, maximum=maximum),
        steps=400,
    )
    run = train(config, tmp_path)
    assert run.step >= 400
    # Of 4 steps of an episode anna lives 2, bert 4 and cleo 3: three quarters of the rows are experience.
    assert run.step / int(run.policy.version) == pytest.approx(0.75 * 16 * 12, rel=0.05)


def test_two_ranks_agree_and_a_straggler_is_preempted(tmp_path):
    """The slow rank's rollouts are short and filled up with its last one; weights are the same to the bit."""
    folder = str(tmp_path)

    def work():
        config = Config(
            env="synthetic:constant?mean=0.002&obs=4&dtype=float32&episode_length=20",
            system="ver",
            steps=1500,
            rollout_steps=32,
            device="cpu",
            threads=1,
            pool=PoolConfig(num_envs=4, kind="process", workers=4),
            policy=PolicyConfig(hidden=(8,), core=CoreConfig(kind="lstm", hidden=8)),
            ppo=PPOConfig(epochs=1, minibatches=2),
        )
        if os.environ["RANK"] == "1":
            config = dataclasses.replace(config, env=config.env.replace("0.002", "0.03"))
        from paceline.experience.layouts import Variable

        collected, filled = [], []
        plain = Variable.select

        def noting(self, policy=None):
            selection = plain(self, policy)
            collected.append(self.completed)
            filled.append(0 if selection.older is None else len(selection.older[0]))
            return selection

        Variable.select = noting
        run = train(config, Path(folder) / os.environ["RANK"])
        return collected, filled, {name: value.clone() for name, value in run.policy.state_dict().items()}

    (fast, _, first), (slow, filled, second) = on_ranks(2, work)
    assert_equal(first, second)
    assert slow[0] == 128 and min(slow[2:]) < 128
    assert sum(fast) > sum(slow), "a busy machine may cut a few rollouts of the fast rank, too"
    assert filled[1] + slow[1] == 128, "right after a full rollout there is enough to fill up with"


def test_batched_simulators_are_stepped_in_lock_step(tmp_path):
    config = Config(
        env="tensor:cartpole",
        system="ver",
        steps=2048,
        rollout_steps=32,
        device="cpu",
        threads=1,
        pool=PoolConfig(num_envs=16),
        policy=PolicyConfig(hidden=(8,)),
    )
    assert train(config, tmp_path).step == 2048
    with pytest.raises(UsageError, match="batched ones step in this one"):
        train(dataclasses.replace(config, ver=VERConfig(overlap=True)), tmp_path / "overlap")


def test_columns_are_refused_where_streams_differ_in_length(tmp_path):
    config = tiny(system="ver", ppo=PPOConfig(sequences="columns"))
    with pytest.raises(UsageError, match="needs rollouts in lock-step"):
        train(config, tmp_path)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_memory_task_is_learned(tmp_path, core, learning_seed):
    """Mistake 18, with rollouts shorter than episodes and slots that take turns. Deterministic: whether a seed learns
    it must not depend on who was faster. False alarms: 1 in 20 seeds with an LSTM (20), none with a GRU."""
    config = dataclasses.replace(remembering("ver", core, learning_seed), deterministic=True, batching=HALVES)
    learns(config, REMEMBERED, tmp_path)


def test_memory_task_is_learned_on_two_ranks(tmp_path, learning_seed):
    """Deterministic: whether a seed learns it must not depend on the faster rank. False alarms: none in 20 seeds."""
    config = dataclasses.replace(remembering("ver", "lstm", learning_seed, num_envs=16), deterministic=True)
    folder = str(tmp_path)

    def work():
        return train_until(config, REMEMBERED, Path(folder))

    first, second = on_ranks(2, work, timeout=300)
    assert first == second and first >= REMEMBERED


def test_learning_beside_collecting_is_one_update_behind(tmp_path):
    """Overlap: rows are chosen with the weights before last. Every rollout is learned from once."""
    config = tiny(
        system="ver",
        deterministic=False,
        ver=VERConfig(overlap=True),
        pool=PoolConfig(num_envs=4, kind="process", workers=2),
    )
    run = train(config, tmp_path)
    reports = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert run.step == config.steps and int(run.policy.version) == 8
    assert 1.0 <= reports[-1]["policy_lag"] < 1.5, "one update, and another for rows that were in flight between two"
    with pytest.raises(UsageError, match="overlap"):
        dataclasses.replace(config, deterministic=True, pool=PoolConfig(num_envs=4, kind="serial"))


def test_learning_beside_collecting_on_two_ranks(tmp_path):
    config = tiny(system="ver", deterministic=False, ver=VERConfig(overlap=True))
    folder = str(tmp_path)

    def work():
        run = train(config, Path(folder))
        return {name: value.clone() for name, value in run.policy.state_dict().items()}

    first, second = on_ranks(2, work)
    assert_equal(first, second)


def test_cartpole_is_learned_beside_collecting(tmp_path, learning_seed):
    """One update of lag is little. False alarms: none in 20 seeds."""
    learns(dataclasses.replace(balancing("ver", learning_seed), ver=VERConfig(overlap=True)), BALANCED, tmp_path)
