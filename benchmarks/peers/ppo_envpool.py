"""PPO over EnvPool in one file, in the style of CleanRL's scripts: the peer of `benchmarks.ppo`.

`python -m benchmarks.peers.ppo_envpool '{"task": "CartPole-v1", ...}'` prints one JSON object with its steps per
second. Lock-step environments, torch.distributions, a loop over time for returns and for the LSTM, plain Adam. It has
no prints, logging or wrappers around the environments that would slow it down.
"""

from __future__ import annotations

import json
import sys
import time

import envpool
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Normal


def layer(module: nn.Module, gain: float = np.sqrt(2), bias: float = 0.0) -> nn.Module:
    nn.init.orthogonal_(module.weight, gain)
    nn.init.constant_(module.bias, bias)
    return module


class Agent(nn.Module):
    def __init__(self, obs_shape: tuple[int, ...], num_actions: int, continuous: bool, hidden: int, lstm: int) -> None:
        super().__init__()
        self.image = len(obs_shape) == 3
        self.continuous = continuous
        if self.image:
            self.network = nn.Sequential(
                layer(nn.Conv2d(obs_shape[0], 32, 8, stride=4)),
                nn.ReLU(),
                layer(nn.Conv2d(32, 64, 4, stride=2)),
                nn.ReLU(),
                layer(nn.Conv2d(64, 64, 3, stride=1)),
                nn.ReLU(),
                nn.Flatten(),
                layer(nn.Linear(64 * 7 * 7, 512)),
                nn.ReLU(),
            )
            features = 512
        else:
            features = hidden
            self.network = nn.Sequential(
                layer(nn.Linear(obs_shape[0], hidden)), nn.Tanh(), layer(nn.Linear(hidden, hidden)), nn.Tanh()
            )
        self.lstm = nn.LSTM(features, lstm) if lstm else None
        if self.lstm is not None:
            features = lstm
            for name, parameter in self.lstm.named_parameters():
                if "bias" in name:
                    nn.init.constant_(parameter, 0)
                else:
                    nn.init.orthogonal_(parameter, 1.0)
        self.actor = layer(nn.Linear(features, num_actions), 0.01)
        self.critic = layer(nn.Linear(features, 1), 1.0)
        if continuous:
            self.log_std = nn.Parameter(torch.zeros(1, num_actions))

    def states(self, x, state, done):
        hidden = self.network(x / 255.0 if self.image else x)
        if self.lstm is None:
            return hidden, state
        num_envs = state[0].shape[1]
        hidden = hidden.reshape((-1, num_envs, self.lstm.input_size))
        done = done.reshape((-1, num_envs))
        outs = []
        for h, d in zip(hidden, done, strict=True):
            keep = (1.0 - d).view(1, -1, 1)
            h, state = self.lstm(h.unsqueeze(0), (keep * state[0], keep * state[1]))
            outs.append(h)
        return torch.flatten(torch.cat(outs), 0, 1), state

    def value(self, x, state, done):
        return self.critic(self.states(x, state, done)[0])

    def act(self, x, state, done, action=None):
        hidden, state = self.states(x, state, done)
        mean = self.actor(hidden)
        if self.continuous:
            dist = Normal(mean, torch.exp(self.log_std.expand_as(mean)))
            action = dist.sample() if action is None else action
            return action, dist.log_prob(action).sum(1), dist.entropy().sum(1), self.critic(hidden), state
        dist = Categorical(logits=mean)
        action = dist.sample() if action is None else action
        return action, dist.log_prob(action), dist.entropy(), self.critic(hidden), state


def main() -> None:
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["threads"])
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    num_envs, steps, count = options["num_envs"], options["rollout_steps"], options["minibatches"]
    envs = envpool.make(options["task"], env_type="gymnasium", num_envs=num_envs, seed=1)
    space = envs.action_space
    continuous = hasattr(space, "low") and not hasattr(space, "n")
    shape = envs.observation_space.shape
    agent = Agent(shape, space.shape[0] if continuous else space.n, continuous, options["hidden"], options["lstm"])
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    obs = torch.zeros((steps, num_envs, *shape))
    actions = torch.zeros((steps, num_envs, *(space.shape if continuous else ())))
    logprobs, rewards, dones, values = (torch.zeros((steps, num_envs)) for _ in range(4))
    next_obs = torch.Tensor(envs.reset()[0])
    next_done = torch.zeros(num_envs)
    size = options["lstm"]
    state = (torch.zeros(1, num_envs, size), torch.zeros(1, num_envs, size)) if size else None
    marks = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < options["seconds"] or len(marks) < 3:
        initial = (state[0].clone(), state[1].clone()) if state else None
        for step in range(steps):
            obs[step] = next_obs
            dones[step] = next_done
            with torch.no_grad():
                action, logprob, _, value, state = agent.act(next_obs, state, next_done)
                values[step] = value.flatten()
            actions[step] = action
            logprobs[step] = logprob
            send = action.numpy()
            if continuous:
                send = np.clip(send, space.low, space.high).astype(space.dtype)
            observed, reward, terminated, truncated, _ = envs.step(send)
            rewards[step] = torch.tensor(reward).view(-1)
            next_obs, next_done = torch.Tensor(observed), torch.Tensor(np.logical_or(terminated, truncated))
        with torch.no_grad():
            next_value = agent.value(next_obs, state, next_done).reshape(1, -1)
            advantages = torch.zeros_like(rewards)
            last = 0
            for t in reversed(range(steps)):
                alive = 1.0 - (next_done if t == steps - 1 else dones[t + 1])
                following = next_value if t == steps - 1 else values[t + 1]
                delta = rewards[t] + 0.99 * following * alive - values[t]
                advantages[t] = last = delta + 0.99 * 0.95 * alive * last
            returns = advantages + values
        flat = {
            "obs": obs.reshape((-1, *shape)),
            "actions": actions.reshape((-1, *actions.shape[2:])),
            "logprobs": logprobs.reshape(-1),
            "dones": dones.reshape(-1),
            "advantages": advantages.reshape(-1),
            "returns": returns.reshape(-1),
            "values": values.reshape(-1),
        }
        columns = np.arange(num_envs * steps).reshape(steps, num_envs)
        for _ in range(options["epochs"]):
            if state:
                order = rng.permutation(num_envs)
                parts = [columns[:, part] for part in np.array_split(order, count)]
                chunks = [(p.ravel(), (initial[0][:, p[0]], initial[1][:, p[0]])) for p in parts]
            else:
                order = rng.permutation(num_envs * steps)
                chunks = [(part, None) for part in np.array_split(order, count)]
            for rows, first in chunks:
                taken = flat["actions"][rows] if continuous else flat["actions"].long()[rows]
                _, logprob, entropy, value, _ = agent.act(flat["obs"][rows], first, flat["dones"][rows], taken)
                ratio = (logprob - flat["logprobs"][rows]).exp()
                advantage = flat["advantages"][rows]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 0.8, 1.2)).mean()
                value_loss = 0.5 * ((value.view(-1) - flat["returns"][rows]) ** 2).mean()
                loss = policy_loss - 0.01 * entropy.mean() + 0.5 * value_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        marks.append(time.perf_counter())
    rate = (len(marks) - 1) * steps * num_envs / (marks[-1] - marks[0])
    print("RESULT " + json.dumps({"steps_per_second": rate}), flush=True)


if __name__ == "__main__":
    main()
