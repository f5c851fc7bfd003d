"""Every slot has an environment of its own. One object in two slots is refused, and not trained on mixed episodes."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import paceline as pl
from paceline.envs.factory import Factory
from paceline.errors import UsageError
from paceline.pool import PoolConfig, make_pool
from tests.pool.faulty import Counting, Faulty
from tests.pool.vector_envs import Numbers

pytestmark = pytest.mark.usefixtures("forked_workers")
SAME = "^env gave the same object twice; it must make a new environment each time$"
KINDS = ("serial", "process")


def pool_of(make, kind: str, num_envs: int = 4, workers: int = 2, **options):
    config = PoolConfig(kind=kind, num_envs=num_envs, workers=workers if kind == "process" else None, nice=0, **options)
    return make_pool(Factory(make=make), config)


class Handing:
    """Gives out the first of `envs`, then the next ones."""

    def __init__(self, *envs) -> None:
        self.left = list(envs)

    def __call__(self, env_index: int):
        return self.left.pop(0)


@pytest.mark.parametrize("kind", KINDS)
def test_one_object_for_all_slots_is_refused(kind):
    shared = Counting(0)
    with pytest.raises(UsageError, match=SAME):
        pool_of(lambda env_index: shared, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_two_wrappers_of_one_object_are_refused(kind):
    shared = gymnasium.make("CartPole-v1").unwrapped
    with pytest.raises(UsageError, match=SAME):
        pool_of(lambda env_index: gymnasium.wrappers.TimeLimit(shared, 9), kind)


def test_workers_with_one_environment_each_have_objects_of_their_own():
    shared = Counting(0)
    with pool_of(lambda env_index: shared, "process", num_envs=2) as pool:
        assert len(pool.recv(min_slots=None)) == 2


def test_an_object_from_python_is_refused_before_training(tmp_path):
    shared = Counting(0)
    with pytest.raises(UsageError, match=SAME):
        pl.train(env=lambda: shared, folder=tmp_path / "run", steps=64, device="cpu", pool={"kind": "serial"})
    assert not (tmp_path / "run").exists()


def failing_again(envs: Handing, kind: str) -> None:
    """The environment in slot 0 fails at its third step, and is made anew."""
    with pool_of(envs, kind, num_envs=2, workers=1, on_error="restart") as pool:
        for _ in range(4):
            batch = pool.recv(min_slots=None)
            pool.send(np.zeros(len(batch), np.int64), batch.slots)
        assert pool.restarts == 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_environment_that_failed_may_be_given_again(kind):
    """Nothing else uses it."""
    failed, other = Faulty(0, "raise"), Counting(1)
    failing_again(Handing(failed, other, failed), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_replacement_in_use_elsewhere_is_refused(kind):
    failed, other = Faulty(0, "raise"), Counting(1)
    with pytest.raises(UsageError, match=SAME):
        failing_again(Handing(failed, other, other), kind)


def test_groups_of_a_batched_simulator_are_different_objects():
    shared = Numbers(2)
    make = Factory(make=lambda num_envs, device: shared, backend="tensor")
    with pytest.raises(UsageError, match=SAME):
        make_pool(make, PoolConfig(num_envs=4, groups=2))
