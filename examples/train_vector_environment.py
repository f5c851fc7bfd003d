"""Trains in a simulator of your own that steps many environments at once as torch tensors.

python examples/train_vector_environment.py [STEPS]
"""

import sys

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

import paceline as pl


class Carts(VectorEnv):
    """Push carts on a line to the middle, and keep them there."""

    single_observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    single_action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, num_envs: int, device: str, episode_length: int = 40) -> None:
        self.num_envs, self.device, self.episode_length = num_envs, device, episode_length
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed=None, options=None):
        self.random = torch.Generator(self.device).manual_seed(seed)
        self.carts = self.starts()  # position and velocity
        # At first episodes have different lengths, so that they do not all end in the same step.
        self.steps = torch.arange(self.num_envs, device=self.device) % self.episode_length
        return self.carts, {}

    def step(self, actions):
        position, velocity = self.carts.unbind(1)
        velocity = 0.9 * velocity + 0.1 * actions[:, 0]
        last = torch.stack([position + velocity, velocity], 1)
        self.steps += 1
        terminated, truncated = last[:, 0].abs() > 2, self.steps >= self.episode_length
        ended = terminated | truncated
        self.carts = torch.where(ended[:, None], self.starts(), last)
        self.steps.masked_fill_(ended, 0)
        return self.carts, 1 - last[:, 0].abs(), terminated, truncated, {"final_obs": last}

    def starts(self):
        return (2 * torch.rand(self.num_envs, 2, generator=self.random, device=self.device) - 1) * torch.tensor(
            [1.0, 0.1], device=self.device
        )


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    # Paceline calls Carts(num_envs=..., device=...), because it has these two parameters.
    run = pl.train(env=Carts, steps=steps, rollout_steps=40, pool={"num_envs": 64}, ppo={"minibatches": 4})
    print(
        f"{run.step} steps in {run.seconds:.0f} s; return {pl.evaluate(run.policy, episodes=64).episode_return} of 40"
    )
