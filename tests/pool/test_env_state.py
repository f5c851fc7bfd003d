"""The exact state of an environment: every part is where it was, and is one object."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from paceline.pool.env_state import UnreadableState, env_state, parts, restore_env


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
