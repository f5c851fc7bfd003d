"""Trains a whole policy of your own: a small network with a memory, for any vector of numbers.

python examples/own_policy.py [STEPS]
paceline train cartpole --policy.kind ./examples/own_policy.py:TracePolicy
"""

import sys

import torch
from torch import nn

import paceline as pl
from paceline.nets.heads import make_head


class TracePolicy(nn.Module):
    """Remembers a fading sum of what it saw. `paceline.nets.own_policy.PolicyModule` says what a policy needs."""

    def __init__(self, spec, config):
        super().__init__()
        self.state_size = 32  # numbers of memory; 0 for none
        self.encode = nn.Sequential(nn.Linear(spec.obs[0].shape[0], 32), nn.Tanh())
        self.join = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
        self.head = make_head(spec.actions, 64, config.head)  # the distribution of actions
        self.critic = nn.Linear(64, 1)

    def forward(self, obs, state):
        seen = self.encode(obs["obs"])  # [B, 32]
        after = 0.9 * state + 0.1 * seen  # [B, 32]; a state is zero when an episode begins
        features = self.join(torch.cat([seen, after], 1))
        return self.head(features), self.critic(features).squeeze(-1), after


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    run = pl.train("cartpole", steps=steps, policy={"kind": TracePolicy})
    policy = pl.load(run.folder)  # the run remembers where the class is
    print(f"{type(policy.network.own).__name__}: return {pl.evaluate(policy, episodes=20).episode_return}")
