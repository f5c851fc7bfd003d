"""Action distributions against torch.distributions, and samples against their probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch import distributions as D

from paceline.errors import UsageError
from paceline.nets.config import HeadConfig
from paceline.nets.heads import ActionHead
from paceline.pool.spaces import check_actions, leaves

FEATURES = 5
seeds = st.integers(0, 10_000)


def make(space: spaces.Space, *, spread: float = 3.0, **config) -> ActionHead:
    """A head whose distributions differ clearly from row to row."""
    head = ActionHead(leaves(space, "action"), FEATURES, HeadConfig(**config))
    torch.nn.init.normal_(head.linear.weight, std=spread)
    torch.nn.init.normal_(head.linear.bias)
    return head


def features(rows: int) -> Tensor:
    return torch.randn(rows, FEATURES)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5), as_tuple=st.booleans(), masked=st.booleans(), seed=seeds
)
def test_discrete_actions_match_the_oracle(sizes, as_tuple, masked, seed):
    torch.manual_seed(seed)
    space = spaces.Tuple([spaces.Discrete(n) for n in sizes]) if as_tuple else spaces.MultiDiscrete(sizes)
    head, x = make(space), features(7)
    allowed = [torch.rand(7, n) < 0.6 if masked else torch.ones(7, n, dtype=torch.bool) for n in sizes]
    for part in allowed:
        part[:, 0] |= ~part.any(1)
    mask = None
    if masked:
        mask = {str(i): part for i, part in enumerate(allowed)} if as_tuple else {"action": torch.cat(allowed, 1)}
    logits = head.linear(x).split(sizes, dim=1)
    oracles = [
        D.Categorical(logits=part.masked_fill(~ok, -torch.inf)) for part, ok in zip(logits, allowed, strict=True)
    ]
    params = head(x, mask)
    actions = head.sample(params)
    assert params.shape == (7, head.num_params)
    table = torch.stack(list(actions.values()), 1) if as_tuple else actions["action"]
    assert table.dtype == torch.int64
    for part, ok in zip(table.unbind(1), allowed, strict=True):
        assert ok[torch.arange(7), part].all()
    log_prob = sum(oracle.log_prob(part) for oracle, part in zip(oracles, table.unbind(1), strict=True))
    torch.testing.assert_close(head.log_prob(params, actions), log_prob)
    # Like ours, the oracle's entropy replaces -inf by the lowest float.
    torch.testing.assert_close(head.entropy(params), sum(oracle.entropy() for oracle in oracles))
    best = torch.stack([oracle.probs.argmax(-1) for oracle in oracles], 1)
    mode = head.mode(params)
    assert torch.equal(torch.stack(list(mode.values()), 1) if as_tuple else mode["action"], best)


@settings(max_examples=25)
@given(shape=st.sampled_from([3, 1, (2, 2)]), seed=seeds)
def test_binary_actions_match_the_oracle(shape, seed):
    torch.manual_seed(seed)
    head, x = make(spaces.MultiBinary(shape)), features(6)
    params = head(x)
    actions = head.sample(params)
    oracle = D.Independent(D.Bernoulli(logits=head.linear(x)), 1)
    assert actions["action"].dtype == torch.int8
    flat = actions["action"].flatten(1)
    torch.testing.assert_close(head.log_prob(params, actions), oracle.log_prob(flat.float()))
    torch.testing.assert_close(head.entropy(params), oracle.entropy())
    assert torch.equal(head.mode(params)["action"].flatten(1).bool(), head.linear(x) > 0)


@settings(max_examples=25)
@given(shape=st.sampled_from([(3,), (), (2, 2)]), std=st.sampled_from(["parameter", "state"]), seed=seeds)
def test_gaussian_actions_match_the_oracle(shape, std, seed):
    torch.manual_seed(seed)
    size = math.prod(shape)
    head, x = make(spaces.Box(-1, 1, shape, np.float32), spread=0.7, std=std), features(6)
    if std == "parameter":
        torch.nn.init.normal_(head.families[0].log_std)
        mean, log_std = head.linear(x), head.families[0].log_std.expand(6, size)
    else:
        mean, log_std = head.linear(x).chunk(2, dim=1)
        log_std = log_std.clamp(-20, 2)
    params = head(x)
    actions = head.sample(params)
    oracle = D.Independent(D.Normal(mean, log_std.exp()), 1)
    assert actions["action"].shape == (6, *shape)
    torch.testing.assert_close(head.log_prob(params, actions), oracle.log_prob(actions["action"].reshape(6, size)))
    torch.testing.assert_close(head.entropy(params), oracle.entropy())
    torch.testing.assert_close(head.mode(params)["action"].reshape(6, size), mean)


def squashed_oracle(mean: Tensor, log_std: Tensor, low: Tensor, high: Tensor) -> D.Distribution:
    base = D.Independent(D.Normal(mean, log_std.exp()), 1)
    to_bounds = D.AffineTransform((low + high) / 2, (high - low) / 2, event_dim=1)
    return D.TransformedDistribution(base, [D.TanhTransform(), to_bounds])


@settings(max_examples=25)
@example(std="state", seed=132)
@given(std=st.sampled_from(["parameter", "state"]), seed=seeds)
def test_squashed_actions_match_the_oracle(std, seed):
    torch.manual_seed(seed)
    box = spaces.Box(np.array([-1, 0, -5], np.float32), np.array([1, 4, -3], np.float32))
    head = make(box, spread=0.3, std=std, squash=True, initial_log_std=-1.0).double()
    x = features(6).double()
    params = head.families[0].params(head.linear(x))
    raw = head.sample(params)["action"].clamp(-6, 6)  # beyond, the oracle's atanh is imprecise even in float64
    low, high = (torch.as_tensor(bound, dtype=torch.float64) for bound in (box.low, box.high))
    oracle = squashed_oracle(*params.chunk(2, dim=1), low, high)
    env = head.env_actions({"action": raw})["action"]
    torch.testing.assert_close(head.log_prob(params, {"action": raw}), oracle.log_prob(env), atol=1e-6, rtol=1e-6)


def test_squashed_log_prob_is_finite_where_tanh_is_saturated():
    head = make(spaces.Box(-1, 1, (1,), np.float32), squash=True)
    params = torch.tensor([[0.0, 2.0]]).expand(6, 2).clone().requires_grad_()
    actions = {"action": torch.tensor([[-60.0], [-20.0], [0.0], [20.0], [60.0], [9.5]])}
    log_prob = head.log_prob(params, actions)
    log_prob.sum().backward()
    assert log_prob.isfinite().all()
    assert params.grad.isfinite().all()
    assert log_prob[0] == log_prob[4]
    assert head.env_actions(actions)["action"].abs().max() <= 1


def test_squashed_entropy_estimates_the_integral():
    torch.manual_seed(0)
    head = make(spaces.Box(-1, 3, (1,), np.float32), squash=True)
    mean, log_std = 0.4, -0.2
    env = torch.linspace(-1, 3, 200_001, dtype=torch.float64)[1:-1, None]
    oracle = squashed_oracle(
        torch.full((1, 1), mean).double(), torch.full((1, 1), log_std).double(), torch.tensor(-1.0), torch.tensor(3.0)
    )
    log_density = oracle.log_prob(env)
    exact = -(log_density.exp() * log_density).sum() * (4 / 200_000)
    params = torch.tensor([[mean, log_std]]).expand(40_000, 2)
    assert head.entropy(params).mean().item() == pytest.approx(exact.item(), abs=0.02)


def test_entropy_of_a_squashed_policy_has_a_gradient():
    head = make(spaces.Box(-1, 1, (2,), np.float32), squash=True)
    head.entropy(head(features(8))).mean().backward()
    assert head.linear.weight.grad.any()
    assert head.families[0].log_std.grad.any()


def test_mixed_leaves_sum():
    torch.manual_seed(0)
    parts = {
        "arm": spaces.Box(-1, 1, (2,), np.float32),
        "gear": spaces.Discrete(4),
        "keys": spaces.MultiBinary(3),
        "leg": spaces.Box(-2, 2, (), np.float32),
        "stick": spaces.MultiDiscrete([3, 2]),
    }
    space = spaces.Dict(parts)
    head, x = make(space), features(9)
    params = head(x)
    actions = head.sample(params)
    assert list(actions) == [leaf.name for leaf in leaves(space, "action")]
    for leaf in leaves(space, "action"):
        check_actions(head.env_actions(actions)[leaf.name].numpy(), leaf, np.arange(9))
    gear, stick_a, stick_b, keys, arm, leg = head.linear(x).split([4, 3, 2, 3, 2, 1], dim=1)
    oracles = [
        (D.Categorical(logits=gear), actions["gear"]),
        (D.Categorical(logits=stick_a), actions["stick"][:, 0]),
        (D.Categorical(logits=stick_b), actions["stick"][:, 1]),
        (D.Independent(D.Bernoulli(logits=keys), 1), actions["keys"].float()),
        (D.Independent(D.Normal(arm, 1.0), 1), actions["arm"]),
        (D.Independent(D.Normal(leg, 1.0), 1), actions["leg"][:, None]),
    ]
    torch.testing.assert_close(head.log_prob(params, actions), sum(d.log_prob(a) for d, a in oracles))
    torch.testing.assert_close(head.entropy(params), sum(d.entropy() for d, _ in oracles))


def chi_square(counts: Tensor, probs: Tensor) -> float:
    expected = probs.double() * counts.sum()
    return ((counts - expected).square() / expected).sum().item()


def test_sampling_frequencies_of_a_categorical():
    """5 choices: 4 degrees of freedom, beyond 18.5 once in a thousand seeds; this seed is fixed."""
    head = make(spaces.MultiDiscrete([5, 3]))
    generator = torch.Generator().manual_seed(3)
    probs = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01])
    outputs = torch.cat([probs.log(), torch.zeros(3)]).expand(50_000, 8)
    actions = head.sample(head.families[0].params(outputs), generator)["action"]
    assert chi_square(actions[:, 0].bincount(minlength=5), probs) < 18.5
    assert chi_square(actions[:, 1].bincount(minlength=3), torch.full((3,), 1 / 3)) < 13.8
    joint = (actions[:, 0] * 3 + actions[:, 1]).bincount(minlength=15)
    assert chi_square(joint, (probs[:, None] / 3).expand(5, 3).flatten()) < 36.1


def test_sampling_frequencies_under_a_mask():
    head = make(spaces.Discrete(4))
    generator = torch.Generator().manual_seed(5)
    outputs = torch.tensor([[50.0, 1.0, 0.0, -3.0]]).expand(50_000, 4)
    allowed = torch.tensor([[False, True, True, True]]).expand(50_000, 4)
    counts = head.sample(head.families[0].params(outputs, allowed), generator)["action"].bincount(minlength=4)
    assert counts[0] == 0
    assert chi_square(counts[1:], outputs[0, 1:].softmax(-1)) < 13.8


def test_sampling_frequencies_of_binaries_and_gaussians():
    generator = torch.Generator().manual_seed(7)
    head = make(spaces.MultiBinary(2))
    probs = torch.tensor([0.9, 0.2])
    ones = head.sample(probs.logit().expand(50_000, 2), generator)["action"].double().mean(0)
    torch.testing.assert_close(ones, probs.double(), atol=0.006, rtol=0)
    head = make(spaces.Box(-1, 1, (2,), np.float32))
    params = torch.tensor([[1.0, -2.0, math.log(0.5), math.log(3.0)]]).expand(50_000, 4)
    actions = head.sample(params, generator)["action"]
    torch.testing.assert_close(actions.mean(0), torch.tensor([1.0, -2.0]), atol=0.05, rtol=0)
    torch.testing.assert_close(actions.std(0), torch.tensor([0.5, 3.0]), atol=0, rtol=0.02)


def test_same_generator_same_actions():
    head, x = make(spaces.Tuple([spaces.Discrete(5), spaces.Box(-1, 1, (2,), np.float32)])), features(20)
    params = head(x)
    first, second = (head.sample(params, torch.Generator().manual_seed(11)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.MultiDiscrete([2, 4])])
def test_single_allowed_choice_is_always_taken(space):
    head, x = make(space, spread=30.0), features(300)
    width = 4 if isinstance(space, spaces.Discrete) else 6
    mask = torch.zeros(300, width, dtype=torch.bool)
    mask[:, -1] = True
    if width == 6:
        mask[:, 1] = True
    params = head(x, {"action": mask})
    want = torch.tensor([3] if width == 4 else [1, 3]).expand(300, -1).reshape(300, *space.shape)
    assert torch.equal(head.sample(params)["action"], want)
    assert torch.equal(head.mode(params)["action"], want)
    assert not head.log_prob(params, {"action": want}).any()
    assert not head.entropy(params).any()


def test_mask_without_any_allowed_choice_is_uniform_over_existing_choices():
    """[2, 4] has the narrower component padded to 4: padding must not become possible."""
    head = make(spaces.MultiDiscrete([2, 4]))
    params = head(features(2000), {"action": torch.zeros(2000, 6, dtype=torch.bool)})
    actions = head.sample(params, torch.Generator().manual_seed(0))
    assert actions["action"].max(0).values.tolist() == [1, 3]
    torch.testing.assert_close(head.entropy(params), torch.full((2000,), math.log(2) + math.log(4)))
    torch.testing.assert_close(head.log_prob(params, actions), torch.full((2000,), -math.log(8)))


def test_gradients_under_a_mask_are_finite_and_forbidden_logits_get_none():
    head, x = make(spaces.Discrete(4)), features(8)
    mask = torch.tensor([[True, False, True, False]]).expand(8, 4)
    params = head(x, {"action": mask})
    actions = head.sample(params)
    (head.log_prob(params, actions).sum() + head.entropy(params).sum()).backward()
    grad = head.linear.bias.grad
    assert grad.isfinite().all()
    assert not grad[[1, 3]].any()
    assert grad[[0, 2]].any()


def test_mask_of_one_leaf_leaves_the_others_alone():
    torch.manual_seed(0)
    head, x = make(spaces.Tuple([spaces.Discrete(3), spaces.Discrete(5)])), features(200)
    params = head(x, {"1": torch.tensor([[True, True, False, False, False]]).expand(200, 5)})
    actions = head.sample(params)
    assert actions["0"].max() == 2
    assert actions["1"].max() == 1


def test_extreme_logits_stay_finite():
    head = make(spaces.Discrete(3))
    params = head.families[0].params(torch.tensor([[1e4, 0.0, -1e4], [0.0, 0.0, 0.0]]))
    assert head.entropy(params).isfinite().all()
    assert head.sample(params)["action"][0] == 0


def test_clipping_happens_only_for_the_environment():
    torch.manual_seed(0)
    box = spaces.Box(np.array([-0.1, -np.inf], np.float32), np.array([0.1, np.inf], np.float32))
    head = make(spaces.Tuple([box, spaces.Discrete(2)]))
    actions = head.sample(head(features(50)))
    env = head.env_actions(actions)
    assert actions["0"][:, 0].abs().max() > 0.1
    assert env["0"][:, 0].abs().max() <= 0.1
    assert torch.equal(env["0"][:, 1], actions["0"][:, 1])
    assert torch.equal(env["1"], actions["1"])


def test_squashed_actions_fill_their_bounds_and_never_leave_them():
    box = spaces.Box(np.array([-3, 10], np.float32), np.array([-1, 10.5], np.float32))
    head = make(box, squash=True)
    env = head.env_actions({"action": torch.tensor([[-50.0, 50.0], [0.0, 0.0], [50.0, -50.0]])})["action"]
    assert env.tolist() == [[-3.0, 10.5], [-2.0, 10.25], [-1.0, 10.0]]


def test_a_fresh_policy_is_nearly_uniform():
    head = ActionHead(leaves(spaces.Discrete(4), "action"), 64)
    params = head(torch.randn(10, 64))
    assert head.entropy(params).min() > math.log(4) - 0.01


def test_initial_log_std():
    leaf = leaves(spaces.Box(-1, 1, (3,), np.float32), "action")
    for std in ("parameter", "state"):
        head = ActionHead(leaf, FEATURES, HeadConfig(std=std, initial_log_std=-0.7))
        torch.testing.assert_close(head(torch.zeros(2, FEATURES))[:, 3:], torch.full((2, 3), -0.7))


def test_params_are_float32_under_autocast():
    head = ActionHead(leaves(spaces.Discrete(4), "action"), FEATURES)
    with torch.autocast("cpu", torch.bfloat16):
        assert head(features(2)).dtype == torch.float32


def test_one_linear_layer_and_nothing_else_to_learn():
    head = ActionHead(leaves(spaces.MultiDiscrete([3, 7]), "action"), FEATURES)
    assert {name: tuple(values.shape) for name, values in head.state_dict().items()} == {
        "linear.weight": (10, FEATURES),
        "linear.bias": (10,),
    }


def test_error_messages_say_what_is_allowed():
    with pytest.raises(UsageError, match="parameter, state"):
        HeadConfig(std="fixed")
    with pytest.raises(UsageError, match="below"):
        HeadConfig(min_log_std=1, max_log_std=0)
    with pytest.raises(UsageError, match="within"):
        HeadConfig(std="state", initial_log_std=5)
    with pytest.raises(UsageError, match="finite bounds"):
        make(spaces.Box(-np.inf, 1, (2,), np.float32), squash=True)
    with pytest.raises(UsageError, match="floating-point Box"):
        make(spaces.Box(0, 255, (2,), np.uint8))
    head = make(spaces.Dict(turn=spaces.Discrete(3), push=spaces.Box(-1, 1, (1,), np.float32)))
    with pytest.raises(UsageError, match="only discrete actions"):
        head(features(2), {"push": torch.ones(2, 1, dtype=torch.bool)})
    with pytest.raises(UsageError, match=r"must be torch.bool \(2, 3\)"):
        head(features(2), {"turn": torch.ones(2, 4, dtype=torch.bool)})
    with pytest.raises(UsageError, match=r"must be torch.bool \(2, 3\)"):
        head(features(2), {"turn": torch.ones(2, 3)})


def test_initial_logits_make_an_action_rare_at_first():
    head = ActionHead(leaves(spaces.Discrete(4), "action"), 8, HeadConfig(initial_logits=(-4.0, 0.0, 0.0, 0.0)))
    probabilities = head(torch.zeros(1, 8)).exp()[0]
    expected = torch.tensor([-4.0, 0.0, 0.0, 0.0]).softmax(0)
    torch.testing.assert_close(probabilities, expected)
    with pytest.raises(UsageError, match="2 numbers; these actions have 4 choices"):
        ActionHead(leaves(spaces.Discrete(4), "action"), 8, HeadConfig(initial_logits=(0.0, 1.0)))
