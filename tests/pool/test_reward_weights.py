"""Weights of reward shaping that a pool hands to its environments while they run."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from paceline.envs.factory import Factory
from paceline.errors import UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.process import ProcessPool
from paceline.pool.serial import SerialPool
from tests.pool.multi_agent import Mortal
from tests.pool.turn_based import AGENTS, Court

pytestmark = pytest.mark.usefixtures("forked_workers")

POOLS = pytest.mark.parametrize("make", [SerialPool, ProcessPool], ids=["serial", "process"])


class Shaped(gymnasium.Env):
    """The reward is 10 * hit + damage; the episode has three steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, env: int = 0) -> None:
        self.reward_weights = {"hit": 0.1, "damage": 3.0}
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.array(list(self.reward_weights.values())), {}

    def step(self, action):
        self.steps += 1
        reward = 10 * self.reward_weights["hit"] + self.reward_weights["damage"]
        return np.array(list(self.reward_weights.values())), reward, self.steps == 3, False, {}


def wrapped(env):
    return gymnasium.wrappers.OrderEnforcing(Shaped())


def make_shaped(make, factory=Shaped, **config):
    return make(Factory(make=factory), PoolConfig(num_envs=3, workers=2, **config), seed=0)


def step(pool):
    """One step of all slots that are held; the rewards of the next batch."""
    pool.send(np.zeros(len(step.slots), np.int64), step.slots)
    return receive(pool).reward.tolist()


def receive(pool):
    batch = pool.recv(min_slots=None)
    step.slots = batch.slots.copy()
    return batch


@POOLS
@pytest.mark.parametrize("factory", [Shaped, wrapped])
def test_every_slot_gets_its_own_weights(make, factory):
    with make_shaped(make, factory) as pool:
        assert pool.spec.reward_weights == (("hit", 0.1), ("damage", 3.0))
        receive(pool)
        assert step(pool) == [4, 4, 4]
        pool.set_reward_weights([0, 2], [[1, 0], [0, -7]])
        assert step(pool) == [10, 4, -7]
        assert step(pool) == [10, 4, -7]
        assert step(pool) == [10, 4, -7], "the next episode has them, too"
        assert step(pool) == [10, 4, -7]


@POOLS
def test_weights_are_part_of_the_state(make):
    with make_shaped(make) as pool, make_shaped(make) as other:
        receive(pool)
        pool.set_reward_weights([1], [[2, 2]])
        step(pool)
        state = pool.state()
        pool.set_reward_weights([1], [[5, 5]])
        assert step(pool) == [4, 55, 4]
        receive(other)
        other.restore(state)
        receive(other)
        assert step(other) == [4, 22, 4]


class Failing(Shaped):
    """Fails at a weight of 13, once per process."""

    failed = False

    def step(self, action):
        if self.reward_weights["hit"] == 13 and not Failing.failed:
            Failing.failed = True
            raise RuntimeError("13")
        return super().step(action)


@POOLS
def test_a_replaced_environment_gets_the_weights_of_its_slot(make):
    Failing.failed = False
    with make_shaped(make, Failing, on_error="restart") as pool:
        receive(pool)
        pool.set_reward_weights([1], [[13, 0]])
        pool.send(np.zeros(3, np.int64), np.arange(3))
        assert receive(pool).lost.tolist() == [False, True, False]
        assert step(pool) == [4, 130, 4]


class Team(Mortal):
    """Everybody's reward is the weight of their own."""

    def __init__(self, env):
        super().__init__(env)
        self.reward_weights = {"own": 1.5}
        self.weights = dict.fromkeys(self.possible_agents, 1.5)

    def set_reward_weights(self, agent, weights):
        self.weights[agent] = weights["own"]

    def step(self, actions):
        observations, _, *rest = super().step(actions)
        return observations, {agent: self.weights[agent] for agent in observations}, *rest


@POOLS
def test_agents_have_weights_of_their_own(make):
    with make_shaped(make, Team) as pool:
        receive(pool)
        assert step(pool) == [1.5] * 9
        pool.set_reward_weights([1, 5], [[2.5], [-1]])
        assert step(pool) == [1.5, 2.5, 1.5, 1.5, 1.5, -1, 1.5, 1.5, 1.5]


class PaidCourt(Court):
    """All rewards are the agent's own weight."""

    def __init__(self, env):
        super().__init__(env)
        self.reward_weights = {"pay": 1.0}
        self.pay = dict.fromkeys(AGENTS, 1.0)

    def set_reward_weights(self, agent, weights):
        self.pay[agent] = weights["pay"]

    def _pay(self, agent, reward):
        super()._pay(agent, self.pay[agent])


def test_agents_that_take_turns_have_weights_of_their_own():
    with make_shaped(SerialPool, PaidCourt) as pool:
        receive(pool)
        pool.set_reward_weights(np.arange(12), 1000.0 ** (np.arange(12) % 4)[:, None])
        for _ in range(30):
            rewards = step(pool)
            assert all(reward % 1000.0 ** (slot % 4) == 0 for slot, reward in zip(step.slots, rewards, strict=True))


@pytest.mark.parametrize(
    ("slots", "weights", "message"),
    [
        ([0], [[1.0, np.nan]], "reward weight 'damage' of slot 0 is nan"),
        ([2], [[np.inf, 1.0]], "reward weight 'hit' of slot 2 is inf"),
        ([0], [1.0, 2.0], "reward weights have shape"),
        ([3], [[1.0, 2.0]], r"slots must be in \[0, 3\)"),
    ],
)
def test_bad_weights_are_refused(slots, weights, message):
    with make_shaped(SerialPool) as pool:
        with pytest.raises(ValueError, match=message):
            pool.set_reward_weights(slots, weights)
        receive(pool)
        assert step(pool) == [4, 4, 4]


def test_environments_without_weights():
    with make_shaped(SerialPool, Mortal) as pool:
        assert pool.spec.reward_weights == ()
        with pytest.raises(UsageError, match="no reward weights"):
            pool.set_reward_weights([0], [[1.0]])


@pytest.mark.parametrize("weights", [["hit"], {"hit": np.nan}, {"hit": "much"}])
def test_bad_announcements_are_refused(weights):
    def build(env):
        shaped = Shaped(env)
        shaped.reward_weights = weights
        return shaped

    with pytest.raises(UsageError, match="allowed: a dict of finite numbers by name"):
        make_shaped(SerialPool, build)
