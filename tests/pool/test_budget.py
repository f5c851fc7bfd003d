"""How often simulators may be replaced: so many in any hour, or in all."""

from __future__ import annotations

import pytest

from paceline.config import Config
from paceline.errors import SimulatorError, SimulatorFailure, UsageError
from paceline.pool import budget
from paceline.pool.budget import RestartBudget
from paceline.pool.config import PoolConfig

FAILURE = SimulatorFailure(cause="it burned", phase="step", slots=(3,))


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""
    now = [0.0]
    monkeypatch.setattr(budget.time, "monotonic", lambda: now[0])
    return now


def test_a_week_of_restarts_at_the_allowed_rate(clock):
    restarts = RestartBudget(PoolConfig())
    for hour in range(7 * 24):
        for minute in range(20):
            clock[0] = 3600.0 * hour + 60 * minute
            restarts.spend(FAILURE)
    assert restarts.restarts == 7 * 24 * 20


def test_more_than_the_rate_within_any_hour_end_the_run(clock, caplog):
    restarts = RestartBudget(PoolConfig(max_restarts_per_hour=2))
    for clock[0] in (0.0, 3000.0, 3600.0):
        restarts.spend(FAILURE)
    clock[0] = 6000.0
    with pytest.raises(SimulatorError, match=r"budget of 2 restarts an hour is spent \(pool.max_restarts_per_hour\)"):
        restarts.spend(FAILURE)
    assert (
        restarts.restarts == 3 and "(2 of 2 an hour): the simulator failed in step (slot 3): it burned" in caplog.text
    )


def test_a_total_takes_the_place_of_the_rate(clock):
    restarts = RestartBudget(PoolConfig(max_restarts=30, max_restarts_per_hour=1))
    for _ in range(30):
        restarts.spend(FAILURE)
    with pytest.raises(SimulatorError, match=r"budget of 30 restarts is spent \(pool.max_restarts\)"):
        restarts.spend(FAILURE)


def test_configurations_of_old_runs_still_load(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"pool": {"max_restarts": 10}}')
    assert Config.load(path).pool.max_restarts == 10
    Config().save(path)
    assert Config.load(path) == Config()


@pytest.mark.parametrize("options", [{"max_restarts": -1}, {"max_restarts_per_hour": -1}])
def test_negative_budgets_are_refused(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        PoolConfig(**options)
