"""The learned entropy coefficient moves the right way and within its bounds, is the same on all ranks, and is saved."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.accel.config import ComputeConfig
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.experience.rows import Decision, Outcome
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.learner.entropy import EntropyCoefficient
from paceline.learner.ppo import PPOLearner
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, HeadConfig, PolicyConfig
from paceline.nets.heads import ActionHead
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import leaves
from tests.experience.rollouts import Rollout, move, refill
from tests.integration.ranks import on_ranks
from tests.learner.test_ppo import RECURRENT, SPEC, alone, flat, make, make_rollout

CPU = torch.device("cpu")
BOX = PoolSpec(
    observation_space=spaces.Box(-1, 1, (3,), np.float32),
    action_space=spaces.Box(-1, 1, (2,), np.float32),
    num_envs=4,
)


def alpha_of(learner: PPOLearner) -> float:
    return learner._coefficient().item()


def test_the_loss_by_hand():
    """Each stop-gradient is in its place: alpha weighs the policy's entropy, and H - lambda moves alpha."""
    coefficient = EntropyCoefficient(0.1, 2.0, (1e-4, 1.0))
    entropy = torch.tensor([1.0, 4.0], requires_grad=True)
    loss = coefficient.loss(entropy)
    assert loss.tolist() == pytest.approx([0.1 * (1 - 2) - 0.1 * 1, 0.1 * (4 - 2) - 0.1 * 4])
    loss.mean().backward()
    assert entropy.grad.tolist() == pytest.approx([-0.05, -0.05])
    assert coefficient.log_alpha.grad.item() == pytest.approx(0.1 * (2.5 - 2.0)), "d alpha / d log alpha = alpha"


@pytest.mark.parametrize("target", [0.5, -1.0])
def test_it_falls_where_there_is_more_entropy_than_asked_for(target):
    policy, learner = make(entropy_target=target, epochs=4)
    rollout = make_rollout(policy)
    reports = [learner.update(rollout, 0.0)["entropy_coef"] for _ in range(3)]
    assert 0.01 > reports[0] > reports[1] > reports[2] > alpha_of(learner) > 1e-4


def box_rollout(policy: ActorCritic) -> Rollout:
    torch.manual_seed(1)
    rollout = Rollout(6, 4, CPU)
    never = torch.zeros(4, dtype=torch.bool)
    for _ in range(6):
        obs = {"obs": torch.randn(4, 3)}
        with torch.no_grad():
            params, value, state = policy.act(obs, policy.initial_state(4))
            actions = policy.head.sample(params)
            log_prob = policy.head.log_prob(params, actions)
        rollout.begin(
            Decision(
                obs=obs,
                actions=actions,
                log_prob=log_prob,
                value=value,
                state=state,
                episode_start=never,
                active=~never,
                version=policy.version.clone(),
            )
        )
        rollout.complete(Outcome(reward=torch.randn(4), terminated=never, truncated=never, lost=never))
    rollout.finish(torch.zeros(4), discount=0.99, trace_decay=0.95)
    return rollout


@pytest.mark.parametrize(("log_std", "rises"), [(0.5, False), (-3.0, True)])
def test_gaussian_policies_are_held_at_an_entropy_of_zero(log_std, rises):
    """VER's setting. Two normal components with deviation exp(-3) have a differential entropy of about -3 nats."""
    torch.manual_seed(0)
    policy = ActorCritic(BOX, PolicyConfig(hidden=(8,), head=HeadConfig(initial_log_std=log_std)))
    config = PPOConfig(entropy_coef=0.01, entropy_target=0.0, epochs=2)
    learner = PPOLearner(policy, alone(), config, OptimizerConfig(learning_rate=1e-2), torch.Generator())
    report = learner.update(box_rollout(policy), 0.0)
    assert (report["entropy"] < 0) == rises
    assert (alpha_of(learner) > 0.01) == rises


def test_a_constraint_is_met_that_a_constant_would_miss():
    """A policy rewarded for one of its two actions keeps half a nat. With a constant weight it becomes
    deterministic."""
    ends = []
    for target in (None, 0.5):
        torch.manual_seed(0)
        policy = ActorCritic(SPEC, PolicyConfig(hidden=(8,)))
        config = PPOConfig(entropy_coef=0.01, entropy_target=target, epochs=4, minibatches=1)
        learner = PPOLearner(policy, alone(), config, OptimizerConfig(learning_rate=3e-2), torch.Generator())
        entropies = []
        for update in range(80):
            rollout = make_rollout(policy, turns=16, seed=update)
            rollout.advantage.copy_(torch.where(rollout.actions["action"] == 0, 0.5, -0.5))
            entropies.append(learner.update(rollout, 0.0)["entropy"])
        ends.append(np.mean(entropies[-20:]))
    assert ends[0] < 0.1
    assert ends[1] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(("target", "end"), [(-50.0, 0.005), (50.0, 0.02)])
def test_it_stays_within_its_bounds(target, end):
    """Steps of 0.1 in log alpha reach the bound soon. There alpha stays, up to rounding."""
    torch.manual_seed(0)
    policy = ActorCritic(BOX, PolicyConfig(hidden=(8,)))
    config = PPOConfig(entropy_coef=0.01, entropy_target=target, entropy_bounds=(0.005, 0.02), epochs=10)
    learner = PPOLearner(policy, alone(), config, OptimizerConfig(learning_rate=0.1), torch.Generator())
    assert learner.update(box_rollout(policy), 0.0)["entropy_coef"] <= 0.02 * (1 + 1e-6)
    assert alpha_of(learner) == pytest.approx(end, rel=1e-6)


def test_the_policys_gradient_is_clipped_as_without_it():
    """Whatever the target, the first step starts from the configured weight and moves the policy as without a
    target."""
    results = []
    for target in (None, 1e6):
        torch.manual_seed(0)
        policy = ActorCritic(BOX, PolicyConfig(hidden=(8,)))
        config = PPOConfig(entropy_coef=0.01, entropy_target=target, epochs=1, minibatches=1)
        learner = PPOLearner(policy, alone(), config, OptimizerConfig(max_grad_norm=0.01), torch.Generator())
        report = learner.update(box_rollout(policy), 0.0)
        results.append((flat(policy), report))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1]["grad_norm"] == results[1][1]["grad_norm"] > 0.01
    assert results[1][1]["entropy_coef"] > 0.01


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_nothing_changes_where_it_is_off(core):
    policy, learner = make(PolicyConfig(hidden=(8,), core=CoreConfig(kind=core, hidden=8)))
    report = learner.update(make_rollout(policy), 0.0)
    assert "entropy_coef" not in report
    assert learner.state_dict().keys() == {"optimizer", "hyperparameters", "parts"}
    assert len(learner._gradients.flat) == sum(p.numel() for p in policy.parameters())


def test_columns_teach_it_what_packed_sequences_do():
    """Also with an invalid row, and with importance weights."""
    results = []
    for sequences in ("packed", "columns"):
        policy, learner = make(RECURRENT, sequences=sequences, epochs=1, minibatches=1, entropy_target=0.6)
        rollout = make_rollout(policy)
        rollout.valid.view(6, -1)[5, 3] = False
        rollout.weight = torch.linspace(0.1, 1.0, 24)
        learner.update(rollout, 0.0)
        results.append(learner._coefficient.log_alpha.grad.item())
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def test_resuming_keeps_it():
    """Two updates, a saved and restored learner and one more update give the bits of three updates."""
    config = {"entropy_target": 0.6, "epochs": 2, "entropy_coef": 0.1}
    ends = []
    for interrupted in (False, True):
        policy, learner = make(**config)
        rollout = make_rollout(policy)
        for _ in range(2):
            learner.update(rollout, 0.0)
        if interrupted:
            saved = io.BytesIO()
            torch.save((policy.state_dict(), learner.state_dict(), learner._minibatches._generator.get_state()), saved)
            saved.seek(0)
            weights, state, generator = torch.load(saved, weights_only=True)
            policy, learner = make(**config)
            policy.load_state_dict(weights)
            learner.load_state_dict(state)
            learner._minibatches._generator.set_state(generator)
        report = learner.update(rollout, 0.0)
        ends.append((flat(policy), alpha_of(learner), report))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1:] == ends[1][1:]


def test_resuming_with_other_settings_is_refused():
    _, constant = make()
    _, learned = make(entropy_target=0.5)
    with pytest.raises(UsageError, match="trains entropy besides its policy, this one trains nothing"):
        constant.load_state_dict(learned.state_dict())
    with pytest.raises(UsageError, match="trains nothing besides its policy, this one trains entropy"):
        learned.load_state_dict(constant.state_dict())


def test_ranks_agree():
    """Ranks with different data have one coefficient, moved by the mean of their gradients."""

    def work():
        group = Group.join("cpu")
        torch.manual_seed(0)
        policy = ActorCritic(SPEC, PolicyConfig(hidden=(8,)))
        with torch.no_grad():
            policy.head.linear.weight *= 100
        config = PPOConfig(epochs=1, minibatches=1, entropy_target=0.5)
        learner = PPOLearner(policy, group, config, OptimizerConfig(), torch.Generator())
        rollout = make_rollout(policy, seed=group.rank)
        rollout.obs["obs"] *= 100 * group.rank  # the second rank's policy is almost deterministic
        report = learner.update(rollout, 0.0)
        coefficient = learner._coefficient
        group.close()
        return coefficient.log_alpha.item(), coefficient.log_alpha.grad.item(), flat(policy), report

    first, second = on_ranks(2, work)
    assert first[:2] == second[:2] and first[3] == second[3] and torch.equal(first[2], second[2])
    # All rows weigh the same: the mean gradient is that of the reported mean entropy.
    assert first[1] == pytest.approx(0.01 * (first[3]["entropy"] - 0.5), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entropy_bounds": (0.0, 1.0)}, "must be above 0 and in rising order"),
        ({"entropy_bounds": (0.1, 0.01)}, "must be above 0 and in rising order"),
        ({"entropy_target": 0.0, "entropy_coef": 0.0}, "has to start within ppo.entropy_bounds"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        PPOConfig(**options)


def test_a_target_out_of_reach_is_refused():
    with pytest.raises(UsageError, match="these actions have at most 0.6931"):
        make(entropy_target=0.7)


@pytest.mark.parametrize(
    ("space", "squash", "most"),
    [
        (spaces.Discrete(4), False, math.log(4)),
        (spaces.MultiDiscrete([2, 5]), False, math.log(10)),
        (spaces.MultiBinary(3), False, 3 * math.log(2)),
        (spaces.Box(-1, 1, (2,), np.float32), False, math.inf),
        (spaces.Box(-1, 3, (2,), np.float32), True, 2 * math.log(4)),
    ],
)
def test_the_most_entropy_that_actions_can_have(space, squash, most):
    assert ActionHead(leaves(space, "action"), 4, HeadConfig(squash=squash)).max_entropy == pytest.approx(most)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_recorded_updates_are_the_eager_ones(core):
    device = torch.device("cuda")
    config = PolicyConfig(hidden=(8,), core=CoreConfig(kind=core, hidden=8))
    results = []
    for graphs in (False, True):
        torch.manual_seed(0)
        policy = ActorCritic(SPEC, config).to(device)
        learner = PPOLearner(
            policy,
            Group(RankInfo(), device, None),
            PPOConfig(epochs=2, minibatches=2, sequences="columns", entropy_target=0.6),
            OptimizerConfig(schedule="linear"),
            torch.Generator().manual_seed(0),
            ComputeConfig(cuda_graphs=graphs),
        )
        rollout = make_rollout(ActorCritic(SPEC, config))
        move(rollout, device)
        reports = []
        for update in range(6):
            refill(rollout, make_rollout(ActorCritic(SPEC, config), seed=update))
            reports.append(learner.update(rollout, update / 6))
        results.append((flat(policy).cpu(), alpha_of(learner), reports))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-6)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-5)
    assert results[0][1] < 0.01
    for eager, recorded in zip(results[0][2], results[1][2], strict=True):
        assert eager == pytest.approx(recorded, rel=1e-3, abs=1e-5)
