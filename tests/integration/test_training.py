"""Whole runs: reproducible, resumable to the bit, equal on one rank and on two, and able to learn."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from paceline.checkpoint import CheckpointFolder
from paceline.config import Config
from paceline.envs.memory import Memory
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.session import Session, train
from tests.integration.learning import BALANCED, REMEMBERED, balancing, learns, remembering, train_until
from tests.integration.ranks import on_ranks


def tiny(core: str = "lstm", **changes) -> Config:
    """A run of 8 iterations of 64 steps, with everything in it that has a state."""
    return dataclasses.replace(
        Config(
            env="paceline.envs.memory:Memory?length=7",
            steps=512,
            rollout_steps=16,
            deterministic=True,
            device="cpu",
            threads=1,
            pool=PoolConfig(num_envs=4, kind="serial"),
            policy=PolicyConfig(hidden=(8,), core=CoreConfig(kind=core, hidden=8), normalize_obs=True),
            ppo=PPOConfig(epochs=2, minibatches=2, normalize_advantage=True, normalize_returns=True),
            optimizer=OptimizerConfig(schedule="linear"),
        ),
        **changes,
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return CheckpointFolder(folder / "checkpoints").load().weights


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


class Stopping(Memory):
    """Sends SIGTERM to its own process in the middle of a rollout, once, if the file it is given does not exist."""

    def __init__(self, marker: str, length: int = 7, at: int = 70) -> None:
        super().__init__(length)
        self.marker, self.at, self.taken = marker, at, 0

    def step(self, action):
        self.taken += 1
        if self.taken == self.at and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            os.kill(os.getpid(), signal.SIGTERM)
        return super().step(action)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_deterministic_runs_are_bit_equal(tmp_path, core):
    for name in ("a", "b"):
        train(tiny(core, steps=256), tmp_path / name)
    assert_equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
    train(tiny(core, steps=256, seed=2), tmp_path / "c")
    other = weights(tmp_path / "c")
    assert any(not torch.equal(value, other[name]) for name, value in weights(tmp_path / "a").items())


def test_resumed_after_sigterm_in_mid_rollout_is_bit_equal(tmp_path):
    """2N steps at once = N, SIGTERM in the middle of a rollout, resume, N."""
    marker = tmp_path / "stopped"
    config = tiny(env=f"tests.integration.test_training:Stopping?marker={marker}")
    stopped = train(config, tmp_path / "parts")
    assert stopped.interrupted and 0 < stopped.step < config.steps
    resumed = train(config, tmp_path / "parts", resume="latest")
    assert resumed.step == config.steps and not resumed.interrupted
    train(config, tmp_path / "whole")
    assert_equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    reports = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert reports[-1]["step"] == config.steps


class Unsaved(Memory):
    """Its state cannot be saved, as Doom's."""

    def get_state(self):
        raise TypeError("a running game cannot be saved")

    def set_state(self, state):
        raise AssertionError


def test_a_deterministic_run_says_once_that_its_simulators_cannot_be_saved(tmp_path, caplog):
    env = "tests.integration.test_training:Unsaved"
    words = f"the simulators of {env} are not in checkpoints: a resumed run will begin new episodes"
    train(tiny("none", env=env, steps=256), tmp_path / "deterministic")
    assert caplog.text.count(words) == 1 and "a running game cannot be saved" in caplog.text
    caplog.clear()
    train(tiny("none", env=env, steps=256, deterministic=False), tmp_path / "other")
    assert words not in caplog.text


def test_resume_keeps_optimizer_schedule_normalizer_and_counters(tmp_path):
    """Mistakes 13, 27: nothing starts over."""
    marker = tmp_path / "stopped"
    config = tiny(env=f"tests.integration.test_training:Stopping?marker={marker}")
    train(config, tmp_path)
    saved = CheckpointFolder(tmp_path / "checkpoints").load()
    assert saved.state["agent"]["optimizer"]["state"][0]["step"] > 0
    assert any("normalizers" in name and "count" in name and value > 0 for name, value in saved.weights.items())
    resumed = train(config, tmp_path, resume="latest")
    final = CheckpointFolder(tmp_path / "checkpoints").load()
    assert final.weights["version"] == 8
    assert resumed.learners[0].learning_rate(resumed.progress) == 0.0


def test_config_json_reproduces_the_run(tmp_path):
    train(tiny(steps=256), tmp_path / "a")
    train(Config.load(tmp_path / "a" / "config.json"), tmp_path / "b")
    assert_equal(weights(tmp_path / "a"), weights(tmp_path / "b"))


def test_reports_have_what_users_rely_on(tmp_path):
    run = train(tiny(), tmp_path)
    report = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    for key in ("step", "frames", "seconds", "sps", "fps", "episode_return", "episode_length", "policy_lag", "entropy"):
        assert isinstance(report[key], int | float), key
    shares = [value for key, value in report.items() if key.startswith("time/")]
    assert sum(shares) == pytest.approx(1.0, abs=0.02)
    assert report["step"] == run.step == 512
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_two_ranks_with_half_the_data_give_the_update_of_one_with_all():
    """No preemption; the gradient and all statistics are those of one rank with all environments."""

    def work():
        from paceline.distributed.runtime import Group
        from tests.integration.halves import update_with_my_half

        group = Group.join("cpu")
        result = update_with_my_half(group)
        group.close()
        return result

    from paceline.distributed.runtime import Group, RankInfo
    from tests.integration.halves import update_with_my_half

    first, second = on_ranks(2, work)
    alone = update_with_my_half(Group(RankInfo(), torch.device("cpu"), None))
    for name, value in alone["weights"].items():
        assert torch.equal(first["weights"][name], second["weights"][name]), f"{name}: the ranks agree to the bit"
        torch.testing.assert_close(first["weights"][name], value, rtol=1e-4, atol=1e-6)
    for name, value in alone["losses"].items():
        assert first["losses"][name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


def test_two_ranks_train_save_and_resume_with_another_number(tmp_path):
    """Mistake 30: one writer. And a run goes on with fewer or more ranks, losing nothing that is everybody's."""
    config = tiny(steps=256, deterministic=False)
    folder = str(tmp_path)

    def work():
        run = train(config, Path(folder))
        return run.step, {name: value.clone() for name, value in run.policy.state_dict().items()}

    (steps, first), (_, second) = on_ranks(2, work)
    assert steps == 256
    assert_equal(first, second)
    reports = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len({report["step"] for report in reports}) == len(reports), "no report twice"
    saved = CheckpointFolder(tmp_path / "checkpoints").load()
    assert len(saved.state["ranks"]) == 2
    alone = train(dataclasses.replace(config, steps=384), tmp_path, resume="latest")
    assert alone.step == 384

    def more():
        return train(dataclasses.replace(config, steps=640), Path(folder), resume="latest").step

    steps = on_ranks(3, more)
    assert steps[0] >= 640 and steps == steps[:1] * 3


def test_cartpole_is_learned(tmp_path, learning_seed):
    """False alarms: none in 20 seeds."""
    learns(balancing("ddppo", learning_seed), BALANCED, tmp_path)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_memory_task_is_learned_with_rollouts_shorter_than_episodes(tmp_path, core, learning_seed):
    """Mistake 18. False alarms: none in 20 seeds of either core."""
    learns(remembering("ddppo", core, learning_seed), REMEMBERED, tmp_path)


def test_memory_task_is_learned_on_two_ranks(tmp_path, learning_seed):
    """Mistake 18, each rank with half of the environments. False alarms: none in 20 seeds."""
    config, folder = remembering("ddppo", "lstm", learning_seed, num_envs=16), str(tmp_path)

    def work():
        return train_until(config, REMEMBERED, Path(folder))

    first, second = on_ranks(2, work, timeout=300)
    assert first == second, "episodes are everybody's"
    assert first >= REMEMBERED


class ClockOfUpdates:
    """A clock that moves by 0.1 s with every update, for the run and for its deadline."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.updates = 0
        monkeypatch.setattr("paceline.run.time", SimpleNamespace(monotonic=lambda: 0.1 * self.updates))
        monkeypatch.setattr("paceline.stop.Stop.after", lambda stop, seconds: contextlib.nullcontext())

    def on_update(self, session: Session) -> None:
        self.updates += 1
        if 0.1 * self.updates >= session.config.seconds:
            session.state.stop.request("deadline")


def test_schedules_follow_the_clock_where_it_ends_the_run(tmp_path, monkeypatch):
    """A run of so many seconds has its learning rate at the end of its schedule when they are over."""
    config = tiny(steps=10**9, seconds=2.0, deterministic=False, optimizer=OptimizerConfig(schedule="linear"))
    monkeypatch.setattr("paceline.run.REPORT_SECONDS", 0.1)
    with Session(config, tmp_path, callbacks=[ClockOfUpdates(monkeypatch)]) as session:
        session.run()
        run = session.state
    assert run.step < config.steps and run.progress > 0.9
    rates = [json.loads(line)["learning_rate"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(rates) >= 5 and all(later < earlier for earlier, later in itertools.pairwise(rates))
    assert rates[-1] < 0.1 * config.optimizer.learning_rate


def test_measures_of_a_simulator_are_reported(tmp_path):
    """What an episode of a batched simulator amounts to, beside its return: means over episodes."""
    config = Config(
        env="pointnav:small?resolution=8&scenes=2&max_episode_steps=20",
        steps=4096,
        rollout_steps=32,
        device="cpu",
        threads=1,
        pool=PoolConfig(num_envs=16),
        policy=PolicyConfig(encoder="patches", encoder_size=8, hidden=(8,)),
    )
    run = train(config, tmp_path)
    report = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 <= report["episode_success"] <= 1 and 0 <= report["episode_spl"] <= report["episode_success"] + 1e-6
    assert report["episode_distance_to_goal"] > 0
    assert run.episodes.means()["episode_success"] == report["episode_success"]
