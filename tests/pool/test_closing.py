"""Simulators are closed, whatever happens: those that failed, those of a pool that could not start, and the others of
one that fails to close."""

from __future__ import annotations

import logging

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from paceline.errors import SimulatorError
from paceline.pool.config import PoolConfig
from paceline.pool.make import make_pool
from paceline.recipes.defaults import default_config

OBS, ACTION = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)


class Engine(gymnasium.Env):
    """An environment with something to close. `fails` is what environment 3 does not survive."""

    observation_space, action_space = OBS, ACTION
    open: set[int] = set()  # noqa: RUF012
    made = 0

    def __init__(self, env_index: int = 0, fails: str = "") -> None:
        self._fails = fails if env_index == 3 else ""
        self._fail("make")
        Engine.made += 1
        self._number = Engine.made
        Engine.open.add(self._number)

    def reset(self, *, seed=None, options=None):
        self._fail("reset")
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._steps += 1
        if self._steps == 3:
            self._fail("step")
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def close(self) -> None:
        Engine.open.discard(self._number)
        self._fail("close")

    def _fail(self, where: str) -> None:
        if self._fails == where:
            raise RuntimeError(f"{where} fails")


@pytest.fixture(autouse=True)
def nothing_open():
    Engine.open.clear()


def serial(fails: str, **changes):
    return make_pool(lambda env_index: Engine(env_index, fails), PoolConfig(kind="serial", num_envs=5, **changes))


@pytest.mark.parametrize("where", ["make", "reset"])
def test_a_pool_that_cannot_start_closes_what_it_has_made(where):
    with pytest.raises(SimulatorError, match=f"{where} fails"):
        serial(where)
    assert not Engine.open


def test_a_replaced_simulator_is_closed():
    with serial("step", on_error="restart") as pool:
        for _ in range(8):
            batch = pool.recv(min_slots=None)
            pool.send(np.zeros(len(batch), np.int64), batch.slots)
        pool.recv(min_slots=None)
        assert pool.restarts > 0 and len(Engine.open) == 5
    assert not Engine.open


def test_one_that_fails_to_close_is_named_and_the_others_are_closed(caplog):
    pool = serial("close")
    with caplog.at_level(logging.WARNING):
        pool.close()
    assert not Engine.open and "Engine could not be closed: RuntimeError: close fails" in caplog.text


def test_an_environment_that_fails_to_close_gets_its_settings(monkeypatch):
    """`self.viewer.close()` with no viewer is a common mistake. It must not keep anyone from training."""
    monkeypatch.setattr(Engine, "close", lambda self: self.viewer.close())
    config, _ = default_config(f"{__name__}:Engine")
    assert config.policy.hidden


def test_batched_simulators_are_closed_if_one_cannot_be_made():
    closed = []

    class Batched:
        def __init__(self, number: int) -> None:
            self._number = number

        def close(self) -> None:
            closed.append(self._number)

    made = iter([Batched(0), Batched(1)])

    def make(num_envs: int, device: str):
        return next(made, None) or (_ for _ in ()).throw(RuntimeError("no memory left"))

    with pytest.raises(RuntimeError, match="no memory left"):
        make_pool(make, PoolConfig(num_envs=6, groups=3))
    assert closed == [0, 1]
