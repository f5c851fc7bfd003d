"""The exact state of an environment: every part is where it was, and is one object."""

from __future__ import annotations

import inspect
import pickle
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from paceline.envs.factory import Factory
from paceline.pool.config import PoolConfig
from paceline.pool.env_state import UnreadableState, env_state, parts, provides_state, restore_env
from paceline.pool.serial import SerialPool


class Player:
    def __init__(self, game) -> None:
        self.game = game

    def score(self) -> None:
        self.game.points += 1


class Game(gymnasium.Env):
    """Its player and a list of functions refer back to it."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.points, self.player = 0, Player(self)
        self.on_step = [self.player.score, self._again]

    def _again(self) -> None:
        self.points += 10

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.points = 0
        return self._seen(), {}

    def step(self, action):
        for function in self.on_step:
            function()
        return self._seen(), 0.0, False, False, {}

    def _seen(self):
        return np.array([self.points], np.float32)


class Counter(gymnasium.utils.EzPickle, Game):
    """Pickled, it comes back freshly made."""

    def __init__(self) -> None:
        gymnasium.utils.EzPickle.__init__(self)
        Game.__init__(self)


class Adapter(gymnasium.Env):
    """Holds a simulator as an attribute of any name, and counts itself."""

    observation_space, action_space = Game.observation_space, Game.action_space

    def __init__(self, name: str, make=Game) -> None:
        self.name, self.count = name, 0
        setattr(self, name, make())

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return getattr(self, self.name).reset(seed=seed)

    def step(self, action):
        self.count += 1
        seen, *rest = getattr(self, self.name).step(action)
        return seen + 1000 * self.count, *rest


def after(env, steps: int) -> list[float]:
    return [float(env.step(0)[0][0]) for _ in range(steps)]


MAKERS = {
    "back references": Game,
    "wrapped": lambda: gymnasium.wrappers.TimeLimit(Game(), 50),
    "EzPickle": Counter,
    "EzPickle inside": lambda: Adapter("inner", Counter),
    **{name: lambda name=name: Adapter(name) for name in ("env", "sim", "clock", "screen", "viewer", "spec", "surf")},
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_restored_environment_goes_on_as_the_saved_one(make):
    one, other = make(), make()
    one.reset(seed=1)
    after(one, 3)
    other.reset(seed=2)
    restore_env(other, env_state(one))
    assert after(other, 4) == after(one, 4)
    one.reset(seed=3)
    other.reset(seed=3)
    assert after(other, 2) == after(one, 2)


def test_conversions_of_pettingzoo_consist_of_their_game_too():
    pytest.importorskip("pettingzoo")
    from pettingzoo.classic import rps_v2

    one, other = rps_v2.parallel_env(), rps_v2.parallel_env()
    one.reset(seed=0)
    for _ in range(3):
        one.step(dict.fromkeys(one.agents, 1))
    restore_env(other, env_state(one))
    assert len(parts(one)) > 1 and other.agents == one.agents
    for _ in range(3):
        mine, theirs = ([env.step({agent: number for number, agent in enumerate(env.agents)})] for env in (one, other))
        assert mine[0][1:4] == theirs[0][1:4]


class Own(Game):
    """Saves itself. MuJoCo's environments have a `set_state` with two arguments, which is something else."""

    def get_state(self):
        return self.points

    def set_state(self, state):
        if state == 13:
            raise ArithmeticError("13 brings bad luck")
        self.points = state


class LikeMuJoCo(Game):
    def get_state(self):
        return self.points

    def set_state(self, qpos, qvel): ...


def test_states_of_their_own_are_used_if_they_can_be():
    one, other = LikeMuJoCo(), LikeMuJoCo()
    after(one, 3)
    restore_env(other, env_state(one))
    assert after(one, 2) == after(other, 2)


def test_a_state_that_is_refused_is_unreadable():
    """The stream begins a new episode, and the run goes on."""
    saved = Own()
    saved.points = 13
    with pytest.raises(UnreadableState, match="set_state of .* failed .ArithmeticError: 13 brings bad luck"):
        restore_env(Own(), env_state(saved))


class Up(Game):
    """Its reward is its direction."""

    direction = 1.0

    def step(self, action):
        self.points += self.direction
        return self._seen(), self.direction, False, False, {}


class Down(Up):
    direction = -1.0


class Remade(Counter):
    """Its constructor has an argument, and makes what is not saved."""

    def __init__(self, direction: float) -> None:
        gymnasium.utils.EzPickle.__init__(self, direction)
        Game.__init__(self)
        self.direction = direction

    step = Up.step


class Descending(Remade):
    def __init__(self, direction: float) -> None:
        gymnasium.utils.EzPickle.__init__(self, direction)
        Game.__init__(self)
        self.direction = -direction


class Locked(Up):
    """Pickles everything but its lock."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "lock"}


class OwnUp(Up):
    get_state, set_state = Own.get_state, Own.set_state


class OwnDown(Down):
    get_state, set_state = Own.get_state, Own.set_state


TASKS = {
    "plain": lambda: [Up(), Down()],
    "wrapped": lambda: [gymnasium.wrappers.TimeLimit(Up(), 50), gymnasium.wrappers.OrderEnforcing(Down())],
    "EzPickle": lambda: [Remade(1.0), Descending(2.0)],
    "same class": lambda: [Remade(1.0), Remade(-1.0)],
    "own pickling": lambda: [Down(), Locked()],
    "own states": lambda: [OwnUp(), OwnDown()],
}


class Switching(gymnasium.Env):
    """Every reset chooses one of several environments. Those with odd seeds have the second one."""

    observation_space, action_space = Game.observation_space, Game.action_space

    def __init__(self, tasks: str) -> None:
        self.tasks, self.active = TASKS[tasks](), None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.active = self.tasks[seed % 2]
        return self.active.reset(seed=seed)

    def step(self, action):
        return self.active.step(action)


@pytest.mark.parametrize("seed", [None, 0, 1], ids=["before the first reset", "another", "the same"])
@pytest.mark.parametrize("tasks", [name for name in TASKS if name != "own states"])
def test_an_environment_that_switches_between_others_goes_on_as_the_saved_one(tasks, seed):
    one, other = Switching(tasks), Switching(tasks)
    one.reset(seed=1)
    after(one, 3)
    if seed is not None:
        other.reset(seed=seed)
    restore_env(other, env_state(one))
    for _ in range(3):
        assert other.step(0) == one.step(0)
    assert type(other.active) is type(one.active)


def test_states_of_their_own_need_the_object_that_saved_them():
    one, other = Switching("own states"), Switching("own states")
    one.reset(seed=1)
    other.reset(seed=0)
    with pytest.raises(UnreadableState, match="held a .*:OwnDown, and .*Switching.* does not"):
        restore_env(other, env_state(one))
    other.reset(seed=1)
    after(one, 2)
    restore_env(other, env_state(one))
    assert after(other, 2) == after(one, 2)


class Chosen(Switching):
    """The choice is random, so a fresh pool has other environments than the saved one."""

    def __init__(self) -> None:
        super().__init__("plain")

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.active = self.tasks[int(self.np_random.integers(2))]
        return self.active.reset(seed=seed)


def test_a_restored_pool_of_switching_environments_has_the_rewards_of_the_saved_one():
    pools = [SerialPool(Factory(make=lambda index: Chosen()), PoolConfig(num_envs=8), seed=seed) for seed in (3, 4)]
    first, fresh = pools
    actions = np.zeros(8, np.int64)
    for pool in pools:
        pool.send(actions, pool.recv(min_slots=None).slots)
    rewards = [pool.recv(min_slots=None).reward.tolist() for pool in pools]
    assert rewards[0] != rewards[1] and set(rewards[0]) == {1.0, -1.0}, "other seeds are needed"
    assert len(fresh.restore(first.state())) == 0
    slots = fresh.recv(min_slots=None).slots
    for pool in pools:
        pool.send(actions, slots)
    assert fresh.recv(min_slots=None).reward.tolist() == first.recv(min_slots=None).reward.tolist() == rewards[0]


def test_wrappers_of_another_kind_are_unreadable():
    """The attributes of one would be written to the other."""
    saved = gymnasium.wrappers.OrderEnforcing(gymnasium.wrappers.TimeLimit(Game(), 50))
    fresh = gymnasium.wrappers.OrderEnforcing(gymnasium.wrappers.Autoreset(Game()))
    with pytest.raises(UnreadableState, match="were .*:TimeLimit > .*, and these are .*:Autoreset > "):
        restore_env(fresh, env_state(saved))


def test_states_that_are_no_states_of_environments_are_unreadable():
    with pytest.raises(UnreadableState, match="cannot be loaded"):
        restore_env(Game(), pickle.dumps([("attributes", {})]))


class Compiled(Game):
    """Its `get_state` and `set_state` have no signature that Python can see, as those of ale_py."""

    def __init__(self, method) -> None:
        super().__init__()
        self.get_state = self.set_state = method


def test_compiled_methods_save_a_state():
    with pytest.raises(ValueError, match="signature"):
        inspect.signature({}.update)
    assert provides_state(Compiled({}.update))
    assert not provides_state(Compiled(3))


class Disconnected:
    """A proxy whose server is gone."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(f"not connected: {name}")


class WithProxy(Game):
    def __init__(self) -> None:
        super().__init__()
        self.proxy = Disconnected()

    def __getattr__(self, name):
        if name in ("get_state", "set_state"):
            raise RuntimeError(f"no {name}")
        raise AttributeError(name)


def test_attributes_that_fail_when_they_are_asked_for_a_name_are_saved():
    one, other = WithProxy(), WithProxy()
    after(one, 3)
    restore_env(other, env_state(one))
    assert after(other, 2) == after(one, 2)


class Broken(Game):
    is_broken = False

    @property
    def unwrapped(self):
        if self.is_broken:
            raise RuntimeError("broken")
        return self


def test_a_fresh_environment_that_fails_to_show_its_parts_is_unreadable():
    saved, fresh = Broken(), Broken()
    state, fresh.is_broken = env_state(saved), True
    with pytest.raises(UnreadableState, match="cannot be loaded in this program .RuntimeError: broken"):
        restore_env(fresh, state)
