"""Why a policy cannot play in an environment."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from paceline.errors import UsageError
from paceline.evaluation.misfit import ImageMisfit, misfit
from paceline.pool.protocol import PoolSpec


def spec_of(side: int = 16, actions: int = 4, **sizes: int) -> PoolSpec:
    vectors = {name: spaces.Box(-1, 1, (size,), np.float32) for name, size in sizes.items()}
    space = spaces.Dict({"depth": spaces.Box(0, 255, (1, side, side), np.uint8), **vectors})
    return PoolSpec(observation_space=space, action_space=spaces.Discrete(actions), num_envs=1)


TRAINED = spec_of(goal=3, speed=1)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (spec_of(speed=1), "needs the observation 'goal', which this environment does not have; it has: depth, speed"),
        (spec_of(goal=2, speed=1), r"needs the shape \[3\] of the observation 'goal'; here it is \[2\]"),
        (spec_of(goal=3, speed=1, gps=2), "does not know the observation 'gps' .* it knows: depth, goal, speed"),
        (spec_of(32, goal=3, speed=1), r"needs the shape \[1, 16, 16\] of the observation 'depth'; here it is \[1, 32"),
        (spec_of(16, 2, goal=3, speed=1), r"needs the actions Discrete\(4\); here are Discrete\(2\)"),
    ],
)
def test_the_first_difference_is_named(spec, words):
    found = misfit("it", TRAINED, spec, UsageError("something else"))
    assert isinstance(found, ImageMisfit) == ("'depth';" in words)
    with pytest.raises(UsageError, match=f"^it {words}"):
        raise found


def test_without_a_difference_the_error_stays():
    cause = UsageError("the class is missing")
    assert misfit("it", TRAINED, TRAINED, cause) is cause


def test_a_run_that_has_not_saved_its_spaces():
    found = misfit("it", None, TRAINED, RuntimeError("size mismatch"))
    assert str(found).startswith("it does not fit this environment: its observations are depth [1, 16, 16], goal [3]")
