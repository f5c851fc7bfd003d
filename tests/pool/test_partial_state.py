"""A state has what could be saved. The other streams start anew, and no worker that dies or hangs is in the way."""

from __future__ import annotations

import os
import pickle
import signal

import numpy as np
import pytest

from paceline.envs.registry import resolve
from paceline.errors import SimulatorError, UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.env_state import UnreadableState, env_state, restore_env
from paceline.pool.make_tensor import make_tensor_pool
from paceline.pool.process import ProcessPool
from paceline.pool.serial import SerialPool
from tests.pool.faulty import Factory, Unsaveable, counting, faulty
from tests.pool.multi_agent import Mortal

pytestmark = pytest.mark.usefixtures("forked_workers")

KINDS = {"serial": SerialPool, "process": ProcessPool}


@pytest.fixture(params=KINDS)
def make(request):
    """Builds pools of one kind, and closes them."""
    pools = []

    def build(factory, seed=0, **options):
        config = PoolConfig(**{"num_envs": 4, "workers": 2, "nice": 0, **options})
        pools.append(KINDS[request.param](factory, config, seed))
        return pools[-1]

    yield build
    for pool in pools:
        pool.close()


def step(pool, slots=None):
    """Send `slots` (all, if None) and receive them: observations by slot."""
    slots = np.arange(4) if slots is None else np.asarray(slots)
    pool.send(np.zeros(len(slots), np.int64), slots)
    batch = pool.recv(min_slots=len(slots))
    return dict(zip(batch.slots.tolist(), batch.obs["obs"].tolist(), strict=True))


def test_a_full_state_leaves_no_slot_out(make, caplog):
    pool = make(counting())
    pool.recv(min_slots=None)
    anew = pool.restore(pool.state())
    assert anew.dtype == np.int64 and len(anew) == 0 and not caplog.text


def of_another_program(state: bytes, *envs: int) -> bytes:
    """The state of a pool in which these environments hold an object of a module that cannot be imported."""
    fields = pickle.loads(state)
    for env in envs:
        _, *rest = pickle.loads(fields["envs"][env])
        fields["envs"][env] = pickle.dumps((b"cnot_installed_here\nWind\n.", *rest))
    return pickle.dumps(fields)


def test_states_with_classes_of_another_program_start_anew(make):
    pool = make(counting(length=50))
    pool.recv(min_slots=None)
    before, state = step(pool), pool.state()
    assert pool.restore(of_another_program(state, 2)).tolist() == [2]
    after = dict(enumerate(pool.recv(min_slots=None).obs["obs"].tolist()))
    assert [slot for slot in range(4) if after[slot] != before[slot]] == [2] and after[2][2] == 0
    with pytest.raises(UsageError, match="cannot be loaded in this program.*No module named 'not_installed_here'"):
        pool.restore(of_another_program(state, *range(4)))
    pool.reset(3)
    assert [obs[2] for obs in pool.recv(min_slots=None).obs["obs"].tolist()] == [0, 0, 0, 0]


def test_slots_in_flight_are_left_out_and_start_anew(make, caplog):
    """They are in the first batch, with new seeds and no `lost` flag. The other slots continue exactly."""
    pool = make(counting(length=50), seed=4)
    noise = {
        obs[4] for obs in [*pool.recv(min_slots=None).obs["obs"].tolist(), *step(pool).values(), *step(pool).values()]
    }
    pool.send(np.zeros(1, np.int64), [2])
    state = pool.state()
    assert "slots [2]" in caplog.text
    pool.recv(min_slots=1)
    expected = [step(pool, [0, 1, 3]) for _ in range(3)]
    for other in (pool, make(counting(length=50), seed=99)):
        other.reset(5)
        other.recv(min_slots=None)
        assert other.restore(state).tolist() == [2]
        batch = other.recv(min_slots=None)
        assert batch.slots.tolist() == [0, 1, 2, 3] and batch.obs["obs"][:, 2].tolist() == [2, 2, 0, 2]
        assert not batch.lost.any() and not batch.reward.any() and not batch.ended().any() and batch.active.all()
        assert float(batch.obs["obs"][2, 4]) not in noise
        assert [step(other, [0, 1, 3]) for _ in range(3)] == expected


def test_environments_that_cannot_be_saved_are_left_out(make, caplog):
    pool = make(Factory(make=lambda env: Unsaveable(env, first=3)))
    pool.recv(min_slots=None)
    state = pool.state()
    assert "slots [3]" in caplog.text and "get_state()" in caplog.text
    assert pool.restore(state).tolist() == [3]
    assert len(pool.recv(min_slots=None)) == 4


def test_no_state_at_all_where_no_environment_can_be_saved(make):
    pool = make(Factory(make=Unsaveable))
    pool.recv(min_slots=None)
    with pytest.raises(UsageError, match="cannot be saved"):
        pool.state()


def test_a_state_of_nothing_starts_everything_anew(make):
    pool = make(counting())
    pool.send(np.zeros(4, np.int64), pool.recv(min_slots=None).slots)
    state = pool.state()
    pool.recv(min_slots=None)
    assert pool.restore(state).tolist() == [0, 1, 2, 3]
    assert pool.recv(min_slots=None).obs["obs"][:, 2].tolist() == [0, 0, 0, 0]


def test_an_environment_of_which_one_agent_was_sent_is_left_out(make):
    pool = make(Factory(make=Mortal), num_envs=2)
    agents = pool.spec.agents_per_env
    pool.recv(min_slots=None)
    pool.send(np.zeros(1, np.int64), [agents])
    assert pool.restore(pool.state()).tolist() == list(range(agents, 2 * agents))


def test_serial_and_process_pools_read_each_others_states_and_old_ones():
    with (
        SerialPool(counting(), PoolConfig(num_envs=4)) as serial,
        ProcessPool(counting(), PoolConfig(num_envs=4)) as other,
    ):
        serial.recv(min_slots=None)
        other.recv(min_slots=None)
        expected = list([step(serial) for _ in range(3)][-1].values())
        state = serial.state()
        assert len(other.restore(state)) == 0
        assert other.recv(min_slots=None).obs["obs"].tolist() == expected
        old = pickle.loads(state)
        old["envs"] = list(old["envs"].values())  # as serial pools had it before environments could be missing
        for saved in (other.state(), pickle.dumps(old)):
            step(serial)
            assert len(serial.restore(saved)) == 0
            assert serial.recv(min_slots=None).obs["obs"].tolist() == expected


def test_a_group_of_tensors_in_flight_is_left_out(caplog):
    def cartpoles(seed):
        return make_tensor_pool(resolve("tensor:cartpole"), PoolConfig(num_envs=6, groups=2), seed, "cpu")

    pool, other = cartpoles(1), cartpoles(2)
    first = pool.recv(min_slots=None).obs["obs"].clone()
    pool.send(np.zeros(3, np.int64), np.arange(3, 6))
    state = pool.state()
    assert "slots [3, 4, 5]" in caplog.text
    other.recv(min_slots=None)
    assert other.restore(state).tolist() == [3, 4, 5]
    batch = other.recv(min_slots=None)
    assert (batch.obs["obs"][:3] == first[:3]).all() and not (batch.obs["obs"][3:] == first[3:]).any()
    assert not batch.ended().any() and not batch.reward.any()
    assert other.restore(other.state()).tolist() == []


# -------------------------------------------------------------------------------- workers that die or do not answer


def build(factory, **options):
    return ProcessPool(factory, PoolConfig(**{"num_envs": 4, "workers": 2, "nice": 0, **options}), seed=11)


def test_a_worker_that_dies_while_states_are_saved_is_replaced_and_left_out(caplog):
    with build(counting(length=50)) as pool:
        pool.recv(min_slots=None)
        os.kill(pool.worker_pids()[1], signal.SIGKILL)
        state = pool.state()
        assert "slots [2, 3]" in caplog.text and pool.restarts == 1
        pool.send(np.zeros(4, np.int64), np.arange(4))
        assert pool.recv(min_slots=None).lost.tolist() == [False, False, True, True]
        assert pool.restore(state).tolist() == [2, 3]


def test_a_death_beyond_the_budget_is_told_after_the_state_is_saved():
    with build(counting(length=50), max_restarts=0) as pool:
        pool.recv(min_slots=None)
        os.kill(pool.worker_pids()[1], signal.SIGKILL)
        state = pool.state()
        with pytest.raises(SimulatorError, match="budget of 0 restarts"):
            pool.recv(min_slots=0)
    with build(counting(length=50)) as pool:
        pool.recv(min_slots=None)
        assert pool.restore(state).tolist() == [2, 3]


def test_a_failure_of_an_environment_is_told_after_the_state_is_saved():
    with build(faulty("raise", only=3, at=1)) as pool:
        pool.recv(min_slots=None)
        pool.send(np.zeros(1, np.int64), [3])
        pool.state()
        with pytest.raises(SimulatorError, match="the floor is lava"):
            pool.recv(min_slots=1)


def test_a_worker_that_does_not_answer_in_time_is_left_out_and_its_late_answer_ignored(caplog):
    with build(counting(length=50)) as pool:
        pool.recv(min_slots=None)
        os.kill(pool.worker_pids()[1], signal.SIGSTOP)
        state = pool.state(timeout=1.0)
        assert "slots [2, 3]" in caplog.text
        os.kill(pool.worker_pids()[1], signal.SIGCONT)
        step(pool)
        later = pool.state()
        assert pool.restore(later).tolist() == [] and pool.restarts == 0
        assert pool.recv(min_slots=None).obs["obs"][:, 2].tolist() == [1, 1, 1, 1]
        assert pool.restore(state).tolist() == [2, 3]


def test_a_simulator_that_cannot_take_a_state_stays_as_it_is():
    """It was saved by another class, which could."""

    class Saved:
        unwrapped = property(lambda self: self)

        def get_state(self):
            return 3

        def set_state(self, state): ...

    class Other:
        unwrapped = property(lambda self: self)

    with pytest.raises(UnreadableState, match="had get_state and set_state, and .*Other.* has no set_state"):
        restore_env(Other(), env_state(Saved()))
