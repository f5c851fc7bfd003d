"""Environments for tests of the Python API."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Corridor(gym.Env):
    """Walk right to the end of a corridor."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2, start=3)

    def __init__(self, length: int = 5) -> None:
        self.length, self.place = length, 0

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.place = 0
        return self._observe(), {}

    def step(self, action):
        assert action in (3, 4)
        self.place = max(0, self.place + (1 if action == 4 else -1))
        return self._observe(), float(self.place == self.length) - 0.05, self.place == self.length, False, {}

    def _observe(self):
        return np.array([self.place / self.length], np.float32)


class Nested(gym.Env):
    """Observations and actions of every kind. Checks its actions, and ends after four steps."""

    observation_space = spaces.Dict(
        place=spaces.Discrete(4, start=-1),
        parts=spaces.Tuple([spaces.Box(-1, 1, (2,), np.float64), spaces.MultiBinary(3)]),
    )
    action_space = spaces.Dict(
        move=spaces.Tuple([spaces.Discrete(3, start=5), spaces.MultiDiscrete([2, 3], start=[1, 1])]),
        push=spaces.Box(-0.5, 0.5, (2,), np.float64),
    )

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        return self._observe(), float(action["push"].sum()), self.steps == 4, False, {"steps": self.steps}

    def _observe(self):
        place = int(self.np_random.integers(-1, 3))
        return {"place": place, "parts": (self.np_random.uniform(-1, 1, 2), self.np_random.integers(0, 2, 3, np.int8))}
