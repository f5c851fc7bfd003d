"""D4PG's update from images: one encoder, which only the critic trains."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.experience.replay import Drawn
from paceline.learner.augmentation import RandomShift
from paceline.learner.config import D4PGConfig
from paceline.learner.d4pg import D4PGLearner
from paceline.nets.config import ENCODERS, ControlConfig, PolicyConfig, ValueConfig
from paceline.nets.control_encoder import ControlEncoder
from paceline.nets.deterministic import ActionCritic, DeterministicPolicy, make_networks
from paceline.pool.protocol import PoolSpec

ROWS = 8
SPEC = PoolSpec(
    observation_space=spaces.Dict(
        {
            "choice": spaces.Discrete(3),
            "first": spaces.Box(0, 255, (3, 16, 24), np.uint8),
            "last": spaces.Box(0, 255, (16, 16, 3), np.uint8),
            "vector": spaces.Box(-1, 1, (5,), np.float32),
        }
    ),
    action_space=spaces.Box(-1, 1, (2,), np.float32),
    num_envs=1,
)
SMALL = PolicyConfig(encoder="patches", encoder_size=16)
CONTROL = ControlConfig(actor_hidden=(16,), critic_hidden=(16,), value=ValueConfig(kind="scalar"))


def make(**options) -> tuple[DeterministicPolicy, ActionCritic, D4PGLearner]:
    torch.manual_seed(0)
    policy, critic = make_networks(SPEC, CONTROL, SMALL)
    group = Group(RankInfo(), torch.device("cpu"), None)
    return policy, critic, D4PGLearner(policy, critic, group, D4PGConfig(**options))


def observations(rows: int = ROWS) -> dict[str, torch.Tensor]:
    return {
        "choice": torch.randint(3, (rows,)),
        "first": torch.randint(256, (rows, 3, 16, 24), dtype=torch.uint8),
        "last": torch.randint(256, (rows, 16, 16, 3), dtype=torch.uint8),
        "vector": torch.randn(rows, 5),
    }


def drawn() -> Drawn:
    rows = {"action": torch.rand(ROWS, 2), "reward": torch.randn(ROWS), "discount": torch.full((ROWS,), 0.9)}
    for side in ("obs", "next_obs"):
        rows |= {f"{side}/{name}": values for name, values in observations().items()}
    places = torch.arange(ROWS)
    return Drawn(rows=rows, places=places, numbers=places, weight=torch.rand(ROWS))


def copied(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: values.clone() for name, values in module.state_dict().items()}


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_encoder_of_images_fits(encoder):
    side = 16 if encoder == "patches" else 64
    space = spaces.Dict({"image": spaces.Box(0, 255, (side, side, 3), np.uint8), "vector": spaces.Box(-1, 1, (5,))})
    spec = PoolSpec(observation_space=space, action_space=SPEC.action_space, num_envs=1)
    policy, critic = make_networks(spec, CONTROL, PolicyConfig(encoder=encoder, encoder_size=16))
    seen = {"image": torch.zeros(2, side, side, 3, dtype=torch.uint8), "vector": torch.zeros(2, 5)}
    actions = policy(seen)
    assert actions.shape == (2, 2) and critic(seen, actions).shape == (2, 1)


def test_features_are_those_of_each_image_and_then_everything_else_as_it_is():
    encoder = ControlEncoder(SPEC.obs, SMALL)
    seen = observations()
    features = encoder(seen)
    assert features.shape == (ROWS, 16 + 16 + 3 + 5) == (ROWS, encoder.out_features)
    first, last = encoder.trunk.images
    torch.testing.assert_close(features[:, :16], first(seen["first"]))
    torch.testing.assert_close(features[:, 16:32], last(seen["last"].permute(0, 3, 1, 2)))
    torch.testing.assert_close(features[:, 32:35], torch.eye(3)[seen["choice"]])
    torch.testing.assert_close(features[:, 35:], seen["vector"])
    assert encoder(features) is features


def test_policy_and_critic_agree_on_features_and_on_observations():
    policy, critic, _ = make()
    seen = observations()
    features = policy.encoder(seen)
    assert torch.equal(policy(features), policy(seen))
    assert torch.equal(critic(features, policy(seen)), critic(seen, policy(seen)))


def test_the_critic_trains_the_encoder_and_the_policy_does_not():
    """A step of the policy alone leaves the encoder as it is; a step of the critic alone does not."""
    for rates, moves in (({"critic_rate": 1e-30}, False), ({"actor_rate": 1e-30}, True)):
        policy, critic, learner = make(**rates)
        before, actor = copied(policy.encoder), copied(policy.last)
        learner.update(drawn())
        assert policy.encoder is critic.encoder
        moved = [(values - before[name]).abs().max() for name, values in policy.encoder.state_dict().items()]
        assert min(moved) > 1e-6 if moves else max(moved) < 1e-20
        assert ((policy.last.weight - actor["weight"]).abs().max() > 1e-6) == (not moves)


def test_the_gradient_of_the_policys_loss_does_not_reach_the_encoder():
    policy, critic, learner = make()
    encoder = sum(values.numel() for values in policy.encoder.parameters())
    assert learner._policy.values.numel() == sum(values.numel() for values in policy.parameters()) - encoder
    assert learner._critic.values.numel() == sum(values.numel() for values in critic.parameters())
    for values in policy.parameters():
        values.grad.zero_()
    networks = learner._improve.args[0]
    _, surrogate = learner._surrogate(networks, learner._critic.encode(observations()).detach())
    surrogate.backward()
    assert all(not values.grad.any() for values in policy.encoder.parameters())
    assert policy.last.weight.grad.any()


def test_the_update_is_that_of_plain_pytorch():
    """Three updates: the critic's loss trains encoder and critic, the policy reads the features from before that step,
    and targets have an encoder of their own."""
    policy, critic, learner = make(max_action_gradient=None, target_period=2)
    plain_policy, plain_critic = copy.deepcopy((policy, critic))
    for parameter in (*plain_policy.parameters(), *plain_critic.parameters()):
        parameter.grad = None
    targets = copy.deepcopy((plain_policy, plain_critic))
    actor = [*plain_policy.torso.parameters(), *plain_policy.last.parameters()]
    optimizers = torch.optim.Adam(plain_critic.parameters(), lr=1e-4), torch.optim.Adam(actor, lr=1e-4)
    for number in range(1, 4):
        batch = drawn()
        obs, after = (
            {name.split("/")[1]: values for name, values in batch.rows.items() if name.startswith(f"{side}/")}
            for side in ("obs", "next_obs")
        )
        with torch.no_grad():
            goal = batch.rows["reward"] + 0.9 * targets[1](after, targets[0](after)).squeeze(1)
            features = plain_critic.encoder(obs)
        loss = 0.5 * (plain_critic(obs, batch.rows["action"]).squeeze(1) - goal).square()
        optimizers[0].zero_grad()
        (batch.weight * loss).mean().backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        (-plain_critic(features, plain_policy(features)).mean()).backward()
        optimizers[1].step()
        if number == 2:
            targets = copy.deepcopy((plain_policy, plain_critic))
        learner.update(batch)
    for mine, other in ((policy, plain_policy), (critic, plain_critic)):
        torch.testing.assert_close(mine.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-6)


def test_images_are_shifted_in_updates_as_if_the_replay_had_given_shifted_ones():
    """Both observations, each image by a shift of its own, in both layouts. Vectors stay as they are."""
    batch = drawn()
    _, _, augmented = make(random_shift=3)
    _, _, plain = make()
    torch.manual_seed(7)
    shifted = RandomShift(augmented._critic.module.encoder.images, 3)(batch.rows)
    torch.manual_seed(7)
    losses, errors = augmented.update(batch)
    torch.testing.assert_close((losses, errors), plain.update(dataclasses.replace(batch, rows=shifted)), rtol=0, atol=0)
    moved = {name for name, values in shifted.items() if not torch.equal(values, batch.rows[name])}
    assert moved == {"obs/first", "obs/last", "next_obs/first", "next_obs/last"}


def test_channels_last_are_shifted_like_channels_first():
    image = torch.randint(256, (ROWS, 5, 7, 3), dtype=torch.uint8)
    found = []
    for values, is_last in ((image, True), (image.movedim(3, 1), False)):
        torch.manual_seed(1)
        rows = RandomShift({"image": is_last}, 2)({"obs/image": values, "next_obs/image": values})
        found.append(rows["obs/image"] if is_last else rows["obs/image"].movedim(1, 3))
    assert torch.equal(*found) and found[0].shape == image.shape


def test_without_images_there_is_nothing_to_shift():
    space = spaces.Box(-1, 1, (5,), np.float32)
    spec = PoolSpec(observation_space=space, action_space=SPEC.action_space, num_envs=1)
    policy, critic = make_networks(spec, CONTROL, SMALL)
    with pytest.raises(UsageError, match=r"d4pg\.random_shift is 4, but no observation is an image; allowed: 0"):
        D4PGLearner(policy, critic, Group(RankInfo(), torch.device("cpu"), None), D4PGConfig(random_shift=4))


def test_target_networks_share_an_encoder_that_follows():
    policy, _, learner = make(target_period=1, target_share=0.5)
    targets = learner._target_policy.module, learner._target_critic.module
    assert targets[0].encoder is targets[1].encoder is not policy.encoder
    before = copied(targets[0].encoder)
    learner.update(drawn())
    for name, values in policy.encoder.state_dict().items():
        torch.testing.assert_close(targets[0].encoder.state_dict()[name], 0.5 * (before[name] + values))


def test_acting_copies_get_the_encoder_with_the_policy():
    policy, _, learner = make()
    acting = copy.deepcopy(policy)
    reader = learner.publication.reader(acting)
    learner.update(drawn())
    reader.refresh()
    for name, values in policy.state_dict().items():
        assert torch.equal(acting.state_dict()[name], values)


def test_in_bfloat16_features_are_float32():
    policy, critic, _ = make()
    seen = observations()
    exact = policy.encoder(seen)
    policy.encoder.precision = torch.bfloat16
    with torch.backends.mkldnn.flags(enabled=False):  # oneDNN has no bfloat16 products on some processors
        rounded = critic.encoder(seen)
    assert rounded.dtype == torch.float32 and not torch.equal(exact, rounded)
    torch.testing.assert_close(exact, rounded, rtol=0.05, atol=0.05)
