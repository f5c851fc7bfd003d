"""Environments that count, and environments that fail in every way a simulator can."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from paceline.envs.factory import Factory


class Counting(gym.Env):
    """Observations say who, which episode and which step: [env, episode, step, last action, seeded noise].

    Odd episodes are terminated, even ones truncated, after `length` steps; the reward is 100 * episode + step.
    """

    def __init__(self, env: int, length: int = 5) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float32)
        self.action_space = spaces.Discrete(10)
        self.env, self.length, self.episode, self.steps = env, length, -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.episode += 1
        self.steps = 0
        return self._observe(-1), {}

    def step(self, action):
        self.steps += 1
        ended = self.steps == self.length
        reward = 100.0 * self.episode + self.steps
        info = {"score": self.episode, "text": "not a number"}
        return self._observe(action), reward, ended and self.episode % 2 == 1, ended and self.episode % 2 == 0, info

    def _observe(self, action):
        return np.array([self.env, self.episode, self.steps, action, self.np_random.random()], np.float32)


class Faulty(Counting):
    """`Counting` that fails at step `at` of the episode, in environment `only` (all if None), by `fault`."""

    def __init__(
        self,
        env: int,
        fault: str,
        at: int = 3,
        only: int | None = None,
        mark: str | None = None,
        segment: str | None = None,
    ) -> None:
        super().__init__(env)
        if segment is not None:  # as ViZDoom does: a file in /dev/shm that a killed process leaves behind
            with open(f"/dev/shm/{segment}-{env}-{os.getpid()}", "w+b") as file:
                file.truncate(4096)
                self.memory = mmap.mmap(file.fileno(), 4096)
        self.fault, self.at, self.mark = fault, at, mark
        self.armed = only is None or env == only
        if mark is not None and os.path.exists(mark):
            self.armed = False  # fail once: a replacement is well
        if fault == "raise_in_make" and self.armed:
            raise RuntimeError("cannot be made")
        if fault == "hang_in_make" and self.armed:
            time.sleep(600)
        if fault == "child" and self.armed:
            # As ViZDoom and CARLA do: a process of its own, in a session of its own, deaf to SIGTERM.
            code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
            self.child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)

    def reset(self, *, seed: int | None = None, options: Any = None):
        if self.fault == "raise_in_reset" and self.armed:
            raise RuntimeError("cannot be reset")
        if self.fault == "hang_in_reset" and self.armed:
            time.sleep(600)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.armed and self.steps == self.at:
            if self.mark is not None:
                open(self.mark, "w").close()
            if self.fault == "raise":
                raise RuntimeError("the floor is lava")
            if self.fault == "nan":
                reward = float("nan")
            if self.fault == "shape":
                observation = observation[:3]
            if self.fault == "dtype":
                observation = np.array(["a"] * 5)
            if self.fault == "hang":
                time.sleep(600)
            if self.fault == "exit":
                os._exit(3)
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
        return observation, reward, terminated, truncated, info


class Fragile(Counting):
    """Environment 2 raises in its third step. Its first replacement hangs in `where`: "make" or "close"."""

    def __init__(self, env: int, marks: str, where: str) -> None:
        super().__init__(env, length=50)
        self.where, self.raised, self.hung = where, os.path.join(marks, "raised"), os.path.join(marks, "hung")
        if env == 2 and where == "make":
            self._hang()

    def step(self, action):
        if self.env == 2 and self.steps == 2 and not os.path.exists(self.raised):
            open(self.raised, "w").close()
            raise RuntimeError("the floor is lava")
        return super().step(action)

    def close(self):
        if self.env == 2 and self.where == "close":
            self._hang()

    def _hang(self) -> None:
        if os.path.exists(self.raised) and not os.path.exists(self.hung):
            open(self.hung, "w").close()
            time.sleep(600)


class Heavy(Counting):
    """Has a state that no pipe has room for."""

    def __init__(self, env: int) -> None:
        super().__init__(env)
        self.ballast = np.zeros(1 << 17)


class Unsaveable(Counting):
    """Environments from `first` on cannot be saved."""

    def __init__(self, env: int, first: int = 0) -> None:
        super().__init__(env, length=50)
        if env >= first:
            self.lock = threading.Lock()


class Leaking(Counting):
    """Keeps two more megabytes with every step."""

    def __init__(self, env: int) -> None:
        super().__init__(env)
        self.kept: list[np.ndarray] = []

    def step(self, action):
        self.kept.append(np.ones(1 << 18))
        return super().step(action)


def counting(length: int = 5) -> Factory:
    return Factory(make=lambda env: Counting(env, length + env % 3))


def faulty(fault: str, **options: Any) -> Factory:
    return Factory(make=lambda env: Faulty(env, fault, **options))
