"""The layers that give values and actions compute in float32, whatever the precision of the layers before them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn import functional

from paceline.accel.config import ComputeConfig
from paceline.accel.kernels import keep_in_precision
from paceline.collect.inference import Inference
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import ControlConfig, CoreConfig, PolicyConfig, ValueConfig
from paceline.nets.deterministic import ActionCritic
from paceline.nets.heads import ActionHead
from paceline.nets.ppo_policy import Recall
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import leaves

ROWS = 512
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
]


def make(core: str = "none", critic: str = "shared", device: str = "cpu") -> tuple[ActorCritic, dict, torch.Tensor]:
    """A bfloat16 policy whose values and actions are near 100, with observations and states."""
    torch.manual_seed(0)
    spec = PoolSpec(
        observation_space=spaces.Box(-1, 1, (6,), np.float32),
        action_space=spaces.Box(-200, 200, (2,), np.float32),
        num_envs=ROWS,
    )
    config = PolicyConfig(hidden=(16,), critic=critic, core=CoreConfig(kind=core, hidden=16))
    policy = ActorCritic(spec, config).to(device)
    policy.precision = torch.bfloat16
    with torch.no_grad():
        policy.critic.bias.fill_(100.0)
        policy.head.linear.weight.mul_(100.0)  # a new policy's are close to 0
        policy.head.linear.bias.fill_(100.0)
    obs = {"obs": torch.randn(ROWS, 6, device=device)}
    return policy, obs, 0.5 * torch.randn(ROWS, policy.core.state_size, device=device)


def expect_float32(layer: torch.nn.Linear, features: torch.Tensor, found: torch.Tensor) -> None:
    """`found` is the layer's float32 output for these features (TF32 on a GPU that is set to it)."""
    expected = functional.linear(features.double(), layer.weight.double(), layer.bias.double())
    torch.testing.assert_close(found.double(), expected.view_as(found), rtol=0, atol=2e-3 if found.is_cuda else 5e-5)


def seen_by(layer: torch.nn.Module) -> list[torch.Tensor]:
    """The layer's inputs from now on."""
    inputs: list[torch.Tensor] = []
    layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0].detach()))
    return inputs


@torch.no_grad()
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("core", "critic"), [("none", "shared"), ("none", "separate"), ("lstm", "shared")])
def test_values_and_actions_of_a_bfloat16_policy_are_computed_in_float32(core, critic, device):
    policy, obs, state = make(core, critic, device)
    to_critic, to_head = seen_by(policy.critic), seen_by(policy.head.linear)
    params, value, _ = policy.act(obs, state)
    assert params.dtype == value.dtype == torch.float32
    assert len(value.unique()) > 0.9 * ROWS, "values near 100 came in steps of 0.5"
    assert len(params[:, 0].unique()) > 0.9 * ROWS
    expect_float32(policy.critic, to_critic[0], value)
    expect_float32(policy.head.linear, to_head[0], params[:, :2])
    assert len(policy.value(obs, state).unique()) > 0.9 * ROWS


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_bfloat16_policy_evaluates_rows_in_float32(core):
    policy, obs, state = make(core)
    to_critic = seen_by(policy.critic)
    starts = torch.zeros(1, ROWS, dtype=torch.bool)
    recall = Recall(state, episode_start=starts) if policy.is_recurrent else None
    found = policy.evaluate(obs, {"action": torch.zeros(ROWS, 2)}, recall)
    assert found.features.dtype == torch.bfloat16, "the trunk did not compute in bfloat16"
    assert len(found.value.unique()) > 0.9 * ROWS
    expect_float32(policy.critic, to_critic[0], found.value)
    found.value.sum().backward()
    assert policy.critic.weight.grad is not None and policy.critic.weight.grad.dtype == torch.float32


@torch.no_grad()
def test_copies_that_keep_matrices_in_bfloat16_keep_last_layers_in_float32():
    policy, obs, state = make()
    acting = copy.deepcopy(policy)
    keep_in_precision(acting)
    chosen = Inference(acting, ROWS, torch.device("cpu"), ComputeConfig())(obs, state)
    torch.testing.assert_close(chosen.value, policy.act(obs, state)[1], rtol=0, atol=0)
    assert len(chosen.value.unique()) > 0.9 * ROWS


@torch.no_grad()
def test_an_action_head_computes_in_float32_under_autocast():
    head = ActionHead(leaves(spaces.Discrete(4), "action"), 16)
    features = torch.randn(ROWS, 16, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = head(features)
    assert torch.equal(found, head(features.float()))


@torch.no_grad()
def test_returns_of_d4pg_in_bfloat16_are_computed_in_float32():
    spec = PoolSpec(
        observation_space=spaces.Box(-1, 1, (6,), np.float32),
        action_space=spaces.Box(-1, 1, (2,), np.float32),
        num_envs=ROWS,
    )
    critic = ActionCritic(spec, ControlConfig(critic_hidden=(16, 16), value=ValueConfig(kind="scalar")))
    critic.torso.precision = torch.bfloat16
    torch.nn.init.normal_(critic.last.weight)
    critic.last.bias.fill_(100.0)
    to_last = seen_by(critic.last)
    found = critic.head.mean(critic({"obs": torch.randn(ROWS, 6)}, torch.rand(ROWS, 2)))
    assert found.dtype == torch.float32 and len(found.unique()) > 0.9 * ROWS
    expect_float32(critic.last, to_last[0], found)
