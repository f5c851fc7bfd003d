"""A simulator that spoils what surrounds it. Its module is light: workers import it in processes of their own."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import gymnasium
import numpy as np
from gymnasium import spaces


class Careless(gymnasium.Env):
    """A simulator that does `harm` when it is made, first reset or first stepped."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, harm: str = "", when: str = "make", folder: str = "") -> None:
        self._harm, self._when, self._folder, self._has_done = harm, when, folder, False
        self._do("make")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._do("reset")
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self._do("step")
        self._steps += 1
        return self.observation_space.sample(), 1.0, self._steps == 5, False, {}

    def _do(self, now: str) -> None:
        if now != self._when or self._has_done:
            return
        self._has_done = True
        match self._harm:
            case "leaves":
                os.chdir(self._folder)
            case "deaf":
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            case "prints":
                sys.stdout.write("hello\n")
                ctypes.CDLL(None).printf(b"hello from C\n")  # C buffers it
