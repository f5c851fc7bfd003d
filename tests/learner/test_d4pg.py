"""D4PG's update against plain DDPG, against known distributions, and on a task with a known best action."""

from __future__ import annotations

import copy
import dataclasses
import shutil

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.experience.replay import Drawn
from paceline.learner.config import D4PGConfig
from paceline.learner.d4pg import D4PGLearner
from paceline.nets.config import ControlConfig, PolicyConfig, ValueConfig
from paceline.nets.deterministic import ActionCritic, DeterministicPolicy, make_networks
from paceline.nets.value_heads import make_value_head
from paceline.pool.protocol import PoolSpec

CPU = torch.device("cpu")
SPEC = PoolSpec(
    observation_space=spaces.Box(-1, 1, (3,), np.float32),
    action_space=spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)),
    num_envs=1,
)

IMAGE = spaces.Box(0, 255, (16, 16, 1), np.uint8)
SMALL_IMAGES = PolicyConfig(encoder="patches", encoder_size=16)


@pytest.fixture(autouse=True)
def one_thread():
    """These networks are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(value: ValueConfig, **options) -> tuple[DeterministicPolicy, ActionCritic, D4PGLearner]:
    torch.manual_seed(0)
    config = ControlConfig(actor_hidden=(32, 32), critic_hidden=(32, 32), value=value)
    policy, critic = make_networks(SPEC, config, PolicyConfig())
    return policy, critic, D4PGLearner(policy, critic, Group(RankInfo(), CPU, None), D4PGConfig(**options))


def images(count: int) -> torch.Tensor:
    return torch.randint(256, (count, *IMAGE.shape), dtype=torch.uint8)


def transitions(count: int, **columns: torch.Tensor) -> Drawn:
    rows = {
        "obs/obs": torch.randn(count, 3),
        "action": torch.rand(count, 2) * 2 - 1,
        "reward": torch.randn(count),
        "discount": torch.full((count,), 0.9),
        "next_obs/obs": torch.randn(count, 3),
    }
    places = torch.arange(count)
    weight = columns.pop("weight", torch.ones(count))
    return Drawn(rows=rows | columns, places=places, numbers=places, weight=weight)


def test_with_a_scalar_critic_it_is_plain_ddpg():
    """Three updates give the weights of twenty lines of plain PyTorch, with importance weights and target copies."""
    policy, critic, learner = make(ValueConfig(kind="scalar"), max_action_gradient=None, target_period=2)
    other_policy, other_critic = copy.deepcopy(policy), copy.deepcopy(critic)
    for module in (other_policy, other_critic):
        for parameter in module.parameters():
            parameter.grad = None
    targets = copy.deepcopy((other_policy, other_critic))
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-4) for m in (other_critic, other_policy)]
    for number in range(1, 4):
        drawn = transitions(16, weight=torch.rand(16))
        rows = drawn.rows
        obs, next_obs = {"obs": rows["obs/obs"]}, {"obs": rows["next_obs/obs"]}
        with torch.no_grad():
            goal = rows["reward"] + 0.9 * targets[1](next_obs, targets[0](next_obs)).squeeze(1)
        loss = (drawn.weight * 0.5 * (other_critic(obs, rows["action"]).squeeze(1) - goal).square()).mean()
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        (-other_critic(obs, other_policy(obs)).mean()).backward()
        optimizers[1].step()
        if number == 2:
            targets = copy.deepcopy((other_policy, other_critic))
        _, errors = learner.update(drawn)
        assert errors.shape == (16,) and (errors >= 0).all()
    for mine, plain in ((policy, other_policy), (critic, other_critic)):
        for name, parameter in mine.named_parameters():
            torch.testing.assert_close(parameter, dict(plain.named_parameters())[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["categorical", "mixture", "scalar"])
def test_a_critic_learns_the_distribution_of_returns(kind):
    """A coin: the return is 0 or 10."""
    torch.manual_seed(0)
    head = make_value_head(ValueConfig(kind=kind, atoms=21, low=0.0, high=20.0, components=3))
    outputs = torch.zeros(1, head.num_outputs).uniform_(-0.1, 0.1).requires_grad_()
    target = torch.zeros(128, head.num_outputs)
    optimizer = torch.optim.Adam([outputs], lr=0.1)
    for _ in range(600):
        reward = 10.0 * torch.randint(2, (128,)).float()
        loss = head.loss(outputs.expand(128, -1), reward, torch.zeros(128), target).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert head.mean(outputs).item() == pytest.approx(5.0, abs=0.6)
    if kind == "categorical":
        chances = outputs.softmax(1)[0]
        assert chances[0].item() == pytest.approx(0.5, abs=0.05) and chances[10].item() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("kind", ["categorical", "mixture", "scalar"])
def test_the_policy_finds_the_best_action(kind):
    value = ValueConfig(kind=kind, low=-8.0, high=1.0)
    policy, _, learner = make(value, actor_rate=2e-3, critic_rate=2e-3)
    assert one_step_task(policy, learner) < 0.2, "a policy that does nothing is 0.4 away"


def one_step_task(policy: DeterministicPolicy, learner: D4PGLearner) -> float:
    """The error of a policy trained on episodes of one step, with reward -|a - goal|^2 and the goal in the
    observation."""
    for _ in range(500):
        obs, action = torch.rand(64, 3) * 2 - 1, torch.rand(64, 2) * 2 - 1
        reward = -(action - 0.8 * obs[:, :2]).square().sum(1)
        columns = {"obs/obs": obs, "action": action, "reward": reward, "discount": torch.zeros(64)}
        learner.update(transitions(64, **columns))
    obs = torch.rand(256, 3) * 2 - 1
    with torch.no_grad():
        return (policy({"obs": obs}) - 0.8 * obs[:, :2]).abs().mean().item()


def test_in_bfloat16_weights_stay_float32_and_learn_the_same_within_rounding():
    value = ValueConfig(kind="categorical", low=-8.0, high=1.0)
    exact, rounded = (make(value, actor_rate=2e-3, critic_rate=2e-3) for _ in range(2))
    targets = (rounded[2]._target_policy.module, rounded[2]._target_critic.module)
    for network in (*rounded[:2], *targets):
        network.torso.precision = torch.bfloat16
    obs, action = {"obs": torch.randn(8, 3)}, torch.rand(8, 2)
    before = exact[0](obs)
    with torch.backends.mkldnn.flags(enabled=False):  # oneDNN has no bfloat16 products on some processors
        for updates in (0, 40):
            for drawn in [transitions(32) for _ in range(updates)]:
                exact[2].update(drawn)
                rounded[2].update(drawn)
            outputs = [(policy(obs), critic(obs, action)) for policy, critic, _ in (exact, rounded)]
            for one, other in zip(*outputs, strict=True):
                assert other.dtype == torch.float32 and not torch.equal(one, other)
                torch.testing.assert_close(one, other, rtol=0.02, atol=0.05 * one.abs().max().item())
    moved, differ = (exact[0](obs) - before).abs().mean(), (exact[0](obs) - outputs[1][0]).abs().mean()
    assert moved > 5 * differ
    assert {parameter.dtype for parameter in (*rounded[0].parameters(), *rounded[1].parameters())} == {torch.float32}


def test_targets_follow_by_period_or_by_share():
    policy, _, learner = make(ValueConfig(), target_period=3)
    for number in range(1, 4):
        learner.update(transitions(8))
        same = all(
            torch.equal(a, b)
            for a, b in zip(policy.parameters(), learner._target_policy.module.parameters(), strict=True)
        )
        assert same == (number == 3)
    policy, _, learner = make(ValueConfig(), target_period=1, target_share=0.1)
    before = [p.clone() for p in learner._target_policy.module.parameters()]
    learner.update(transitions(8))
    for old, target, new in zip(before, learner._target_policy.module.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(target, 0.9 * old + 0.1 * new.detach())


def test_gradients_by_the_action_are_bounded():
    steps = {}
    for bound in (None, 1e-6):
        _, _, learner = make(ValueConfig(kind="scalar"), max_action_gradient=bound)
        metrics, _ = learner.update(transitions(8))
        steps[bound] = metrics["actor_grad_norm"].item()
    assert steps[1e-6] < 1e-4 and steps[1e-6] < steps[None]


def test_a_saved_learner_goes_on_as_it_would_have():
    policy, critic, learner = make(ValueConfig())
    for _ in range(3):
        learner.update(transitions(8))
    saved, weights = copy.deepcopy(learner.state_dict()), copy.deepcopy(policy.state_dict())
    other_policy, other_critic, other = make(ValueConfig())
    other_policy.load_state_dict(weights)
    other.load_state_dict(saved)
    drawn = transitions(8)
    learner.update(drawn)
    other.update(drawn)
    for mine, theirs in ((policy, other_policy), (critic, other_critic)):
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b)
    assert other.updates == learner.updates == 4


def test_actions_are_scaled_to_the_environments_bounds():
    policy, _, _ = make(ValueConfig())
    actions = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [5.0, -5.0]])
    expected = torch.tensor([[-2.0, 0.0], [2.0, 1.0], [0.0, 0.5], [2.0, 0.0]])
    torch.testing.assert_close(policy.env_actions(actions), expected)
    obs = {"obs": torch.randn(5, 3)}
    assert policy(obs).abs().max() < 0.1, "a new policy does next to nothing"


def test_what_it_cannot_learn_is_refused():
    box, config = spaces.Box(-1, 1, (3,), np.float32), ControlConfig()
    discrete = PoolSpec(observation_space=box, action_space=spaces.Discrete(3), num_envs=1)
    with pytest.raises(UsageError, match="needs one bounded Box of actions"):
        make_networks(discrete, config, PolicyConfig())
    image = PoolSpec(observation_space=spaces.Box(0, 255, (3, 8, 8), np.uint8), action_space=box, num_envs=1)
    with pytest.raises(UsageError, match="policy.encoder nature needs images of at least 36x36 pixels, got 8x8"):
        make_networks(image, config, PolicyConfig())
    for options in ({"batch": 0}, {"target_share": 0.0}, {"noise": -1.0}, {"discount": 2.0}, {"actor_rate": 0.0}):
        with pytest.raises(UsageError, match="must be"):
            D4PGConfig(**options)
    for options in ({"atoms": 1}, {"low": 1.0, "high": 1.0}, {"samples": 0}):
        with pytest.raises(UsageError, match="must be"):
            ValueConfig(**options)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_compiled_update_is_the_same():
    """The same weights, targets, metrics and errors, with clipped gradients, weight decay, normalised observations,
    shifted images, three kinds of observations and columns in any order; also after loading the state of an eager
    learner, and with new hyper-parameters, for which nothing is compiled again. Compiling draws no random numbers. The
    compiler takes up to 30 s."""
    options = {"max_grad_norm": 0.05, "target_period": 2, "weight_decay": 0.1, "actor_rate": 1e-2, "critic_rate": 1e-2}
    options["random_shift"] = 2
    config = ControlConfig(actor_hidden=(16, 16), critic_hidden=(16,), value=ValueConfig(low=-5.0, high=5.0, atoms=21))
    seen = spaces.Dict({"a": SPEC.observation_space, "b": spaces.Discrete(4), "c": IMAGE})
    spec = PoolSpec(observation_space=seen, action_space=SPEC.action_space, num_envs=1)
    learners = []
    for compiled in (False, True):
        torch.manual_seed(0)
        policy, critic = make_networks(spec, config, dataclasses.replace(SMALL_IMAGES, normalize_obs=True))
        group = Group(RankInfo(), CPU, None)
        learners.append((policy, D4PGLearner(policy, critic, group, D4PGConfig(**options), compiled=compiled)))
    (policy, plain), (other_policy, compiled) = learners
    new = [("actor_rate", 3e-3), ("critic_rate", 2e-3), ("max_grad_norm", 0.01), ("target_share", 0.3)]
    for number in range(8 + 2 * len(new)):
        if number == 4 or (number >= 8 and number % 2 == 0):
            other_policy.load_state_dict(policy.state_dict())
            compiled.load_state_dict(copy.deepcopy(plain.state_dict()))
        if number == 8:
            compilations = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        if number >= 8 and number % 2 == 0:  # targets follow after every second update
            name, value = new[number // 2 - 4]
            for learner in (plain, compiled):
                learner.hyperparameters.set(f"d4pg.{name}", value)
        drawn = _of_three_leaves(transitions(32, weight=torch.rand(32)), backwards=number % 2 == 1)
        generator = torch.get_rng_state()
        found, drawn_numbers = compiled.update(drawn), torch.get_rng_state()
        torch.set_rng_state(generator)
        torch.testing.assert_close(found, plain.update(drawn), rtol=1e-4, atol=1e-6)
        assert torch.equal(torch.get_rng_state(), drawn_numbers)
        if number >= 7 and number % 2 == 1:
            torch.testing.assert_close(other_policy.state_dict(), policy.state_dict(), rtol=1e-4, atol=1e-5)
            states = [{name: v for name, v in one.state_dict().items() if name != "parts"} for one in (compiled, plain)]
            torch.testing.assert_close(*states, rtol=1e-3, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compilations > 0
    assert compiled.hyperparameters.as_dict() == plain.hyperparameters.as_dict()


def _of_three_leaves(drawn: Drawn, *, backwards: bool) -> Drawn:
    rows = {name.replace("obs/obs", "obs/a"): values for name, values in drawn.rows.items()}
    rows |= {f"{prefix}obs/b": torch.randint(4, (len(drawn.weight),)) for prefix in ("", "next_")}
    rows |= {f"{prefix}obs/c": images(len(drawn.weight)) for prefix in ("", "next_")}
    names = sorted(rows, reverse=backwards)
    return dataclasses.replace(drawn, rows={name: rows[name] for name in names})


def test_updates_of_several_ranks_are_not_compiled():
    config = ControlConfig(actor_hidden=(8,), critic_hidden=(8,))
    policy, critic = make_networks(SPEC, config, PolicyConfig())
    with pytest.raises(ValueError, match="cannot be compiled"):
        D4PGLearner(policy, critic, Group(RankInfo(size=2), CPU, None), D4PGConfig(), compiled=True)


def test_weight_decay_is_that_of_adamw():
    """With a scalar critic and no gradient of the loss left out, the weights are those of AdamW."""
    policy, critic, learner = make(ValueConfig(kind="scalar"), weight_decay=0.1, critic_rate=1e-2)
    other = copy.deepcopy(critic)
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.1)
    target = copy.deepcopy((policy, other))
    for _ in range(3):
        drawn = transitions(16)
        obs, next_obs = {"obs": drawn.rows["obs/obs"]}, {"obs": drawn.rows["next_obs/obs"]}
        with torch.no_grad():
            goal = drawn.rows["reward"] + 0.9 * target[1](next_obs, target[0](next_obs)).squeeze(1)
        loss = 0.5 * (other(obs, drawn.rows["action"]).squeeze(1) - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        learner.update(drawn)
    for name, parameter in critic.named_parameters():
        torch.testing.assert_close(parameter, other.get_parameter(name), rtol=1e-4, atol=1e-6)


def test_normalised_observations_are_those_of_the_same_data_without_units():
    """Statistics come from the drawn rows. Observations in other units then give the same losses and actions."""

    def train(scale: float, shift: float) -> tuple[DeterministicPolicy, list[float]]:
        torch.manual_seed(0)
        config = ControlConfig(actor_hidden=(16,), critic_hidden=(16,), value=ValueConfig(kind="scalar"))
        policy, critic = make_networks(SPEC, config, PolicyConfig(normalize_obs=True))
        learner = D4PGLearner(policy, critic, Group(RankInfo(), CPU, None), D4PGConfig(actor_rate=1e-2))
        seen = []
        for number in range(4):
            torch.manual_seed(number)
            drawn = transitions(64)
            rows = {name: scale * v + shift if name.endswith("obs/obs") else v for name, v in drawn.rows.items()}
            if number == 0:
                policy.absorb({"obs": rows["obs/obs"]}, Group(RankInfo(), CPU, None))
            losses, _ = learner.update(dataclasses.replace(drawn, rows=rows))
            seen.append(losses["critic_loss"].item())
        return policy, seen

    (plain, losses), (scaled, other_losses) = train(1.0, 0.0), train(50.0, 300.0)
    assert losses == pytest.approx(other_losses, rel=1e-3)
    obs = torch.randn(8, 3)
    torch.testing.assert_close(plain({"obs": obs}), scaled({"obs": 50 * obs + 300}), rtol=1e-3, atol=1e-3)
    (normalizer,) = scaled.normalizers
    assert normalizer.moments.count == 5 * 64 and normalizer.shift == pytest.approx(torch.full((3,), 300.0), rel=0.1)


def test_a_policy_without_normalisation_has_the_weights_of_older_checkpoints():
    policy, _ = make_networks(SPEC, ControlConfig(actor_hidden=(8,), critic_hidden=(8,)), PolicyConfig())
    assert not any(name.startswith("normalizers") for name in policy.state_dict())


def test_choices_and_images_are_not_normalised():
    space = spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Discrete(4), "c": IMAGE})
    spec = dataclasses.replace(SPEC, observation_space=space)
    config = ControlConfig(actor_hidden=(8,), critic_hidden=(8,))
    policy, _ = make_networks(spec, config, dataclasses.replace(SMALL_IMAGES, normalize_obs=True))
    assert policy.normalized == ["a"]
    obs = {"a": torch.randn(5, 3) + 4, "b": torch.randint(4, (5,)), "c": images(5)}
    policy.absorb(obs, Group(RankInfo(), CPU, None))
    seen = policy.normalize(obs)
    assert seen["b"] is obs["b"] and seen["c"] is obs["c"] and abs(seen["a"].mean().item()) < 1e-4
    assert policy(obs).shape == (5, 2)
