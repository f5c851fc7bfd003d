"""Updates on short batches that are filled up with rows of the batch before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.experience.layouts import Variable
from paceline.experience.rows import Decision, Outcome
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool.protocol import PoolSpec, StepBatch
from tests.experience.rollouts import Rollout

CPU = torch.device("cpu")
SLOTS, STEPS = 4, 5


def everybody() -> StepBatch:
    no = np.zeros(SLOTS, bool)
    return StepBatch(np.arange(SLOTS), {}, np.zeros(SLOTS), no, no, {}, ~no, no, np.zeros(SLOTS))


def collect(rollout: Rollout, turns: int, state_size: int) -> None:
    no = torch.zeros(SLOTS, dtype=torch.bool)
    for _ in range(turns):
        decision = Decision(
            obs={"obs": torch.randn(SLOTS, 3)},
            actions={"action": torch.randint(3, (SLOTS,))},
            log_prob=-torch.rand(SLOTS),
            value=torch.randn(SLOTS),
            state=torch.randn(SLOTS, state_size),
            episode_start=no,
            active=~no,
            version=torch.tensor(0),
        )
        rollout.begin(decision, everybody())
        rollout.complete(Outcome(reward=torch.randn(SLOTS), terminated=no, truncated=no, lost=no), everybody())
    rollout.finish(torch.zeros(SLOTS), discount=0.9, trace_decay=0.9)


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("turns", [0, 2])
@pytest.mark.parametrize("normalize", [True, False])
def test_weights_stay_finite_and_new_rows_alone_are_counted(core, turns, normalize):
    """Mistake 10, and a rank that collected no step."""
    torch.manual_seed(1)
    observation, action = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)
    spec = PoolSpec(observation_space=observation, action_space=action, num_envs=SLOTS)
    policy = ActorCritic(spec, PolicyConfig(hidden=(8,), core=CoreConfig(kind=core, hidden=8)))
    config = PPOConfig(epochs=1, minibatches=2, normalize_advantage=normalize)
    learner = PPOLearner(policy, Group(RankInfo(), CPU, None), config, OptimizerConfig())
    rollout = Rollout(STEPS, SLOTS, CPU, layout=Variable(STEPS, SLOTS, weighted=True), weighted=True)
    collect(rollout, STEPS, policy.core.state_size)
    learner.update(rollout, 0.0)
    rollout.clear()
    collect(rollout, turns, policy.core.state_size)
    assert int(rollout.valid.sum()) == turns * SLOTS
    assert rollout.stale is not None and int(rollout.stale.sum()) == (STEPS - turns) * SLOTS
    before = {name: value.clone() for name, value in policy.named_parameters()}
    losses = learner.update(rollout, 0.0)
    assert all(np.isfinite(value) for value in losses.values())
    assert all(torch.isfinite(value).all() for value in policy.parameters())
    assert any(not torch.equal(value, before[name]) for name, value in policy.named_parameters())
    step = max((value - before[name]).abs().max().item() for name, value in policy.named_parameters())
    assert step < 10 * OptimizerConfig().learning_rate, "no advantage was blown up"
