"""Perceptrons that decide together decide as each of them does for its own rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.accel.perceptron import Perceptron
from paceline.accel.perceptron_team import PerceptronTeam
from paceline.collect.inference import choose
from tests.accel.test_perceptron import DONE, SEEN, make, observations


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 12),
    members=st.integers(1, 4),
    seen=st.sampled_from(sorted(SEEN)),
    done=st.sampled_from(sorted(DONE)),
)
def test_each_row_is_decided_by_its_own_perceptron(seed, rows, members, seen, done):
    """Random numbers included: members draw in order, also where one draws for all."""
    torch.manual_seed(seed)
    policies = [make(SEEN[seen], DONE[done]) for _ in range(members)]
    obs = observations(policies[0], rows)
    which = torch.randint(members, (rows,)).numpy()
    torch.manual_seed(seed)
    team = PerceptronTeam([Perceptron(policy) for policy in policies])
    with torch.no_grad():
        torch.manual_seed(seed)
        found = team.act(obs, which)
        log_prob, value = found.judge()
        torch.manual_seed(seed)
        for number in np.unique(which):
            own, policy = np.flatnonzero(which == number), policies[number]
            part = {name: values[own] for name, values in obs.items()}
            expected = choose(policy, part, policy.initial_state(len(own)))
            chosen = {name: values[own] for name, values in found.actions.items()}
            torch.testing.assert_close(chosen, expected.actions, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(log_prob[own], expected.log_prob, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(value[own], expected.value, rtol=1e-4, atol=1e-5)
            for name, values in policy.head.env_actions(expected.actions).items():
                np.testing.assert_allclose(found.env_actions[name][own], values.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("done", "together"), [("choice", True), ("box", False), ("choices", False)])
def test_one_perceptron_draws_for_all_only_where_nothing_of_its_own_counts(done, together):
    assert Perceptron(make(done=DONE[done])).draws_by_outputs == together
