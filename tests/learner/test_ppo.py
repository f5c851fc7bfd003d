"""PPO's update: its losses against plain arithmetic, and its statistics against known mistakes of other systems."""

from __future__ import annotations

import copy
import shutil

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.accel.config import ComputeConfig
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.experience.rows import Decision, Outcome
from paceline.experience.sequences import MiniBatch
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.learner.rate_schedule import make_rate_schedule
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.ops.ppo import approximate_kl, clipped_surrogate, value_loss
from paceline.pool.protocol import PoolSpec
from tests.experience.rollouts import Rollout, move, refill

CPU = torch.device("cpu")
SPEC = PoolSpec(observation_space=spaces.Box(-1, 1, (3,), np.float32), action_space=spaces.Discrete(2), num_envs=4)


def alone() -> Group:
    return Group(RankInfo(), CPU, None)


def some_obs(slots: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(slots, 3, generator=generator)


def make_rollout(
    policy: ActorCritic, turns: int = 6, seed: int = 0, lost: bool = False, slots: int = SPEC.num_slots, obs_of=some_obs
) -> Rollout:
    """A rollout that `policy` itself collected, on random observations and rewards."""
    device = policy.version.device
    generator = torch.Generator().manual_seed(seed)
    rollout = Rollout(turns, slots, device)
    state = policy.initial_state(slots).to(device)
    for turn in range(turns):
        obs = {"obs": obs_of(slots, generator).to(device)}
        with torch.no_grad():
            params, value, after = policy.act(obs, state)
            actions = policy.head.sample(params)
        start = torch.zeros(slots, dtype=torch.bool, device=device)
        rollout.begin(
            Decision(
                obs=obs,
                actions=actions,
                log_prob=policy.head.log_prob(params, actions),
                value=value,
                state=state,
                episode_start=start,
                active=~start,
                version=policy.version.clone(),
            )
        )
        state = after
        gone = start.clone()
        gone[0] = lost and turn == 2
        reward = torch.randn(slots, generator=generator).to(device)
        rollout.complete(Outcome(reward=reward, terminated=start, truncated=start, lost=gone))
    rollout.finish(torch.zeros(slots, device=device), discount=0.99, trace_decay=0.95)
    return rollout


def make(
    policy_config: PolicyConfig | None = None, compute: ComputeConfig | None = None, **options
) -> tuple[ActorCritic, PPOLearner]:
    torch.manual_seed(0)
    policy = ActorCritic(SPEC, policy_config or PolicyConfig(hidden=(8,)))
    generator = torch.Generator().manual_seed(0)
    return policy, PPOLearner(policy, alone(), PPOConfig(**options), OptimizerConfig(), generator, compute)


def prepare(learner: PPOLearner, rollout: Rollout) -> None:
    """The beginning of an update: everything before its first step."""
    learner._apply_hyperparameters(0.0)
    learner._minibatches.make_room(rollout)
    learner._minibatches.prepare(rollout, lambda: None)


def flat(policy: ActorCritic) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in policy.parameters()])


floats = st.floats(-3, 3)


@given(floats, floats, st.floats(0.05, 0.5))
def test_surrogate_is_the_papers(log_ratio, advantage, clip):
    ratio = np.exp(log_ratio)
    expected = -min(ratio * advantage, np.clip(ratio, 1 - clip, 1 + clip) * advantage)
    actual = clipped_surrogate(torch.tensor(log_ratio), torch.tensor(advantage), 1 - clip, 1 + clip)
    assert actual.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@given(floats, floats, floats, st.floats(0.05, 0.5))
def test_value_loss_with_and_without_clipping(value, old, target, clip):
    plain = 0.5 * (value - target) ** 2
    clipped = 0.5 * (old + np.clip(value - old, -clip, clip) - target) ** 2
    arguments = [torch.tensor(x) for x in (value, old, target)]
    assert value_loss(*arguments, None).item() == pytest.approx(plain, rel=1e-4, abs=1e-5)
    assert value_loss(*arguments, clip).item() == pytest.approx(max(plain, clipped), rel=1e-4, abs=1e-5)


@given(floats)
def test_kl_estimate_is_never_negative(log_ratio):
    assert approximate_kl(torch.tensor(log_ratio)).item() >= -1e-6


def test_first_step_has_ratio_one():
    """Re-evaluating the rollout under the weights that collected it gives the stored log-probabilities and values."""
    for core in ("none", "lstm", "gru"):
        policy, learner = make(PolicyConfig(hidden=(8,), core=CoreConfig(kind=core, hidden=8)), epochs=1, minibatches=1)
        losses = learner.update(make_rollout(policy), 0.0)
        assert losses["approx_kl"] == pytest.approx(0.0, abs=1e-6), core
        assert losses["clip_fraction"] == 0.0


def test_update_moves_towards_better_actions():
    policy, learner = make(epochs=4, minibatches=2, entropy_coef=0.0)
    rollout = make_rollout(policy)
    good = rollout.advantage > 0
    before = rollout.log_prob.clone()
    learner.update(rollout, 0.0)
    params, _, _ = policy.act({"obs": rollout.obs["obs"]}, rollout.state)
    gained = policy.head.log_prob(params, rollout.actions) - before
    assert gained[good].mean() > 0 > gained[~good].mean()
    assert learner.version == 1


def test_advantage_statistics_over_valid_rows_only():
    """Mistake 10: rows that are not trained on do not enter the mean."""
    policy, learner = make(normalize_advantage=True)
    rollout = make_rollout(policy, lost=True)
    valid = rollout.valid[: rollout.num_rows]
    assert (~valid).sum() == 1
    rollout.advantage[: rollout.num_rows][~valid] = 1e9
    prepare(learner, rollout)
    normalized = learner._minibatches.advantage[: rollout.num_rows][valid]
    assert normalized.mean().abs() < 1e-4
    assert normalized.std(correction=0) == pytest.approx(1.0, abs=1e-3)


def test_rows_that_are_not_valid_change_nothing():
    results = []
    for poison in (0.0, 1e6):
        policy, learner = make(epochs=2, minibatches=2, normalize_advantage=True)
        rollout = make_rollout(policy, lost=True)
        rollout.reward[: rollout.num_rows][~rollout.valid[: rollout.num_rows]] = poison
        rollout.advantage[: rollout.num_rows][~rollout.valid[: rollout.num_rows]] = poison
        learner.update(rollout, 0.0)
        results.append(flat(policy))
    assert torch.equal(*results)


@pytest.mark.parametrize("clip", [0.2, None])
@pytest.mark.parametrize("log_ratio", [200.0, -200.0])
def test_ratios_beyond_float32_leave_weights_and_metrics_finite(clip, log_ratio):
    policy, learner = make(epochs=1, minibatches=1, clip=clip)
    rollout = make_rollout(policy)
    rollout.log_prob[::2] -= log_ratio
    losses = learner.update(rollout, 0.0)
    assert flat(policy).isfinite().all() and np.isfinite(list(losses.values())).all()


def test_target_kl_stops_early():
    policy, learner = make(epochs=50, minibatches=1, target_kl=1e-5)
    rollout = make_rollout(policy)
    steps = []
    original = learner.optimizer.step
    learner.optimizer.step = lambda: steps.append(1) or original()  # type: ignore[method-assign,assignment]
    learner.update(rollout, 0.0)
    assert 1 < len(steps) < 50


def test_gradient_clipping_and_learning_rate():
    policy, learner = make(epochs=1, minibatches=1)
    before = [p.detach().clone() for p in policy.parameters()]
    losses = learner.update(make_rollout(policy), 0.0)
    assert losses["grad_norm"] > 0
    moved = max((p - b).abs().max().item() for p, b in zip(policy.parameters(), before, strict=True))
    assert 0 < moved <= 2.5e-4 * 1.01, "Adam's first step is at most the learning rate"


@settings(max_examples=30)
@given(st.floats(0, 1))
def test_schedules(progress):
    for schedule, expected in (
        ("constant", 1.0),
        ("linear", 1 - progress),
        ("cosine", 0.5 * (1 + np.cos(np.pi * progress))),
    ):
        assert make_rate_schedule(schedule)(progress) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (PPOConfig, {"epochs": 0}, "ppo.epochs must be at least 1"),
        (PPOConfig, {"discount": 1.5}, "ppo.discount must be between 0 and 1"),
        (PPOConfig, {"clip": 0.0}, "ppo.clip must be above 0"),
        (PPOConfig, {"trace": "epoch"}, "ppo.trace 'epoch' does not exist; allowed: auto, update, minibatch"),
        (PPOConfig, {"clip_around": "x"}, "ppo.clip_around 'x' does not exist; allowed: acting, update"),
        (OptimizerConfig, {"learning_rate": 0.0}, "optimizer.learning_rate must be above 0"),
        (OptimizerConfig, {"schedule": "sine"}, "allowed: constant, linear, cosine"),
        (OptimizerConfig, {"max_grad_norm": -1.0}, "above 0 or None"),
    ],
)
def test_bad_settings_are_refused(kind, options, message):
    with pytest.raises(UsageError, match=message):
        kind(**options)


RECURRENT = PolicyConfig(hidden=(8,), core=CoreConfig(kind="lstm", hidden=8))


@pytest.mark.parametrize("lost", [False, True])
def test_columns_teach_what_packed_sequences_do(lost):
    """One mini-batch with all rows, as whole columns with episode starts or as one sequence per episode."""
    results = []
    for sequences in ("packed", "columns"):
        policy, learner = make(RECURRENT, sequences=sequences, epochs=1, minibatches=1, normalize_advantage=True)
        rollout = make_rollout(policy, turns=7)
        rollout.episode_start.view(7, -1)[3, 1] = rollout.episode_start.view(7, -1)[5, 2] = True
        rollout.state.view(7, SPEC.num_slots, -1)[3, 1] = rollout.state.view(7, SPEC.num_slots, -1)[5, 2] = 0.0
        if lost:  # the last row of a column is invalid
            rollout.valid.view(7, -1)[6, 3] = False
            rollout.advantage.view(7, -1)[6, 3] = 1e9
        losses = learner.update(rollout, 0.0)
        results.append((flat(policy), losses))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-6)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "hidden", "layer_by_layer", "minibatches", "sequences", "columns"),
    [
        ("lstm", 256, True, 1, "auto", True),
        ("lstm", 256, True, 2, "auto", False),
        ("lstm", 256, False, 1, "auto", False),
        ("lstm", 64, True, 1, "auto", False),
        ("gru", 256, True, 1, "auto", False),
        ("lstm", 256, True, 1, "packed", False),
    ],
)
def test_large_memories_are_taught_by_columns_on_a_cpu(kind, hidden, layer_by_layer, minibatches, sequences, columns):
    """If mini-batches have several columns: few columns are faster as packed sequences."""
    config = PolicyConfig(hidden=(8,), core=CoreConfig(kind=kind, hidden=hidden))
    policy, learner = make(config, sequences=sequences, epochs=1, minibatches=minibatches)
    policy.core.layer_by_layer = layer_by_layer
    batches = list(learner._minibatches.split(make_rollout(policy)))
    assert [batch.steps for batch in batches] == [6 if columns else None] * minibatches
    assert sum(len(batch.rows) for batch in batches) == 24


def test_importance_weights_scale_rows():
    """A weight of 0 removes a row from the gradient, but not from the count of the mean."""
    policy, learner = make(epochs=1, minibatches=1)
    rollout = make_rollout(policy)
    gradients = []
    for weight in (None, torch.ones(24), torch.arange(24) % 2 * 2.0):
        rollout.weight = weight
        batch = next(iter(learner._minibatches.split(rollout)))
        prepare(learner, rollout)
        learner._backward(rollout, batch)
        gradients.append(learner._gradients.flat.clone())
    torch.testing.assert_close(gradients[0], gradients[1])
    rollout.weight = None
    odd = MiniBatch(rows=torch.arange(1, 24, 2))
    learner._backward(rollout, odd)
    torch.testing.assert_close(gradients[2], learner._gradients.flat, rtol=1e-4, atol=1e-6)


def test_policy_lag_is_measured_from_versions():
    policy, learner = make()
    rollout = make_rollout(policy)
    assert learner.update(rollout, 0.0)["policy_lag"] == 0.0
    assert learner.update(rollout, 0.0)["policy_lag"] == 1.0, "the same rows, one update later"
    rollout.version[:12] = 2
    assert learner.update(rollout, 0.0)["policy_lag"] == pytest.approx(1.0)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_compiled_update_is_the_eager_one(core):
    """The compiler takes up to 20 s."""
    results = []
    for compiled in (False, True):
        config = PolicyConfig(hidden=(8,), core=CoreConfig(kind=core, hidden=8))
        policy, learner = make(config, ComputeConfig(compile=compiled), epochs=2, minibatches=2)
        losses = learner.update(make_rollout(policy), 0.0)
        results.append((flat(policy), losses))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-6)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-3, abs=1e-5)


def test_bfloat16_update_moves_as_the_float32_one_does():
    moves = []
    for precision in (torch.float32, torch.bfloat16):
        policy, learner = make(epochs=2, minibatches=2, entropy_coef=0.0)
        rollout = make_rollout(policy)
        before = flat(policy)
        policy.precision = precision
        learner.update(rollout, 0.0)
        moves.append(flat(policy) - before)
    assert torch.cosine_similarity(moves[0], moves[1], dim=0) > 0.95
    assert not torch.equal(moves[0], moves[1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("options", [{}, {"targets": "vtrace"}, {"targets": "vtrace", "trace": "minibatch"}])
def test_recorded_updates_are_the_eager_ones(core, options):
    """There are enough updates that most steps are replays. The learning rate changes between them."""
    device = torch.device("cuda")
    results = []
    for graphs in (False, True):
        torch.manual_seed(0)
        config = PolicyConfig(hidden=(8,), core=CoreConfig(kind=core, hidden=8))
        policy = ActorCritic(SPEC, config).to(device)
        learner = PPOLearner(
            policy,
            Group(RankInfo(), device, None),
            PPOConfig(epochs=2, minibatches=2, sequences="columns", normalize_advantage=True, **options),
            OptimizerConfig(schedule="linear"),
            torch.Generator().manual_seed(0),
            ComputeConfig(cuda_graphs=graphs),
        )
        reports = []
        rollout = make_rollout(ActorCritic(SPEC, config))
        move(rollout, device)
        for update in range(6):
            refill(rollout, make_rollout(ActorCritic(SPEC, config), seed=update))
            reports.append(learner.update(rollout, update / 6))
            if update == 2:  # as in a resumed run: later learning rates must still take effect
                learner.load_state_dict(copy.deepcopy(learner.state_dict()))
        results.append((flat(policy).cpu(), reports))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-6)
    for eager, recorded in zip(results[0][1], results[1][1], strict=True):
        assert eager == pytest.approx(recorded, rel=1e-3, abs=1e-5)


FRAMES = spaces.Box(0, 255, (3, 72, 128), np.uint8)
DOOM = PolicyConfig(encoder="sample_factory", core=CoreConfig(kind="lstm", hidden=512))


def some_frames(slots: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, (slots, *FRAMES.shape), generator=generator, dtype=torch.uint8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("minibatches", [1, 8])
def test_recorded_columns_of_full_size_teach_what_packed_sequences_do(precision, minibatches):
    """The network and batch of a Doom run: our recorded kernels against cuDNN's packed sequences. Episodes begin inside
    columns only with one mini-batch: with eight, packed mini-batches would have other rows than columns."""
    device, before = torch.device("cuda"), torch.get_float32_matmul_precision()
    spec = PoolSpec(observation_space=FRAMES, action_space=spaces.Discrete(5), num_envs=64)
    torch.set_float32_matmul_precision(precision)
    torch.manual_seed(0)
    start = ActorCritic(spec, DOOM).to(device)
    moves, reports = [], []
    try:
        rollout = make_rollout(start, turns=128, slots=spec.num_slots, obs_of=some_frames)
        if minibatches == 1:
            starts = torch.rand(128, spec.num_slots, generator=torch.Generator().manual_seed(1)) < 0.02
            rollout.episode_start |= starts.flatten().to(device)
            rollout.state[rollout.episode_start] = 0.0
        for sequences in ("packed", "columns"):
            policy = copy.deepcopy(start)
            config = PPOConfig(sequences=sequences, minibatches=minibatches, epochs=2, normalize_advantage=True)
            generator = torch.Generator().manual_seed(0)
            learner = PPOLearner(policy, Group(RankInfo(), device, None), config, OptimizerConfig(), generator)
            reports.append(learner.update(rollout, 0.0))
            moves.append((flat(policy) - flat(start)).double())
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.cosine_similarity(moves[0], moves[1], dim=0) > 0.9999
    assert reports[0] == pytest.approx(reports[1], rel=1e-2, abs=1e-4)


def test_restored_optimizer_keeps_this_devices_learning_rate():
    """The settings of the optimiser are those of this run, not those of the checkpoint."""
    _, learner = make()
    saved = copy.deepcopy(learner.state_dict())
    saved["optimizer"]["param_groups"][0] |= {"capturable": True, "lr": torch.tensor(123.0)}
    learner.load_state_dict(saved)
    group = learner.optimizer.param_groups[0]
    assert not group["capturable"] and group["lr"] == OptimizerConfig().learning_rate


def test_more_minibatches_than_columns_are_refused():
    policy, learner = make(RECURRENT, sequences="columns", minibatches=5)
    with pytest.raises(UsageError, match="only 4 streams"):
        learner.update(make_rollout(policy), 0.0)


def test_a_rank_without_valid_rows_takes_part_with_nothing():
    """It must not fail, and must join the reduction."""
    for config in (PolicyConfig(hidden=(8,)), RECURRENT):
        policy, learner = make(config, epochs=1, minibatches=2)
        rollout = make_rollout(policy)
        rollout.valid[:] = False
        before = flat(policy)
        learner.update(rollout, 0.0)
        assert torch.equal(flat(policy), before), "no gradient, and Adam has no momentum yet"


@pytest.mark.parametrize("config", [PolicyConfig(hidden=(8,)), RECURRENT], ids=["mlp", "recurrent"])
def test_an_update_without_valid_rows_changes_nothing(config):
    """Adam's momentum of earlier updates must not move the weights."""
    policy, learner = make(config, epochs=1, minibatches=2)
    rollout = make_rollout(policy)
    learner.update(rollout, 0.0)
    before, steps = flat(policy), [state["step"].item() for state in learner.optimizer.state.values()]
    rollout.valid[:] = False
    learner.update(rollout, 0.0)
    assert torch.equal(flat(policy), before)
    assert steps == [state["step"].item() for state in learner.optimizer.state.values()]
    rollout.valid[:] = True
    learner.update(rollout, 0.0)
    assert not torch.equal(flat(policy), before)
