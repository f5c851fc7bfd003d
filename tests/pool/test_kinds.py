"""Agents with different spaces: a slot uses the columns of its own kind, and a policy sees only its kind."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from paceline.collect.kind_slots import all_kinds
from paceline.envs.factory import Factory
from paceline.errors import UsageError
from paceline.pool.batches import merge_actions
from paceline.pool.config import PoolConfig
from paceline.pool.kinds import find_kinds
from paceline.pool.process import ProcessPool
from paceline.pool.protocol import PoolSpec
from paceline.pool.random_actions import RandomActions
from paceline.pool.serial import SerialPool
from tests.pool.multi_agent import Mortal

pytestmark = pytest.mark.usefixtures("forked_workers")

WOLF = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Box(-1, 1, (2,), np.float64)
SHEEP = (
    spaces.Dict({"where": spaces.Box(-np.inf, np.inf, (4,), np.float64), "hungry": spaces.Discrete(2, start=5)}),
    spaces.Discrete(3, start=-1),
)


class Meadow(Mortal):
    """wolf_0, sheep_0, wolf_1. A step's reward is what the action says: its sum, or the choice."""

    def __init__(self, env: int) -> None:
        super().__init__(env)
        self.possible_agents = ["wolf_0", "sheep_0", "wolf_1"]

    def observation_space(self, agent):
        return (WOLF if agent.startswith("wolf") else SHEEP)[0]

    def action_space(self, agent):
        return (WOLF if agent.startswith("wolf") else SHEEP)[1]

    def step(self, actions):
        assert all(self.action_space(agent).contains(action) for agent, action in actions.items())
        self.steps += 1
        ends = {agent: (agent == "wolf_1" and self.steps == 2) or self.steps == 4 for agent in self.agents}
        result = (
            {agent: self._observe(agent) for agent in self.agents},
            {agent: float(np.sum(actions[agent])) for agent in self.agents},
            dict.fromkeys(self.agents, False),
            ends,
            {agent: {} for agent in self.agents},
        )
        self.agents = [agent for agent in self.agents if not ends[agent]]
        return result

    def _observe(self, agent):
        where = super()._observe(agent)
        return where if agent.startswith("wolf") else {"where": where.astype(np.float64), "hungry": 5 + self.steps % 2}


@pytest.fixture(params=[SerialPool, ProcessPool], ids=["serial", "process"])
def pool(request):
    with request.param(Factory(make=Meadow), PoolConfig(num_envs=2, workers=2), seed=0) as made:
        yield made


def test_the_spec_has_the_columns_of_all_kinds(pool):
    spec = pool.spec
    assert spec.agents == ("wolf_0", "sheep_0", "wolf_1")
    assert [(kind.name, kind.agents) for kind in spec.kinds] == [("wolf", (0, 2)), ("sheep", (1,))]
    assert {leaf.name for leaf in spec.obs} == {"wolf", "sheep.where", "sheep.hungry"}
    assert {leaf.name for leaf in spec.actions} == {"wolf", "sheep"}


def test_a_policy_sees_only_its_kind(pool):
    wolf, sheep = (pool.spec.of_kind(kind) for kind in pool.spec.kinds)
    assert (wolf.observation_space, wolf.action_space) == WOLF and wolf.num_slots == 4
    assert (sheep.observation_space, sheep.action_space) == SHEEP and sheep.num_slots == 2
    assert wolf.agents == ("wolf_0", "wolf_1") and sheep.agents == ("sheep_0",)
    assert [leaf.name for leaf in wolf.actions] == ["action"] and len(wolf.kinds) == 1
    assert pool.spec.kind_slots(pool.spec.kinds[0]).tolist() == [0, 2, 3, 5]
    assert pool.spec.kind_slots(pool.spec.kinds[1]).tolist() == [1, 4]


def test_every_agent_gets_its_own_actions_and_observations(pool):
    """Actions are cut and merged by kind for four steps; rewards say what arrived."""
    (wolf, sheep), rows = all_kinds(pool.spec), (np.array([0, 2, 3, 5]), np.array([1, 4]))
    expected = np.zeros(6)
    for step in range(5):
        batch = pool.recv(min_slots=None)
        assert batch.reward.tolist() == expected.tolist()
        wolves, flock = wolf.part(batch, rows[0]), sheep.part(batch, rows[1])
        assert wolves.slots.tolist() == [0, 1, 2, 3] and flock.slots.tolist() == [0, 1]
        assert wolves.obs["obs"][:, :2].tolist() == [[0, 0], [0, 2], [1, 0], [1, 2]]
        assert flock.obs["where"][:, :2].tolist() == [[0, 1], [1, 1]]
        assert flock.obs["hungry"].tolist() == [step % 4 % 2] * 2
        assert wolves.active.tolist() == batch.active[[0, 2, 3, 5]].tolist()
        if step == 4:
            assert flock.truncated.all()
            assert flock.final_obs["where"][flock.slots].tolist() == [[0, 1, 0, 4], [1, 1, 0, 4]]
            assert wolves.final_obs["obs"][np.array([3])].tolist() == [[1, 2, 0, 2]]
        pulls = np.array([[0.125, 0.25]] * 4) * (step + 1) / 8
        choices = np.array([step % 3, 2])
        parts = [(wolf.kind, rows[0], {"action": pulls}), (sheep.kind, rows[1], {"action": choices})]
        actions = merge_actions(pool.spec, len(batch), parts)
        active = batch.active.copy()
        assert active[[2, 5]].tolist() == [step not in (2, 3)] * 2
        pool.send(actions, batch.slots)
        expected = np.zeros(6, np.float32)
        expected[[0, 2, 3, 5]], expected[[1, 4]] = pulls.sum(axis=1), choices - 1
        expected *= active


def test_random_actions_are_valid(pool):
    actions = RandomActions(pool.spec)
    for _ in range(6):
        batch = pool.recv(min_slots=None)
        chosen = actions.next(batch.slots)
        assert all(leaf.space.contains(row) for leaf in pool.spec.actions for row in chosen[leaf.name])
        pool.send(chosen, batch.slots)


def test_equal_agents_are_one_kind_without_a_name():
    spec = PoolSpec(observation_space=WOLF[0], action_space=WOLF[1], num_envs=2, agents_per_env=3)
    (kind,) = spec.kinds
    assert kind.name == "" and kind.agents == (0, 1, 2) and kind.obs_columns == {"obs": "obs"}
    assert spec.of_kind(kind) == spec


@pytest.mark.parametrize(
    ("agents", "names"),
    [
        (["wolf_0", "wolf_1", "sheep_0"], ["wolf", "sheep"]),
        (["player_0", "player_1"], ["player_0", "player_1"]),
        (["a.b", "c"], ["a_b", "c"]),
        (["a.b", "a_b"], ["a_b_0", "a_b_1"]),
    ],
)
def test_names_of_kinds(agents, names):
    pairs = [WOLF if index < len(agents) - 1 else SHEEP for index in range(len(agents))]
    assert [kind.name for kind in find_kinds(agents, pairs)] == names


def test_environments_with_other_kinds_are_refused():
    def make(env):
        meadow = Meadow(env)
        meadow.possible_agents = meadow.possible_agents[: 3 - env]
        return meadow

    with pytest.raises(UsageError, match="equal agents and spaces: environment 0 has wolf: "):
        ProcessPool(Factory(make=make), PoolConfig(num_envs=2, workers=2))
