"""Environments whose numbers are not finite once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.pool.multi_agent import Mortal

LENGTH = 5
BODY, DEPTH = "body", "camera.depth"
"""Few numbers and many of them, which are looked at in different ways."""


class Poisoned(gym.Env):
    """Observations count steps. Environment 2 returns `value` once, at `step` of `episode`, in `entry`.

    `mark` is a file that says that it happened: a replacement of the environment is well.
    """

    def __init__(
        self, env: int, entry: str, value: float, *, episode: int = 0, step: int, mark: Path, dtype: Any = np.float32
    ) -> None:
        body, depth = (spaces.Box(-np.inf, np.inf, shape, dtype) for shape in ((3,), (20, 20)))
        self.observation_space = spaces.Dict({BODY: body, "camera": spaces.Dict({"depth": depth})})
        self.action_space = spaces.Discrete(2)
        self._entry, self._value, self._at, self._mark, self._dtype = entry, value, (episode, step), mark, dtype
        self._is_poisoned = env == 2 and not mark.exists()
        self._episode, self._step = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None):
        self._episode += 1
        self._step = 0
        return self._observe(), {}

    def step(self, action):
        self._step += 1
        reward = self._value if self._entry == "reward" and self._is_due() else 1.0
        return self._observe(), reward, self._step == LENGTH, False, {}

    def _is_due(self) -> bool:
        due = self._is_poisoned and (self._episode, self._step) == self._at
        if due:
            self._mark.touch()
        return due

    def _observe(self):
        body, depth = (np.full(shape, self._step, self._dtype) for shape in ((3,), (20, 20)))
        if self._entry != "reward" and self._is_due():
            (body if self._entry == BODY else depth).reshape(-1)[2] = self._value
        return {BODY: body, "camera": {"depth": depth}}


class PoisonedMortal(Mortal):
    """Agent bert of environment 1 gets NaN in step `at` (None: the reset), as observation or as reward."""

    def __init__(self, env: int, what: str, at: int | None = 2) -> None:
        super().__init__(env)
        self._what, self._at = what, at

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        if self.env == 1 and self.steps == self._at:
            if self._what == "reward":
                rewards["bert"] = float("nan")
            else:
                observations["bert"][3] = np.nan
        return observations, rewards, *rest

    def reset(self, seed: int | None = None, options: Any = None):
        observations, infos = super().reset(seed, options)
        if self.env == 1 and self._at is None:
            observations["bert"][3] = np.nan
        return observations, infos


class NanOnce(gym.ObservationWrapper):
    """NaN instead of the 40th observation, unless the file `mark` is there."""

    def __init__(self, env: gym.Env, mark: str) -> None:
        super().__init__(env)
        self._mark, self._left = mark, 40

    def observation(self, observation):
        self._left -= 1
        if self._left == 0 and not os.path.exists(self._mark):
            Path(self._mark).touch()
            observation = observation.copy()
            observation[1] = np.nan
        return observation


def cartpole(env_index: int, mark: str) -> gym.Env:
    env = gym.make("CartPole-v1")
    return NanOnce(env, mark) if env_index == 1 else env
