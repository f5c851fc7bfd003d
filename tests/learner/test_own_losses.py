"""Losses and schedules of the user's own: what they compute, and what is refused before training."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.learner.config import AuxiliaryConfig, OptimizerConfig, PPOConfig
from paceline.learner.finite import NonFiniteError
from paceline.learner.ppo import PPOLearner
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PolicyConfig
from tests.integration.ranks import on_ranks
from tests.learner.test_ppo import SPEC, alone, flat, make, make_rollout

OWN = "tests.learner.own_losses"
LSTM = PolicyConfig(hidden=(8,), core=CoreConfig(kind="lstm", hidden=8))


def learner_with(policy: ActorCritic, *, schedule: str = "constant", **ppo) -> PPOLearner:
    options = {name: ppo.pop(name) for name in ("on_nonfinite",) if name in ppo}
    return PPOLearner(policy, alone(), PPOConfig(**ppo), OptimizerConfig(schedule=schedule), **options)


@pytest.mark.parametrize("name", ["small_values", "SmallValues"])
def test_a_term_is_a_function_or_a_class_and_its_mean_is_reported(name):
    policy, learner = make(term=f"{OWN}:{name}", epochs=1, minibatches=1)
    rollout = make_rollout(policy, lost=True)
    used = rollout.value[: rollout.num_rows][rollout.valid[: rollout.num_rows]]
    assert 0 < len(used) < rollout.num_rows
    report = learner.update(rollout, 0.0)
    assert report["term_loss"] == pytest.approx(float((used**2).mean()), rel=1e-4)


def test_the_coefficient_weighs_a_term():
    results = {}
    for coef in (None, 0.0, 5.0):
        policy, learner = make() if coef is None else make(term=f"{OWN}:small_values", term_coef=coef)
        learner.update(make_rollout(policy), 0.0)
        results[coef] = flat(policy)
    assert torch.equal(results[None], results[0.0]), "the check draws no random numbers of the run"
    assert not torch.equal(results[0.0], results[5.0])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"term": f"{OWN}:hidden_nan"}, "term_loss"),
        ({"auxiliary": AuxiliaryConfig(kind=f"{OWN}:NaNAuxiliary")}, "auxiliary_loss"),
    ],
)
def test_a_value_that_is_not_finite_stops_the_run_or_skips_the_step(options, name):
    """Also where its gradient is finite."""
    policy = make()[0]
    before, rollout = flat(policy), make_rollout(policy)
    with pytest.raises(NonFiniteError, match=f"{name} is nan"):
        learner_with(policy, **options).update(rollout, 0.0)
    assert torch.equal(flat(policy), before)
    report = learner_with(policy, on_nonfinite="skip", **options).update(rollout, 0.0)
    assert report["skipped_steps"] == 4 and torch.equal(flat(policy), before)


def test_all_ranks_skip_a_step_that_one_of_them_cannot_take():
    """The gradient is finite on both, the value is not on one."""

    def work():
        group = Group.join("cpu")
        torch.manual_seed(0)
        policy = ActorCritic(SPEC, PolicyConfig(hidden=(8,)))
        config, before = PPOConfig(term=f"{OWN}:nan_on_one_rank"), flat(policy)
        learner = PPOLearner(policy, group, config, OptimizerConfig(), on_nonfinite="skip")
        report = learner.update(make_rollout(policy, seed=group.rank), 0.0)
        group.close()
        return torch.equal(flat(policy), before), report["skipped_steps"]

    assert on_ranks(2, work) == [(True, 4.0)] * 2


def test_an_exception_of_the_users_code_says_what_it_was_called_for():
    with pytest.raises(RuntimeError) as raised:
        make(term=f"{OWN}:broken")
    assert f"ppo.term {OWN}:broken was called with 4 example rows" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("two_columns", r"gives losses of shape \[4, 8\] for 4 rows; allowed: \[4\]"),
        ("a_number", r"gives losses as a float; allowed: a tensor \[4\]"),
        ("without_gradient", "gives a loss without gradient, which trains nothing"),
        ("two_arguments", r"cannot be called \(missing a required argument: 'more'\); a loss term takes \(rows\)"),
        ("NoCall", r"lacks __call__; a loss term takes \(rows\)"),
        ("NextFeatures", "cannot be called .*; a loss term is made without arguments"),
        (
            "Weighty",
            "has weights or buffers, which a run does not train or save for a term; allowed: ppo.auxiliary.kind",
        ),
        ("Counting", "has weights or buffers"),
        ("Missing", f"module '{OWN}' has no 'Missing'"),
    ],
)
def test_terms_that_do_not_fit_are_refused_before_training(name, said):
    with pytest.raises(UsageError, match=f"{OWN}:{name}.*{said}" if name != "Missing" else said) as raised:
        make(term=f"{OWN}:{name}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "SmallValues",
            r"cannot be called .*; an auxiliary loss takes \(num_features, num_belief, num_actions, config",
        ),
        ("NoForward", "lacks forward; an auxiliary loss needs forward"),
        ("ManyLosses", r"gives 'loss' of shape \[4\] for 4 rows; allowed: \[\]"),
        ("NoLoss", "gives no loss, only error; allowed: the loss as 'loss'"),
        ("Detached", "gives a loss without gradient"),
    ],
)
def test_auxiliary_losses_that_do_not_fit_are_refused_before_training(name, said):
    with pytest.raises(UsageError, match=f"ppo.auxiliary.kind {OWN}:{name} {said}"):
        make(auxiliary=AuxiliaryConfig(kind=f"{OWN}:{name}"))


@pytest.mark.parametrize(("policy_config", "pairs"), [(None, False), (LSTM, True)])
def test_an_auxiliary_loss_is_trained_and_saved(policy_config, pairs):
    options = {"auxiliary": AuxiliaryConfig(kind=f"{OWN}:NextFeatures", weight=1.0)}
    policy, learner = make(policy_config, **options)
    before = learner._auxiliary.own.predict.weight.clone()
    report = learner.update(make_rollout(policy), 0.0)
    assert math.isfinite(report["auxiliary_loss"]) and (report["auxiliary_pairs"] > 0) == pairs
    assert torch.equal(learner._auxiliary.own.predict.weight, before) != pairs
    _, other = make(policy_config, **options)
    other.load_state_dict(learner.state_dict())
    assert torch.equal(other._auxiliary.own.predict.weight, learner._auxiliary.own.predict.weight)


def test_an_auxiliary_loss_may_give_the_loss_alone():
    policy, learner = make(auxiliary=AuxiliaryConfig(kind=f"{OWN}:ValueAgain"))
    assert "auxiliary_loss" in learner.update(make_rollout(policy), 0.0)


def test_what_follows_is_the_next_row_of_the_same_stream():
    policy, learner = make(LSTM, auxiliary=AuxiliaryConfig(kind=f"{OWN}:NextFeatures"), minibatches=1)
    rows = []
    learner._auxiliary.own.register_forward_pre_hook(lambda _, args: rows.append(args[0]))
    rollout = make_rollout(policy)
    learner.update(rollout, 0.0)
    following, continues = rows[0].following()
    assert int(continues.sum()) == rollout.num_rows - SPEC.num_slots
    assert torch.equal(following[~continues], torch.arange(rollout.num_rows)[~continues])


@pytest.mark.parametrize(("name", "factor"), [("halving", 0.5), ("WarmUp", 1.0)])
def test_schedules_multiply_the_learning_rate(name, factor):
    policy, _ = make()
    learner = learner_with(policy, schedule=f"{OWN}:{name}")
    learner.hyperparameters.set("optimizer.learning_rate", 0.1)
    assert learner.learning_rate(0.1) == pytest.approx(0.1 * factor)
    learner.update(make_rollout(policy), 0.1)
    assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * factor)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("negative", "gives -0.5 at 1; allowed: a finite number from 0"),
        ("a_word", "gives 'fast' at 0; allowed"),
        ("two_arguments", r"cannot be called .*; a schedule takes \(progress\)"),
        ("NoCall", r"lacks __call__; a schedule takes \(progress\)"),
    ],
)
def test_schedules_that_do_not_fit_are_refused_before_training(name, said):
    with pytest.raises(UsageError, match=f"optimizer.schedule {OWN}:{name} {said}"):
        learner_with(make()[0], schedule=f"{OWN}:{name}")


def test_a_schedule_that_gives_nan_later_stops_the_run():
    policy, _ = make()
    learner = learner_with(policy, schedule=f"{OWN}:late_nan")
    with pytest.raises(UsageError, match="gives nan at 0.7"):
        learner.update(make_rollout(policy), 0.7)


def test_names_are_checked_where_they_are_configured():
    with pytest.raises(
        UsageError, match="ppo.term 'entropy' does not exist; allowed: none, or package.module:function"
    ):
        PPOConfig(term="entropy")
    with pytest.raises(UsageError, match="optimizer.schedule 'step' does not exist; allowed: constant, linear, cosine"):
        OptimizerConfig(schedule="step")
    with pytest.raises(UsageError, match="ppo.auxiliary.kind 'cpc' does not exist; allowed: none, cpca"):
        AuxiliaryConfig(kind="cpc")
