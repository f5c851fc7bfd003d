"""How a policy computes on a CPU changes its speed, and not what it says."""

from __future__ import annotations

import contextlib
import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.accel.kernels import keep_in_precision, one_thread
from paceline.learner.publication import Publication
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool.protocol import PoolSpec


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_matrices_kept_in_bfloat16_decide_as_those_that_are_converted(core):
    """To the bit, with the weights of every publication; last layers, and whatever is no matrix, stay as they are."""
    spec = PoolSpec(
        observation_space=spaces.Box(-1, 1, (5,), np.float32),
        action_space=spaces.Box(-1, 1, (2,), np.float32),
        num_envs=6,
    )
    layers = 1 if core == "none" else 2
    config = PolicyConfig(hidden=(8, 8), normalize_obs=True, core=CoreConfig(kind=core, hidden=8, layers=layers))
    policy = ActorCritic(spec, config)
    policy.precision = torch.bfloat16
    acting = copy.deepcopy(policy)
    publication = Publication(policy)
    keep_in_precision(acting)
    reader = publication.reader(acting)
    kinds = {name: values.dtype for name, values in acting.named_parameters()}
    last = {f"{layer}.{part}" for layer in ("critic", "head.linear") for part in ("weight", "bias")}
    assert {name for name, kind in kinds.items() if kind != torch.bfloat16} == {"head.families.0.log_std", *last}
    state = policy.initial_state(6)
    for _ in range(3):
        with torch.no_grad():
            for values in policy.parameters():
                values.add_(0.3 * torch.randn_like(values))
        publication.publish()
        reader.refresh()
        obs = {"obs": torch.randn(6, 5)}
        with torch.no_grad():
            expected, found = policy.act(obs, state), acting.act(obs, state)
        for theirs, ours in zip(expected, found, strict=True):
            assert ours.dtype == torch.float32 and torch.equal(ours, theirs)
        state = found[2]


def test_threads_come_back_after_work_for_one():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with contextlib.suppress(ZeroDivisionError), one_thread():
            assert torch.get_num_threads() == 1
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
