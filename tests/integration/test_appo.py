"""APPO as a whole: concurrent learning, its bounds, failing simulators, stopping and resuming, and learned tasks."""

from __future__ import annotations

import copy
import dataclasses
import json
import threading
import time
from pathlib import Path

import pytest
import torch

from paceline import recipes
from paceline.accel import kernels
from paceline.checkpoint import CheckpointFolder
from paceline.config import CheckpointConfig, Config
from paceline.envs.memory import Memory
from paceline.errors import SimulatorError, UsageError
from paceline.experience.training_batch import TrainingBatch
from paceline.learner.config import PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.learner.publication import Publication
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.nets.normalizer import ReturnNormalizer
from paceline.pool.config import PoolConfig
from paceline.population.config import PopulationConfig
from paceline.schedule.appo import BatchQueue, _is_concurrent
from paceline.schedule.config import APPOConfig
from paceline.session import train
from tests.integration.learning import BALANCED, REMEMBERED, balancing, learns, remembering, train_until
from tests.integration.ranks import on_ranks
from tests.integration.test_training import assert_equal, tiny, weights


def small(core: str = "lstm", **changes) -> Config:
    """8 updates of 64 steps, four chunks each, with everything in it that has a state."""
    return tiny(core, **{"system": "appo", "deterministic": False, **changes})


def reports(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("targets", ["auto", "gae"])
@pytest.mark.parametrize("kind", ["serial", "process"])
def test_a_run_counts_every_step_once(tmp_path, core, targets, kind):
    config = small(core, pool=PoolConfig(num_envs=4, kind=kind, workers=2 if kind == "process" else None))
    run = train(dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, targets=targets)), tmp_path)
    assert run.step == config.steps and int(run.policy.version) == 8
    last = reports(tmp_path)[-1]
    assert last["step"] == config.steps and last["dropped_rows"] == 0
    assert 0 <= last["policy_lag_min"] <= last["policy_lag"] <= last["policy_lag_max"]
    assert 0 < last["learner_busy"] <= 1
    assert sum(share for name, share in last.items() if name.startswith("time/")) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("threads", "concurrent", "expected"), [(None, True, {1, 2}), (None, False, {2}), (1, True, {1})]
)
def test_the_learner_has_all_cores_while_collection_waits_for_it(tmp_path, monkeypatch, threads, concurrent, expected):
    """It has half of them when collection continues. Collection keeps its half. Given thread counts do not change."""
    monkeypatch.setattr(kernels, "SMALL_PARAMETERS", 0)
    monkeypatch.setattr(kernels, "available_core_ids", lambda: [0, 1])
    update, backward, seen, collecting = PPOLearner.update, PPOLearner._backward, [], set()

    def begin(self, rollout, progress):
        seen.append(torch.get_num_threads())
        return update(self, rollout, progress)

    def make(self, *arguments, **options):
        original_make(self, *arguments, **options)
        made.append(self)

    def slow(self, rollout, batch):
        deadline = time.monotonic() + 5
        while not made[0]._collection_waits and time.monotonic() < deadline:
            time.sleep(0.001)  # until collection is ahead
        sums = backward(self, rollout, batch)
        seen.append(torch.get_num_threads())
        return sums

    def step(self, action):
        collecting.add(torch.get_num_threads())
        return original_step(self, action)

    original_step, original_make, made = Memory.step, BatchQueue.__init__, []
    monkeypatch.setattr(BatchQueue, "__init__", make)
    monkeypatch.setattr(PPOLearner, "update", begin)
    monkeypatch.setattr(PPOLearner, "_backward", slow)
    monkeypatch.setattr(Memory, "step", step)
    train(small(threads=threads, appo=APPOConfig(concurrent=concurrent)), tmp_path)
    assert set(seen) == expected and collecting == {1}
    assert 1 not in expected or threads or 1 in seen[seen.index(2) :], "it gives them back"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("targets", ["auto", "gae"])
def test_a_run_on_a_gpu(tmp_path, core, targets):
    """Decisions and updates on two streams: every step once, and weights that are numbers."""
    config = small(core, device="cuda", pool=PoolConfig(num_envs=4, kind="process", workers=2), steps=4096)
    run = train(dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, targets=targets)), tmp_path)
    assert run.step == config.steps and int(run.policy.version) == 64
    assert all(torch.isfinite(value).all() for value in run.policy.parameters())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_memory_task_is_learned_on_a_gpu(tmp_path):
    learns(dataclasses.replace(remembering("appo", "lstm", 1), device="cuda"), REMEMBERED, tmp_path)


def test_the_batch_is_what_was_asked_for(tmp_path):
    """Rounded to whole trajectories, whatever the number of slots."""
    run = train(small(appo=APPOConfig(batch=90)), tmp_path)  # of chunks of 16
    assert run.step == 6 * 96 and int(run.policy.version) == 6


def test_taking_turns(tmp_path):
    """No action is chosen during an update: only rows in flight lag, by one update. Checkpoints do not block it."""
    config = small(appo=APPOConfig(concurrent=False), checkpoint=CheckpointConfig(seconds=1e-6))
    run = train(config, tmp_path)
    assert run.step == config.steps and int(run.policy.version) == 8
    assert max(report["policy_lag_max"] for report in reports(tmp_path)) <= 1


def test_perceptrons_over_envpool_take_turns(tmp_path):
    """Unless asked otherwise, or with several ranks, who wait for each other."""
    pytest.importorskip("envpool")
    config = small("none", env="envpool:CartPole-v1", pool=PoolConfig(num_envs=4), policy=PolicyConfig(hidden=(8,)))
    run = train(dataclasses.replace(config, steps=64), tmp_path)
    assert not _is_concurrent(run, run.config, run.collection)
    run.config = dataclasses.replace(run.config, appo=APPOConfig(concurrent=True))
    assert _is_concurrent(run, run.config, run.collection)
    run.config = dataclasses.replace(run.config, appo=APPOConfig())
    run.group.size = 2
    assert _is_concurrent(run, run.config, run.collection)
    large, recurrent = PolicyConfig(hidden=(512, 512)), PolicyConfig(core=CoreConfig(kind="gru", hidden=8))
    for name, policy in {"large": large, "gru": recurrent}.items():
        other = train(dataclasses.replace(config, steps=64, policy=policy), tmp_path / name)
        assert _is_concurrent(other, other.config, other.collection)


@pytest.mark.parametrize("waiting", [0, 3])
def test_back_pressure_bounds_the_lag(tmp_path, monkeypatch, waiting):
    """A slow learner: collection pauses, and rows are at most as old as the batches that may wait, and two more."""
    plain, lags = PPOLearner.update, []

    def slow(self, rollout, progress):
        time.sleep(0.05)
        losses = plain(self, rollout, progress)
        lags.append(losses["policy_lag_max"])
        return losses

    monkeypatch.setattr(PPOLearner, "update", slow)
    train(small("none", steps=1024, appo=APPOConfig(waiting=waiting)), tmp_path)
    assert max(lags) <= waiting + 2
    assert max(lags) >= waiting + 1, "they did wait"


def test_rows_beyond_the_bound_are_left_out_and_counted(tmp_path, monkeypatch):
    plain = PPOLearner.update

    def slow(self, rollout, progress):
        time.sleep(0.02)
        losses = plain(self, rollout, progress)
        assert losses.get("policy_lag_max", 0.0) <= 3
        return losses

    monkeypatch.setattr(PPOLearner, "update", slow)
    # An update for every chunk, of which four are filled at a time: the first rows of each are the oldest.
    config = small("none", steps=1024, appo=APPOConfig(batch=16, max_lag=3))
    run = train(dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, minibatches=1)), tmp_path)
    found = reports(tmp_path)
    assert run.step >= 1024 and found[-1]["dropped_rows"] > 0
    assert run.step < 16 * int(run.policy.version), "what is not learned from is not counted"


def test_what_goes_wrong_in_the_learner_is_what_the_user_sees(tmp_path, monkeypatch):
    def broken(self, rollout, progress):
        raise ArithmeticError("this very error")

    monkeypatch.setattr(PPOLearner, "update", broken)
    with pytest.raises(ArithmeticError, match="this very error"):
        train(small(), tmp_path)
    assert not [thread for thread in threading.enumerate() if thread.name == "learner"]


def test_what_goes_wrong_in_a_simulator_ends_the_learner_too(tmp_path):
    config = small(
        env="tests.integration.envs:Raising?length=7", pool=PoolConfig(num_envs=4, kind="process", workers=2)
    )
    with pytest.raises(SimulatorError, match="this very error"):
        train(dataclasses.replace(config, steps=10**6), tmp_path)
    assert not [thread for thread in threading.enumerate() if thread.name == "learner"]


def test_a_killed_simulator_loses_only_its_unfinished_episode(tmp_path, caplog):
    config = small(
        env=f"tests.integration.envs:Killed?marker={tmp_path / 'killed'}",
        pool=PoolConfig(num_envs=4, kind="process", workers=2, on_error="restart"),
    )
    run = train(config, tmp_path / "run")
    assert "replacing a simulator" in caplog.text and "SIGKILL" in caplog.text
    assert run.step >= config.steps
    assert all(report["episode_length"] in (None, 7.0) for report in reports(tmp_path / "run"))


def test_agents_out_of_the_game_are_not_experience(tmp_path):
    """Mistake 28: their rows are there and do not count; three quarters do (see `Mortal`)."""
    run = train(small("gru", env="tests.pool.multi_agent:Mortal?env=1", steps=400), tmp_path)
    assert run.step / int(run.policy.version) == pytest.approx(0.75 * 16 * 12, rel=0.05)


def test_stopped_and_resumed_nothing_starts_over(tmp_path):
    """SIGTERM: a checkpoint with every simulator, from which counters, optimiser, normalisers and schedule go on."""
    config = small(env=f"tests.integration.test_training:Stopping?marker={tmp_path / 'stopped'}", steps=1024)
    stopped = train(config, tmp_path)
    assert stopped.interrupted and 0 < stopped.step < config.steps
    saved = CheckpointFolder(tmp_path / "checkpoints").load()
    assert saved.state["step"] == stopped.step and saved.pool_state(0) is not None
    resumed = train(config, tmp_path, resume="latest")
    assert resumed.step == config.steps and not resumed.interrupted
    final = CheckpointFolder(tmp_path / "checkpoints").load()
    taken = int(final.state["agent"]["optimizer"]["state"][0]["step"]) - 16 * 2 * 2
    assert 0 <= taken < 2 * 2, "SIGTERM may end an update after some of its steps: its rows are not counted"
    assert int(final.weights["version"]) in ((17,) if taken else (16, 17))


def test_checkpoints_in_mid_run_have_every_simulator(tmp_path):
    config = small(
        env="synthetic:lognormal?mean=0.001&obs=4&dtype=float32&episode_length=20",
        steps=800,
        pool=PoolConfig(num_envs=4, kind="process", workers=2),
        checkpoint=dataclasses.replace(Config().checkpoint, seconds=0.05, keep=100),
    )
    train(config, tmp_path)
    saved = list((tmp_path / "checkpoints").glob("step_*"))
    assert len(saved) > 2
    resumed = train(dataclasses.replace(config, steps=1000), tmp_path, resume="latest")
    assert resumed.step >= 1000


def test_two_ranks_have_the_same_weights(tmp_path):
    """Each has a sampler and a learner; the learners meet in every update, and in the end."""
    config = small(checkpoint=dataclasses.replace(Config().checkpoint, seconds=0.1), steps=1024)
    folder = str(tmp_path)

    def work():
        run = train(config, Path(folder))
        return run.step, {name: value.clone() for name, value in run.policy.state_dict().items()}

    (steps, first), (other, second) = on_ranks(2, work)
    assert steps == other >= 1024
    assert_equal(first, second)
    assert_equal(weights(tmp_path), first)


def test_batched_simulators_take_turns_with_the_learner(tmp_path):
    config = Config(
        env="tensor:cartpole",
        system="appo",
        steps=2048,
        rollout_steps=32,
        device="cpu",
        threads=1,
        pool=PoolConfig(num_envs=16),
        policy=PolicyConfig(hidden=(8,)),
    )
    run = train(config, tmp_path)
    assert run.step == 2048 and reports(tmp_path)[-1]["policy_lag_max"] == 0


def test_weights_are_picked_up_whole(tmp_path):
    """A reader that never stops, and a writer: every copy has all tensors of one version, normalisers included."""
    learned = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(6)))
    learned.register_buffer("version", torch.zeros(()))
    acting = copy.deepcopy(learned)
    publication, done, torn = Publication(learned), threading.Event(), []
    reader = publication.reader(acting)

    def read() -> None:
        while not done.is_set():
            reader.refresh()
            seen = {value.flatten()[0].item() for value in acting.state_dict().values()}
            if len(seen) != 1 and int(acting.version) > 0:
                torn.append(seen)

    thread = threading.Thread(target=read)
    thread.start()
    with torch.no_grad():
        for number in range(1, 300):
            for value in learned.state_dict().values():
                value.fill_(number)
            publication.publish()
    done.set()
    thread.join()
    reader.refresh()
    assert not torn and int(acting.version) == 299


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"deterministic": True}, "allowed: ddppo, ver"),
        ({"ppo": PPOConfig(minibatches=5, trace="minibatch")}, "only 4 chunks"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, changes, said):
    with pytest.raises(UsageError, match=said):
        train(small(**changes), tmp_path)


@pytest.mark.parametrize("value", [{"batch": 0}, {"waiting": -1}, {"max_lag": 4, "waiting": 3}])
def test_settings_are_checked(value):
    with pytest.raises(UsageError, match="must be at least"):
        APPOConfig(**value)


def test_cartpole_is_learned(tmp_path, learning_seed):
    """False alarms: none in 20 seeds."""
    learns(balancing("appo", learning_seed), BALANCED, tmp_path)


@pytest.mark.parametrize("options", [{"targets": "gae"}, {"trace": "minibatch"}, {"epochs": 1}, {"clip": None}])
def test_ratios_to_the_policy_before_the_update_need_vtrace_before_it(options):
    base = recipes.find("doom_basic")
    assert base.resolved_ppo.clips_around_update
    ppo = dataclasses.replace(base.ppo, **options)
    with pytest.raises(UsageError, match="needs ppo.clip, and ppo.targets vtrace before updates"):
        dataclasses.replace(base, ppo=ppo)
    assert not dataclasses.replace(base.under("ddppo"), ppo=ppo).resolved_ppo.clips_around_update  # no row is behind


def test_memory_task_is_learned(tmp_path, learning_seed):
    """Mistake 18, with an LSTM. False alarms: none in 20 seeds."""
    learns(remembering("appo", "lstm", learning_seed), REMEMBERED, tmp_path)


def test_memory_task_is_learned_on_two_ranks(tmp_path, learning_seed):
    """With a GRU. False alarms: 1 in 20 seeds (7)."""
    config, folder = remembering("appo", "gru", learning_seed, num_envs=16), str(tmp_path)

    def work():
        return train_until(config, REMEMBERED, Path(folder))

    first, second = on_ranks(2, work, timeout=300)
    assert first == second and first >= REMEMBERED


def batched(num_envs: int, device: str):
    import gymnasium

    return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync")


def _train_on_a_rank(folder: Path) -> int:
    ppo = PPOConfig(epochs=1, minibatches=2, trace="minibatch", normalize_advantage=True)
    config = small("none", env=f"{__name__}:batched", pool=PoolConfig(num_envs=2), ppo=ppo, rollout_steps=8, steps=800)
    return train(dataclasses.replace(config, population=PopulationConfig(policies=2)), folder).step


def test_a_rank_with_an_empty_minibatch_joins_the_sums_of_the_others(tmp_path):
    """Advantages are normalised over all ranks in every mini-batch, and some have no stream of the policy."""
    assert min(on_ranks(2, lambda: _train_on_a_rank(tmp_path))) >= 800


@pytest.mark.parametrize(
    ("core", "ppo", "instead"),
    [
        ("none", {"trace": "minibatch", "epochs": 1}, "--ppo.trace update"),
        ("lstm", {"sequences": "columns", "trace": "update"}, "--ppo.sequences packed"),
    ],
)
def test_fewer_chunks_than_minibatches_are_refused_before_training(tmp_path, core, ppo, instead):
    """Batches with chunks that were closed early have more of them: the run would end when episodes get longer."""
    config = small(core, ppo=PPOConfig(minibatches=4, **ppo), population=PopulationConfig(policies=2))
    with pytest.raises(UsageError, match=f"a batch has only 2 chunks to divide; .*{instead}"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_dropped_rows_do_not_end_episodes_for_the_scale_of_returns(tmp_path, monkeypatch):
    """Only the learner leaves them out. Their rewards are part of what follows."""
    seen = []
    plain = ReturnNormalizer.observe

    def observe(self, slots, reward, terminated, truncated, real=None):
        seen.append(real.clone())
        return plain(self, slots, reward, terminated, truncated, real)

    monkeypatch.setattr(ReturnNormalizer, "observe", observe)
    monkeypatch.setattr(TrainingBatch, "drop_older", lambda batch, version: batch.valid[::2].fill_(False).sum())
    run = train(small("none"), tmp_path)
    assert run.step >= 512 and len(seen) > 0 and all(real.all() for real in seen)
