"""Returns against the oracle; rows against mistakes that other systems made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.experience.rows import Decision, Outcome, Truncations
from tests.experience.oracle import Step, lambda_advantages, random_slot
from tests.experience.rollouts import Rollout

CPU = torch.device("cpu")


def decision(values, *, actives=None, starts=None, state=None, obs=None) -> Decision:
    count = len(values)
    return Decision(
        obs={"obs": torch.zeros(count, 1) if obs is None else obs},
        actions={"action": torch.zeros(count, dtype=torch.int64)},
        log_prob=torch.zeros(count),
        value=torch.tensor(values, dtype=torch.float32),
        state=torch.zeros(count, 0) if state is None else state,
        episode_start=torch.zeros(count, dtype=torch.bool) if starts is None else torch.tensor(starts),
        active=torch.ones(count, dtype=torch.bool) if actives is None else torch.tensor(actives),
        version=torch.tensor(0),
    )


def cuts_at(slots: list[int], steps: list[Step]) -> Truncations:
    """Truncations whose final observation is the value that they are to be given."""
    final = torch.tensor([[steps[slot].final_value] for slot in slots], dtype=torch.float32)
    return Truncations(rows=torch.tensor(slots), obs={"obs": final}, state=torch.zeros(len(slots), 0))


def outcome(steps: list[Step], on_device: bool = False) -> Outcome:
    """`on_device`: as if the host did not know which slots were truncated."""
    cut = [slot for slot, step in enumerate(steps) if step.end == "truncated"]
    return Outcome(
        truncations=cuts_at(cut, steps) if cut and not on_device else None,
        candidates=cuts_at(list(range(len(steps))), steps) if on_device else None,
        reward=torch.tensor([step.reward for step in steps], dtype=torch.float32),
        terminated=torch.tensor([step.end == "terminated" for step in steps]),
        truncated=torch.tensor([step.end == "truncated" for step in steps]),
        lost=torch.tensor([step.end == "lost" for step in steps]),
    )


def fill(rollout: Rollout, slots: list[list[Step]], on_device: bool = False) -> None:
    """Put the oracle's slots into a rollout."""
    for turn in zip(*slots, strict=True):
        rollout.begin(decision([step.value for step in turn], actives=[step.active for step in turn]))
        rollout.complete(outcome(list(turn), on_device))


def finish(rollout: Rollout, last_values: torch.Tensor, **options: float) -> None:
    """With a value function that gives every final observation its own number."""
    cuts = rollout.cuts()
    rollout.finish(last_values, cuts, cuts.obs["obs"][:, 0] if cuts is not None else None, **options)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    turns=st.integers(1, 12),
    num_slots=st.integers(1, 5),
    discount=st.sampled_from([0.9, 0.99, 1.0]),
    trace_decay=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    faults=st.booleans(),
    on_device=st.booleans(),
)
def test_advantages_equal_the_oracle(seed, turns, num_slots, discount, trace_decay, faults, on_device):
    """Random terminations, truncations, rollout ends, lost simulators and absent agents (mistakes 1, 2, 3, 5, 6)."""
    rng = np.random.default_rng(seed)
    slots = [random_slot(rng, turns, faults=faults) for _ in range(num_slots)]
    last_values = rng.normal(size=num_slots)
    rollout = Rollout(16, num_slots, CPU)
    for junk in (True, False):  # the same memory twice: nothing of the first time is left
        rollout.clear()
        fill(rollout, slots[::-1] if junk else slots, on_device)
        finish(rollout, torch.tensor(last_values, dtype=torch.float32), discount=discount, trace_decay=trace_decay)
    expected = [lambda_advantages(s, v, discount, trace_decay) for s, v in zip(slots, last_values, strict=True)]
    actual = rollout.advantage[: rollout.num_rows].view(turns, num_slots).T
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float32), rtol=1e-4, atol=1e-4)
    usable = [[step.active and step.end != "lost" for step in slot] for slot in slots]
    assert rollout.valid[: rollout.num_rows].view(turns, num_slots).T.tolist() == usable


def finish_one(steps: list[Step], last_value: float) -> Rollout:
    rollout = Rollout(len(steps), 1, CPU)
    fill(rollout, [steps])
    finish(rollout, torch.tensor([last_value]), discount=0.5, trace_decay=1.0)
    return rollout


def test_trunc_bootstraps_final_obs():
    """V(final observation), not 0, not the V of the next episode's first observation (mistakes 2, 3)."""
    rollout = finish_one([Step(0.0, 1.0, "truncated", 8.0), Step(100.0, 0.0, "", 0.0)], 0.0)
    assert rollout.advantage[0] == 1.0 + 0.5 * 8.0


def test_termination_bootstraps_nothing():
    rollout = finish_one([Step(0.0, 1.0, "terminated", 8.0), Step(100.0, 0.0, "", 0.0)], 0.0)
    assert rollout.advantage[0] == 1.0


def test_last_reward_is_kept_and_next_observation_bootstraps():
    """Mistake 5: the last step of a rollout counts, with its reward and with V of what follows."""
    rollout = finish_one([Step(0.0, 0.0, "", 0.0), Step(0.0, 3.0, "", 0.0)], 10.0)
    assert rollout.advantage[1] == 3.0 + 0.5 * 10.0


def test_gae_does_not_leak_across_truncation():
    """Mistake 1."""
    ends = [Step(0.0, 0.0, "truncated", 0.0), Step(0.0, 1e6, "", 0.0)]
    assert finish_one(ends, 0.0).advantage[0] == 0.0


def test_returns_come_from_this_rollouts_advantages():
    """Mistake 6: the same memory used twice holds nothing of the first time."""
    rollout = Rollout(2, 1, CPU)
    for reward in (5.0, 1.0):
        rollout.clear()
        fill(rollout, [[Step(0.0, reward, "", 0.0), Step(0.0, reward, "terminated", 0.0)]])
        finish(rollout, torch.tensor([0.0]), discount=1.0, trace_decay=1.0)
        assert rollout.returns.tolist() == [2 * reward, reward]


def test_unwritten_rows_are_poisoned():
    """Fresh memory is NaN: reading a row that was never completed cannot go unnoticed."""
    rollout = Rollout(3, 2, CPU)
    rollout.begin(decision([1.0, 2.0]))
    assert torch.isnan(rollout.reward).all() and torch.isnan(rollout.value[2:]).all()


def test_rows_are_copies_of_what_was_acted_on():
    """Mistake 20: an observation buffer that its owner reuses must not change the past."""
    obs = torch.ones(2, 1)
    rollout = Rollout(2, 2, CPU)
    rollout.begin(decision([0.0, 0.0], obs=obs))
    obs.fill_(7)
    assert rollout.obs["obs"][:2].tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("turns", [1, 2])
def test_a_rollout_that_ended_early_has_only_its_own_rows(turns):
    """Mistake 10: after preemption, rows of the rollout before are neither bootstrapped from nor counted."""
    rollout = Rollout(4, 1, CPU)
    fill(rollout, [[Step(1000.0, 1000.0, "", 0.0)] * 4])
    finish(rollout, torch.tensor([1000.0]), discount=1.0, trace_decay=1.0)
    rollout.clear()
    fill(rollout, [[Step(0.0, 1.0, "", 0.0)] * turns])
    finish(rollout, torch.tensor([0.0]), discount=1.0, trace_decay=1.0)
    assert rollout.num_rows == turns
    assert rollout.advantage[: rollout.num_rows].tolist() == [float(turns - t) for t in range(turns)]


def test_more_truncations_than_promised_do_not_go_unnoticed():
    """Of a device that alone knows its truncations, at most one per slot and gap is kept."""
    truncated = Step(0.0, 0.0, "truncated", 1.0)
    rollout = Rollout(4, 2, CPU, truncation_gap=2)
    fill(rollout, [[truncated] * 2 + [Step(0.0, 0.0, "", 0.0)] * 2] * 2, on_device=True)
    cuts = rollout.cuts()
    assert cuts is not None and cuts.rows.tolist() == [0, 1, 2, 3]
    rollout.clear()
    assert rollout.cuts() is None
    fill(rollout, [[truncated] * 3 + [Step(0.0, 0.0, "", 0.0)]] * 2, on_device=True)
    with pytest.raises(AssertionError, match="truncation_gap promises at most 4"):
        rollout.cuts()
