"""Bounds of D4PG's actions, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.errors import UsageError
from paceline.nets.config import ControlConfig, PolicyConfig
from paceline.nets.deterministic import make_networks
from paceline.nets.trunk import join
from paceline.pool.protocol import PoolSpec

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
CONFIG = ControlConfig(actor_hidden=(4,), critic_hidden=(4,))


def policy_of(actions: spaces.Space, obs: spaces.Space = OBS):
    return make_networks(PoolSpec(observation_space=obs, action_space=actions, num_envs=1), CONFIG, PolicyConfig())[0]


def test_actions_are_within_their_bounds_and_reach_them():
    """Random bounds with one decimal, which binary numbers only approximate. Pools clip those of float64."""
    rng = np.random.default_rng(0)
    low = (rng.integers(-50, 50, 300) / 10).astype(np.float32)
    box = spaces.Box(low, (low + rng.integers(1, 50, 300) / 10).astype(np.float32))
    policy, chosen = policy_of(box), torch.tensor([[-1.0], [1.0], [2.0], [0.3], [0.999999]]).expand(-1, 300)
    actions = policy.env_actions(chosen).numpy()
    assert all(box.contains(action) for action in actions)
    np.testing.assert_array_equal(actions[:3], [box.low, box.high, box.high])
    np.testing.assert_allclose(actions[3], box.low + 0.65 * (box.high - box.low), rtol=1e-5, atol=1e-5)


def test_the_widest_bounds_have_finite_actions():
    widest = float(np.finfo(np.float32).max)
    actions = policy_of(spaces.Box(-widest, widest, (2,), np.float32)).env_actions(torch.tensor([[0.0, 1.0]]))
    assert actions.tolist() == [[0.0, widest]]


def test_saved_weights_bring_no_bounds_with_them():
    """Neither the policy's bounds nor the environment's space change."""
    saved = policy_of(spaces.Box(-2.0, 2.0, (1,), np.float32)).state_dict()
    for state in (saved, {name: value for name, value in saved.items() if name not in ("low", "high")}):
        box = spaces.Box(-1.0, 0.5, (1,), np.float32)
        policy = policy_of(box)
        policy.load_state_dict(state)
        assert policy.env_actions(torch.tensor([[1.0]])).item() == 0.5
        assert box == spaces.Box(-1.0, 0.5, (1,), np.float32)


@pytest.mark.parametrize("dtype", [np.int8, np.int32])
def test_integer_actions_are_refused(dtype):
    with pytest.raises(UsageError, match=r"floating-point actions, got Box\(-100, 100, \(2,\), int.*allowed: a Box of"):
        policy_of(spaces.Box(-100, 100, (2,), dtype))


def test_single_numbers_and_empty_boxes_are_observations():
    """Beside others, and of no rows at all."""
    nothing = spaces.Box(-1.0, 1.0, (0,), np.float32)
    space = spaces.Dict(
        nothing=nothing, height=spaces.Box(-1.0, 1.0, (), np.float32), place=OBS, bits=spaces.MultiBinary(2)
    )
    leaves = PoolSpec(observation_space=space, action_space=OBS, num_envs=1).obs
    obs = {
        "height": torch.tensor([0.1, 0.2]),
        "place": torch.ones(2, 3),
        "nothing": torch.ones(2, 0),
        "bits": torch.zeros(2, 2),
    }
    assert join(obs, leaves).shape == (2, 6)
    assert join({name: values[:0] for name, values in obs.items()}, leaves).shape == (0, 6)
    assert policy_of(OBS, space)(obs).shape == (2, 3)
