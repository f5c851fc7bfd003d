"""V-trace against plain sums, against the form of another implementation, and with every kind of episode end."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.ops.gae import gae
from paceline.ops.vtrace import vtrace


def random_column(rng: np.random.Generator, steps: int) -> dict[str, np.ndarray]:
    """Rewards, values and ends of one column. V_{t+1} is the value of the next row unless the episode ended."""
    ends = rng.choice(["", "terminated", "truncated"], steps, p=[0.7, 0.15, 0.15])
    value, last = rng.normal(size=steps), rng.normal()
    following = np.append(value[1:], last)
    next_value = np.where(ends == "terminated", 0.0, np.where(ends == "truncated", rng.normal(size=steps), following))
    continues = ends == ""
    continues[-1] = False
    return {
        "log_ratio": rng.normal(size=steps),
        "reward": rng.normal(size=steps),
        "value": value,
        "next_value": next_value,
        "continues": continues,
    }


def targets_by_definition(c, discount, trace_decay, max_rho, max_c) -> list[float]:
    """V_s + sum over t of discount^(t-s) (product of c_i for s <= i < t) delta_t, up to the next end."""
    ratio = [math.exp(x) for x in c["log_ratio"]]
    targets = []
    for s in range(len(ratio)):
        total, weight, t = 0.0, 1.0, s
        while True:
            error = c["reward"][t] + discount * c["next_value"][t] - c["value"][t]
            total += weight * min(max_rho, ratio[t]) * error
            if not c["continues"][t]:
                break
            weight *= discount * trace_decay * min(max_c, ratio[t])
            t += 1
        targets.append(c["value"][s] + total)
    return targets


def stacked(columns: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.stack([c[name] for c in columns], 1)) for name in columns[0]}


@settings(max_examples=60)
@given(
    st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 4), st.sampled_from([(1.0, 1.0), (1.5, 0.7), (9.0, 9.0)])
)
def test_targets_are_the_definitions(seed, steps, width, bounds):
    rng = np.random.default_rng(seed)
    columns = [random_column(rng, steps) for _ in range(width)]
    settings = {"discount": 0.9, "trace_decay": float(rng.choice([1.0, 0.8])), "max_rho": bounds[0], "max_c": bounds[1]}
    found = vtrace(**stacked(columns), **settings)
    expected = np.stack([targets_by_definition(c, **settings) for c in columns], 1)
    np.testing.assert_allclose(found.targets.numpy(), expected, rtol=1e-9, atol=1e-9)
    for at, c in enumerate(columns):
        for t in range(steps):
            after = expected[t + 1, at] - c["value"][t + 1] if c["continues"][t] else 0.0
            following = c["next_value"][t] + settings["trace_decay"] * after
            advantage = c["reward"][t] + 0.9 * following - c["value"][t]
            assert found.advantage[t, at].item() == np.float64(advantage).item() or math.isclose(
                found.advantage[t, at].item(), advantage, rel_tol=1e-9, abs_tol=1e-9
            )


def impala(log_rhos, discounts, rewards, values, bootstrap_value):
    """V-trace in the form of IMPALA's published code: discounts that are 0 at episode ends, and one bootstrap value."""
    rhos = np.exp(log_rhos)
    clipped_rhos, cs = np.minimum(1.0, rhos), np.minimum(1.0, rhos)
    values_after = np.concatenate([values[1:], bootstrap_value[None]])
    deltas = clipped_rhos * (rewards + discounts * values_after - values)
    accumulated, found = np.zeros_like(bootstrap_value), []
    for t in range(len(rewards) - 1, -1, -1):
        accumulated = deltas[t] + discounts[t] * cs[t] * accumulated
        found.append(accumulated)
    vs = np.stack(found[::-1]) + values
    vs_after = np.concatenate([vs[1:], bootstrap_value[None]])
    return vs, rewards + discounts * vs_after - values


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(1, 5))
def test_it_is_impalas_where_episodes_only_terminate(seed, steps, width):
    """That form has no truncations. Its advantages, without rho, are ours at a trace decay of 1."""
    rng = np.random.default_rng(seed)
    log_rhos, rewards, values = (rng.normal(size=(steps, width)) for _ in range(3))
    bootstrap, done = rng.normal(size=width), rng.random((steps, width)) < 0.2
    vs, advantages = impala(log_rhos, 0.95 * ~done, rewards, values, bootstrap)
    continues = ~done
    continues[-1] = False
    next_value = np.where(done, 0.0, np.concatenate([values[1:], bootstrap[None]]))
    arguments = (torch.from_numpy(x) for x in (log_rhos, rewards, values, next_value, continues))
    found = vtrace(*arguments, discount=0.95)
    np.testing.assert_allclose(found.targets.numpy(), vs, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.advantage.numpy(), advantages, rtol=1e-9, atol=1e-9)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from([0.0, 0.9, 1.0]))
def test_on_policy_it_is_gae(seed, steps, trace_decay):
    c = stacked([random_column(np.random.default_rng(seed), steps)])
    c["log_ratio"] = torch.zeros_like(c["log_ratio"])
    found = vtrace(**c, discount=0.9, trace_decay=trace_decay)
    expected = gae(c["reward"], c["value"], c["next_value"], c["continues"], discount=0.9, trace_decay=trace_decay)
    torch.testing.assert_close(found.advantage, expected)
    torch.testing.assert_close(found.targets, expected + c["value"])


def test_vtrace_at_a_truncation_does_not_see_the_next_episode():
    """Mistake 4: rewards and values after a truncation change nothing before it."""
    c = stacked([random_column(np.random.default_rng(1), 8)])
    c["continues"][3] = False
    before = vtrace(**c, discount=0.9)
    for name in ("reward", "value", "next_value", "log_ratio"):
        c[name][4:] += 100.0 if name != "log_ratio" else 2.0
    after = vtrace(**c, discount=0.9)
    torch.testing.assert_close(before.targets[:4], after.targets[:4])
    torch.testing.assert_close(before.advantage[:4], after.advantage[:4])
    assert not torch.allclose(before.targets[4:], after.targets[4:])


def test_vtrace_advantages_have_no_rho_in_them():
    """Mistake 9: the advantage of a single row is its temporal-difference error, however unlikely its action has
    become."""
    row = {name: torch.tensor([[x]]) for name, x in (("reward", 1.0), ("value", 0.5), ("next_value", 2.0))}
    for log_ratio in (-3.0, 0.0, 3.0):
        found = vtrace(torch.tensor([[log_ratio]]), **row, continues=torch.tensor([[False]]), discount=0.9)
        assert found.advantage.item() == torch.tensor(1.0 + 0.9 * 2.0 - 0.5).item()
        assert found.rho.item() == min(1.0, math.exp(log_ratio)) or math.isclose(
            found.rho.item(), math.exp(log_ratio), rel_tol=1e-6
        )
