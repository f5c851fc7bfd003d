"""N-step transitions against an account of the same streams, over random orders and ends."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.experience.nstep import NStep

DISCOUNT = 0.9


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 5), st.integers(1, 60))
def test_every_decision_starts_one_transition(seed, steps, slots, turns):
    """Mistakes 19 and 20: order of rewards, discount^n, ends, short tails; and nothing of a lost simulator."""
    rng = np.random.default_rng(seed)
    builder = NStep(steps, slots, DISCOUNT)
    account = defaultdict(list)  # by slot: (name, reward, end, name of what followed)
    found, number = {}, 1.0
    for _ in range(turns):
        chosen = np.sort(rng.choice(slots, int(rng.integers(1, slots + 1)), replace=False))
        names = number + np.arange(len(chosen))
        number += 2 * len(chosen)
        builder.decide(chosen, {"name": names[:, None].astype(np.float32)}, names[:, None].astype(np.float32) + 0.5)
        ends = rng.choice(["", "terminated", "truncated", "lost"], len(chosen), p=[0.7, 0.1, 0.1, 0.1])
        rewards, after = rng.normal(size=len(chosen)).astype(np.float32), names + len(chosen)
        for slot, *entry in zip(chosen.tolist(), names, rewards, ends, after, strict=True):
            account[slot].append(entry)
        out = builder.complete(
            chosen,
            rewards,
            ends == "terminated",
            ends == "truncated",
            ends == "lost",
            {"name": after[:, None].astype(np.float32)},
        )
        for i in range(len(out.reward)):
            name = float(out.obs["name"][i, 0])
            assert name not in found, "no decision starts two"
            assert out.action[i, 0] == name + 0.5
            found[name] = (float(out.reward[i]), float(out.discount[i]), float(out.next_obs["name"][i, 0]))
    expected = {}
    for stream in account.values():
        for start in range(len(stream)):
            part = []
            for entry in stream[start : start + steps]:
                part.append(entry)
                if entry[2]:
                    break
            if part[-1][2] == "lost" or (len(part) < steps and not part[-1][2]):
                continue  # it led nowhere, or is not over yet
            total = sum(DISCOUNT**k * float(entry[1]) for k, entry in enumerate(part))
            worth = 0.0 if part[-1][2] == "terminated" else DISCOUNT ** len(part)
            expected[float(part[0][0])] = (total, worth, float(part[-1][3]))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5)


def test_deciding_twice_is_refused():
    builder = NStep(1, 1, DISCOUNT)
    one = np.array([0])
    builder.decide(one, {"obs": np.zeros((1, 2))}, np.zeros((1, 1)))
    with pytest.raises(AssertionError, match="before its last decision was completed"):
        builder.decide(one, {"obs": np.zeros((1, 2))}, np.zeros((1, 1)))
