"""Rows of whole runs: each has the observation of its slot, and the state and value that the policy gives for it."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch

from paceline.checkpoint import CheckpointFolder
from paceline.collect.actor import Actor
from paceline.collect.config import BatchingConfig
from paceline.collect.inference import Inference
from paceline.config import CheckpointConfig, Config
from paceline.learner.ppo import PPOLearner
from paceline.pool.config import PoolConfig
from paceline.schedule.config import VERConfig
from paceline.session import train
from tests.integration.test_training import tiny

pytestmark = pytest.mark.usefixtures("forked_workers")

CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


def small_batches(system: str, core: str = "gru", **changes) -> Config:
    """Decisions for one or two of four slots at a time, in any order."""
    options = {
        "deterministic": False,
        "pool": PoolConfig(num_envs=4, kind="process", workers=4),
        "batching": BatchingConfig(minimum=0.25, maximum=0.5),
    }
    return tiny(core, system=system, **(options | changes))


@pytest.fixture
def compared(monkeypatch):
    """Compares every batch of a run with the policy. Per batch: the numbers of compared values and compared states."""
    plain, counts = PPOLearner.learn, []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)  # not TF32 on a GPU

    def checking(self, batch, progress):
        rows, joined = batch.selection.in_order()
        rows = rows.to(batch.device)
        with torch.no_grad():
            _, value, after = self.policy.act(
                {name: column[rows] for name, column in batch.obs.items()}, batch.state[rows]
            )
        ours = batch.valid[rows] & (batch.version[rows] == self.policy.version)
        torch.testing.assert_close(batch.value[rows][ours], value[ours], rtol=1e-4, atol=1e-5)
        follows = joined.to(batch.device) & ours & ours.roll(1) & ~batch.episode_start[rows]
        torch.testing.assert_close(batch.state[rows][follows], after.roll(1, 0)[follows], rtol=1e-4, atol=1e-5)
        counts.append((int(ours.sum()), int(follows.sum())))
        return plain(self, batch, progress)

    monkeypatch.setattr(PPOLearner, "learn", checking)
    return counts


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("variable", [True, False], ids=["ver", "nover"])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_every_row_has_its_own_state_and_value(tmp_path, compared, core, variable, device):
    config = small_batches("ver", core, ver=VERConfig(variable=variable), device=device)
    run = train(config, tmp_path)
    assert run.step == config.steps
    values, states = (sum(counts) for counts in zip(*compared, strict=True))
    assert values > config.steps / 2 and states > config.steps / 3


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("system", ["ddppo", "ver", "appo"])
def test_every_row_has_the_observation_of_its_slot(tmp_path, monkeypatch, system, device):
    """Also where the device is late: an observation is copied from memory that the pool uses again."""
    learn, decide, compared = PPOLearner.learn, Actor.decide, []

    def checking(self, batch, progress):
        rows = torch.from_numpy(batch.selection.rows).to(batch.device)
        slots = torch.from_numpy(batch.selection.slots).to(batch.device).expand(rows.shape)
        ours = batch.valid[rows]
        if batch.selection.present is not None:
            ours &= torch.from_numpy(batch.selection.present).to(batch.device)
        assert torch.equal(batch.obs["obs"][rows, 0][ours], slots[ours].float())
        compared.append(int(ours.sum()))
        return learn(self, batch, progress)

    def late(self, batch):
        if device == "cuda":
            torch.cuda._sleep(2_000_000)  # a millisecond
        return decide(self, batch)

    monkeypatch.setattr(PPOLearner, "learn", checking)
    monkeypatch.setattr(Actor, "decide", late)
    config = small_batches("ver", "none", env="tests.integration.envs:numbered", device=device, steps=256)
    batching = BatchingConfig() if system == "ddppo" else config.batching
    policy = dataclasses.replace(config.policy, normalize_obs=False)
    train(dataclasses.replace(config, system=system, batching=batching, policy=policy), tmp_path)
    assert sum(compared) >= config.steps


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(("system", "kind"), [("appo", "process"), ("ver", "serial")])
def test_acting_weights_follow_the_learner(tmp_path, system, kind, device):
    options = {"ver": VERConfig(overlap=True)} if system == "ver" else {}
    pool = PoolConfig(num_envs=4, kind=kind, workers=2 if kind == "process" else None)
    run = train(small_batches(system, device=device, pool=pool, **options), tmp_path)
    acting = run.collection.actors[0].inference.policy
    assert acting is not run.policy and 0 <= int(run.policy.version - acting.version) < 5
    run.collection._refresh_weights()
    for mine, learned in zip(acting.parameters(), run.policy.parameters(), strict=True):
        torch.testing.assert_close(mine, learned)


@pytest.mark.parametrize("system", ["ver", "appo"])
def test_checkpoints_have_every_simulator(tmp_path, system):
    config = small_batches(
        system,
        env="synthetic:lognormal?mean=0.001&obs=4&dtype=float32&episode_length=20",
        steps=600,
        checkpoint=CheckpointConfig(seconds=0.1),
    )
    train(config, tmp_path)
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert len(folder.steps()) > 1, "in the middle, and at the end"
    for step in folder.steps():
        assert folder.load(f"step_{step}").pool_state(0) is not None
    assert train(dataclasses.replace(config, steps=800), tmp_path, resume="latest").step >= 800


@pytest.mark.parametrize("system", ["ver", "appo"])
def test_an_error_in_a_decision_is_what_the_user_sees(tmp_path, monkeypatch, system):
    plain, calls = Inference.__call__, []

    def broken(self, obs, state):
        calls.append(None)
        if len(calls) > 20:
            raise ArithmeticError("this very error")
        return plain(self, obs, state)

    monkeypatch.setattr(Inference, "__call__", broken)
    with pytest.raises(ArithmeticError, match="this very error"):
        train(small_batches(system, pool=PoolConfig(num_envs=4, kind="serial")), tmp_path)
    assert not [thread for thread in threading.enumerate() if thread.name == "learner"]


@pytest.mark.parametrize("system", ["ver", "appo"])
def test_the_learner_keeps_its_threads(tmp_path, monkeypatch, system):
    """PyTorch's number of threads is a thread's own only once it has asked for it."""
    plain, seen = PPOLearner.learn, set()

    def noting(self, batch, progress):
        seen.add(torch.get_num_threads())
        return plain(self, batch, progress)

    monkeypatch.setattr(PPOLearner, "learn", noting)
    options = {"ver": VERConfig(overlap=True)} if system == "ver" else {}
    pool = PoolConfig(num_envs=4, kind="serial")
    train(small_batches(system, threads=4, pool=pool, **options), tmp_path)
    assert seen == {4}


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize(("system", "own"), [("appo", True), ("ddppo", False)])
def test_concurrent_decisions_on_a_gpu_have_random_numbers_of_their_own(tmp_path, system, own, device):
    """Two concurrent recordings that share a generator would draw the same numbers. The generator is saved."""
    batching = BatchingConfig() if system == "ddppo" else BatchingConfig(minimum=0.25, maximum=0.5)
    run = train(small_batches(system, "none", device=device, batching=batching), tmp_path)
    generator, saved = run.collection.actors[0].inference.generator, run.collection.rank_state(stopped=True)["numbers"]
    if not own:
        assert generator is None and saved == []
        return
    drawn = torch.rand(4, generator=generator, device="cuda")
    run.collection.load_rank_state({"numbers": saved})
    torch.testing.assert_close(torch.rand(4, generator=generator, device="cuda"), drawn, rtol=0, atol=0)
    run.collection.load_rank_state({})  # a checkpoint from before there was one
