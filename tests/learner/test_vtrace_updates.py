"""Updates with V-trace: the losses of a step against plain sums, with every kind of episode end."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from paceline.errors import UsageError
from paceline.experience.layouts import Variable
from paceline.experience.rows import Decision, Outcome, Truncations
from paceline.learner import vtrace_columns
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.nets.ppo_policy import Recall
from paceline.ops.ppo import policy_gradient
from paceline.ops.vtrace import vtrace
from tests.experience.rollouts import Rollout
from tests.learner.test_ppo import CPU, SPEC, flat, make, make_rollout, prepare

TURNS, SLOTS = 7, SPEC.num_slots


def collected(policy: ActorCritic, seed: int) -> tuple[Rollout, torch.Tensor]:
    """An off-policy batch with episode ends and lost simulators; V of the observations after its last rows and
    truncations."""
    g = torch.Generator().manual_seed(seed)
    rollout = Rollout(TURNS, SLOTS, CPU)
    state = torch.zeros(SLOTS, policy.core.state_size)
    start = torch.ones(SLOTS, dtype=torch.bool)
    for _ in range(TURNS):
        decision = Decision(
            obs={"obs": torch.randn(SLOTS, 3, generator=g)},
            actions={"action": torch.randint(2, (SLOTS,), generator=g)},
            log_prob=-2 * torch.rand(SLOTS, generator=g),
            value=torch.full((SLOTS,), torch.nan),  # the value at decision time must not be read
            state=state,
            episode_start=start,
            active=torch.rand(SLOTS, generator=g) > 0.1,
            version=torch.tensor(0),
        )
        rollout.begin(decision)
        draw = torch.rand(SLOTS, generator=g)
        terminated, truncated, lost = draw < 0.15, (draw >= 0.15) & (draw < 0.3), draw > 0.92
        rollout.complete(
            Outcome(reward=torch.randn(SLOTS, generator=g), terminated=terminated, truncated=truncated, lost=lost)
        )
        start = terminated | truncated | lost
        state = torch.where(start[:, None], 0.0, torch.randn(SLOTS, policy.core.state_size, generator=g))
    cut_value = torch.randn(TURNS * SLOTS, generator=g)
    last = torch.randn(SLOTS, generator=g)
    cuts = Truncations(rows=torch.nonzero(rollout.truncated).squeeze(1), obs={}, state=torch.empty(0))
    rollout.value.copy_(torch.zeros(TURNS * SLOTS))
    rollout.finish(last, cuts, cut_value[cuts.rows], discount=0.99, trace_decay=0.95, advantages=False)
    return rollout, torch.where(rollout.truncated, cut_value, last.repeat(TURNS))


def expected_losses(
    policy: ActorCritic, rollout: Rollout, beyond: torch.Tensor, twice: bool, around: str
) -> tuple[float, float]:
    """Mean policy and value loss of all valid rows in the first step of an update, slot by slot."""
    recall = None
    if policy.is_recurrent:
        recall = Recall(rollout.state[:SLOTS], None, rollout.episode_start.view(TURNS, SLOTS))
    with torch.no_grad():
        said = policy.evaluate(rollout.obs, rollout.actions, recall)
    losses = []
    for slot in range(SLOTS):
        rows = list(range(slot, TURNS * SLOTS, SLOTS))
        values, ratio = said.value[rows].tolist(), (said.log_prob - rollout.log_prob)[rows].exp().tolist()
        valid, reward = rollout.valid[rows].tolist(), rollout.reward[rows].tolist()
        terminated, truncated = rollout.terminated[rows].tolist(), rollout.truncated[rows].tolist()
        correction = [0.0] * (TURNS + 1)
        for t in reversed(range(TURNS)):
            if not valid[t]:
                continue
            goes_on = t + 1 < TURNS and valid[t + 1] and not terminated[t] and not truncated[t]
            # If the next row is not valid, its stored value counts, which is 0 here.
            unknown = 0.0 if t + 1 < TURNS and not truncated[t] else beyond[rows[t]].item()
            after = 0.0 if terminated[t] else values[t + 1] if goes_on else unknown
            error = reward[t] + 0.99 * after - values[t]
            carry = 0.99 * 0.95 * correction[t + 1] if goes_on else 0.0
            rho = min(1.0, ratio[t])
            correction[t] = rho * error + rho * carry
            advantage = (error + carry) * (rho if twice else 1.0)
            bounded = min(max(ratio[t], 1 / 1.1), 1.1)
            policy_loss = -min(ratio[t] * advantage, bounded * advantage)
            if around == "update":  # the ratio starts at 1
                policy_loss = -rho * advantage
            losses.append((policy_loss, 0.5 * (values[t] - (values[t] + correction[t])) ** 2))
    return tuple(sum(column) / len(losses) for column in zip(*losses, strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(("trace", "around"), [("update", "update"), ("update", "acting"), ("minibatch", "acting")])
def test_losses_are_those_of_targets_written_out(core, seed, twice, trace, around):
    config = PolicyConfig(hidden=(8,), core=CoreConfig(kind=core, hidden=8))
    options = {"targets": "vtrace", "trace": trace, "clip": 0.1, "clip_inverse": True, "rho_in_advantage": twice}
    policy, learner = make(config, epochs=1, minibatches=1, sequences="columns", clip_around=around, **options)
    rollout, beyond = collected(policy, seed)
    policy_loss, critic_loss = expected_losses(policy, rollout, beyond, twice, around)
    losses = learner.update(rollout, 0.0)
    assert math.isclose(losses["policy_loss"], policy_loss, rel_tol=1e-3, abs_tol=1e-5)
    assert math.isclose(losses["value_loss"], critic_loss, rel_tol=1e-3, abs_tol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("max_rho", [1.0, 1.5])
@pytest.mark.parametrize("normalize", [False, True])
def test_ratios_are_to_the_policy_before_the_update(seed, max_rho, normalize):
    """Three epochs against the objective -rho min(r A, clip(r) A). r is the ratio to the policy before the update, rho
    the ratio of that policy to the one that acted. Advantages are normalised before they are multiplied by rho."""
    options = {"clip": 0.05, "clip_around": "update", "max_rho": max_rho, "normalize_advantage": normalize}
    policy, learner = make(epochs=3, minibatches=1, targets="vtrace", **options)
    learner.hyperparameters.set("optimizer.learning_rate", 0.01)
    plain = copy.deepcopy(policy)
    adam = torch.optim.Adam(plain.parameters(), lr=0.01, eps=learner.optimizer_config.eps)
    rollout, _ = collected(policy, seed)
    clipped = learner.update(rollout, 0.0)["clip_fraction"]
    used, ratios = rollout.valid, []
    obs, actions = {"obs": rollout.obs["obs"][used]}, {"action": rollout.actions["action"][used]}
    with torch.no_grad():
        anchor, _, _ = said(plain, obs, actions)
        rho = (anchor - rollout.log_prob[used]).exp().clamp(max=max_rho)
    advantage, returns = rollout.advantage[used], rollout.returns[used]
    if normalize:
        advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
    for _ in range(3):
        log_prob, value, entropy = said(plain, obs, actions)
        ratio = (log_prob - anchor).exp()
        ratios.append(ratio.detach())
        surrogate = rho * torch.minimum(ratio * advantage, ratio.clamp(0.95, 1.05) * advantage)
        loss = (-surrogate + 0.25 * (value - returns).square() - 0.01 * entropy).mean()
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), learner.optimizer_config.max_grad_norm)
        adam.step()
    torch.testing.assert_close(flat(policy), flat(plain), rtol=1e-4, atol=1e-5)
    outside = [((r < 0.95) | (r > 1.05)).float().mean().item() for r in ratios]
    assert outside[0] == 0 and outside[-1] > 0, "rows that are behind have all that clip allows"
    assert clipped == pytest.approx(sum(outside) / 3)


def said(policy: ActorCritic, obs: dict, actions: dict) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    evaluation = policy.evaluate(obs, actions, None)
    return evaluation.log_prob, evaluation.value, evaluation.entropy


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize(
    ("trace", "around", "epochs", "minibatches"),
    [("minibatch", "acting", 1, 1), ("auto", "acting", 3, 2), ("auto", "update", 3, 2), ("update", "update", 1, 4)],
)
def test_on_policy_an_update_by_vtrace_is_one_by_gae(core, trace, around, epochs, minibatches):
    """All steps if V-trace runs before the update. Only the first step if it runs in mini-batches: later the policy is
    off-policy."""
    config = PolicyConfig(hidden=(8,), core=CoreConfig(kind=core, hidden=8))
    results = {}
    for targets in ("gae", "vtrace"):
        options = {
            "targets": targets,
            "trace": trace,
            "epochs": epochs,
            "minibatches": minibatches,
            "clip_around": around,
        }
        policy, learner = make(config, normalize_advantage=True, sequences="columns", **options)
        rollout = make_rollout(policy, lost=True)
        if targets == "vtrace":  # stored targets must not be read
            rollout.advantage.fill_(torch.nan)
            rollout.returns.fill_(torch.nan)
        learner.update(rollout, 0.0)
        results[targets] = flat(policy)
    torch.testing.assert_close(results["gae"], results["vtrace"], rtol=1e-4, atol=1e-6)


def test_targets_are_computed_once_for_all_passes(monkeypatch):
    """Except with ppo.trace minibatch, or with one epoch."""
    counts = {}
    for trace, epochs in (("auto", 3), ("auto", 1), ("minibatch", 3), ("update", 1)):
        calls = []
        monkeypatch.setattr(
            vtrace_columns, "vtrace", lambda *args, calls=calls, **kwargs: calls.append(1) or vtrace(*args, **kwargs)
        )
        policy, learner = make(epochs=epochs, minibatches=2, targets="vtrace", trace=trace)
        learner.update(collected(policy, 1)[0], 0.0)
        counts[trace, epochs] = len(calls)
    assert counts == {("auto", 3): 1, ("auto", 1): 2, ("minibatch", 3): 6, ("update", 1): 1}


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_all_rows_are_traced_in_parts_as_in_one(core):
    config = PolicyConfig(hidden=(8,), core=CoreConfig(kind=core, hidden=8))
    found = []
    for minibatches in (1, 3, SLOTS + 1):
        policy, learner = make(config, targets="vtrace", clip_around="update", minibatches=minibatches)
        rollout, _ = collected(policy, 2)
        prepare(learner, rollout)
        rows = learner._minibatches
        known = [rollout.advantage, rollout.returns, rows.proximal_log_prob, rows.advantage]
        found.append(torch.stack(known)[:, rollout.valid])
    for other in found[1:]:
        torch.testing.assert_close(found[0], other)
    assert found[0].isfinite().all() and found[0].std() > 0.1


def test_without_clipping_the_gradient_is_impalas():
    """-min(rho-bar, pi/mu) A d log pi: the weight is truncated and has no gradient."""
    log_ratio = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    advantage = torch.tensor([2.0, -1.0, 3.0])
    policy_gradient(log_ratio, advantage, 1.5).sum().backward()
    torch.testing.assert_close(log_ratio.grad, -torch.tensor([math.exp(-1.0), 1.0, 1.5]) * advantage)
    policy, learner = make(epochs=1, minibatches=1, targets="vtrace", clip=None)
    before = flat(policy)
    losses = learner.update(collected(policy, 3)[0], 0.0)
    assert 0 < losses["clip_fraction"] < 1, "of the rows whose weight was truncated"
    assert torch.isfinite(flat(policy)).all() and not torch.equal(before, flat(policy))


def test_the_lag_of_rows_is_reported():
    policy, learner = make(epochs=1, minibatches=1, targets="vtrace")
    rollout = make_rollout(policy)
    policy.version += 5
    rollout.version[0] = 3
    losses = learner.update(rollout, 0.0)
    assert (losses["policy_lag_min"], losses["policy_lag_max"]) == (2.0, 5.0)
    assert losses["policy_lag"] == pytest.approx((2 + 5 * (6 * 4 - 1)) / 24)


@pytest.mark.parametrize("trace", ["update", "minibatch"])
def test_streams_of_other_lengths_are_refused(trace):
    _, learner = make(targets="vtrace", trace=trace)
    rollout = Rollout(3, SLOTS, CPU, layout=Variable(3, SLOTS))
    with pytest.raises(UsageError, match="allowed with this system: gae, auto"):
        learner.update(rollout.select(), 0.0)
