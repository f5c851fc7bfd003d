"""A warning where a new policy could not explore: its actions have a standard deviation of 1."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from paceline.nets.config import HeadConfig, PolicyConfig
from paceline.nets.scales import warn_of_scale
from paceline.pool.protocol import PoolSpec


def box(low: float, high: float) -> spaces.Box:
    return spaces.Box(low, high, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "squash", "bounds"),
    [
        (box(-50.0, 50.0), False, "-50 and 50"),
        (box(-0.01, 0.01), False, "-0.01 and 0.01"),
        (box(10.0, 20.0), False, "10 and 20"),
        (box(-3.0, -2.0), False, "-3 and -2"),
        (spaces.Dict(move=box(-1.0, 1.0), grip=box(0.0, 1000.0)), False, "0 and 1000"),
        (box(-50.0, 50.0), True, None),
        (box(-1.0, 1.0), False, None),
        (box(-0.4, 0.4), False, None),
        (box(-np.inf, np.inf), False, None),
        (spaces.Discrete(100), False, None),
    ],
)
def test_ranges_that_hardly_fit_are_named(space, squash, bounds, caplog):
    spec = PoolSpec(observation_space=box(-1.0, 1.0), action_space=space, num_envs=1)
    warn_of_scale(spec, PolicyConfig(head=HeadConfig(squash=squash)), "sim:arm")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (bounds is not None)
    assert all(f"actions of sim:arm are between {bounds}, " in text and "--policy.head.squash" in text for text in said)
