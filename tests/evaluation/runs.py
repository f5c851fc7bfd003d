"""Tiny finished runs and their environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from paceline.config import Config
from paceline.learner.config import PPOConfig
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.session import train

STEPS = 256


def make_run(folder: Path, env: str, policy: PolicyConfig | None = None) -> Path:
    """A run of 256 steps on the CPU. Its policy has learned nothing, but weights and normaliser have changed."""
    config = Config(
        env=env,
        steps=STEPS,
        rollout_steps=32,
        device="cpu",
        deterministic=False,
        pool=PoolConfig(kind="serial", num_envs=4),
        policy=policy or PolicyConfig(hidden=(16,)),
        ppo=PPOConfig(epochs=1, minibatches=1),
    )
    train(config, folder)
    return folder


class Blank(gymnasium.Env):
    """Grey images that get brighter with every step, for 6 steps. It cannot render."""

    def __init__(self, channels: int = 1, size: int = 40, start: int = 0) -> None:
        self._shape, self._time = (channels, size, size), 0
        self.observation_space = spaces.Box(0, 255, self._shape, np.uint8)
        self.action_space = spaces.Discrete(3, start=start)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._time = 0
        return self._observe(), {}

    def step(self, action: Any):
        assert self.action_space.contains(action)
        self._time += 1
        return self._observe(), 1.0, self._time == 6, False, {}

    def _observe(self) -> np.ndarray:
        return np.full(self._shape, 40 * self._time, np.uint8)


class Painted(Blank):
    """`Blank` with a render mode: frames of odd size that get redder with every step."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> np.ndarray:
        assert self.render_mode == "rgb_array"
        picture = np.zeros((61, 81, 3), np.uint8)
        picture[..., 0] = 40 * self._time
        return picture


class Reach(gymnasium.Env):
    """Large observations far from zero, asymmetric Box actions, and episodes of 8 steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Box(np.array([-0.01, 2.0]), np.array([0.01, 3.0]), dtype=np.float32)
        self._time = 0

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._time = 0
        return self._observe(), {}

    def step(self, action: Any):
        self._time += 1
        return self._observe(), float(action[0]), False, self._time == 8, {"odd": self._time % 2, "bad": float("nan")}

    def _observe(self) -> np.ndarray:
        return self.np_random.normal(500.0, 100.0, 3)
