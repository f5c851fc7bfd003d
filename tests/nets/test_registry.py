"""Parts of networks by name: the known ones, and classes of the user's own."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.accel.perceptron import Perceptron
from paceline.config import Config
from paceline.errors import UsageError
from paceline.evaluation.evaluate import evaluate
from paceline.nets import config as names
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import ControlConfig, CoreConfig, HeadConfig, PolicyConfig, ValueConfig, named_classes
from paceline.nets.deterministic import ActionCritic, DeterministicPolicy
from paceline.nets.layers import ACTIVATIONS
from paceline.nets.ppo_policy import Recall
from paceline.nets.trunk import ENCODERS
from paceline.nets.value_heads import make_value_head
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import PoolSpec
from paceline.session import train

OWN = "tests.nets.own_parts"
IMAGE, NUMBERS = spaces.Box(0, 255, (3, 8, 8), np.uint8), spaces.Box(-1, 1, (4,), np.float32)


def policy_of(observation: spaces.Space = NUMBERS, **options) -> ActorCritic:
    spec = PoolSpec(observation_space=observation, action_space=spaces.Discrete(3), num_envs=2)
    return ActorCritic(spec, PolicyConfig(**options))


def test_every_known_name_is_there():
    """The settings list names without PyTorch; this is what they stand for."""
    assert tuple(ENCODERS) == names.ENCODERS and tuple(ACTIVATIONS) == names.ACTIVATIONS
    for kind in names.VALUE_HEADS:
        make_value_head(ValueConfig(kind=kind))
    for kind in names.CORES:
        policy_of(core=CoreConfig(kind=kind, hidden=4))


def test_settings_are_checked_without_pytorch():
    program = (
        "import sys; from paceline.nets.config import *; PolicyConfig(encoder='no.such.module:Encoder'); "
        "assert 'torch' not in sys.modules and 'no' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: PolicyConfig(encoder="natur"), "policy.encoder 'natur' does not exist; allowed: patches, nature,"),
        (lambda: PolicyConfig(encoder="my.module:"), "or package.module:Class for your own"),
        (lambda: PolicyConfig(encoder="my module:Class"), "does not exist"),
        (lambda: PolicyConfig(activation="gelu"), "policy.activation 'gelu' does not exist; allowed: tanh, relu, elu"),
        (lambda: CoreConfig(kind="rnn"), "core.kind 'rnn' does not exist; allowed: none, lstm, gru"),
        (lambda: HeadConfig(kind="other"), "head.kind 'other' does not exist; allowed: independent"),
        (lambda: ValueConfig(kind="other"), "value.kind 'other' does not exist; allowed: categorical, mixture, scalar"),
        (lambda: ControlConfig(activation="gelu"), "control.activation 'gelu' does not exist"),
    ],
)
def test_unknown_names_are_refused_with_those_that_are_allowed(make, said):
    with pytest.raises(UsageError, match=said):
        make()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"encoder": f"{OWN}:Unfinished"},
            "policy.encoder .*:Unfinished lacks forward, out_features; an encoder needs",
        ),
        ({"encoder": f"{OWN}:Needy"}, r"cannot be called \(.*\); an encoder takes \(leaf_shape, \*, hidden\)"),
        ({"encoder": f"{OWN}:not_a_module"}, "makes a int; allowed: an encoder that is an nn.Module"),
        ({"encoder": f"{OWN}:Missing"}, f"module '{OWN}' has no 'Missing'"),
        ({"encoder": "no_such_package.nets:Encoder"}, "No module named 'no_such_package'\\); it is looked for in"),
        ({"core": CoreConfig(kind=f"{OWN}:Unfinished")}, "policy.core.kind .* lacks out_features, state_size, step"),
        ({"head": HeadConfig(kind=f"{OWN}:Encoder")}, "policy.head.kind .* cannot be called"),
        ({"head": HeadConfig(kind=f"{OWN}:Unfinished")}, "lacks forward, max_entropy, sample, mode, log_prob"),
        ({"encoder": f"{OWN}:FlatEncoder"}, r"gives features of shape \[32\] for 4 rows; allowed: \[4, 8\]"),
        ({"core": CoreConfig(kind=f"{OWN}:OutputCore")}, "gives a Tensor; allowed: the output and the state"),
        ({"core": CoreConfig(kind=f"{OWN}:EagerCore")}, r"cannot be called .*; step takes \(features, state\)"),
        ({"head": HeadConfig(kind=f"{OWN}:WideHead")}, r"gives log-probabilities of shape \[4, 1\] for 4 rows"),
        ({"head": HeadConfig(kind=f"{OWN}:NamelessHead")}, r"samples \['move'\]; allowed: a dict with \['action'\]"),
    ],
)
def test_classes_that_do_not_fit_are_refused_with_what_they_lack(options, said):
    with pytest.raises(UsageError, match=said):
        policy_of(IMAGE, **({"encoder": "patches", "encoder_size": 8} | options))


def test_a_core_with_nothing_but_steps_goes_through_sequences_and_columns():
    torch.manual_seed(0)
    policy = policy_of(core=CoreConfig(kind=f"{OWN}:Core", hidden=5), head=HeadConfig(kind=f"{OWN}:Head"))
    assert policy.is_recurrent and policy.initial_state(2).shape == (2, 5)
    assert not Perceptron.suits(policy, torch.device("cpu"))
    obs, actions, state = torch.randn(6, 4), {"action": torch.randint(3, (6,))}, torch.randn(2, 5)
    starts = torch.zeros(3, 2, dtype=torch.bool)
    starts[1, 1] = True
    values, after = [], state
    for step in range(3):
        after = torch.where(starts[step][:, None], 0.0, after)
        _, value, after = policy.act({"obs": obs[2 * step : 2 * step + 2]}, after)
        values.append(value)
    columns = policy.evaluate({"obs": obs}, actions, Recall(state, episode_start=starts))
    torch.testing.assert_close(columns.value, torch.cat(values))
    packed = policy.evaluate(
        {"obs": obs[:5]}, {"action": actions["action"][:5]}, Recall(state, torch.tensor([2, 2, 1]))
    )
    starts[1, 1] = False
    whole = policy.evaluate({"obs": obs}, actions, Recall(state, episode_start=starts))
    torch.testing.assert_close(packed.value, whole.value[:5])
    packed.value.sum().backward()
    assert policy.core.mix.weight.grad is not None


def test_activations_and_value_heads_of_ones_own():
    spec = PoolSpec(observation_space=NUMBERS, action_space=spaces.Box(-1, 1, (2,), np.float32), num_envs=1)
    config = ControlConfig(activation="torch.nn:GELU", value=ValueConfig(kind=f"{OWN}:Value"))
    policy, critic = DeterministicPolicy(spec, config), ActionCritic(spec, config)
    assert any(isinstance(module, torch.nn.GELU) for module in policy.modules())
    obs = {"obs": torch.randn(3, 4)}
    assert critic.head.mean(critic(obs, policy(obs))).shape == (3,)
    assert not Perceptron.suits(policy_of(activation="torch.nn:GELU"), torch.device("cpu"))
    assert list(named_classes(PolicyConfig(), config)) == ["control.activation", "control.value.kind"]


@pytest.fixture(scope="module")
def own_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "own"
    policy = PolicyConfig(
        encoder=f"{OWN}:Encoder",
        encoder_size=8,
        activation="torch.nn:GELU",
        core=CoreConfig(kind=f"{OWN}:Core", hidden=6),
        head=HeadConfig(kind=f"{OWN}:Head"),
    )
    config = Config(
        env="synthetic:constant?mean=0&obs=3x8x8",
        steps=256,
        rollout_steps=16,
        device="cpu",
        pool=PoolConfig(kind="serial", num_envs=8),
        policy=policy,
    )
    train(config, folder)
    return folder


def test_runs_train_and_are_evaluated_with_them(own_run):
    saved = json.loads((own_run / "config.json").read_text())
    assert saved["policy"]["encoder"] == f"{OWN}:Encoder" and Config.load(own_run / "config.json").policy.hidden
    assert evaluate(own_run, episodes=2)["episodes"] == 2


def test_a_module_that_is_missing_is_said_in_one_line(own_run, monkeypatch):
    monkeypatch.setitem(sys.modules, OWN, None)
    with pytest.raises(
        UsageError, match=f"module .* of 'policy.encoder {OWN}:Encoder' does not exist.*: start in its folder"
    ) as raised:
        evaluate(own_run, episodes=2)
    assert len(str(raised.value).splitlines()) == 1
