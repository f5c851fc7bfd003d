"""Several threads that decide: rows, states and counts are those that one would have given, whoever is faster."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest
import torch

from paceline.agent.on_policy import OnPolicy
from paceline.checkpoint import CheckpointFolder
from paceline.collect.actor import Actor
from paceline.collect.chooser import Chooser
from paceline.collect.config import BatchingConfig
from paceline.config import Config
from paceline.errors import UsageError
from paceline.pool.config import PoolConfig
from paceline.run import train
from paceline.schedule.config import VERConfig
from tests.integration.test_training import tiny
from tests.pool.faulty import Counting

CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


def several(system: str, core: str = "gru", **changes) -> Config:
    """Small batches, so that all deciders are busy at times."""
    return tiny(
        core,
        **{
            "system": system,
            "deterministic": False,
            "batching": BatchingConfig(inference_workers=3, minimum=0.25, maximum=0.5),
            "pool": PoolConfig(num_envs=4, kind="process", workers=4),
            **changes,
        },
    )


@pytest.fixture
def slow_choices(monkeypatch):
    """Decisions that take their time, by chance: the last question is often answered first. Which threads decided is noted."""
    plain, names = Chooser.__call__, set()

    def slow(self, obs, state):
        names.add(threading.current_thread().name)
        time.sleep(0.003 * float(torch.rand(())))
        return plain(self, obs, state)

    monkeypatch.setattr(Chooser, "__call__", slow)
    return names


@pytest.fixture
def lessons(monkeypatch):
    """Whether what is learned from is a policy's doing: how many rows were compared, and how many had the policy's own value."""
    plain, compared = OnPolicy.learn, []
    # Not TF32 on a GPU.
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)

    def checking(self, rollout, progress):
        rows, joined = rollout.book.in_order()
        rows = rows.to(rollout.device)
        with torch.no_grad():
            _, value, after = self.policy.act(
                {name: column[rows] for name, column in rollout.obs.items()}, rollout.state[rows]
            )
        ours = rollout.valid[rows] & (rollout.version[rows] == self.policy.version)
        torch.testing.assert_close(rollout.value[rows][ours], value[ours], rtol=1e-4, atol=1e-5)
        follows = joined.to(rollout.device) & ours & ours.roll(1) & ~rollout.episode_start[rows]
        torch.testing.assert_close(rollout.state[rows][follows], after.roll(1, 0)[follows], rtol=1e-4, atol=1e-5)
        compared.append((int(ours.sum()), int(follows.sum())))
        return plain(self, rollout, progress)

    monkeypatch.setattr(OnPolicy, "learn", checking)
    return compared


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("variable", [True, False], ids=["ver", "nover"])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_every_row_has_its_own_state_and_value(tmp_path, slow_choices, lessons, core, variable, device):
    config = several("ver", core, ver=VERConfig(variable=variable), device=device)
    run = train(config, tmp_path)
    assert run.step == config.steps
    assert len(slow_choices) == 3 and all(name.startswith("decider") for name in slow_choices)
    values, states = (sum(counts) for counts in zip(*lessons, strict=True))
    assert values > config.steps / 2 and states > config.steps / 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decider")]


def numbered(env_index: int) -> Counting:
    """Observations begin with the environment's number."""
    return Counting(env_index)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_every_row_has_the_observation_of_its_slot(tmp_path, monkeypatch, device):
    """Also where the device is late: what is asked about is read from memory that the pool will use again."""
    learn, ask, compared = OnPolicy.learn, Actor.ask, []

    def checking(self, rollout, progress):
        rows = rollout.book.rows_begun()
        slots = torch.from_numpy(rollout.book.slots_of(rows)).to(rollout.device)
        rows = torch.from_numpy(rows).to(rollout.device)
        ours = rollout.valid[rows]
        assert torch.equal(rollout.obs["obs"][rows, 0][ours], slots[ours].float())
        compared.append(int(ours.sum()))
        return learn(self, rollout, progress)

    def late(self, batch):
        if device == "cuda":
            torch.cuda._sleep(2_000_000)  # a millisecond
        return ask(self, batch)

    monkeypatch.setattr(OnPolicy, "learn", checking)
    monkeypatch.setattr(Actor, "ask", late)
    pool = PoolConfig(num_envs=8, kind="process", workers=4)
    env = "tests.integration.test_deciders:numbered"
    config = several("ver", "none", env=env, device=device, pool=pool, steps=256)
    train(dataclasses.replace(config, policy=dataclasses.replace(config.policy, normalize_obs=False)), tmp_path)
    assert sum(compared) >= config.steps


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(("overlapping", "kind"), [("appo", "process"), ("ver", "serial")])
def test_deciders_beside_a_learner_pick_up_what_it_learned(tmp_path, slow_choices, overlapping, kind, device):
    config = several(
        overlapping, ver=VERConfig(overlap=True), device=device, pool=PoolConfig(num_envs=4, kind=kind, workers=None)
    )
    run = train(dataclasses.replace(config, steps=2048), tmp_path)
    assert run.step >= 2048 and len(slow_choices) >= 2
    behind = [int(run.policy.version - chooser.policy.version) for chooser, _ in run.agent.deciders]
    assert all(lag >= 0 for lag in behind) and sum(lag < 5 for lag in behind) >= 2, "whoever decided has followed"
    for chooser, pick_up in run.agent.deciders:
        pick_up()
        for mine, learned in zip(chooser.policy.parameters(), run.policy.parameters(), strict=True):
            torch.testing.assert_close(mine, learned)


@pytest.mark.parametrize("system", ["ver", "appo"])
def test_checkpoints_have_every_simulator(tmp_path, slow_choices, system):
    config = several(
        system,
        env="synthetic:lognormal?mean=0.001&obs=4&dtype=float32&episode_length=20",
        steps=600,
        checkpoint=dataclasses.replace(Config().checkpoint, seconds=0.1),
    )
    train(config, tmp_path)
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert len(folder.steps()) > 1, "in the middle, and at the end"
    for step in folder.steps():
        assert folder.load(f"step_{step}").pool_state(0) is not None
    assert train(dataclasses.replace(config, steps=800), tmp_path, resume="latest").step >= 800


@pytest.mark.parametrize("system", ["ver", "appo"])
def test_what_goes_wrong_in_a_decider_is_what_the_user_sees(tmp_path, monkeypatch, system):
    plain, calls = Chooser.__call__, []

    def broken(self, obs, state):
        calls.append(None)
        if len(calls) > 20:
            raise ArithmeticError("this very error")
        return plain(self, obs, state)

    monkeypatch.setattr(Chooser, "__call__", broken)
    with pytest.raises(ArithmeticError, match="this very error"):
        train(several(system), tmp_path)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("decider", "learner"))]


@pytest.mark.parametrize(
    "changes",
    [{"system": "ddppo"}, {"system": "d4pg"}, {"system": "ver", "deterministic": True}],
    ids=["ddppo", "d4pg", "deterministic"],
)
def test_where_they_can_do_nothing_they_are_refused(changes):
    with pytest.raises(UsageError, match="inference_workers above 1 are for runs of the systems ver and appo"):
        Config(batching=BatchingConfig(inference_workers=2), **changes)
    with pytest.raises(UsageError, match="at least 1 and at most 8, got 0"):
        BatchingConfig(inference_workers=0)


@pytest.mark.parametrize("system", ["ver", "appo"])
def test_batched_simulators_have_none(tmp_path, system):
    config = Config(
        env="tensor:cartpole", system=system, device="cpu", batching=BatchingConfig(inference_workers=2), steps=100
    )
    with pytest.raises(UsageError, match="are for simulators in other processes"):
        train(config, tmp_path)


@pytest.mark.parametrize("system", ["ver", "appo"])
def test_the_learner_keeps_its_threads(tmp_path, monkeypatch, system):
    """PyTorch's number of threads is a thread's own only once it has asked for it."""
    plain, learning, deciding = OnPolicy.learn, set(), set()
    choose = Chooser.__call__

    def noting(self, rollout, progress):
        learning.add(torch.get_num_threads())
        return plain(self, rollout, progress)

    def choosing(self, obs, state):
        deciding.add(torch.get_num_threads())
        return choose(self, obs, state)

    monkeypatch.setattr(OnPolicy, "learn", noting)
    monkeypatch.setattr(Chooser, "__call__", choosing)
    train(several(system, threads=4, ver=VERConfig(overlap=True)), tmp_path)
    assert learning == {4} and deciding == {1}


def test_a_resumed_run_goes_on_with_the_random_numbers_of_those_who_decide(tmp_path):
    """Of as many as there are; a checkpoint from before they had numbers of their own is taken too."""
    run = train(several("appo", "none"), tmp_path)
    agent = run.agent
    agent._numbers = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    saved = agent.rank_state()
    drawn = [torch.rand(4, generator=generator) for generator in agent._numbers]
    agent._numbers.append(torch.Generator().manual_seed(3))
    weights, state = agent.policy.state_dict(), agent.state()
    agent.load(weights, state, saved, own=True)
    for generator, before in zip(agent._numbers, drawn, strict=False):
        assert torch.equal(torch.rand(4, generator=generator), before)
    agent.load(weights, state, {name: value for name, value in saved.items() if name != "numbers"}, own=True)


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize(("system", "own"), [("appo", True), ("ver", True), ("ddppo", False)])
def test_whoever_decides_beside_others_on_a_gpu_has_random_numbers_of_its_own(tmp_path, system, own, device):
    """Recordings that share them, replayed at the same time, draw the same (see test_recorded). They are saved, like the others."""
    config = several("ver" if system == "ddppo" else system, "none", device=device)
    if system == "ddppo":
        config = dataclasses.replace(config, system="ddppo", batching=BatchingConfig())
    agent = train(config, tmp_path).agent
    generators = [decider.chooser.generator for decider in agent.deciders]
    saved = agent.rank_state()["numbers"]
    if not own:
        assert generators == [None] and saved == []
        return
    assert len({generator.initial_seed() for generator in generators}) == len(generators) == 3
    for generator, state in zip(generators, saved, strict=True):
        drawn = torch.rand(4, generator=generator, device="cuda")
        generator.set_state(state)
        torch.testing.assert_close(torch.rand(4, generator=generator, device="cuda"), drawn, rtol=0, atol=0)
