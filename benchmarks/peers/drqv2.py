"""DrQ-v2 in one file, written after its paper for this comparison: random shifts, two critics, and 3-step returns.

`python -m benchmarks.peers.drqv2 '{"env": "...", ...}'` prints steps and updates per second. The encoder, the sizes of
the networks and the numbers are the paper's. Transitions store both stacks of frames.
"""

from __future__ import annotations

import copy
import json
import sys
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from .control_loop import Meter, Settings, Transitions, last_observations, make_envs
from .td3 import step

CAPACITY, DISCOUNT, POLYAK, RATE = 20_000, 0.99, 0.01, 1e-4
STEPS, PADDING, FEATURES, NOISE, NOISE_CLIP = 3, 4, 50, 0.2, 0.3


def random_shift(images: torch.Tensor) -> torch.Tensor:
    """Each image shifted by up to four pixels, with the border repeated."""
    count, _, height, width = images.shape
    padded = F.pad(images.float(), (PADDING,) * 4, mode="replicate")
    rows = torch.randint(2 * PADDING + 1, (count, 1), device=images.device) + torch.arange(height, device=images.device)
    columns = torch.randint(2 * PADDING + 1, (count, 1), device=images.device) + torch.arange(
        width, device=images.device
    )
    which = torch.arange(count, device=images.device)
    moved = padded.permute(0, 2, 3, 1)[which[:, None, None], rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2).contiguous()


class Encoder(nn.Module):
    """Four convolutions; only the first one has a stride."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, 32, 3, stride=2), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(32, 32, 3), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Flatten())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images / 255 - 0.5)


def head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(hidden, outputs))


def trunk(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, FEATURES), nn.LayerNorm(FEATURES), nn.Tanh())


class Critic(nn.Module):
    def __init__(self, inputs: int, action_size: int, hidden: int) -> None:
        super().__init__()
        self.trunk = trunk(inputs)
        self.heads = nn.ModuleList(head(FEATURES + action_size, hidden, 1) for _ in range(2))

    def forward(self, features: torch.Tensor, action: torch.Tensor) -> list[torch.Tensor]:
        known = torch.cat([self.trunk(features), action], 1)
        return [one(known).flatten() for one in self.heads]


class Learner:
    def __init__(self, shape: tuple[int, ...], action_size: int, settings: Settings) -> None:
        self.encoder = Encoder(shape[0]).to(settings.device)
        inputs = self.encoder(torch.zeros(1, *shape, device=settings.device)).shape[1]
        actor = nn.Sequential(trunk(inputs), head(FEATURES, settings.hidden, action_size), nn.Tanh())
        self.actor = actor.to(settings.device)
        self.critic = Critic(inputs, action_size, settings.hidden).to(settings.device)
        self.target = copy.deepcopy(self.critic)
        critic_side = [*self.encoder.parameters(), *self.critic.parameters()]
        self.critic_optimizer = torch.optim.Adam(critic_side, lr=RATE)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=RATE)
        self.updates = 0

    def act(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            action = self.actor(self.encoder(images))
            return (action + NOISE * torch.randn_like(action)).clamp(-1, 1)

    def update(self, batch: list[torch.Tensor]) -> None:
        obs, action, reward, discount, next_obs = batch
        self.updates += 1
        features = self.encoder(random_shift(obs))
        with torch.no_grad():
            next_features = self.encoder(random_shift(next_obs))
            target = reward + discount * torch.min(*self.target(next_features, self._noisy(next_features)))
        loss = sum(F.mse_loss(value, target) for value in self.critic(features, action))
        step(self.critic_optimizer, loss)
        features = features.detach()
        step(self.actor_optimizer, -torch.min(*self.critic(features, self._noisy(features))).mean())
        for old, new in zip(self.target.parameters(), self.critic.parameters(), strict=True):
            old.data.copy_(POLYAK * new.data + (1 - POLYAK) * old.data)

    def _noisy(self, features: torch.Tensor) -> torch.Tensor:
        action = self.actor(features)
        noise = (NOISE * torch.randn_like(action)).clamp(-NOISE_CLIP, NOISE_CLIP)
        return (action + noise).clamp(-1, 1)


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    torch.set_num_threads(settings.threads)
    envs = make_envs(settings)
    learner = Learner(envs.single_observation_space.shape, envs.single_action_space.shape[0], settings)
    replay, meter = Transitions(CAPACITY, settings), Meter(settings)
    obs, _ = envs.reset(seed=1)
    latest: deque[tuple[np.ndarray, np.ndarray, np.ndarray]] = deque(maxlen=STEPS)
    while meter.goes_on(learner.updates):
        action = learner.act(torch.as_tensor(obs).to(settings.device)).cpu().numpy()
        next_obs, reward, terminated, truncated, infos = envs.step(action)
        latest.append((obs.copy(), action, reward.astype(np.float32)))
        if len(latest) == STEPS:
            returns = sum(DISCOUNT**index * rewards for index, (_, _, rewards) in enumerate(latest))
            discount = (DISCOUNT**STEPS * (1 - terminated)).astype(np.float32)
            first_obs, first_action, _ = latest[0]
            replay.add(first_obs, first_action, returns, discount, last_observations(next_obs, infos))
        if (terminated | truncated).any():  # all episodes have the same length
            latest.clear()
        obs = next_obs.copy()
        if replay.size >= settings.minimum:
            learner.update(replay.draw())
    meter.print_result()


if __name__ == "__main__":
    main()
