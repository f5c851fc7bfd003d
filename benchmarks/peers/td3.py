"""TD3 in one file in the manner of CleanRL, written for this comparison. CleanRL is a script, not a package.

`python -m benchmarks.peers.td3 '{"env": "dmc:cheetah-run?flat=true", ...}'` prints steps and updates per second.
"""

from __future__ import annotations

import copy
import json
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from .control_loop import Meter, Settings, Transitions, last_observations, make_envs

CAPACITY, DISCOUNT, POLYAK, RATE = 100_000, 0.99, 0.005, 3e-4
NOISE, TARGET_NOISE, NOISE_CLIP, POLICY_PERIOD = 0.1, 0.2, 0.5, 2


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(hidden, outputs))


class Learner:
    def __init__(self, obs_size: int, action_size: int, settings: Settings) -> None:
        device, hidden = settings.device, settings.hidden
        self.actor = nn.Sequential(*perceptron(obs_size, hidden, action_size), nn.Tanh()).to(device)
        self.critics = nn.ModuleList(perceptron(obs_size + action_size, hidden, 1) for _ in range(2)).to(device)
        self.targets = copy.deepcopy(nn.ModuleList([self.actor, self.critics]))
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=RATE)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=RATE)
        self.updates = 0

    def update(self, batch: list[torch.Tensor]) -> None:
        obs, action, reward, discount, next_obs = batch
        self.updates += 1
        target_actor, target_critics = self.targets
        with torch.no_grad():
            noise = (torch.randn_like(action) * TARGET_NOISE).clamp(-NOISE_CLIP, NOISE_CLIP)
            followed = torch.cat([next_obs, (target_actor(next_obs) + noise).clamp(-1, 1)], 1)
            values = torch.min(*(critic(followed).flatten() for critic in target_critics))
            target = reward + discount * values
        taken = torch.cat([obs, action], 1)
        loss = sum(F.mse_loss(critic(taken).flatten(), target) for critic in self.critics)
        step(self.critic_optimizer, loss)
        if self.updates % POLICY_PERIOD == 0:
            step(self.actor_optimizer, -self.critics[0](torch.cat([obs, self.actor(obs)], 1)).mean())
            for old, new in zip(
                self.targets.parameters(), [*self.actor.parameters(), *self.critics.parameters()], strict=True
            ):
                old.data.copy_(POLYAK * new.data + (1 - POLYAK) * old.data)


def step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    torch.set_num_threads(settings.threads)
    envs, rng = make_envs(settings), np.random.default_rng(1)
    action_size = envs.single_action_space.shape[0]
    learner = Learner(envs.single_observation_space.shape[0], action_size, settings)
    replay, meter = Transitions(CAPACITY, settings), Meter(settings)
    obs, _ = envs.reset(seed=1)
    while meter.goes_on(learner.updates):
        with torch.no_grad():
            action = learner.actor(torch.as_tensor(obs).to(settings.device)).cpu().numpy()
        action = (action + rng.normal(0, NOISE, action.shape)).clip(-1, 1).astype(np.float32)
        next_obs, reward, terminated, _, infos = envs.step(action)
        discount = (DISCOUNT * (1 - terminated)).astype(np.float32)
        replay.add(obs, action, reward.astype(np.float32), discount, last_observations(next_obs, infos))
        obs = next_obs.copy()
        if replay.size >= settings.minimum:
            learner.update(replay.draw())
    meter.print_result()


if __name__ == "__main__":
    main()
