"""Whole policies of the user's own: acting and learning agree, and what does not fit is refused before training."""

from __future__ import annotations

import copy

import pytest
import torch

from paceline.accel.perceptron import Perceptron
from paceline.config import Config
from paceline.errors import UsageError
from paceline.learner.config import AuxiliaryConfig, OptimizerConfig, PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.nets.config import PlannerConfig, PolicyConfig
from paceline.nets.make import make_policy
from paceline.nets.ppo_policy import Recall
from tests.learner.test_ppo import SPEC, alone, flat, make_rollout
from tests.nets.own_policies import Plain

OWN = "tests.nets.own_policies"


def policy_of(name: str):
    return make_policy(SPEC, PolicyConfig(kind=f"{OWN}:{name}"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NoHead", "lacks head; a policy needs forward, head, state_size"),
        ("WideValues", r"gives values of shape \[4, 1\] for 4 rows; allowed: \[4\]"),
        ("TwoResults", "gives 2 results; allowed: the parameters of actions, the values and the states"),
        ("ForgetsState", r"gives states of shape \[4, 3\] for 4 rows; allowed: \[4, 16\]"),
        ("WrongForward", r"cannot be called \(too many positional arguments\); forward takes \(obs, state\)"),
        ("HalfHead", "its head lacks max_entropy, sample, mode, log_prob"),
        ("BadSize", "state_size is '16'; allowed: a whole number from 0"),
        ("Missing", f"module '{OWN}' has no 'Missing'"),
    ],
)
def test_policies_that_do_not_fit_are_refused_with_what_they_lack(name, said):
    with pytest.raises(UsageError, match=said) as raised:
        policy_of(name)
    assert "policy.kind" in str(raised.value) and "\n" not in str(raised.value)


def test_settings_that_have_no_effect_on_it_are_refused():
    kind = f"{OWN}:Plain"
    with pytest.raises(UsageError, match="policy.normalize_obs has no effect on policy.kind"):
        PolicyConfig(kind=kind, normalize_obs=True)
    with pytest.raises(UsageError, match="policy.planner has no effect on policy.kind"):
        PolicyConfig(kind=kind, planner=PlannerConfig(kind="lstm"))
    with pytest.raises(UsageError, match="leaves no policy to train"):
        Config(policy=PolicyConfig(kind=kind), freeze="policy", init_from="run")
    with pytest.raises(UsageError, match="policy.kind 'own' does not exist; allowed: chain, or package.module:Class"):
        PolicyConfig(kind="own")


def test_sequences_are_its_steps():
    torch.manual_seed(0)
    policy = policy_of("Leaky")
    assert policy.is_recurrent and not Perceptron.suits(policy, torch.device("cpu"))
    obs, actions, state = torch.randn(6, 3), {"action": torch.randint(2, (6,))}, torch.randn(2, 16)
    starts = torch.zeros(3, 2, dtype=torch.bool)
    starts[1, 1] = True
    values, after = [], state
    for step in range(3):
        after = torch.where(starts[step][:, None], 0.0, after)
        _, value, after = policy.act({"obs": obs[2 * step : 2 * step + 2]}, after)
        values.append(value)
    columns = policy.evaluate({"obs": obs}, actions, Recall(state, episode_start=starts))
    torch.testing.assert_close(columns.value, torch.cat(values))
    packed = Recall(state, torch.tensor([2, 2, 1]))
    some = policy.evaluate({"obs": obs[:5]}, {"action": actions["action"][:5]}, packed)
    whole = policy.evaluate({"obs": obs}, actions, Recall(state, episode_start=torch.zeros_like(starts)))
    torch.testing.assert_close(some.value, whole.value[:5])


@pytest.mark.parametrize("name", ["Plain", "Leaky"])
def test_an_update_begins_with_ratios_of_one(name):
    """The learner evaluates actions as the actor chose them."""
    torch.manual_seed(0)
    policy = policy_of(name)
    learner = PPOLearner(policy, alone(), PPOConfig(epochs=1, minibatches=1), OptimizerConfig())
    before = flat(policy)
    report = learner.update(make_rollout(policy), 0.0)
    assert report["approx_kl"] == pytest.approx(0.0, abs=1e-6) and report["clip_fraction"] == 0
    assert not torch.equal(flat(policy), before) and int(policy.version) == 1


def test_copies_and_saved_weights_act_alike():
    policy, other = policy_of("Leaky"), policy_of("Leaky")
    other.load_state_dict(policy.state_dict())
    obs, state = {"obs": torch.randn(4, 3)}, torch.randn(4, 16)
    for same in (other, copy.deepcopy(policy)):
        assert all(map(torch.equal, policy.act(obs, state), same.act(obs, state)))


def test_cpca_needs_the_chain():
    with pytest.raises(UsageError, match="cpca needs the encoders and the core of policy.kind chain"):
        PPOLearner(policy_of("Leaky"), alone(), PPOConfig(auxiliary=AuxiliaryConfig(kind="cpca")), OptimizerConfig())


def test_the_check_draws_no_random_numbers_of_the_run():
    results = []
    for make in (lambda: policy_of("Plain"), lambda: Plain(SPEC, PolicyConfig())):
        torch.manual_seed(3)
        make()
        results.append(torch.rand(3))
    assert torch.equal(*results)
