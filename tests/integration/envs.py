"""Environments of whole runs. This module does not import PyTorch, which would take seconds in every worker process."""

from __future__ import annotations

import os
import signal
import time

import gymnasium
import numpy as np
from gymnasium import spaces

from paceline.envs.memory import Memory
from tests.pool.faulty import Counting
from tests.pool.multi_agent import Mortal

LENGTH = 8
"""Steps of an episode of `Chase`."""


class Chase(gymnasium.Env):
    """Say the number that is shown. Each step shows another; the best return is 0, that of doing nothing about -2.7."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, marker: str = "", harm: str = "", at: int = 300, seconds: float = 0.0) -> None:
        self.marker, self.harm, self.at, self.seconds, self.taken = marker, harm, at, seconds, 0
        self.shown, self.steps = np.zeros(1, np.float32), 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._show(), {}

    def step(self, action):
        self._come_to_harm()
        time.sleep(self.seconds)
        self.steps += 1
        reward = -float(np.square(np.asarray(action) - self.shown).sum())
        return self._show(), reward, False, self.steps == LENGTH, {}

    def _show(self):
        self.shown = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.shown.copy()

    def _come_to_harm(self):
        self.taken += 1
        if self.harm and self.taken == self.at and not (self.marker and os.path.exists(self.marker)):
            if self.marker:
                open(self.marker, "w").close()
            if self.harm == "error":
                raise ArithmeticError("this very error")
            os.kill(os.getpid(), {"stop": signal.SIGTERM, "kill": signal.SIGKILL}[self.harm])


class MortalBox(Mortal):
    """Its agents say numbers."""

    def action_space(self, agent):
        return spaces.Box(-1.0, 1.0, (2,), np.float32)


class Killed(Memory):
    """Kills its own process in the middle of an episode, once, if the file it is given does not exist."""

    def __init__(self, marker: str, length: int = 7) -> None:
        super().__init__(length)
        self.marker, self.taken = marker, 0

    def step(self, action):
        self.taken += 1
        if self.taken == 40 and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Raising(Memory):
    """Raises in its hundredth step."""

    taken = 0

    def step(self, action):
        self.taken += 1
        if self.taken == 100:
            raise ArithmeticError("this very error")
        return super().step(action)


def numbered(env_index: int) -> Counting:
    """Observations begin with the environment's number."""
    return Counting(env_index)
