"""EnvPool behind the pool protocol, compared with EnvPool driven by hand."""

import queue
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("envpool")

import envpool

from paceline.envs.registry import resolve
from paceline.errors import SimulatorError, UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.envpool import EnvPoolPool
from paceline.pool.protocol import Pool
from paceline.pool.seeds import env_seed

CARTPOLE = "envpool:CartPole-v1"
ONE_BY_ONE = "envpool:CartPole-v1?batch_size=1"


def make(env=CARTPOLE, num_envs=6, seed=5, **config):
    return EnvPoolPool(resolve(env), PoolConfig(num_envs=num_envs, **config), seed)


@dataclass
class Row:
    """One delivered row, or what should have been."""

    obs: np.ndarray
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final: np.ndarray | None = None


def action_of(slot, step, num_actions=2):
    """An identifiable action: any stream that mixes slots or loses a step gets another one."""
    return (7 * slot + step * step + step // 3) % num_actions


def by_hand(task, slot, seed, steps, num_actions=2, **options):
    """The stream of one slot: EnvPool with one environment, its reset rows folded into the row before."""
    env = envpool.make_gymnasium(task, num_envs=1, seed=[env_seed(seed, slot)], **options)
    obs, _ = env.reset()
    rows = [Row(obs[0])]
    while len(rows) <= steps:
        action = np.array([action_of(slot, len(rows) - 1, num_actions)])
        obs, reward, terminated, truncated, _ = env.step(action)
        row = Row(obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]))
        if row.terminated or row.truncated:
            row.final = row.obs
            row.obs = env.step(action)[0][0]  # EnvPool resets here; the action is ignored, the row is no step
        rows.append(row)
    return rows


def collect(pool, steps, num_actions=2, **recv):
    """Rows by slot, until every slot has `steps` of them; slots that have enough are kept back."""
    streams = defaultdict(list)
    while min((len(streams[slot]) for slot in range(pool.spec.num_slots)), default=0) <= steps:
        batch = pool.recv(**recv)
        ended = batch.ended()
        for row, slot in enumerate(batch.slots.tolist()):
            final = batch.final_obs["obs"][slot].copy() if ended[row] else None
            streams[slot].append(
                Row(
                    batch.obs["obs"][row].copy(),
                    float(batch.reward[row]),
                    bool(batch.terminated[row]),
                    bool(batch.truncated[row]),
                    final,
                )
            )
        going = np.array([slot for slot in batch.slots.tolist() if len(streams[slot]) <= steps], np.int64)
        if len(going):
            actions = [action_of(slot, len(streams[slot]) - 1, num_actions) for slot in going.tolist()]
            pool.send(np.array(actions), going)
    return streams


def assert_same(streams, expected):
    for slot, rows in expected.items():
        assert len(streams[slot]) == len(rows)
        for step, (got, want) in enumerate(zip(streams[slot], rows, strict=True)):
            where = f"slot {slot}, row {step}"
            np.testing.assert_array_equal(got.obs, want.obs, err_msg=where)
            assert (got.reward, got.terminated, got.truncated) == (want.reward, want.terminated, want.truncated), where
            assert (got.final is None) == (want.final is None), where
            if want.final is not None:
                np.testing.assert_array_equal(got.final, want.final, err_msg=where)


@pytest.fixture(scope="module")
def expected():
    """60 steps of 6 CartPole slots: several ends in each."""
    streams = {slot: by_hand("CartPole-v1", slot, 5, 60) for slot in range(6)}
    assert all(sum(row.terminated for row in rows) >= 2 for rows in streams.values())
    return streams


@pytest.mark.parametrize("env", [CARTPOLE, ONE_BY_ONE])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_lock_step_equals_envpool_by_hand(env, groups, expected):
    with make(env, groups=groups) as pool:
        assert_same(collect(pool, 60, min_slots=1), expected)


@pytest.mark.parametrize("env", [CARTPOLE, ONE_BY_ONE])
@pytest.mark.parametrize(("min_slots", "max_slots"), [(1, 1), (1, 4), (0, 5)])
def test_any_portions_equal_envpool_by_hand(env, min_slots, max_slots, expected):
    with make(env, groups=2) as pool:
        assert_same(collect(pool, 60, min_slots=min_slots, max_slots=max_slots), expected)


def test_several_sends_before_a_recv(expected):
    """EnvPool itself would overwrite the rows of the first with those of the second."""
    with make() as pool:
        streams = defaultdict(list)
        batch = pool.recv(None)
        for step in range(60):
            for slot in [4, 1, 0, 5, 3, 2]:
                pool.send(np.array([action_of(slot, step)]), [slot])
            batch = pool.recv(None)
            assert batch.slots.tolist() == [0, 1, 2, 3, 4, 5]
            for slot in range(6):
                streams[slot].append((batch.reward[slot], batch.terminated[slot], batch.obs["obs"][slot].copy()))
        for slot, rows in expected.items():
            for (reward, terminated, obs), row in zip(streams[slot], rows[1:], strict=True):
                assert (reward, terminated) == (row.reward, row.terminated)
                np.testing.assert_array_equal(obs, row.obs)


@pytest.mark.parametrize("env", [CARTPOLE, ONE_BY_ONE])
def test_garbage_reset_rows_never_delivered(env):
    """Every delivered row is a step: lengths and returns add up to exactly what was sent, and rewards are all 1."""
    with make(env, num_envs=8, groups=2) as pool:
        sent = np.zeros(8, int)
        running = np.zeros(8, int)
        finished = []
        batch = pool.recv(None)
        assert batch.reward.tolist() == [0.0] * 8
        assert not batch.ended().any()
        assert batch.active.all()
        assert not batch.lost.any()
        for step in range(200):
            pool.send(np.array([action_of(slot, step) for slot in batch.slots.tolist()]), batch.slots)
            sent[batch.slots] += 1
            batch = pool.recv(None)
            assert (batch.reward == 1).all()  # EnvPool's reset rows have reward 0
            running[batch.slots] += 1
            for slot in batch.slots[batch.ended()].tolist():
                finished.append((slot, running[slot]))
                assert np.abs(batch.obs["obs"][slot]).max() <= 0.05  # a first observation
                assert np.abs(batch.final_obs["obs"][slot]).max() > 0.05
                running[slot] = 0
        episodes = pool.take_episodes()
        assert sorted((e.slot, e.length) for e in episodes) == sorted(finished)
        assert all(e.episode_return == e.length == e.info["elapsed_step"] for e in episodes)
        lengths = sum(e.length for e in episodes)
        assert lengths + running.sum() == sent.sum() == 200 * 8
        assert pool.take_episodes() == []


def test_episodes_belong_to_received_rows():
    with make(num_envs=4, seed=1) as pool:
        batch = pool.recv(None)
        while not batch.ended().any():
            pool.send(np.ones(4, int), np.arange(4))
            batch = pool.recv(min_slots=1, max_slots=2)
            if batch.slots.tolist() == [0, 1] and not batch.ended().any():
                rest = pool.recv(min_slots=2)
                assert rest.slots.tolist() == [2, 3]
                if rest.ended().any():
                    batch = rest
        assert {e.slot for e in pool.take_episodes()} == set(batch.slots[batch.ended()].tolist())


def test_time_limit_truncates():
    options = {"max_episode_steps": 7}
    want = {slot: by_hand("CartPole-v1", slot, 5, 30, **options) for slot in range(3)}
    assert any(row.truncated for row in want[0])
    with make(CARTPOLE + "?max_episode_steps=7", num_envs=3) as pool:
        assert_same(collect(pool, 30, min_slots=None), want)
        assert all(episode.length == 7 for episode in pool.take_episodes())


def test_atari_with_episodic_life():
    """A lost life terminates, the time limit truncates; lengths count from where the episode began."""
    options = {"episodic_life": True, "max_episode_steps": 60, "noop_max": 1, "stack_num": 1}
    want = by_hand("Breakout-v5", 0, 5, 130, num_actions=4, **options)
    query = "&".join(f"{key}={value}" for key, value in options.items())
    with make(f"envpool:Breakout-v5?{query}", num_envs=1) as pool:
        streams = collect(pool, 130, num_actions=4, min_slots=None)
        assert_same(streams, {0: want})
        ends = [step for step, row in enumerate(want) if row.terminated or row.truncated]
        assert sum(row.terminated for row in want) >= 2
        assert sum(row.truncated for row in want) == 2
        episodes = pool.take_episodes()
        assert [e.length for e in episodes] == np.diff([0, *ends]).tolist()
        assert episodes[0].info["lives"] == 4


def test_returns_are_made_of_unclipped_rewards():
    options = {"max_episode_steps": 150, "stack_num": 1}
    scores = [sum(row.reward for row in by_hand("MsPacman-v5", slot, 5, 150, 9, **options)) for slot in range(2)]
    assert min(scores) >= 10
    with make("envpool:MsPacman-v5?reward_clip=true&max_episode_steps=150&stack_num=1", num_envs=2) as pool:
        streams = collect(pool, 150, num_actions=9, min_slots=None)
        assert {row.reward for row in streams[0]} == {0.0, 1.0}
        assert [e.episode_return for e in pool.take_episodes()] == scores


def test_dictionaries_become_float32_leaves():
    seeds = [env_seed(5, 0), env_seed(5, 1)]
    env = envpool.make_gymnasium("CheetahRun-v1", num_envs=2, seed=seeds, max_episode_steps=9)
    raw, _ = env.reset()
    with make("envpool:CheetahRun-v1?max_episode_steps=9", num_envs=2) as pool:
        assert [leaf.name for leaf in pool.spec.obs] == ["position", "velocity"]
        for step in range(12):
            batch = pool.recv(None)
            for name in ("position", "velocity"):
                assert batch.obs[name].dtype == np.float32
                if step <= 8:
                    np.testing.assert_array_equal(batch.obs[name], raw[name].astype(np.float32))
            if step == 9:
                assert batch.truncated.all()
                np.testing.assert_array_equal(batch.final_obs["position"], raw["position"].astype(np.float32))
            actions = np.full((2, 6), 0.1 * step - 0.5, np.float32)
            pool.send({"action": actions}, batch.slots)
            raw = env.step(actions.astype(np.float64))[0]


@pytest.mark.parametrize(
    ("env", "steps"), [("MiniGrid-DoorKey-5x5-v0", 300), ("Taxi-v3", 250), ("FrozenLake-v1", 60), ("Acrobot-v1", 40)]
)
def test_other_tasks_fit_their_spaces(env, steps):
    with make(f"envpool:{env}", num_envs=3) as pool:
        lengths = np.zeros(3, int)
        batch = pool.recv(None)
        for step in range(steps):
            for leaf in pool.spec.obs:
                assert all(leaf.space.contains(value) for value in batch.obs[leaf.name]), leaf.name
            pool.send(np.array([action_of(slot, step, pool.spec.action_space.n) for slot in range(3)]), batch.slots)
            batch = pool.recv(None)
            lengths += 1
            for episode in pool.take_episodes():
                assert episode.length == lengths[episode.slot]
                lengths[episode.slot] = 0


def test_groups_are_received_alone():
    with make(num_envs=7, groups=3) as pool:
        for step in range(20):
            for group in range(3):
                batch = pool.recv(None, group=group)
                assert batch.slots.tolist() == list(pool.spec.group_slots(group))
                pool.send(np.full(len(batch), step % 2), batch.slots)
        assert isinstance(pool, Pool)


def test_the_same_seed_gives_the_same_stream_and_another_another():
    def first(pool):
        return pool.recv(None).obs["obs"].copy()

    with make(seed=5) as pool, make(seed=5, groups=3, workers=1) as same, make(seed=6) as other:
        start = first(pool)
        assert (start == first(same)).all()
        assert not (start == first(other)).any(axis=1).all()
        pool.reset(6)
        other.reset(5)
        assert (first(other) == start).all()
        assert not (first(pool) == start).all()


def test_reset_forgets_everything():
    with make(seed=5) as pool:
        batch = pool.recv(None)
        for _ in range(15):
            pool.send(np.ones(6, int), batch.slots)
            batch = pool.recv(None)
        pool.send(np.ones(2, int), [0, 1])  # a step is under way, the rest is held
        pool.reset(5)
        assert pool.take_episodes() == []
        batch = pool.recv(None)
        assert len(batch) == 6
        assert not batch.ended().any()


def test_timeout_returns_what_is_ready():
    with make(num_envs=4, groups=2) as pool:
        pool.recv(None)
        pool.send(np.zeros(2, int), [2, 3])
        assert pool.recv(2, group=1).slots.tolist() == [2, 3]
        pool.send(np.zeros(2, int), [0, 1])
        batch = pool.recv(2, timeout=0.0)  # too short to wait for anything
        assert set(batch.obs) == {"obs"}
        assert len(batch) in (0, 2)
        if not len(batch):
            assert pool.recv(2, timeout=300).slots.tolist() == [0, 1]


def test_a_hung_simulator_is_named(monkeypatch):
    monkeypatch.setattr("paceline.pool.envpool_engine.FAST_SECONDS", 0.0)  # always wait in the thread
    monkeypatch.setattr("paceline.pool.envpool.CLOSE_SECONDS", 0.1)
    with make(num_envs=2, step_timeout_seconds=0.2) as pool:
        pool.recv(None)
        engine = pool._engines[0]
        requests, engine._requests = engine._requests, queue.SimpleQueue()  # nobody will wait for EnvPool
        pool.send(np.zeros(2, int), [0, 1])
        with pytest.raises(SimulatorError, match=r"slots 0, 1\): no answer within 0.2 seconds") as caught:
            pool.recv(None)
        requests.put(None)
        assert caught.value.failure.slots == (0, 1)
        with pytest.raises(UsageError, match="closed"):
            pool.recv(None)


def test_a_hang_that_cannot_be_interrupted_ends_the_process():
    code = (
        "import threading; from paceline.envs.registry import resolve; from paceline.pool.config import PoolConfig\n"
        "from paceline.pool.envpool import EnvPoolPool\n"
        "pool = EnvPoolPool(resolve('envpool:CartPole-v1'), PoolConfig(num_envs=2, step_timeout_seconds=0.3), 0)\n"
        "slots = pool.recv(None).slots\n"
        "engine = pool._engines[0]\n"
        "engine._slowest = 0.0\n"
        "pool.send([0, 1], slots)\n"
        "engine._finish = lambda envpool, ids: threading.Event().wait()\n"
        "pool.recv(None)\n"
    )
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=300, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "CartPole-v1 gave no answer within 0.3 seconds (pool.step_timeout_seconds)" in ended.stderr


@pytest.mark.parametrize("fast", [0.0, 60.0])
def test_waiting_directly_and_in_a_thread_are_the_same(monkeypatch, fast, expected):
    monkeypatch.setattr("paceline.pool.envpool_engine.FAST_SECONDS", fast)
    with make(groups=2) as pool:
        assert_same(collect(pool, 60, min_slots=2), expected)
    with make() as pool:
        assert_same(collect(pool, 60, min_slots=None), expected)


def test_groups_that_are_waited_for_directly_take_turns(monkeypatch):
    monkeypatch.setattr("paceline.pool.envpool_engine.FAST_SECONDS", 60.0)
    with make(num_envs=4, groups=2) as pool:
        pool.recv(None)
        pool.send(np.zeros(2, int), [2, 3])
        pool.send(np.zeros(2, int), [0, 1])
        pool.recv(None)
        pool.send(np.zeros(2, int), [2, 3])
        pool.send(np.zeros(2, int), [0, 1])
        order = []
        for _ in range(6):
            batch = pool.recv(1, max_slots=2)
            order.append(int(batch.slots[0]))
            pool.send(np.zeros(2, int), batch.slots)
        assert order == [2, 0] * 3


def test_polling_gets_everything_in_the_end(monkeypatch):
    monkeypatch.setattr("paceline.pool.envpool_engine.FAST_SECONDS", 60.0)
    with make(num_envs=4, groups=2) as pool:
        for _ in range(3):
            pool.send(np.zeros(4, int), pool.recv(None).slots)
        received = 0
        while received < 4:
            received += len(pool.recv(0, max_slots=3))


@pytest.mark.parametrize("fast", [0.0, 60.0])
def test_a_reward_that_is_no_number_names_slot_step_and_value(monkeypatch, fast):
    monkeypatch.setattr("paceline.pool.envpool_engine.FAST_SECONDS", fast)
    with make(num_envs=3) as pool:
        pool.recv(None)
        reader, state_of = pool._reader, pool._reader.step

        def poisoned(state, slots, ended):
            if state[reader._elapsed][0] == 4:
                state[reader._reward][1] = np.nan
            return state_of(state, slots, ended)

        reader.step = poisoned
        for _ in range(3):
            pool.send(np.zeros(3, int), np.arange(3))
            pool.recv(None)
        pool.send(np.zeros(3, int), np.arange(3))
        with pytest.raises(SimulatorError, match=r"slot 1, seed \d+, episode 0, step 3\): the reward is nan"):
            pool.recv(None)


def test_what_is_not_held_cannot_be_sent():
    with make(num_envs=4) as pool:
        with pytest.raises(ValueError, match=r"slots \[2\] were not received"):
            pool.send(np.zeros(1, int), [2])
        batch = pool.recv(None)
        with pytest.raises(ValueError, match="twice"):
            pool.send(np.zeros(2, int), [1, 1])
        with pytest.raises(ValueError, match=r"\[0, 4\)"):
            pool.send(np.zeros(1, int), [4])
        pool.send(np.zeros(4, int), batch.slots)
        with pytest.raises(ValueError, match="were not received"):
            pool.send(np.zeros(4, int), batch.slots)


def test_actions_are_checked():
    with make(num_envs=2) as pool, make("envpool:Pendulum-v1", num_envs=2) as pendulum:
        slots = pool.recv(None).slots
        pendulum.recv(None)
        with pytest.raises(ValueError, match="slot 1 is outside"):
            pool.send(np.array([0, 2]), slots)
        with pytest.raises(ValueError, match="slot 0 is outside"):
            pool.send(np.array([-1, 1]), slots)
        with pytest.raises(ValueError, match="need"):
            pool.send(np.zeros(3, int), slots)
        with pytest.raises(ValueError, match="integers"):
            pool.send(np.zeros(2), slots)
        with pytest.raises(ValueError, match="slot 1 is not finite"):
            pendulum.send(np.array([[0.0], [np.inf]]), slots)
        pool.send(np.array([0, 1]), slots)  # a refused send leaves everything as it was
        assert len(pool.recv(None)) == 2


def test_a_wait_that_cannot_end_is_refused():
    with make(num_envs=4, groups=2) as pool:
        pool.recv(None, group=0)
        with pytest.raises(ValueError, match="holds 2 of 4"):
            pool.recv(None)
        with pytest.raises(ValueError, match="0 to 4"):
            pool.recv(5)
        with pytest.raises(ValueError, match="group 2"):
            pool.recv(1, group=2)
        with pytest.raises(ValueError, match="max_slots"):
            pool.recv(1, max_slots=0)
        assert pool.recv(1).slots.tolist() == [2, 3]


def test_state_is_refused():
    with make(num_envs=1) as pool:
        with pytest.raises(UsageError, match="cannot be saved"):
            pool.state()
        with pytest.raises(UsageError, match="cannot be restored"):
            pool.restore(b"")


def test_close_ends_it_with_steps_under_way():
    for env in (CARTPOLE, ONE_BY_ONE):
        pool = make(env)
        pool.send(np.zeros(6, int), pool.recv(None).slots)
        threads = [engine._thread for engine in pool._engines]
        pool.close()
        pool.close()
        assert not any(thread.is_alive() for thread in threads)
        with pytest.raises(UsageError, match="closed"):
            pool.recv()


def test_an_interpreter_that_ends_without_close_ends_well():
    """EnvPool's threads would otherwise abort the process."""
    code = (
        "from paceline.envs.registry import resolve; from paceline.pool.config import PoolConfig\n"
        "from paceline.pool.envpool import EnvPoolPool\n"
        "pool = EnvPoolPool(resolve('envpool:CartPole-v1'), PoolConfig(num_envs=4), 0)\n"
        "pool.send([0, 1, 0, 1], pool.recv(None).slots)\n"
        "raise SystemExit(3)\n"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=300).returncode == 3
