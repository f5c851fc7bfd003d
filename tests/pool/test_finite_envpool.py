"""Numbers that are not finite in EnvPool's states are refused, and named."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("envpool")

from paceline.envs.registry import resolve
from paceline.errors import SimulatorError
from paceline.pool.envpool_rows import RowReader
from paceline.pool.protocol import PoolSpec
from paceline.pool.seeds import env_seed

NAN, INF, BEYOND = float("nan"), float("inf"), 1e39


class HandMade:
    """A reader of EnvPool's states, and states of its own making: EnvPool itself has no NaN."""

    def __init__(self, env="envpool:HalfCheetah-v4", num_envs=4):
        task = resolve(env).make
        task_spec = task.spec()
        observation_space, action_space = task.spaces(task_spec)
        spec = PoolSpec(observation_space=observation_space, action_space=action_space, num_envs=num_envs)
        self.reader = RowReader(task, task_spec, spec, seed=11)
        self._keys, self._spec = task_spec._state_keys, task_spec._state_spec
        self.slots = np.arange(num_envs)

    def state(self, step, rows=4, **changes):
        arrays = {
            key: np.zeros((rows, *(size for size in shape if size != -1)), dtype)
            for key, (dtype, shape, *_) in zip(self._keys, self._spec, strict=True)
        }
        arrays["elapsed_step"][:] = step
        for key, (where, value) in changes.items():
            arrays[key][where] = value
        return list(arrays.values())


ENVPOOL_FAULTS = [("obs", (1, 5), NAN), ("obs", (1, 5), BEYOND), ("reward", 1, INF)]


@pytest.mark.parametrize(("key", "where", "value"), ENVPOOL_FAULTS, ids=["nan", "beyond", "reward"])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_envpool_step_that_is_not_finite_is_refused(key, where, value):
    made = HandMade()
    none = np.zeros(0, np.int64)
    made.reader.first(made.state(0), made.slots)
    made.reader.step(made.state(1), made.slots, none)
    with pytest.raises(SimulatorError) as caught:
        made.reader.step(made.state(7, **{key: (where, value)}), made.slots, none)
    failure = caught.value.failure
    assert failure.cause == (
        "the reward is inf"
        if key == "reward"
        else f"observation 'obs' is {'nan' if value != value else 'inf'} at index [5]"
    )
    assert (failure.slots, failure.seed) == ((1,), env_seed(11, 1))
    assert (failure.phase, failure.episode, failure.step) == ("step", 0, 6)


def test_envpool_first_and_last_observations_that_are_not_finite_are_refused():
    made = HandMade()
    with pytest.raises(
        SimulatorError, match=r"in reset \(slot 3, seed \d+, episode 0, step 0\): observation 'obs' is inf"
    ):
        made.reader.first(made.state(0, obs=((3, 0), INF)), made.slots)
    made = HandMade()
    made.reader.first(made.state(0), made.slots)
    ended = np.array([1, 2])
    rows = made.reader.step(made.state(9, done=(ended, True)), made.slots, ended)
    made.reader.restart(rows, ended, made.state(0, rows=2))
    with pytest.raises(
        SimulatorError, match=r"in step \(slot 2, seed \d+, episode 1, step 3\): observation 'obs' is nan"
    ):
        made.reader.step(made.state(4, done=(ended, True), obs=((2, 3), NAN)), made.slots, ended)
    rows = made.reader.step(made.state(9, done=(ended, True)), made.slots, ended)
    with pytest.raises(
        SimulatorError, match=r"in reset \(slot 2, seed \d+, episode 2, step 0\): observation 'obs' is nan"
    ):
        made.reader.restart(rows, ended, made.state(0, rows=2, obs=((1, 0), NAN)))
