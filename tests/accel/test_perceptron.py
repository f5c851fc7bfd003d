"""Decisions by NumPy equal the policy's, for any observations and actions, and follow its weights."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.accel.perceptron import Perceptron
from paceline.collect.inference import choose
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, HeadConfig, PolicyConfig
from paceline.nets.normalizer import ObservationNormalizer
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import MASK

CPU = torch.device("cpu")
NUMBERS = spaces.Box(-np.inf, np.inf, (5,), np.float32)
SEEN = {
    "numbers": NUMBERS,
    "bytes": spaces.Box(0, 255, (3,), np.uint8),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
    "several": spaces.Dict({"a": NUMBERS, "b": spaces.Discrete(3)}),
}
BOX = spaces.Box(-1, 1, (2,), np.float32)
DONE = {
    "choice": spaces.Discrete(4),
    "box": BOX,
    "nested box": spaces.Box(-1, 1, (2, 3), np.float32),
    "choices": spaces.MultiDiscrete([2, 3]),
    "switches": spaces.MultiBinary(3),
    "both": spaces.Dict({"a": spaces.Discrete(3), "b": BOX}),
    "boxes": spaces.Dict({"a": BOX, "b": BOX}),
}


def make(seen: spaces.Space = NUMBERS, done: spaces.Space = BOX, **options) -> ActorCritic:
    spec = PoolSpec(observation_space=seen, action_space=done, num_envs=1)
    policy = ActorCritic(spec, PolicyConfig(**({"hidden": (16, 8)} | options)))
    with torch.no_grad():  # a fresh policy is nearly uniform
        for parameter in policy.head.parameters():
            parameter.normal_()
    return policy


def observations(policy: ActorCritic, rows: int) -> dict[str, torch.Tensor]:
    found = {}
    for leaf in policy.trunk.leaves:
        leaf.space.seed(int(torch.randint(2**31, ())))
        found[leaf.name] = torch.from_numpy(np.array([leaf.space.sample() for _ in range(rows)]))
    return found


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    rows=st.one_of(st.integers(1, 40), st.integers(300, 310)),
    by_numpy=st.booleans(),
    seen=st.sampled_from(sorted(SEEN)),
    done=st.sampled_from(sorted(DONE)),
    hidden=st.sampled_from([(), (16,), (16, 8), (64, 64)]),
    activation=st.sampled_from(["tanh", "relu", "elu"]),
    critic=st.sampled_from(["shared", "separate"]),
    normalize=st.booleans(),
    head=st.sampled_from([HeadConfig(), HeadConfig(squash=True), HeadConfig(std="state")]),
    log_std=st.sampled_from([0.5, -15.0]),
)
def test_decisions_equal_those_of_the_policy(
    seed, rows, by_numpy, seen, done, hidden, activation, critic, normalize, head, log_std
):
    """The same random numbers give the same actions, log-probabilities and values, by NumPy and by PyTorch."""
    torch.manual_seed(seed)
    policy = make(
        SEEN[seen], DONE[done], hidden=hidden, activation=activation, critic=critic, normalize_obs=normalize, head=head
    )
    assert Perceptron.suits(policy, CPU)
    for family in policy.head.families:
        if getattr(family, "log_std", None) is not None:
            family.log_std.data.fill_(log_std)
    for normalizer in policy.normalizers:
        if isinstance(normalizer, ObservationNormalizer):
            normalizer.absorb(normalizer.sums(3.0 * torch.randn(64, *normalizer.shift.shape) + 1.0))
    obs = observations(policy, rows)
    before = {name: values.clone() for name, values in obs.items()}
    with torch.no_grad():
        torch.manual_seed(seed)
        expected = choose(policy, obs, policy.initial_state(rows))
        torch.manual_seed(seed)
        perceptron = Perceptron(policy)
        perceptron._layers_for = lambda rows: perceptron._by_numpy if by_numpy else perceptron._by_torch
        actions, log_prob, value = perceptron.choose(obs)
    # A random number may lie within rounding of the bound between two choices.
    same = torch.ones(rows, dtype=torch.bool)
    for name, chosen in actions.items():
        if not chosen.is_floating_point():
            same &= (chosen == expected.actions[name]).reshape(rows, -1).all(1)
    assert int((~same).sum()) <= 1
    found = {name: chosen[same] for name, chosen in actions.items()}, log_prob[same], value
    wanted = {name: chosen[same] for name, chosen in expected.actions.items()}, expected.log_prob[same], expected.value
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(obs, before, rtol=0, atol=0)  # the observations are not changed


def test_choices_are_drawn_by_their_probabilities():
    torch.manual_seed(0)
    policy = make(done=DONE["choice"])
    obs = {name: values.expand(8192, -1) for name, values in observations(policy, 1).items()}
    with torch.no_grad():
        probabilities = policy.act(obs, policy.initial_state(8192))[0][0].exp()
        (actions,) = Perceptron(policy).choose(obs)[0].values()
    torch.testing.assert_close(actions.bincount(minlength=4) / 8192, probabilities, rtol=0, atol=0.02)


@pytest.mark.parametrize("done", ["choice", "box"])
@pytest.mark.parametrize("rows", [8, 100])
def test_decisions_follow_the_weights(done, rows):
    """An optimiser changes them, or they are loaded."""
    torch.manual_seed(0)
    policy, other = (make(done=DONE[done], hidden=(64, 64)) for _ in range(2))
    perceptron, obs, state = Perceptron(policy), observations(policy, rows), policy.initial_state(rows)

    def decided() -> list:
        with torch.no_grad():
            torch.manual_seed(1)
            expected = choose(policy, obs, state)
            torch.manual_seed(1)
            found = perceptron.choose(obs)
        torch.testing.assert_close(found, (expected.actions, expected.log_prob, expected.value), rtol=1e-4, atol=1e-5)
        actions = torch.cat([values.flatten().float() for values in found[0].values()])
        return [torch.cat([actions, found[1]]), found[2]]

    decisions = [decided()]
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1, fused=True)
    params, value, _ = policy.act(obs, state)
    (value.sum() + policy.head.log_prob(params, policy.head.sample(params)).sum()).backward()
    optimizer.step()
    decisions.append(decided())
    policy.load_state_dict(other.state_dict())
    decisions.append(decided())
    for before, after in itertools.pairwise(decisions):
        assert not any(torch.allclose(old, new) for old, new in zip(before, after, strict=True))


def test_which_policies_suit_and_which_batches_numpy_computes():
    small, large = Perceptron(make(hidden=(64, 64))), Perceptron(make(hidden=(128, 128)))
    assert small.is_few(1) and small.is_few(64) and not small.is_few(65)
    assert not large.is_few(1) and large.is_few(2) and not large.is_few(64)
    for perceptron, sizes in (
        (small, {1: True, 1024: True, 1025: False}),
        (large, {1: False, 2: True, 256: True, 257: False}),
        (Perceptron(make(hidden=(1024, 1024))), {1: False, 2: False}),
    ):
        for rows, by_numpy in sizes.items():
            layers = perceptron._layers_for(np.zeros((rows, 3), np.float32))
            assert (layers is perceptron._by_numpy) == by_numpy
    masked = spaces.Dict({"obs": NUMBERS, MASK: spaces.MultiBinary(4)})
    image = spaces.Box(0, 255, (3, 84, 84), np.uint8)
    others = [
        make(embedding=3),
        make(reduced=("obs",)),
        make(masked, DONE["choice"]),
        make(image),
        make(core=CoreConfig(kind="lstm", hidden=4)),
        make(),
        make(),
    ]
    others[-2].precision = torch.bfloat16
    others[-1].compile_encoders()
    assert not any(Perceptron.suits(policy, CPU) for policy in others)
    assert not Perceptron.suits(make(), torch.device("cuda"))
