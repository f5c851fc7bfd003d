"""The contract of every host pool, and that `process` gives the streams of `serial`."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.envs.factory import Factory
from paceline.pool import make_pool
from paceline.pool.config import PoolConfig
from paceline.pool.process import ProcessPool
from paceline.pool.serial import SerialPool
from tests.pool.faulty import Counting, counting

pytestmark = pytest.mark.usefixtures("forked_workers")

NUM_ENVS = 6


@pytest.fixture(params=["serial", "process"])
def make(request):
    """Builds pools of one kind, and closes them."""
    pools = []

    def build(factory, seed=0, **options):
        config = PoolConfig(**{"num_envs": NUM_ENVS, "workers": 2, **options})
        pools.append((SerialPool if request.param == "serial" else ProcessPool)(factory, config, seed))
        return pools[-1]

    yield build
    for pool in pools:
        pool.close()


def act(slots, turn):
    """An action that depends on slot and turn, so that a mix-up shows."""
    return (np.asarray(slots) * 3 + turn) % 10


def record(pool, turns):
    """Every row of every slot over some lock-step turns."""
    rows = defaultdict(list)
    for turn in range(turns):
        batch = pool.recv(min_slots=None)
        ended = batch.ended()
        for row, slot in enumerate(batch.slots):
            rows[int(slot)].append(
                (
                    batch.obs["obs"][row].tolist(),
                    float(batch.reward[row]),
                    bool(batch.terminated[row]),
                    bool(batch.truncated[row]),
                    batch.final_obs["obs"][slot].tolist() if ended[row] else None,
                    bool(batch.active[row]),
                )
            )
        pool.send(act(batch.slots, turn), batch.slots)
    return rows


def test_first_batch_is_the_reset(make):
    pool = make(counting())
    assert not pool.spec.on_device
    batch = pool.recv(min_slots=None)
    assert batch.slots.tolist() == list(range(NUM_ENVS))
    assert batch.obs["obs"][:, :4].tolist() == [[env, 0, 0, -1] for env in range(NUM_ENVS)]
    assert not batch.reward.any() and not batch.ended().any() and batch.active.all() and not batch.lost.any()


def test_rows_belong_to_their_slot_and_turn(make):
    pool = make(counting())
    for turn in range(4):
        batch = pool.recv(min_slots=None)
        if turn:
            assert batch.obs["obs"][:, 3].tolist() == act(batch.slots, turn - 1).tolist()
            assert batch.reward.tolist() == [turn] * NUM_ENVS
        pool.send(act(batch.slots, turn), batch.slots)


def test_autoreset_in_the_same_step(make):
    """At an end `obs` is the next episode's first and `final_obs` the old one's last; no row is in between."""
    pool = make(Factory(make=lambda env: Counting(env, length=2)), num_envs=2)
    rows = record(pool, 6)[1]
    assert [row[0][1:3] for row in rows] == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]
    assert [row[1] for row in rows] == [0, 1, 2, 101, 102, 201]
    assert [row[2:4] for row in rows] == [(False, False)] * 2 + [
        (False, True),
        (False, False),
        (True, False),
        (False, False),
    ]
    assert rows[2][4][1:3] == [0, 2] and rows[4][4][1:3] == [1, 2]


def test_episodes_are_reported_once_with_return_length_and_scalars(make):
    pool = make(Factory(make=lambda env: Counting(env, length=3)), num_envs=2)
    record(pool, 8)
    episodes = sorted(pool.take_episodes(), key=lambda e: (e.slot, e.episode_return))
    assert [(e.slot, e.episode_return, e.length, dict(e.info)) for e in episodes] == [
        (slot, ret, 3, {"score": score}) for slot in range(2) for ret, score in ((6.0, 0.0), (306.0, 1.0))
    ]
    assert pool.take_episodes() == []


def test_same_seed_same_stream_serial_and_process():
    streams = []
    for pool in (
        SerialPool(counting(), PoolConfig(num_envs=NUM_ENVS), seed=7),
        ProcessPool(counting(), PoolConfig(num_envs=NUM_ENVS, workers=1), seed=7),
        ProcessPool(counting(), PoolConfig(num_envs=NUM_ENVS, workers=4), seed=7),
        SerialPool(counting(), PoolConfig(num_envs=NUM_ENVS), seed=8),
    ):
        with pool:
            streams.append((record(pool, 25), sorted(map(repr, pool.take_episodes()))))
    assert streams[0] == streams[1] == streams[2]
    assert streams[0] != streams[3]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Taxi-v4"])
def test_gymnasium_streams_equal_plain_gymnasium(env_id):
    """Both pools give what a hand-written loop over the environment gives."""
    from paceline.pool.seeds import env_seed

    factory = Factory(make=lambda env: gym.make(env_id, max_episode_steps=30))
    env = gym.make(env_id, max_episode_steps=30)
    env.action_space.seed(3)
    actions = [env.action_space.sample() for _ in range(80)]
    expected = [np.asarray(env.reset(seed=env_seed(5, 1))[0], np.float32)]
    ends = []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        ends.append((np.float32(reward), bool(terminated), bool(truncated) and not terminated))
        if terminated or truncated:
            observation = env.reset()[0]
        expected.append(np.asarray(observation, np.float32))
    for kind in (SerialPool, ProcessPool):
        with kind(factory, PoolConfig(num_envs=2, workers=2), 5) as pool:
            for turn, action in enumerate(actions):
                batch = pool.recv(min_slots=None)
                np.testing.assert_array_equal(np.asarray(batch.obs["obs"][1], np.float32), expected[turn])
                if turn:
                    assert (batch.reward[1], batch.terminated[1], batch.truncated[1]) == ends[turn - 1]
                pool.send(np.stack([action, action]), batch.slots)


def test_reset_starts_over(make):
    pool = make(counting(), seed=1)
    first = record(pool, 7)
    pool.take_episodes()
    pool.reset(1)
    again = record(pool, 7)
    # Counting numbers its episodes over its whole life; the seeded noise and the shape of the stream start over.
    assert [[row[0][4] for row in first[s]] for s in first] == [[row[0][4] for row in again[s]] for s in again]
    assert [[row[0][2] for row in first[s]] for s in first] == [[row[0][2] for row in again[s]] for s in again]


def test_state_and_restore_continue_exactly(make):
    pool = make(counting(), seed=4)
    record(pool, 8)
    held = pool.recv(min_slots=None).obs["obs"].copy()
    state = pool.state()
    pool.send(act(np.arange(NUM_ENVS), 0), np.arange(NUM_ENVS))
    expected = record(pool, 12)
    fresh = make(counting(), seed=99)
    for other in (pool, fresh):
        other.recv(min_slots=None)
        other.restore(state)
        batch = other.recv(min_slots=None)
        assert (batch.obs["obs"] == held).all() and not batch.ended().any() and not batch.reward.any()
        other.send(act(batch.slots, 0), batch.slots)
        assert record(other, 12) == expected


@pytest.mark.parametrize("env_id", ["CartPole-v1", "HalfCheetah-v5"])
def test_state_of_gymnasium_environments(env_id):
    """EzPickle environments come back freshly made when pickled; ours continue."""
    factory = Factory(make=lambda env: gym.make(env_id))
    try:
        factory.make(0).close()
    except (gym.error.DependencyNotInstalled, ImportError):
        pytest.skip("mujoco is not installed")
    with SerialPool(factory, PoolConfig(num_envs=2), 3) as pool:
        actions = np.stack([pool.spec.actions[0].space.sample() for _ in range(2)])
        for _ in range(9):
            pool.send(actions, pool.recv(min_slots=None).slots)
        pool.recv(min_slots=None)
        state = pool.state()
        streams = []
        for _ in range(2):
            pool.restore(state)
            pool.recv(min_slots=None)
            stream = []
            for _ in range(6):
                pool.send(actions, [0, 1])
                batch = pool.recv(min_slots=None)
                stream.append((batch.obs["obs"].tolist(), batch.reward.tolist()))
            streams.append(stream)
    assert streams[0] == streams[1]


def test_groups_are_contiguous_and_take_turns(make):
    pool = make(counting(), groups=2, num_envs=5, workers=2)
    assert [list(pool.spec.group_slots(g)) for g in range(2)] == [[0, 1], [2, 3, 4]]
    for turn in range(5):
        for group in range(2):
            batch = pool.recv(min_slots=None, group=group)
            assert batch.slots.tolist() == list(pool.spec.group_slots(group))
            if turn:
                assert (batch.obs["obs"][:, 3] == act(batch.slots, turn - 1)).all()
            pool.send(act(batch.slots, turn), batch.slots)


def test_max_slots_leaves_the_rest_ready(make):
    pool = make(counting())
    seen = []
    while len(seen) < NUM_ENVS:
        batch = pool.recv(min_slots=1, max_slots=2)
        assert 1 <= len(batch) <= 2
        seen += batch.slots.tolist()
    assert sorted(seen) == list(range(NUM_ENVS))


def test_timeout_returns_what_is_there(make):
    pool = make(counting())
    batch = pool.recv(min_slots=None)
    empty = pool.recv(min_slots=0, timeout=0)
    assert len(empty) == 0
    pool.send(act(batch.slots[:2], 0), batch.slots[:2])
    assert pool.recv(min_slots=2).slots.tolist() == [0, 1]


@settings(max_examples=6)
@given(rng=st.randoms(use_true_random=False), workers=st.integers(1, 3), groups=st.integers(1, 2))
def test_any_order_of_partial_sends_loses_and_mixes_nothing(rng, workers, groups):
    """However slots are received and sent in parts, every slot's stream is that of lock-step."""
    rng = random.Random(
        rng.randrange(2**32)
    )  # what arrives depends on timing, so the draws must not be hypothesis's own
    with SerialPool(counting(), PoolConfig(num_envs=NUM_ENVS), 2) as serial:
        expected = record(serial, 40)
    with ProcessPool(counting(), PoolConfig(num_envs=NUM_ENVS, workers=workers, groups=groups), 2) as pool:
        turns = dict.fromkeys(range(NUM_ENVS), 0)
        held: list[int] = []
        for _ in range(30):
            if len(held) < NUM_ENVS:
                least = rng.randint(0, NUM_ENVS - len(held))
                batch = pool.recv(min_slots=least, max_slots=rng.randint(1, NUM_ENVS), timeout=rng.choice([0.0, 0.05]))
                for row, slot in enumerate(batch.slots.tolist()):
                    assert batch.obs["obs"][row].tolist() == expected[slot][turns[slot]][0]
                    assert batch.reward[row] == expected[slot][turns[slot]][1]
                held += batch.slots.tolist()
            chosen = [slot for slot in held if rng.random() < 0.5]
            rng.shuffle(chosen)
            pool.send(np.array([act(slot, turns[slot]) for slot in chosen], np.int64), np.array(chosen, np.int64))
            for slot in chosen:
                turns[slot] += 1
                held.remove(slot)


def test_slots_of_a_batch_from_before_a_reset_cannot_be_sent(make):
    pool = make(counting())
    slots = pool.recv(min_slots=None).slots
    pool.reset(1)
    with pytest.raises(ValueError, match="were not received"):
        pool.send(act(slots, 0), slots)


class TestBadCalls:
    """Wrong calls are refused with what is wrong, and change nothing."""

    def test_sending_what_was_not_received(self, make):
        pool = make(counting())
        with pytest.raises(ValueError, match=r"slots \[0\] were not received"):
            pool.send(np.zeros(1, np.int64), [0])
        batch = pool.recv(min_slots=None)
        pool.send(act(batch.slots, 0), batch.slots)
        with pytest.raises(ValueError, match="were not received"):
            pool.send(act(batch.slots, 0), batch.slots)

    @pytest.mark.parametrize(
        ("actions", "slots", "message"),
        [
            (np.zeros(2, np.int64), [0], "shape"),
            (np.zeros(1, np.float32), [0], "integers"),
            (np.array([10]), [0], "slot 0 is outside"),
            (np.array([0, -1]), [0, 4], "slot 4 is outside"),
            (np.array([0, 0]), [1, 1], "twice"),
            (np.array([0]), [77], r"\[0, 6\)"),
            (np.array([0]), [0.5], "integers"),
            ({"nonsense": np.array([0])}, [0], "nonsense"),
        ],
    )
    def test_bad_actions(self, make, actions, slots, message):
        pool = make(counting())
        pool.recv(min_slots=None)
        with pytest.raises(ValueError, match=message):
            pool.send(actions, slots)
        pool.send(act(np.arange(NUM_ENVS), 0), np.arange(NUM_ENVS))
        assert len(pool.recv(min_slots=None)) == NUM_ENVS

    def test_a_wait_that_cannot_end(self, make):
        pool = make(counting())
        pool.recv(min_slots=None)
        with pytest.raises(ValueError, match="wait for ever"):
            pool.recv()
        with pytest.raises(ValueError, match="allowed: 0 to 6"):
            pool.recv(min_slots=7)
        with pytest.raises(ValueError, match="group 3"):
            pool.recv(min_slots=0, group=3)


@pytest.mark.parametrize("kind", ["serial", "process"])
def test_those_with_lower_numbers_come_first_where_not_all_can(kind):
    """Least-collected first: among equals the oldest, and no one is left out for good."""
    with make_pool("gym:CartPole-v1", PoolConfig(kind=kind, num_envs=4, workers=1)) as pool:
        batch = pool.recv(min_slots=None)
        pool.send(np.zeros(4, np.int64), batch.slots)
        pool.recv(min_slots=4, max_slots=1)  # all are ready now, and one is taken
        numbers = np.array([5, 9, 0, 1])
        taken = pool.recv(min_slots=3, max_slots=2, first=numbers)
        assert taken.slots.tolist() == [2, 3]
        assert pool.recv(min_slots=1, first=numbers).slots.tolist() == [1]


def test_whoever_waits_can_be_woken():
    """And gets nothing: what is ready stays so."""
    env = "synthetic:minority?mean=1.5&slow=100&fraction=0.5"  # one step takes seconds, the other does not
    with make_pool(env, PoolConfig(num_envs=2, workers=2, kind="process")) as pool:
        batch = pool.recv(min_slots=None)
        pool.send(np.zeros(2, np.int64), batch.slots)
        waking = threading.Timer(0.3, pool.wake)
        waking.start()
        assert len(pool.recv(min_slots=2)) == 0
        waking.join()
        assert len(pool.recv(min_slots=1)) == 1
    pool.wake()  # and after its end nobody minds


@pytest.mark.parametrize(("kind", "env"), [("process", "gym:Pendulum-v1"), ("envpool", "envpool:Pendulum-v1")])
def test_a_ring_that_nobody_waited_for_is_heard_once(kind, env):
    """By the next call that has to wait, and no step is lost by it."""
    if kind == "envpool":
        pytest.importorskip("envpool")
    with make_pool(env, PoolConfig(num_envs=2, workers=2, kind=kind)) as pool:
        batch, empty = pool.recv(min_slots=None), 0
        for turn in range(1, 51):
            pool.send(np.zeros((2, 1), np.float32), batch.slots.copy())
            pool.wake()
            while len(batch := pool.recv(min_slots=None)) == 0:
                empty += 1
            assert batch.slots.tolist() == [0, 1] and empty <= turn
        assert empty > 0
