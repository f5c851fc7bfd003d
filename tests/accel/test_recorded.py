"""On a GPU, recorded decisions and simulators equal those that are not recorded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.collect.inference import RecordedChoice, choose
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool import PoolConfig, make_pool
from paceline.pool.protocol import PoolSpec

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@torch.no_grad()
def test_a_recorded_decision_sees_new_observations_states_and_weights():
    spec = PoolSpec(observation_space=spaces.Box(-1, 1, (3,), np.float32), action_space=spaces.Discrete(2), num_envs=8)
    policy = ActorCritic(spec, PolicyConfig(core=CoreConfig(kind="gru", hidden=4))).cuda()
    example = {"obs": torch.zeros(8, 3, device="cuda")}
    recorded = RecordedChoice(policy, example, torch.zeros(8, 4, device="cuda"), 8)
    kept = []
    for turn in range(8):
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        count = 8 if turn % 2 else 5
        obs, state = {"obs": torch.randn(count, 3, device="cuda")}, torch.randn(count, 4, device="cuda")
        expected, actual = choose(policy, obs, state), recorded(obs, state)
        torch.testing.assert_close(actual.value, expected.value)
        torch.testing.assert_close(actual.state, expected.state)
        params, _, _ = policy.act(obs, state)
        torch.testing.assert_close(actual.log_prob, policy.head.log_prob(params, actual.actions))
        kept.append((actual.value, expected.value))
    for actual_value, expected_value in kept:  # no later replay overwrites a result
        torch.testing.assert_close(actual_value, expected_value)


def test_a_recorded_simulator_equals_one_that_is_not_recorded():
    env = "pointnav:small?resolution=16&scenes=4&max_episode_steps=12"
    pools = [
        make_pool(env, PoolConfig(num_envs=32, cuda_graphs=graphs), seed=3, device="cuda") for graphs in (False, True)
    ]
    generator = torch.Generator("cuda").manual_seed(0)
    for _ in range(40):
        plain, recorded = (pool.recv(min_slots=None) for pool in pools)
        for name in ("reward", "terminated", "truncated"):
            torch.testing.assert_close(getattr(plain, name), getattr(recorded, name))
        for name, values in plain.obs.items():
            torch.testing.assert_close(values, recorded.obs[name])
        actions = torch.randint(0, 4, (32,), device="cuda", generator=generator)
        for pool, batch in zip(pools, (plain, recorded), strict=True):
            pool.send(actions, batch.slots)
    plain_episodes, recorded_episodes = (pool.take_episodes() for pool in pools)
    assert plain_episodes and plain_episodes == recorded_episodes


def test_two_recordings_on_two_streams_draw_different_numbers():
    """Each has its own generator. With the device's default generator concurrent replays draw the same numbers."""
    spec = PoolSpec(
        observation_space=spaces.Box(-1, 1, (4,), np.float32),
        action_space=spaces.Box(-9, 9, (3,), np.float32),
        num_envs=8,
    )
    policy = ActorCritic(spec, PolicyConfig(hidden=(8,))).cuda()
    obs, state = {"obs": torch.zeros(8, 4, device="cuda")}, policy.initial_state(8).cuda()
    numbers = [torch.Generator("cuda").manual_seed(seed) for seed in range(2)]
    recorded = [RecordedChoice(policy, obs, state, 8, generator) for generator in numbers]
    streams = [torch.cuda.Stream() for _ in recorded]
    drawn = []
    with torch.no_grad():
        for _ in range(50):
            for choose_recorded, stream in zip(recorded, streams, strict=True):
                with torch.cuda.stream(stream):
                    drawn.append(choose_recorded(obs, state).actions["action"])
    torch.cuda.synchronize()
    assert len(torch.stack(drawn[10:]).reshape(-1, 3).unique(dim=0)) == 8 * 90
