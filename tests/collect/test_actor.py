"""The actor's account of its slots."""

from __future__ import annotations

import torch

from paceline.collect.actor import Actor
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool import PoolConfig, make_pool
from tests.pool.multi_agent import LIVES, Mortal


def test_an_agent_that_comes_back_starts_anew():
    """Mistake 17: an agent that was out of the game has a fresh state when its environment restarts, in lock-step too,
    where a batch's arrays are the pool's own memory."""
    with make_pool(lambda: Mortal(0), PoolConfig(kind="serial", num_envs=2)) as pool:
        policy = ActorCritic(pool.spec, PolicyConfig(hidden=(8,), core=CoreConfig(kind="gru", hidden=8)))
        actor = Actor(policy, pool.spec, torch.device("cpu"))
        batch = pool.recv(min_slots=None)
        episode = max(LIVES.values())
        for step in range(1, 3 * episode + 1):
            decision = actor.decide(batch)
            pool.send(actor.env_actions(decision.actions), batch.slots)
            batch = pool.recv(min_slots=None)
            actor.observe(batch)
            if step % episode == 0:
                assert batch.active.all()
                assert actor.episode_start.all() and not actor.state.any()
