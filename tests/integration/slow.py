"""Simulators and learners that take their time, for tests of stopping."""

from __future__ import annotations

import time

import gymnasium
import numpy as np


class Slow(gymnasium.Env):
    """Steps take `seconds`. After step `busy_from` of an environment they do, before it they are quick."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space: gymnasium.Space

    def __init__(self, seconds: float = 0.5, busy_from: int = 0, continuous: bool = False) -> None:
        self._seconds, self._busy_from, self._taken = seconds, busy_from, 0
        box = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = box if continuous else gymnasium.spaces.Discrete(2)

    def get_state(self):
        return self._taken

    def set_state(self, state):
        self._taken = state

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self._taken += 1
        if self._taken > self._busy_from:
            time.sleep(self._seconds)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 1.0, False, self._taken % 20 == 0, {}


class Unhurried(gymnasium.Wrapper):
    """Its steps take `seconds`."""

    def __init__(self, env: gymnasium.Env, seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action):
        time.sleep(self._seconds)
        return super().step(action)


def unhurried(seconds: float = 0.002) -> Unhurried:
    """CartPole for runs that go on until a test ends them: they mostly wait, and leave the cores to others."""
    return Unhurried(gymnasium.make("CartPole-v1"), seconds)
