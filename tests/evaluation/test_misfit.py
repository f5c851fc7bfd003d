"""Why a policy cannot play in an environment."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from paceline.errors import UsageError
from paceline.evaluation.misfit import ImageMisfit, misfit
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PlannerConfig, PolicyConfig
from paceline.nets.parts import controller_inputs, observations_in, parts_of, saved_form
from paceline.pool.protocol import PoolSpec

POLICY = PolicyConfig(encoder="patches", encoder_size=8, hidden=(8,), core=CoreConfig(kind="lstm", hidden=8))


def spec_of(side: int = 16, **sizes: int) -> PoolSpec:
    vectors = {name: spaces.Box(-1, 1, (size,), np.float32) for name, size in sizes.items()}
    space = spaces.Dict({"depth": spaces.Box(0, 255, (1, side, side), np.uint8), **vectors})
    return PoolSpec(observation_space=space, action_space=spaces.Discrete(4), num_envs=1)


def observed(policy: ActorCritic) -> dict[str, int | None]:
    return observations_in(saved_form(parts_of(policy)))


def test_what_a_policy_observes_is_in_its_checkpoint():
    assert observed(ActorCritic(spec_of(goal=3, speed=1), POLICY)) == {"depth": None, "goal": 3, "speed": 1}
    no_image = PoolSpec(
        observation_space=spaces.Box(-1, 1, (5,), np.float32), action_space=spaces.Discrete(2), num_envs=1
    )
    assert observed(ActorCritic(no_image, POLICY)) == {"obs": 5}
    assert observations_in(None) == {}


def test_a_steered_policy_observes_what_the_task_shows():
    """The goal of the controller comes from the planner."""
    planned = PolicyConfig(encoder="patches", encoder_size=8, hidden=(8,), planner=PlannerConfig(kind="lstm", hidden=8))
    policy = ActorCritic(spec_of(speed=1), planned)
    assert observed(policy) == {"depth": None, "speed": 1}
    assert controller_inputs(saved_form(parts_of(policy))) == {"goal": 3, "speed": 1}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (spec_of(speed=1), "needs the observation 'goal', which this environment does not have; it has: depth, speed"),
        (spec_of(goal=2, speed=1), "needs 3 values of the observation 'goal', which has 2 here"),
        (spec_of(goal=3, speed=1, gps=2), "does not know the observation 'gps' .* it knows: depth, goal, speed"),
        (spec_of(side=32, goal=3, speed=1), r"needs images of the same size; here they are: depth \[1, 32, 32\]"),
    ],
)
def test_the_first_observation_that_differs_is_named(spec, words):
    old, new = ActorCritic(spec_of(goal=3, speed=1), POLICY), ActorCritic(spec, POLICY)
    with pytest.raises(RuntimeError) as caught:
        new.load_state_dict(old.state_dict())
    found = misfit("it", observed(old), spec, caught.value)
    assert isinstance(found, UsageError) and isinstance(found, ImageMisfit) == ("images" in words)
    with pytest.raises(UsageError, match=f"^it {words}"):
        raise found
