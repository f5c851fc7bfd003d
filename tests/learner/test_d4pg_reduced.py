"""D4PG's networks with a reduced observation: the networks of parkour."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn import functional as F

from paceline.config import Config
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.experience.replay import Drawn
from paceline.learner.config import D4PGConfig
from paceline.learner.d4pg import D4PGLearner
from paceline.nets.config import ControlConfig, PlannerConfig, PolicyConfig, ValueConfig
from paceline.nets.deterministic import control_parts, make_networks
from paceline.nets.parts import freeze
from paceline.nets.trunk import Trunk
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import leaves
from paceline.resume import require_same_network

ROWS = 8
SIZES = {"proprioception": 3, "terrain": 20}
SPEC = PoolSpec(
    observation_space=spaces.Dict({name: spaces.Box(-1, 1, (size,)) for name, size in SIZES.items()}),
    action_space=spaces.Box(-1, 1, (2,)),
    num_envs=1,
)
REDUCED = PolicyConfig(reduced=("terrain",), reduced_hidden=(6, 4))
CONTROL = ControlConfig(actor_hidden=(16,), critic_hidden=(16,), value=ValueConfig(kind="scalar"))


def observations() -> dict[str, torch.Tensor]:
    return {name: torch.randn(ROWS, size) for name, size in SIZES.items()}


def drawn() -> Drawn:
    rows = {"action": torch.rand(ROWS, 2), "reward": torch.randn(ROWS), "discount": torch.full((ROWS,), 0.9)}
    for side in ("obs", "next_obs"):
        rows |= {f"{side}/{name}": values for name, values in observations().items()}
    places = torch.arange(ROWS)
    return Drawn(rows=rows, places=places, numbers=places, weight=torch.rand(ROWS))


def test_the_terrain_is_reduced_and_joined_with_the_rest():
    policy, critic = make_networks(SPEC, CONTROL, REDUCED)
    obs = observations()
    first, _, second, _ = policy.encoder.trunk.vectors.embeddings[1]
    features = torch.cat([obs["proprioception"], F.elu(second(F.elu(first(obs["terrain"]))))], 1)
    torch.testing.assert_close(policy.encoder(obs), features)
    torch.testing.assert_close(policy(obs), policy(features))
    assert policy.torso.layers[0].in_features == 7 and critic.torso.layers[0].in_features == 9


def test_the_critic_trains_the_layers_of_the_terrain():
    torch.manual_seed(0)
    policy, critic = make_networks(SPEC, CONTROL, REDUCED)
    learner = D4PGLearner(policy, critic, Group(RankInfo(), torch.device("cpu"), None), D4PGConfig())
    before = {name: values.clone() for name, values in critic.encoder.state_dict().items()}
    learner.update(drawn())
    for name, values in critic.encoder.state_dict().items():
        assert not torch.equal(values, before[name])
        assert torch.equal(values, policy.encoder.state_dict()[name])


def test_a_frozen_encoder_contains_the_layers_of_the_terrain():
    policy, critic = make_networks(SPEC, CONTROL, REDUCED)
    networks = torch.nn.ModuleDict({"policy": policy, "critic": critic})
    freeze(networks, control_parts(policy), ["encoder"])
    assert not any(values.requires_grad for values in policy.encoder.parameters())


def test_a_resumed_run_keeps_the_layers_of_the_terrain(tmp_path):
    saved, wanted = (Config(system="d4pg", policy=policy) for policy in (REDUCED, PolicyConfig()))
    with pytest.raises(UsageError, match=r"policy\.reduced \(\) instead of \('terrain',\)"):
        require_same_network(saved, wanted, tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: make_networks(SPEC, CONTROL, PolicyConfig(reduced=("terain",))),
            "'terain' is no observation, or an image, did you mean 'terrain'.*allowed: proprioception, terrain",
        ),
        (
            lambda: Trunk(leaves(spaces.Box(0, 255, (3, 64, 64), np.uint8), "obs"), PolicyConfig(reduced=("obs",))),
            "'obs' is no observation, or an image; allowed: none",
        ),
        (lambda: PolicyConfig(reduced_hidden=()), "reduced_hidden must be at least one layer"),
        (lambda: PolicyConfig(reduced=("a",), planner=PlannerConfig(kind="lstm")), "allowed: policy.planner.kind none"),
    ],
)
def test_wrong_settings_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
