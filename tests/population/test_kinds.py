"""Agents with different spaces in one run: every policy plays one kind, and learns from its own rows only."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.checkpoint import CheckpointFolder
from paceline.collect.config import BatchingConfig
from paceline.collect.kind_slots import kind_of_agents
from paceline.collect.policy_assignment import PolicyAssignment
from paceline.config import Config
from paceline.envs.factory import Factory
from paceline.errors import UsageError
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.pool.serial import SerialPool
from paceline.population.config import LeagueConfig, PBTConfig, PopulationConfig
from paceline.population.mapping import AgentMapping, RandomMapping
from paceline.schedule.config import VERConfig
from paceline.session import Session, train
from tests.integration.ranks import on_ranks
from tests.integration.test_training import assert_equal, tiny
from tests.pool.turn_based import AGENTS, Court
from tests.population.pasture import LIVES, NAMES, TRUNCATED, Pasture, pasture

pytestmark = pytest.mark.usefixtures("forked_workers")

SYSTEMS = ("ddppo", "ver", "appo")


def place(obs: dict[str, torch.Tensor], row: int) -> tuple[int, ...]:
    """Environment, agent, match and step of an observation."""
    if "where" not in obs:
        who, match, step = (int(x) for x in obs["obs"][row].tolist())
        return who // 10, who % 10, match, step
    env, agent, match, step, _ = (int(x) for x in obs["where"][row].tolist())
    assert int(obs["dry"][row]) == step % 2
    return env, agent, match, step


def several(system: str, core: str = "lstm", policies: int = 5, **changes) -> Config:
    options = {
        "env": "tests.population.pasture:pasture",
        "system": system,
        "rollout_steps": 8,
        "deterministic": False,
        "population": PopulationConfig(policies=policies),
    }
    if system != "ddppo":
        options["batching"] = BatchingConfig(minimum=0.25, maximum=0.5)
    return tiny(core, **(options | changes))


def unscaled(config: Config) -> Config:
    """With rewards and observations as they are."""
    policy, ppo = config.policy, config.ppo
    return dataclasses.replace(
        config,
        policy=dataclasses.replace(policy, normalize_obs=False),
        ppo=dataclasses.replace(ppo, normalize_returns=False),
    )


class Account:
    """What the test knows: the policy that was drawn for each agent of each match, and which rows were learned from."""

    def __init__(self, monkeypatch) -> None:
        self.drawn: dict[tuple[int, int, int], int] = {}
        self.learned: Counter[tuple[int, ...]] = Counter()
        self.by_policy: Counter[int] = Counter()
        self.num_values = self.num_states = 0
        self._matches: Counter[int] = Counter()
        self._learners: list[PPOLearner] = []
        make, draw, learn = PPOLearner.__init__, RandomMapping.__call__, PPOLearner.learn

        def made(learner, *arguments, **options):
            make(learner, *arguments, **options)
            self._learners.append(learner)

        def drawn(mapping, envs, generator):
            chosen = draw(mapping, envs, generator)
            self._note_drawn(envs, chosen)
            return chosen

        def learned(learner, batch, progress):
            self._check_rows(self._learners.index(learner), batch)
            self._check_truncations(batch)
            self._check_values(learner, batch)
            return learn(learner, batch, progress)

        monkeypatch.setattr(PPOLearner, "__init__", made)
        monkeypatch.setattr(RandomMapping, "__call__", drawn)
        monkeypatch.setattr(PPOLearner, "learn", learned)

    def _note_drawn(self, envs: np.ndarray, chosen: np.ndarray) -> None:
        for env, row in zip(envs.tolist(), chosen, strict=True):
            for agent, policy in enumerate(row.tolist()):
                assert policy % 2 == NAMES[agent].startswith("sheep"), "wolves are the first kind"
                self.drawn[env, self._matches[env], agent] = policy
            self._matches[env] += 1

    def _check_rows(self, policy: int, batch) -> None:
        for row in batch.valid_rows().tolist():
            env, agent, match, step = place(batch.obs, row)
            assert self.drawn[env, match, agent] == policy
            (joins, leaves), action = LIVES[NAMES[agent]], batch.actions["action"][row].float().clamp(-1, 1).sum()
            expected = 10 * agent + step + 1 + 0.25 * float(action)
            assert float(batch.reward[row]) == pytest.approx(expected, abs=1e-4), "its own reward for its own action"
            assert bool(batch.episode_start[row]) == (step == joins)
            last, is_cut = step + 1 == leaves, NAMES[agent] in TRUNCATED
            assert bool(batch.terminated[row]) == (last and not is_cut)
            assert bool(batch.truncated[row]) == (last and is_cut)
            self.learned[env, match, agent, step] += 1
            self.by_policy[policy] += 1

    def _check_truncations(self, batch) -> None:
        found = [] if batch.truncations is None else batch.truncations.rows.tolist()
        assert set(found) >= set(torch.nonzero(batch.valid & batch.truncated).squeeze(1).tolist())
        for at, row in enumerate(found):
            env, agent, match, step = place(batch.obs, row)
            assert place(batch.truncations.obs, at) == (env, agent, match, step + 1)

    def _check_values(self, learner: PPOLearner, batch) -> None:
        rows, joined = batch.selection.in_order()
        with torch.no_grad():
            obs = {name: column[rows] for name, column in batch.obs.items()}
            _, value, after = learner.policy.act(obs, batch.state[rows])
        own = batch.valid[rows] & (batch.version[rows] == learner.policy.version)
        torch.testing.assert_close(batch.value[rows][own], value[own], rtol=1e-4, atol=1e-4)
        follows = joined & own & own.roll(1) & ~batch.episode_start[rows]
        torch.testing.assert_close(batch.state[rows][follows], after.roll(1, 0)[follows], rtol=1e-4, atol=1e-4)
        assert not batch.state[rows][own & batch.episode_start[rows]].any(), "a match begins without a memory"
        self.num_values += int(own.sum())
        self.num_states += int(follows.sum())

    def check(self, run) -> None:
        assert set(self.learned.values()) == {1}, "each decision is learned from once"
        assert sum(self.learned.values()) == run.step
        assert len(self.by_policy) == len(self._learners) and min(self.by_policy.values()) > 0.05 * run.step
        assert self.num_values > 50 and self.num_states > 25


@pytest.mark.parametrize(("kind", "core"), [("serial", "none"), ("process", "gru")])
@pytest.mark.parametrize("system", SYSTEMS)
def test_rows_go_to_the_policy_that_acted_and_each_is_learned_once(tmp_path, monkeypatch, system, kind, core):
    """Agents join late and die one after the other; policies change with every match."""
    account = Account(monkeypatch)
    pool = PoolConfig(num_envs=4, kind=kind, workers=2 if kind == "process" else None)
    account.check(train(unscaled(several(system, core, steps=320, pool=pool)), tmp_path))


@pytest.mark.parametrize("ver", [VERConfig(overlap=True), VERConfig(variable=False)], ids=["overlap", "equal"])
def test_other_collection_of_ver(tmp_path, monkeypatch, ver):
    account = Account(monkeypatch)
    account.check(train(unscaled(several("ver", "gru", steps=320, ver=ver)), tmp_path))


@pytest.mark.parametrize(("system", "mapping"), [("ddppo", "random"), ("ver", "random"), ("ver", "agent")])
def test_a_resumed_run_is_bit_equal(tmp_path, system, mapping):
    config = several(
        system,
        deterministic=True,
        batching=BatchingConfig(),
        steps=200,
        population=PopulationConfig(policies=3, mapping=mapping),
    )
    train(config, tmp_path / "whole")
    with Session(config, tmp_path / "parts") as session:
        session.run(until=100)
    train(config, tmp_path / "parts", resume="latest")
    whole, parts = (CheckpointFolder(tmp_path / name / "checkpoints").load() for name in ("whole", "parts"))
    assert whole.num_policies == parts.num_policies == 3
    for policy in range(3):
        assert_equal(whole.weights_of(policy), parts.weights_of(policy))


class Unsaved(Pasture):
    """The second environment cannot be saved."""

    def __init__(self, env: int) -> None:
        super().__init__(env)
        self.lock = threading.Lock() if env == 1 else None


def unsaved(env_index: int) -> Unsaved:
    return Unsaved(env_index)


@pytest.mark.parametrize("system", ["ver", "appo"])
def test_environments_that_were_not_saved_begin_new_matches(tmp_path, monkeypatch, system):
    """Their slots have other numbers in the tables of each kind."""
    config = unscaled(several(system, "gru", env="tests.population.test_kinds:unsaved"))
    train(dataclasses.replace(config, steps=200), tmp_path)
    plain, found = PPOLearner.learn, []

    def learn(learner, batch, progress):
        for row in batch.valid_rows().tolist():
            env, agent, match, step = place(batch.obs, row)
            joins, _ = LIVES[NAMES[agent]]
            assert bool(batch.episode_start[row]) == (step == joins)
            found.append((env, match))
        return plain(learner, batch, progress)

    monkeypatch.setattr(PPOLearner, "learn", learn)
    assert train(dataclasses.replace(config, steps=400), tmp_path, resume="latest").step >= 400
    assert min(match for env, match in found if env == 1) == 1, "it was made anew, and reset twice"
    assert min(match for env, match in found if env != 1) > 1


def test_two_ranks_have_the_same_weights_of_every_policy(tmp_path):
    """Under APPO they have to find a policy for which both have a batch, of either kind."""
    config, folder = several("appo", policies=3, steps=400), str(tmp_path)

    def work():
        run = train(config, Path(folder))
        return run.step, [learner.policy.state_dict() for learner in run.learners]

    (steps, first), (other, second) = on_ranks(2, work)
    assert steps == other >= 400
    for mine, theirs in zip(first, second, strict=True):
        assert_equal(mine, theirs)
        assert int(mine["version"]) >= 2


class Turns(Court):
    """bert sees a dictionary and has more actions than the others."""

    def observation_space(self, agent: str) -> spaces.Space:
        space = super().observation_space(agent)
        return spaces.Dict({"where": space}) if agent == "bert" else space

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(7) if agent == "bert" else super().action_space(agent)

    def last(self) -> tuple[Any, ...]:
        obs, *rest = super().last()
        return ({"where": obs} if self.agent_selection == "bert" else obs, *rest)


@pytest.fixture
def turns(monkeypatch) -> list[Turns]:
    """The games that are played, with their accounts."""
    made: list[Turns] = []
    original = Court.__init__

    def remember(self, env):
        original(self, env)
        made.append(self)

    monkeypatch.setattr(Court, "__init__", remember)
    return made


@pytest.mark.parametrize("system", SYSTEMS)
def test_kinds_that_take_turns(tmp_path, monkeypatch, turns, system):
    """One kind acts far more often than the other. Each decision is learned from once, with its whole outcome."""
    learn, learned = PPOLearner.learn, defaultdict(dict)

    def spy(learner, batch, progress):
        (obs,), (actions,) = batch.obs.values(), batch.actions.values()
        for row in batch.valid_rows().tolist():
            env, agent, game, turn = (int(x) for x in obs[row].tolist())
            assert turn not in learned[env, agent, game], "learned from once"
            end = "terminated" if batch.terminated[row] else "truncated" if batch.truncated[row] else ""
            outcome = int(actions[row]), float(batch.reward[row]), end, bool(batch.episode_start[row])
            learned[env, agent, game][turn] = outcome
        return learn(learner, batch, progress)

    monkeypatch.setattr(PPOLearner, "learn", spy)
    config = several(system, "gru", 4, env="tests.population.test_kinds:Turns?env=0", steps=300)
    config = dataclasses.replace(config, pool=PoolConfig(kind="serial", num_envs=1), rollout_steps=32)
    run = train(unscaled(config), tmp_path)
    (game,) = turns[-1:]
    for number, agent in enumerate(AGENTS):
        for decision in game.account[agent]:
            _, _, match, turn = (int(x) for x in decision.obs)
            if (outcome := learned[0, number, match].pop(turn, None)) is not None:
                assert outcome == (decision.action, decision.reward, decision.end, decision.is_first)
    assert not any(learned.values()), "nothing is learned that was not decided"
    assert run.step >= 300


class Signs:
    """An episode is one step. The wolf should choose what it sees; the sheep should go where it looks."""

    def __init__(self, env: int) -> None:
        self.possible_agents, self.agents, self._rng = ["wolf", "sheep"], [], np.random.default_rng(env)

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1, 1, (1 if agent == "wolf" else 2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2) if agent == "wolf" else spaces.Box(-1, 1, (1,), np.float32)

    @property
    def unwrapped(self) -> Signs:
        return self

    def reset(self, seed: int | None = None, options: Any = None):
        self.agents, self._sign = list(self.possible_agents), int(self._rng.choice([-1, 1]))
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]):
        rewards = {
            "wolf": float(2 * actions["wolf"] - 1 == self._sign),
            "sheep": self._sign * float(actions["sheep"][0]),
        }
        ended, self.agents = dict.fromkeys(self.agents, True), []
        return self._observe(), rewards, ended, dict.fromkeys(ended, False), {agent: {} for agent in ended}

    def _observe(self):
        return {"wolf": np.array([self._sign], np.float32), "sheep": np.array([self._sign, 0], np.float32)}

    def close(self) -> None:
        pass


def signs(env_index: int) -> Signs:
    return Signs(env_index)


@pytest.mark.parametrize("system", ["ddppo", "appo"])
def test_each_kind_learns(tmp_path, system):
    config = Config(
        env="tests.population.test_kinds:signs",
        system=system,
        steps=8000,
        rollout_steps=16,
        device="cpu",
        threads=1,
        pool=PoolConfig(num_envs=8, kind="serial"),
        policy=PolicyConfig(hidden=(16,)),
        ppo=PPOConfig(epochs=4, minibatches=2),
        optimizer=OptimizerConfig(learning_rate=0.01),
        population=PopulationConfig(policies=2),
    )
    run = train(config, tmp_path)
    wolf, sheep = (learner.policy.cpu().eval() for learner in run.learners)
    sign = torch.tensor([[-1.0], [1.0]])
    choice, _ = wolf.play({"obs": sign}, wolf.initial_state(2))
    assert choice["action"].tolist() == [0, 1]
    way, _ = sheep.play({"obs": torch.cat([sign, torch.zeros(2, 1)], 1)}, sheep.initial_state(2))
    assert (way["action"] * sign).min() > 0.5


def test_past_selves_play_their_own_kind(tmp_path):
    """Their weights fit no other kind. Rows of past selves are not learned from."""
    played: set[int] = set()
    league = LeagueConfig(past_share=0.9, every=50, seats=3)
    with Session(several("ver", "gru", policies=2, steps=600, league=league), tmp_path) as session:
        assignment, kinds = session.state.collection.assignment, np.tile(kind_of_agents(session.state.pool.spec), 4)
        while not session.is_over:
            session.run(until=session.state.step + 50)
            assert (assignment.policies % 2 == kinds).all()
            played |= set(assignment.policies.tolist())
    assert played == {0, 1, 2, 3, 4}


def test_population_based_training_exchanges_within_a_kind(tmp_path):
    pbt = PBTConfig(every=100, mutation_rate=1.0, replaced_share=0.5)
    run = train(several("ddppo", policies=4, steps=600, pbt=pbt), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "population.jsonl").read_text().splitlines()]
    donors = {(int(line["member"]), int(line["donor"])) for line in lines if line["donor"] is not None}
    assert donors and all(member % 2 == donor % 2 for member, donor in donors)
    assert all(learner.version > 0 for learner in run.learners)


def test_a_part_has_the_numbers_and_names_of_its_kind():
    with SerialPool(Factory(make=pasture), PoolConfig(num_envs=2), seed=0) as pool:
        spec = pool.spec
        draw = AgentMapping(3, 5, kind_of_agents(spec))
        assert draw(np.arange(2), np.random.default_rng(0)).tolist() == [[0, 1, 1, 2, 1]] * 2
        assignment = PolicyAssignment(spec, draw, np.random.default_rng(0))
        assert [policies.tolist() for policies in assignment.by_kind] == [[0, 2, 0, 2], [1] * 6]
        for _ in range(2):
            batch = pool.recv(min_slots=None)
            pool.send({"wolf": np.zeros(10, np.int64), "sheep": np.zeros((10, 2), np.float32)}, batch.slots)
        batch = pool.recv(min_slots=None)
        first, sheep, second = assignment.parts(batch)
        assert [part.policy for part in (first, sheep, second)] == [0, 1, 2]
        assert first.batch.slots.tolist() == [0, 2] and second.batch.slots.tolist() == [1, 3]
        assert first.rows.tolist() == [0, 5] and second.rows.tolist() == [3, 8]
        assert sheep.batch.slots.tolist() == list(range(6))
        assert second.batch.obs["obs"].tolist() == [[3, 0, 2], [13, 0, 2]]
        assert sheep.batch.obs["where"][:, 1].tolist() == [1, 2, 4, 1, 2, 4]
        assert sheep.batch.truncated.tolist() == [False, True, False] * 2
        assert sheep.batch.final_obs["where"][np.array([1, 4])].tolist() == [[0, 2, 0, 2, -1], [1, 2, 0, 2, -1]]
        assert len(assignment.no_rows(1, batch).batch) == 0


def test_random_policies_of_each_kind_are_spread():
    drawn = RandomMapping(5, 3, np.array([0, 1, 0]))(np.arange(3000), np.random.default_rng(0))
    for agent, allowed in enumerate([{0, 2, 4}, {1, 3}, {0, 2, 4}]):
        counts = Counter(drawn[:, agent].tolist())
        assert set(counts) == allowed and min(counts.values()) > 900


def crossed(env, agents, generator):
    return [0, 1, 1, 3, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"population": PopulationConfig()},
            r"pasture:pasture have different spaces \(wolf, sheep\): allowed: --population.policies 2 or more",
        ),
        (
            {"population": PopulationConfig(policies=4, mapping="tests.population.test_kinds:crossed")},
            "returned policy 3 for wolf_1, which plays agents with other spaces; allowed: 0, 2",
        ),
        ({"pbt": PBTConfig(every=100)}, "several policies of each kind of agents; allowed: --population.policies 4"),
        ({"league": LeagueConfig(past_share=0.5, seats=1)}, "allowed: --league.seats 2 or more"),
        (
            {"league": LeagueConfig(opponent_share=0.5, opponents=("tests.population.games:Kuhn",))},
            "league.opponents are for agents with equal spaces.*allowed: past selves",
        ),
    ],
)
def test_bad_input(tmp_path, changes, message):
    with pytest.raises(UsageError, match=message) as error:
        train(several("ddppo", policies=2, **changes), tmp_path)
    assert "\n" not in str(error.value)


def test_d4pg_refuses_different_spaces(tmp_path):
    config = Config(env="tests.population.test_kinds:signs", system="d4pg", steps=100_000, device="cpu")
    with pytest.raises(UsageError, match="have different spaces: allowed: --system ddppo, ver or appo"):
        train(dataclasses.replace(config, pool=PoolConfig(num_envs=2, kind="serial")), tmp_path)


def test_games_of_mpe(tmp_path):
    """The adversary of this game sees less than the others."""
    pytest.importorskip("mpe2")
    config = several("ver", "none", policies=3, env="pettingzoo:mpe2.simple_adversary_v3", steps=150)
    run = train(config, tmp_path)
    assert run.step >= 150 and all(learner.version > 0 for learner in run.learners)
