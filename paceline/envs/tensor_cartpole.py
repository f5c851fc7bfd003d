"""CartPole-v1 in torch: thousands of environments in one step on any device. Gymnasium's dynamics in float32.

Legend: N environments.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from paceline.errors import UsageError
from paceline.pool.tensor import TensorStep

GRAVITY, CART_MASS, POLE_MASS, HALF_LENGTH, FORCE, TICK = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
X_LIMIT, THETA_LIMIT = 2.4, 12 * 2 * math.pi / 360
START_LIMIT = 0.05


class TensorCartPole:
    """A `TensorSimulator`. An episode ends when the pole or the cart leaves its limits, and is truncated after
    `max_episode_steps`."""

    frameskip = 1

    def __init__(self, num_envs: int, device: str | torch.device = "cpu", max_episode_steps: int = 500) -> None:
        if not isinstance(max_episode_steps, int) or max_episode_steps < 1:
            raise UsageError(f"max_episode_steps is {max_episode_steps!r}; allowed: a whole number above 0")
        self.num_envs, self.device = num_envs, torch.device(device)
        self._max_episode_steps = self.truncation_gap = max_episode_steps
        high = np.array([2 * X_LIMIT, np.inf, 2 * THETA_LIMIT, np.inf], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Discrete(2)
        self._generator = torch.Generator(self.device)
        self._state = torch.zeros(num_envs, 4, device=self.device)
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._reward = torch.ones(num_envs, device=self.device)

    def reset(self, seed: int) -> dict[str, Tensor]:
        self._generator.manual_seed(seed)
        self._state = self._starts()
        self._steps = torch.zeros_like(self._steps)
        return {"obs": self._state}

    def step(self, actions: Tensor) -> TensorStep:
        final = dynamics(self._state, actions)
        steps = self._steps + 1
        terminated = (final[:, 0].abs() > X_LIMIT) | (final[:, 2].abs() > THETA_LIMIT)
        truncated = (steps >= self._max_episode_steps) & ~terminated
        ended = terminated | truncated
        # Draw starts for all environments, because the host does not know how many need one.
        self._state = torch.where(ended[:, None], self._starts(), final)
        self._steps = steps.masked_fill(ended, 0)
        return TensorStep({"obs": self._state}, self._reward, terminated, truncated, {"obs": final})

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._state, "steps": self._steps, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state["state"].to(self.device)
        self._steps = state["steps"].to(self.device)
        self._generator.set_state(state["generator"].cpu())

    def _starts(self) -> Tensor:
        draws = torch.rand(self.num_envs, 4, generator=self._generator, device=self.device)
        return (2 * draws - 1) * START_LIMIT


def dynamics(state: Tensor, actions: Tensor) -> Tensor:
    """The state [N, 4] one tick after `actions` [N] (0 pushes left, 1 right)."""
    x, x_dot, theta, theta_dot = state.unbind(1)
    force = torch.where(actions == 1, FORCE, -FORCE)
    cos, sin = theta.cos(), theta.sin()
    total_mass, pole_moment = CART_MASS + POLE_MASS, POLE_MASS * HALF_LENGTH
    push = (force + pole_moment * theta_dot.square() * sin) / total_mass
    theta_acc = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cos.square() / total_mass))
    x_acc = push - pole_moment * theta_acc * cos / total_mass
    return torch.stack(
        (x + TICK * x_dot, x_dot + TICK * x_acc, theta + TICK * theta_dot, theta_dot + TICK * theta_acc), dim=1
    )
