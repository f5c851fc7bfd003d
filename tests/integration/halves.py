"""One update on fixed data, of which every rank of a group has its share of the slots."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces

from paceline.distributed.reduce import synchronize
from paceline.distributed.runtime import Group
from paceline.experience.rows import Decision, Outcome
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool.protocol import PoolSpec
from tests.experience.rollouts import Rollout

SLOTS, TURNS = 8, 5


def update_with_my_half(group: Group) -> dict:
    torch.manual_seed(group.rank)  # ranks start with different weights: synchronize has to mend that
    spec = PoolSpec(
        observation_space=spaces.Box(-1, 1, (3,), np.float32), action_space=spaces.Discrete(3), num_envs=SLOTS
    )
    config = PolicyConfig(hidden=(8,), core=CoreConfig(kind="lstm", hidden=8), normalize_obs=True)
    policy = ActorCritic(spec, config)
    synchronize(policy, group)
    mine = slice(SLOTS // group.size * group.rank, SLOTS // group.size * (group.rank + 1))
    data = torch.Generator().manual_seed(5)
    rollout = Rollout(TURNS, SLOTS // group.size, torch.device("cpu"))
    for turn in range(TURNS):
        everything = {
            "obs": torch.randn(SLOTS, 3, generator=data),
            "action": torch.randint(3, (SLOTS,), generator=data),
            "log_prob": -torch.rand(SLOTS, generator=data),
            "value": torch.randn(SLOTS, generator=data),
            "state": torch.randn(SLOTS, policy.core.state_size, generator=data),
            "reward": torch.randn(SLOTS, generator=data),
            "terminated": torch.rand(SLOTS, generator=data) < 0.2,
        }
        part = {name: values[mine] for name, values in everything.items()}
        start = torch.full_like(part["terminated"], turn == 0)
        rollout.begin(
            Decision(
                obs={"obs": part["obs"]},
                actions={"action": part["action"]},
                log_prob=part["log_prob"],
                value=part["value"],
                state=part["state"],
                episode_start=start,
                active=torch.ones_like(start),
                version=policy.version.clone(),
            )
        )
        never = torch.zeros_like(start)
        rollout.complete(Outcome(reward=part["reward"], terminated=part["terminated"], truncated=never, lost=never))
    rollout.finish(torch.zeros(SLOTS // group.size), discount=0.99, trace_decay=0.95)
    ppo = PPOConfig(epochs=2, minibatches=1, normalize_advantage=True)
    learner = PPOLearner(policy, group, ppo, OptimizerConfig(learning_rate=1e-2))
    losses = learner.update(rollout, 0.0)
    policy.absorb(rollout.obs, rollout.valid_rows(), group)
    return {"weights": {name: value.clone() for name, value in policy.state_dict().items()}, "losses": losses}
