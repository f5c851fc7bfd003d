"""PPO for continuous control in one file, with the settings and the tricks of CleanRL's script for MuJoCo: the peer of
the `halfcheetah` recipe.

`python -m benchmarks.peers.ppo_continuous SEED [ENV] [STEPS]` prints one JSON object with the mean return of the last
100 episodes. One environment, 2048 steps, 10 epochs of 32 mini-batches, observations and rewards normalised and
clipped by Gymnasium's wrappers, learning rate falling linearly from 3e-4.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal


def layer(size_in: int, size_out: int, gain: float = np.sqrt(2)) -> nn.Linear:
    linear = nn.Linear(size_in, size_out)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def mlp(size_in: int, size_out: int, gain: float) -> nn.Sequential:
    return nn.Sequential(layer(size_in, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, size_out, gain))


def make(name: str) -> gym.Env:
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(name))
    env = gym.wrappers.ClipAction(env)
    env = gym.wrappers.NormalizeObservation(env)
    env = gym.wrappers.TransformObservation(env, lambda obs: np.clip(obs, -10, 10), env.observation_space)
    env = gym.wrappers.NormalizeReward(env, gamma=0.99)
    return gym.wrappers.TransformReward(env, lambda reward: np.clip(reward, -10, 10))


def main() -> None:
    seed = int(sys.argv[1])
    name = sys.argv[2] if len(sys.argv) > 2 else "HalfCheetah-v5"
    total = int(sys.argv[3]) if len(sys.argv) > 3 else 1_000_000
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    steps, count, epochs = 2048, 32, 10
    env = make(name)
    size, actions_size = env.observation_space.shape[0], env.action_space.shape[0]
    actor, critic = mlp(size, actions_size, 0.01), mlp(size, 1, 1.0)
    log_std = nn.Parameter(torch.zeros(1, actions_size))
    parameters = [*actor.parameters(), *critic.parameters(), log_std]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5)
    obs, actions = torch.zeros(steps, size), torch.zeros(steps, actions_size)
    logprobs, rewards, dones, values = (torch.zeros(steps) for _ in range(4))
    recent: deque[float] = deque(maxlen=100)
    next_obs, next_done = torch.Tensor(env.reset(seed=seed)[0]), 0.0
    begin = time.perf_counter()
    updates = total // steps
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = 3e-4 * (1 - update / updates)
        for step in range(steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                dist = Normal(actor(next_obs[None]), log_std.exp())
                action = dist.sample()
                values[step] = critic(next_obs[None]).squeeze()
            actions[step], logprobs[step] = action[0], dist.log_prob(action).sum()
            observed, reward, terminated, truncated, info = env.step(action[0].numpy())
            rewards[step] = float(reward)
            next_done = float(terminated or truncated)
            if next_done:
                recent.append(float(info["episode"]["r"]))
                observed, _ = env.reset()
            next_obs = torch.Tensor(observed)
        with torch.no_grad():
            advantages, last = torch.zeros(steps), 0.0
            following = critic(next_obs[None]).squeeze()
            for t in reversed(range(steps)):
                alive = 1.0 - (next_done if t == steps - 1 else dones[t + 1])
                delta = rewards[t] + 0.99 * (following if t == steps - 1 else values[t + 1]) * alive - values[t]
                advantages[t] = last = delta + 0.99 * 0.95 * alive * last
            returns = advantages + values
        for _ in range(epochs):
            for rows in np.array_split(rng.permutation(steps), count):
                dist = Normal(actor(obs[rows]), log_std.exp())
                ratio = (dist.log_prob(actions[rows]).sum(1) - logprobs[rows]).exp()
                advantage = advantages[rows]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
                value = critic(obs[rows]).view(-1)
                clipped = values[rows] + (value - values[rows]).clamp(-0.2, 0.2)
                errors = torch.max((value - returns[rows]) ** 2, (clipped - returns[rows]) ** 2)
                loss = policy_loss + 0.5 * 0.5 * errors.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
        if update % 48 == 47 and recent:
            about = {"seed": seed, "steps": (update + 1) * steps, "return": float(np.mean(recent))}
            print("PROGRESS " + json.dumps(about | {"seconds": time.perf_counter() - begin}), flush=True)
    seconds = time.perf_counter() - begin
    about = {"seed": seed, "steps": updates * steps, "return": float(np.mean(recent)), "seconds": seconds}
    print("RESULT " + json.dumps(about), flush=True)


if __name__ == "__main__":
    main()
