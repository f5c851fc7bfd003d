"""Several policies in one run: which policy acts in a slot, which learner gets a row, and what a resume keeps."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paceline.accel.recorded_acting import RecordedActing
from paceline.checkpoint import CheckpointFolder
from paceline.collect.config import BatchingConfig
from paceline.collect.inference import Inference
from paceline.config import Config
from paceline.errors import UsageError
from paceline.experience.layouts import LockStep
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.experience.training_batch import TrainingBatch
from paceline.learner.config import PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.pool.config import PoolConfig
from paceline.population.config import LeagueConfig, PBTConfig, PopulationConfig
from paceline.population.mapping import AgentMapping, RandomMapping
from paceline.population.opponents import require_opponents
from paceline.schedule.config import VERConfig
from paceline.session import Session, train
from tests.integration.ranks import on_ranks
from tests.integration.test_training import assert_equal, tiny
from tests.pool.multi_agent import LIVES

pytestmark = pytest.mark.usefixtures("forked_workers")

SYSTEMS = ("ddppo", "ver", "appo")
PROCESS = PoolConfig(num_envs=4, kind="process", workers=2)


def several(system: str, core: str = "lstm", policies: int = 3, **changes) -> Config:
    options = {"system": system, "deterministic": False, "population": PopulationConfig(policies=policies)}
    if system != "ddppo":
        options["batching"] = BatchingConfig(minimum=0.25, maximum=0.5)
    return tiny(core, **(options | changes))


class Account:
    """What the test knows: the policy that was drawn for each agent of each match, and which rows were learned from."""

    def __init__(self, monkeypatch, policies: int) -> None:
        self.drawn: dict[tuple[int, int, int], int] = {}
        self.learned: Counter[tuple[int, ...]] = Counter()
        self.by_policy: Counter[int] = Counter()
        matches: Counter[int] = Counter()
        learners: list[PPOLearner] = []
        plain, make = PPOLearner.learn, PPOLearner.__init__

        def draw(envs, generator):
            chosen = generator.integers(policies, size=(len(envs), len(LIVES)))
            for env, row in zip(envs.tolist(), chosen, strict=True):
                for agent, policy in enumerate(row.tolist()):
                    self.drawn[env, matches[env], agent] = policy
                matches[env] += 1
            return chosen

        def made(learner, *arguments, **options):
            make(learner, *arguments, **options)
            learners.append(learner)

        def learn(learner, batch, progress):
            for row in batch.valid_rows().tolist():
                env, agent, episode, step = (int(x) for x in batch.obs["obs"][row].tolist())
                assert self.drawn[env, episode, agent] == learners.index(learner)
                assert float(batch.reward[row]) == 10 * agent + step + 1, "no reward of another"
                assert bool(batch.episode_start[row]) == (step == 0)
                last = step + 1 == list(LIVES.values())[agent]
                assert bool(batch.terminated[row] | batch.truncated[row]) == last
                self.learned[env, episode, agent, step] += 1
                self.by_policy[learners.index(learner)] += 1
            return plain(learner, batch, progress)

        monkeypatch.setattr(RandomMapping, "__call__", lambda mapping, envs, generator: draw(envs, generator))
        monkeypatch.setattr(PPOLearner, "__init__", made)
        monkeypatch.setattr(PPOLearner, "learn", learn)


@pytest.mark.parametrize(("kind", "core"), [("serial", "none"), ("process", "gru")])
@pytest.mark.parametrize("system", SYSTEMS)
def test_rows_go_to_the_policy_that_acted_and_each_is_learned_once(tmp_path, monkeypatch, system, kind, core):
    """Agents die one after the other; policies change with every match."""
    account = Account(monkeypatch, 3)
    pool = PoolConfig(num_envs=4, kind=kind, workers=2 if kind == "process" else None)
    config = several(system, core, env="tests.pool.multi_agent:mortals", steps=600, pool=pool)
    policy = dataclasses.replace(config.policy, normalize_obs=False)
    ppo = dataclasses.replace(config.ppo, normalize_returns=False)
    run = train(dataclasses.replace(config, policy=policy, ppo=ppo), tmp_path)
    assert set(account.learned.values()) == {1}
    assert sum(account.learned.values()) == run.step >= 600
    assert len(account.by_policy) == 3 and min(account.by_policy.values()) > 100


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_values_and_states_are_those_of_the_own_policy(tmp_path, monkeypatch, system, core):
    plain, counts = PPOLearner.learn, []

    def learn(learner, batch, progress):
        rows, joined = batch.selection.in_order()
        with torch.no_grad():
            obs = {name: column[rows] for name, column in batch.obs.items()}
            _, value, after = learner.policy.act(obs, batch.state[rows])
        ours = batch.valid[rows] & (batch.version[rows] == learner.policy.version)
        torch.testing.assert_close(batch.value[rows][ours], value[ours], rtol=1e-4, atol=1e-5)
        follows = joined & ours & ours.roll(1) & ~batch.episode_start[rows]
        torch.testing.assert_close(batch.state[rows][follows], after.roll(1, 0)[follows], rtol=1e-4, atol=1e-5)
        fresh = ours & batch.episode_start[rows]
        assert not batch.state[rows][fresh].any(), "a match begins without a memory of the last one"
        counts.append((int(ours.sum()), int(follows.sum())))
        return plain(learner, batch, progress)

    monkeypatch.setattr(PPOLearner, "learn", learn)
    pool = PROCESS if core == "lstm" else PoolConfig(num_envs=4, kind="serial")
    run = train(several(system, core, pool=pool), tmp_path)
    assert [int(learner.policy.version) for learner in run.learners] == pytest.approx([8] * 3, abs=2)
    values, states = (sum(column) for column in zip(*counts, strict=True))
    assert values > 60 and states > 30


def test_policies_differ_and_learn_apart(tmp_path):
    run = train(several("ddppo"), tmp_path)
    first, second, third = (learner.policy.state_dict() for learner in run.learners)
    for name in first:
        if first[name].dim() == 2:
            assert not torch.equal(first[name], second[name]) and not torch.equal(second[name], third[name])


@pytest.mark.parametrize(("system", "mapping"), [("ddppo", "random"), ("ver", "random"), ("ver", "agent")])
def test_a_resumed_run_is_bit_equal(tmp_path, system, mapping):
    population = PopulationConfig(policies=3, mapping=mapping)
    config = several(
        system,
        env="tests.pool.multi_agent:mortals",
        deterministic=True,
        batching=BatchingConfig(),
        population=population,
        steps=300,
    )
    train(config, tmp_path / "whole")
    with Session(config, tmp_path / "parts") as session:
        session.run(until=150)
    train(config, tmp_path / "parts", resume="latest")
    whole, parts = (CheckpointFolder(tmp_path / name / "checkpoints").load() for name in ("whole", "parts"))
    assert whole.num_policies == parts.num_policies == 3
    for policy in range(3):
        assert_equal(whole.weights_of(policy), parts.weights_of(policy))


@pytest.mark.parametrize("system", ["ver", "appo"])
def test_two_ranks_have_the_same_weights_of_every_policy(tmp_path, system):
    config = several(system, steps=640)
    folder = str(tmp_path)

    def work():
        run = train(config, Path(folder))
        return run.step, [learner.policy.state_dict() for learner in run.learners]

    (steps, first), (other, second) = on_ranks(2, work)
    assert steps == other >= 640
    for mine, theirs in zip(first, second, strict=True):
        assert_equal(mine, theirs)
        assert int(mine["version"]) > 1


def test_overlapping_collection(tmp_path, monkeypatch):
    account = Account(monkeypatch, 3)
    config = several("ver", "gru", env="tests.pool.multi_agent:mortals", steps=600)
    policy = dataclasses.replace(config.policy, normalize_obs=False)
    ppo = dataclasses.replace(config.ppo, normalize_returns=False)
    run = train(dataclasses.replace(config, policy=policy, ppo=ppo, ver=VERConfig(overlap=True)), tmp_path)
    assert set(account.learned.values()) == {1} and sum(account.learned.values()) == run.step


def test_replaced_weights_drop_the_rows_of_the_old_ones(tmp_path):
    run = train(several("ddppo"), tmp_path)
    first, second, _ = run.learners
    version = second.version
    second.hyperparameters.set("ppo.clip", 0.3)
    first.hyperparameters.set("ppo.clip", 0.1)
    second.take_over(first.handover())
    assert second.version == second.first_version == version + 1
    assert second.hyperparameters.get("ppo.clip") == 0.1
    for name, value in first.policy.state_dict().items():
        if name != "version":
            assert torch.equal(value, second.policy.state_dict()[name])
    mine, theirs = (learner.optimizer.state_dict()["state"] for learner in (second, first))
    for key, moments in theirs.items():
        for name, value in moments.items():
            assert torch.equal(value, mine[key][name])
            assert value.data_ptr() != mine[key][name].data_ptr(), "no memory is shared"
    first.hyperparameters.set("ppo.clip", 0.2)
    assert second.hyperparameters.get("ppo.clip") == 0.1


def test_np_draws_are_spread():
    """The paper's mapping: every agent of every match, independently."""
    found = RandomMapping(4, 2)(np.arange(4000), np.random.default_rng(0))
    pairs = Counter(map(tuple, found.tolist()))
    assert len(pairs) == 16 and min(pairs.values()) > 180


def test_opponents_may_join_a_resumed_run(tmp_path):
    """Matches are drawn anew; weights, counters and simulators continue."""
    config = several("ver", env="tests.pool.multi_agent:mortals", policies=1, steps=256)
    train(config, tmp_path)
    league = LeagueConfig(past_share=0.5, every=100, seats=1)
    run = train(dataclasses.replace(config, steps=768, league=league), tmp_path, resume="latest")
    assert run.step >= 768 and (tmp_path / "past_selves").is_dir()
    run = train(dataclasses.replace(config, steps=1024), tmp_path, resume="latest")
    assert run.step >= 1024


def test_rows_of_replaced_weights_are_dropped_among_older_rows_too():
    layout = LockStep(2, 2)
    for _ in range(2):
        layout.begin(None)
        layout.complete(None)
    buffer = RolloutBuffer(layout, torch.device("cpu"))
    buffer.valid[2:] = True
    buffer.version[:] = torch.tensor([0, 1, 0, 1])
    batch = TrainingBatch(buffer)
    batch.select(layout.select(), None)
    batch.stale = torch.tensor([True, True, False, False])
    assert int(batch.drop_older(torch.tensor(1))) == 2
    assert batch.trained().tolist() == [False, True, False, True]


def test_bad_settings_are_refused():
    with pytest.raises(UsageError, match="only 2 of 4 policies play; allowed: --population.policies 2"):
        AgentMapping(4, 2)
    with pytest.raises(UsageError, match="no effect without league.opponent_share"):
        LeagueConfig(opponents=("package.module:Class",))


def test_an_objective_that_no_episode_has_is_refused(tmp_path):
    config = Config(
        env="tensor:pong",
        device="cpu",
        pool=PoolConfig(num_envs=4),
        population=PopulationConfig(policies=2),
        pbt=PBTConfig(every=1000, objective="frags"),
    )
    refused = "pbt.objective 'frags' does not exist in tensor:pong; allowed: return, length, win"
    with pytest.raises(UsageError, match=refused), Session(config, tmp_path / "run"):
        pass
    with Session(dataclasses.replace(config, pbt=PBTConfig(every=1000, objective="win")), tmp_path / "run"):
        pass


@pytest.mark.parametrize(
    ("opponent", "message"),
    [
        ("runs/nowhere", "'runs/nowhere' does not exist; allowed: the folder of a run, or package.module:Class"),
        ("tests.population.test_policies:SYSTEMS", "is of the type tuple; allowed: a class of a scripted opponent"),
    ],
)
def test_opponents_that_do_not_exist_are_refused(opponent, message):
    with pytest.raises(UsageError, match=message):
        require_opponents([opponent], "tensor:pong")


def test_a_single_agent_has_no_league(tmp_path):
    config = dataclasses.replace(tiny("none"), league=LeagueConfig(past_share=0.5))
    with pytest.raises(UsageError, match="Memory.length=7 has one agent; allowed: environments of several agents"):
        train(config, tmp_path)


def short(env, agents, generator):
    return [0]


def test_a_mapping_returns_a_policy_for_each_agent(tmp_path):
    mapping = PopulationConfig(policies=2, mapping="tests.population.test_policies:short")
    with pytest.raises(
        UsageError, match=r"test_policies:short returned \[0\]; allowed: a list of 3 policy numbers, for"
    ):
        train(
            dataclasses.replace(several("ddppo", env="tests.pool.multi_agent:mortals"), population=mapping),
            tmp_path,
        )


def test_episodes_of_opponents_do_not_count(tmp_path):
    """Pong against a scripted player: the returns are those of the policy that learns."""
    league = LeagueConfig(opponents=("paceline.envs.pong_opponents:TrackerOpponent",), opponent_share=1.0)
    config = dataclasses.replace(
        Config(env="tensor:pong?points=1", steps=10_000, rollout_steps=32, device="cpu", threads=1, league=league),
        pool=PoolConfig(num_envs=32),
        ppo=PPOConfig(epochs=1, minibatches=1),
    )
    run = train(config, tmp_path)
    mean = run.episodes.means()
    assert mean["episode_return"] < 0 and mean["episode_win"] < 0.4
    metrics = run.population.metrics()
    assert metrics["policy_0/episode_return"] == pytest.approx(mean["episode_return"])


@pytest.mark.parametrize("system", ["ver", "appo"])
def test_policies_that_learn_and_past_selves_act_in_two_recordings(tmp_path, monkeypatch, system):
    """As on a GPU, where a recording runs again and again in the same memory."""
    teams, begin = [], RecordedActing.__init__

    def noted(acting, actors, buffer, numbers, *, learned):
        teams.append((list(numbers), learned))
        begin(acting, actors, buffer, numbers, lambda work: SimpleNamespace(run=work), learned=learned)

    monkeypatch.setattr(RecordedActing, "__init__", noted)
    monkeypatch.setattr(Inference, "is_recorded", True)
    league = LeagueConfig(past_share=0.5, every=200, seats=2)
    env = "tests.pool.multi_agent:mortals"
    run = train(several(system, policies=2, env=env, steps=600, league=league, pool=PROCESS), tmp_path)
    assert teams == [([0, 1], True), ([2, 3], False)]
    assert run.step >= 600 and len(list((tmp_path / "past_selves").iterdir())) > 1
