"""One slot per agent: who is out stays out until the environment restarts, and counts for nothing meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.envs.factory import Factory
from paceline.errors import SimulatorError, UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.process import ProcessPool
from paceline.pool.serial import SerialPool
from paceline.telemetry.episodes import LatestEpisodes
from tests.pool.multi_agent import LIVES, Mortal

pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture(params=[SerialPool, ProcessPool], ids=["serial", "process"])
def pool(request):
    with request.param(Factory(make=Mortal), PoolConfig(num_envs=2, workers=2, groups=2), seed=0) as made:
        yield made


def record(pool, turns):
    rows = []
    for _ in range(turns):
        batch = pool.recv(min_slots=None)
        rows.append(
            {
                "obs": batch.obs["obs"].copy(),
                "reward": batch.reward.copy(),
                "active": batch.active.copy(),
                "terminated": batch.terminated.copy(),
                "truncated": batch.truncated.copy(),
                "final": batch.final_obs["obs"].copy(),
            }
        )
        pool.send(np.zeros(len(batch), np.int64), batch.slots)
    return rows


def test_slots_and_groups_are_whole_environments(pool):
    assert pool.spec.num_slots == 6 and pool.spec.agents_per_env == 3
    assert list(pool.spec.group_slots(1)) == [3, 4, 5]
    batch = pool.recv(min_slots=None)
    assert batch.obs["obs"][:, :2].tolist() == [[env, agent] for env in range(2) for agent in range(3)]


class Measured(Mortal):
    measure_names = ("lived",)


class Misnamed(Mortal):
    measure_names = "lived"


class Forgetful(Mortal):
    measure_names = ("lived", "won")


def test_measures_that_environments_announce():
    """A run reports the mean over all agents of a number in the last `info`."""
    for kind in (SerialPool, ProcessPool):
        with kind(Factory(make=Measured), PoolConfig(num_envs=2, workers=2), seed=0) as pool:
            record(pool, 5)
            means = LatestEpisodes(pool.spec.measures)
            means.add(means.sums_of(pool.take_episodes()))
            assert means.means()["episode_lived"] == sum(LIVES.values()) / len(LIVES)
    with SerialPool(Factory(make=Forgetful), PoolConfig(num_envs=1), seed=0) as pool:
        record(pool, 5)
        with pytest.raises(UsageError, match="measure_names has 'won', .* it has lived"):
            LatestEpisodes(pool.spec.measures).sums_of(pool.take_episodes())
    with pytest.raises(UsageError, match="measure_names of .* is 'lived'; allowed: a sequence of names"):
        SerialPool(Factory(make=Misnamed), PoolConfig(num_envs=1), seed=0)


def test_the_dead_are_inactive_until_the_environment_restarts(pool):
    """test_inactive_agents_are_counted_once (mistake 28): nothing of an absent agent is experience."""
    rows = record(pool, 6)
    assert [row["active"][:3].tolist() for row in rows] == [
        [True, True, True],
        [True, True, True],
        [False, True, True],  # anna died in step 2
        [False, True, False],  # cleo was cut in step 3
        [True, True, True],  # bert, the last, died in step 4: a new episode
        [True, True, True],
    ]
    assert [row["terminated"][:3].tolist() for row in rows][2:5] == [
        [True, False, False],
        [False, False, False],
        [False, True, False],
    ]
    assert [row["truncated"][:3].tolist() for row in rows][2:5] == [[False] * 3, [False, False, True], [False] * 3]
    assert [row["reward"][:3].tolist() for row in rows][1:5] == [[1, 11, 21], [2, 12, 22], [0, 13, 23], [0, 14, 0]]
    assert rows[2]["final"][0].tolist() == [0, 0, 0, 2]
    assert rows[3]["final"][2].tolist() == [0, 2, 0, 3]
    assert rows[4]["final"][1].tolist() == [0, 1, 0, 4]
    assert rows[4]["obs"][:3, 2:].tolist() == [[1, 0]] * 3


def test_one_episode_per_agent_and_life(pool):
    record(pool, 5)
    episodes = sorted((e.slot, e.episode_return, e.length, e.info["lived"]) for e in pool.take_episodes())
    assert [e for e in episodes if e[0] < 3] == [(0, 3.0, 2, 2.0), (1, 50.0, 4, 4.0), (2, 66.0, 3, 3.0)]
    assert len(episodes) == 6


def test_agents_that_played_together_have_the_same_match(pool):
    record(pool, 9)
    episodes = pool.take_episodes()
    matches = [[e.match for e in episodes if e.slot // 3 == env] for env in range(2)]
    assert matches == [[0, 0, 0, 1, 1, 1]] * 2


def test_an_environment_steps_once_all_of_its_slots_were_sent(pool):
    pool.recv(min_slots=None)
    pool.send(np.zeros(2, np.int64), [0, 2])
    assert len(pool.recv(min_slots=0, timeout=0.05)) == 0
    pool.send(np.zeros(1, np.int64), [1])
    assert pool.recv(min_slots=3).slots.tolist() == [0, 1, 2]


def test_max_slots_takes_whole_environments(pool):
    assert pool.recv(min_slots=1, max_slots=1).slots.tolist() in ([0, 1, 2], [3, 4, 5])


def test_state_and_restore(pool):
    record(pool, 3)
    pool.recv(min_slots=None)
    state = pool.state()
    slots = np.arange(6)
    streams = []
    for _ in range(2):
        pool.restore(state)
        pool.recv(min_slots=None)
        pool.send(np.zeros(6, np.int64), slots)
        streams.append(
            [{key: value.tolist() for key, value in row.items() if key != "final"} for row in record(pool, 5)]
        )
        pool.recv(min_slots=None)
    assert streams[0] == streams[1]


class Careless(Mortal):
    """Mistakes in environments of one's own."""

    mistake = ""

    def reset(self, seed=None, options=None):
        found = super().reset(seed=seed, options=options)
        if self.mistake == "empty":
            self.agents = []
        if self.mistake == "unseen":
            found[0].pop(self.agents[0])
        return found

    def step(self, actions):
        everybody = list(self.agents)
        observations, rewards, terminations, truncations, infos = super().step(actions)
        if self.mistake == "unflagged" and len(self.agents) < len(everybody):
            terminations, truncations = (dict.fromkeys(everybody, False) for _ in range(2))
        if self.mistake == "one listed" and 0 < len(self.agents) < len(everybody):
            self.agents = everybody
            observations = {agent: next(iter(observations.values())) for agent in everybody}
        if self.mistake == "listed":
            truncations, self.agents = dict.fromkeys(everybody, True), everybody
            observations = {agent: next(iter(observations.values())) for agent in everybody}
        return observations, rewards, terminations, truncations, infos


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("empty", "`agents` is empty after a reset"),
        ("unflagged", "is no longer in `agents`, but is neither terminated nor truncated"),
        ("listed", "is terminated or truncated, but still in `agents`"),
        ("one listed", "is terminated or truncated, but still in `agents`"),
        ("unseen", "is in `agents` after a reset, but has no observation"),
    ],
)
def test_agents_that_are_not_where_their_ends_say_are_errors(mistake, message):
    """They would be learned from for ever, or the game would never begin again."""
    made = type("Made", (Careless,), {"mistake": mistake})
    with (
        pytest.raises(SimulatorError, match=message),
        SerialPool(Factory(make=made), PoolConfig(num_envs=1), seed=0) as pool,
    ):
        record(pool, 20)
