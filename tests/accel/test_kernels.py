"""Kernels on a CPU change a policy's speed, and not its results."""

from __future__ import annotations

import contextlib
import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.accel.kernels import choose_cpu_kernels, keep_in_precision, one_thread
from paceline.learner.publication import Publication
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.nets.ppo_policy import Recall
from paceline.pool.protocol import PoolSpec
from paceline.process_settings import restored_settings


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_matrices_kept_in_bfloat16_give_the_same_decisions(core):
    """To the bit, after every publication. Last layers and everything that is not a matrix stay in float32."""
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


@pytest.mark.parametrize(
    "observation", [spaces.Box(-1, 1, (5,), np.float32), spaces.Box(0, 255, (3, 40, 40), np.uint8)]
)
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_chosen_kernels_give_the_same_results(observation, core):
    spec = PoolSpec(observation_space=observation, action_space=spaces.Discrete(3), num_envs=6)
    policy = ActorCritic(spec, PolicyConfig(encoder_size=16, core=CoreConfig(kind=core, hidden=8)))
    obs = {"obs": torch.from_numpy(np.stack([observation.sample() for _ in range(6)]))}
    actions, recall = {"action": torch.arange(6) % 3}, Recall(policy.initial_state(3), torch.tensor([3, 3]))

    def computed() -> list[torch.Tensor]:
        policy.zero_grad()
        found = policy.evaluate(obs, actions, recall if policy.is_recurrent else None)
        (found.value + found.log_prob).sum().backward()
        return [found.value, found.log_prob, *(values.grad.clone() for values in policy.parameters())]

    expected = computed()
    with restored_settings():
        choose_cpu_kernels(policy, threads=None, ranks=1)
        torch.testing.assert_close(computed(), expected, rtol=1e-4, atol=1e-5)


def test_one_thread_restores_the_number_of_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with contextlib.suppress(ZeroDivisionError), one_thread():
            assert torch.get_num_threads() == 1
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
