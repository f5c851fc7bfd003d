"""The smallest task that cannot be solved without memory."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Memory(gymnasium.Env):
    """Only the first observation shows the cue. In the last step, naming it gives reward 1, and any other cue -1.

    The observations in between show only the time. An agent without memory gets a mean return of 2 / cues - 1 by
    chance, which is 0 for two cues.
    """

    def __init__(self, length: int = 20, cues: int = 2) -> None:
        self._length, self._cues = length, cues
        self._cue = self._time = 0
        self.observation_space = spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = spaces.Discrete(cues)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(self._cues))
        self._time = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._time += 1
        over = self._time == self._length
        reward = (1.0 if action == self._cue else -1.0) if over else 0.0
        return self._observe(), reward, over, False, {}

    def _observe(self) -> np.ndarray:
        observation = np.zeros(self._cues + 1, np.float32)
        observation[-1] = self._time / self._length
        if self._time == 0:
            observation[self._cue] = 1.0
        return observation
