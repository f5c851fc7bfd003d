"""An environment of random images that costs almost nothing: `benchmarks.images:Images`. It needs no renderer."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

FRAMES, SIZE, LENGTH = 3, 84, 500
"""Frames in an observation, pixels of a side, and steps of an episode, as in cartpole-swingup with two repeats."""
STORED = 256
"""Different frames."""


class Images(gymnasium.Env):
    """Stacks of three frames [9, 84, 84] and one action."""

    observation_space = spaces.Box(0, 255, (3 * FRAMES, SIZE, SIZE), np.uint8)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self) -> None:
        self._frames = np.random.default_rng(0).integers(0, 256, (STORED, 3, SIZE, SIZE), np.uint8)
        self._stack: deque[np.ndarray] = deque(maxlen=FRAMES)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._step = 0
        first = self._frames[self.np_random.integers(STORED)]
        self._stack.extend([first] * FRAMES)
        return np.concatenate(self._stack), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._step += 1
        self._stack.append(self._frames[self.np_random.integers(STORED)])
        return np.concatenate(self._stack), float(action[0]), False, self._step == LENGTH, {}
