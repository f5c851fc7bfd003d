"""Agents that take turns: a decision's outcome is all that its agent gets until its next turn, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.envs.factory import Factory
from paceline.errors import SimulatorError
from paceline.pool.batches import copied
from paceline.pool.config import PoolConfig
from paceline.pool.make import make_pool
from paceline.pool.process import ProcessPool
from paceline.pool.serial import SerialPool
from tests.pool.turn_based import AGENTS, Court, Decision

pytestmark = pytest.mark.usefixtures("forked_workers")

NUM_ENVS = 4
POOLS = pytest.mark.parametrize("make", [SerialPool, ProcessPool], ids=["serial", "process"])


def make_court(make, config=None, factory=Court):
    return make(Factory(make=factory), config or PoolConfig(num_envs=NUM_ENVS, workers=2), seed=3)


class Account:
    """The streams of a pool's slots: every decision that was asked for, with its outcome."""

    def __init__(self, pool) -> None:
        self.pool, self.rng = pool, np.random.default_rng(0)
        self.streams: list[list[Decision]] = [[] for _ in range(pool.spec.num_slots)]
        self._in_flight: dict[int, Decision | None] = {}
        """By slot: the decision in flight; None for that of an inactive slot."""
        self._was_active = np.ones(pool.spec.num_slots, bool)
        self.episodes: list = []

    def act(self, slots, obs, active, fresh) -> np.ndarray:
        actions = self.rng.integers(0, 5, len(slots))
        for row, slot in enumerate(slots.tolist()):
            assert slot not in self._in_flight
            self._in_flight[slot] = None
            if active[row]:
                decision = Decision(obs[row].tolist(), int(actions[row]), is_first=bool(fresh[row]))
                self._in_flight[slot] = decision
        self._was_active[slots] = active
        return actions

    def observe(self, batch) -> np.ndarray:
        """Complete the decisions of a batch's slots. Returns which of them begin an episode."""
        for row, slot in enumerate(batch.slots.tolist()):
            decision = self._in_flight.pop(slot)
            if batch.lost[row]:
                continue
            if decision is None:
                assert batch.reward[row] == 0
                continue
            decision.reward = float(batch.reward[row])
            if batch.terminated[row] or batch.truncated[row]:
                decision.end = "terminated" if batch.terminated[row] else "truncated"
                decision.final_obs = batch.final_obs["obs"][slot].tolist()
            self.streams[slot].append(decision)
        self.episodes += self.pool.take_episodes()
        return batch.ended() | batch.lost | (batch.active & ~self._was_active[batch.slots])

    def first(self):
        batch = copied(self.pool.recv(min_slots=None))  # workers overwrite it as soon as it is sent
        self.send(batch, np.ones(len(batch), bool))
        return batch

    def send(self, batch, fresh) -> None:
        self.pool.send(self.act(batch.slots, batch.obs["obs"], batch.active, fresh), batch.slots)

    def run(self, turns: int) -> None:
        for _ in range(turns):
            batch = self.pool.recv(min_slots=None)
            self.send(batch, self.observe(batch))


def assert_streams_match(account, envs) -> None:
    """Against the game's own account. A decision whose agent has not been asked again since is still in flight."""
    num_decisions = 0
    for env, court in enumerate(envs):
        for number, agent in enumerate(AGENTS):
            stream, expected = account.streams[env * len(AGENTS) + number], court.account[agent]
            assert len(expected) - len(stream) in (0, 1)
            assert stream == expected[: len(stream)]
            num_decisions += len(stream)
    assert num_decisions > 100


@pytest.fixture
def courts(monkeypatch):
    """The games of a serial pool."""
    made: list[Court] = []
    original = Court.__init__

    def remember(self, env):
        original(self, env)
        made.append(self)

    monkeypatch.setattr(Court, "__init__", remember)
    return made


def test_no_row_is_lost_and_no_reward_is_anothers(courts):
    with make_court(SerialPool) as pool:
        assert pool.spec.turn_based and pool.spec.agents == tuple(AGENTS)
        account = Account(pool)
        account.first()
        account.run(300)
        assert_streams_match(account, courts)
        ends = [decision.end for stream in account.streams for decision in stream]
        assert ends.count("terminated") > 20 and ends.count("truncated") > 20


def test_one_episode_per_life(courts):
    with make_court(SerialPool) as pool:
        account = Account(pool)
        account.first()
        account.run(200)
        for env, court in enumerate(courts):
            mine = [e for e in account.episodes if e.slot // len(AGENTS) == env]
            got = [(AGENTS[e.slot % len(AGENTS)], e.match, e.episode_return, e.length) for e in mine]
            assert got == court.lives
            assert all(e.info["decided"] == e.length for e in mine)


def test_process_pools_give_the_streams_of_serial_ones():
    streams = []
    for make in (SerialPool, ProcessPool):
        with make_court(make) as pool:
            account = Account(pool)
            account.first()
            account.run(60)
            streams.append((account.streams, sorted((e.slot, e.episode_return, e.length) for e in account.episodes)))
    assert streams[0] == streams[1]


@POOLS
def test_first_batches_have_all_slots_and_later_ones_those_that_are_due(make):
    with make_court(make, PoolConfig(num_envs=2, workers=2)) as pool:
        account = Account(pool)
        batch = account.first()
        assert len(batch) == 2 * len(AGENTS) and batch.active.reshape(2, -1).sum(axis=1).tolist() == [1, 1]
        for _ in range(40):
            batch = pool.recv(min_slots=None)
            assert (batch.active | batch.ended()).all()
            assert np.bincount(batch.slots[batch.active] // len(AGENTS)).tolist() == [1, 1]
            assert pool.num_in_flight == 0
            account.send(batch, account.observe(batch))


@POOLS
def test_any_part_of_the_slots_may_be_sent(make, courts):
    """Environments that are held back stay where they are, and `recv` does not wait for agents that wait."""
    with make_court(make) as pool:
        account = Account(pool)
        held = {}
        account.first()
        for turn in range(250):
            batch = pool.recv(min_slots=1 + turn % 3, max_slots=3 if turn % 2 else None)
            fresh = account.observe(batch)
            for row, slot in enumerate(batch.slots.tolist()):
                held[slot] = batch.obs["obs"][row].copy(), batch.active[row], fresh[row]
            chosen = [slot for slot in sorted(held) if account.rng.random() < 0.6] or sorted(held)[:1]
            columns = [np.array(column) for column in zip(*(held.pop(slot) for slot in chosen), strict=True)]
            slots = np.array(chosen)
            pool.send(account.act(slots, *columns), slots)
        if make is SerialPool:
            assert_streams_match(account, courts)
        assert sum(map(len, account.streams)) > 50


@POOLS
def test_recv_returns_what_is_ready_once_no_simulator_works(make):
    with make_court(make, PoolConfig(num_envs=2, workers=2)) as pool:
        account = Account(pool)
        account.first()
        assert pool.num_in_flight == 8
        batch = pool.recv(min_slots=8)
        assert 0 < len(batch) < 8 and pool.num_in_flight == 0
        assert len(pool.recv(min_slots=1)) == 0


@POOLS
def test_state_and_restore_continue_the_turns(make):
    with make_court(make) as pool, make_court(make) as other:
        account = Account(pool)
        account.first()
        account.run(30)
        held = pool.recv(min_slots=None)
        slots, obs, active = held.slots.copy(), held.obs["obs"].copy(), held.active.copy()
        state = pool.state()
        other.recv(min_slots=None)
        assert other.restore(state).tolist() == []
        batch = other.recv(min_slots=None)
        assert batch.slots.tolist() == slots.tolist() and batch.active.tolist() == active.tolist()
        assert batch.obs["obs"].tolist() == obs.tolist()
        assert not batch.reward.any() and not batch.ended().any()
        for _ in range(40):
            actions = account.rng.integers(0, 5, len(slots))
            pool.send(actions, slots)
            other.send(actions, slots)
            left, right = pool.recv(min_slots=None), other.recv(min_slots=None)
            slots = left.slots.copy()
            for name in ("slots", "reward", "terminated", "truncated", "active"):
                assert getattr(left, name).tolist() == getattr(right, name).tolist()
            assert left.obs["obs"].tolist() == right.obs["obs"].tolist()


class Failing(Court):
    """The second game fails once, after three turns."""

    failed = False

    def step(self, action):
        if self.env == 1 and self.turn == 3 and not Failing.failed:
            Failing.failed = True
            raise RuntimeError("no more")
        super().step(action)


@POOLS
def test_a_lost_game_takes_all_of_its_decisions_with_it(make):
    Failing.failed = False
    config = PoolConfig(num_envs=2, workers=2, on_error="restart")
    with make_court(make, config, Failing) as pool:
        account = Account(pool)
        account.first()
        for _ in range(60):
            batch = pool.recv(min_slots=None)
            if batch.lost.any():
                break
            account.send(batch, account.observe(batch))
        assert batch.slots[batch.lost].tolist() == [4, 5, 6, 7]
        assert batch.active[batch.lost].sum() == 1 and not batch.ended()[batch.lost].any()
        account.send(batch, account.observe(batch))
        account.run(20)


class Vanishing(Court):
    """Drops the dead without a step of their own."""

    def _act(self, agent, action):
        super()._act(agent, action)
        self.agents = [a for a in self.agents if not (self.terminations[a] or self.truncations[a])]


def test_a_game_that_drops_agents_without_their_end_fails():
    with make_court(SerialPool, factory=Vanishing) as pool:
        account = Account(pool)
        account.first()
        with pytest.raises(SimulatorError, match="left `agents` without an end"):
            account.run(50)


@pytest.mark.parametrize("kind", ["serial", "process"])
def test_tic_tac_toe(kind):
    """Random legal moves: rewards are +1, -1 for the last decisions of the two players, and 0 for a draw."""
    pytest.importorskip("pettingzoo")
    config = PoolConfig(kind=kind, num_envs=4, workers=2)
    rng, finals = np.random.default_rng(0), []
    with make_pool("pettingzoo:classic.tictactoe_v3", config, seed=0) as pool:
        for _ in range(150):
            batch = pool.recv(min_slots=None)
            mask = batch.obs["action_mask"].astype(bool)
            assert mask[batch.active].any(axis=1).all()
            assert not batch.reward[~batch.ended()].any()
            by_game = batch.reward[batch.ended()].reshape(-1, 2)
            finals += by_game[:, 0].tolist()
            assert not by_game.sum(axis=1).any(), "both players end together, one wins what the other loses"
            moves = [int(rng.choice(np.flatnonzero(row))) if row.any() else 0 for row in mask]
            pool.send(np.array(moves), batch.slots)
        lengths = [episode.length for episode in pool.take_episodes()]
    assert {-1.0, 0.0, 1.0} == set(finals)
    assert min(lengths) >= 2 and max(lengths) == 5


def test_an_illegal_move_ends_the_game_for_both():
    pytest.importorskip("pettingzoo")
    with make_pool("pettingzoo:classic.tictactoe_v3", PoolConfig(kind="serial", num_envs=1)) as pool:
        batch = pool.recv(min_slots=None)
        for _ in range(2):  # both take square 0
            pool.send(np.zeros(len(batch), np.int64), batch.slots)
            batch = pool.recv(min_slots=None)
        assert batch.slots.tolist() == [0, 1] and batch.terminated.all() and not batch.truncated.any()
        assert batch.reward.tolist() == [0, -1] and batch.active.tolist() == [True, False]
