"""Every episode is credited to the policy that played it and to its match, in games of every kind."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.collect.matches_of_episodes import CountedEpisodes, PlayedBy
from paceline.collect.policy_assignment import PolicyAssignment
from paceline.envs.factory import Factory
from paceline.pool.config import PoolConfig
from paceline.pool.process import ProcessPool
from paceline.pool.protocol import Episode
from paceline.pool.serial import SerialPool
from paceline.pool.tensor import EPISODES_PER_SLOT, TensorPool, TensorStep
from paceline.population.mapping import RandomMapping
from tests.pool.multi_agent import Mortal
from tests.population.odd_games import Cards, Guests, Roulette, Spectators

pytestmark = pytest.mark.usefixtures("forked_workers")
POLICIES, NUM_ENVS = 50, 3
"""With so many policies, one of another match is hardly ever the right one by chance."""


def play(pool, batches: int):
    """Let policies play. Returns the finished episodes and matches, and by slot and game who acted."""
    assignment = PolicyAssignment(
        pool.spec, RandomMapping(POLICIES, pool.spec.agents_per_env), np.random.default_rng(0)
    )
    episodes, matches, acted = [], [], defaultdict(set)
    for _ in range(batches):
        batch = pool.recv(min_slots=1)
        assignment.observe(batch)
        for slot, number, active in zip(batch.slots, batch.episode, batch.active, strict=True):
            if active:
                acted[int(slot), int(number)].add(int(assignment.policies[slot]))
        finished = assignment.take_finished(pool.take_episodes())
        episodes += finished.episodes
        matches += finished.matches
        pool.send(np.ones(len(batch), np.int64), batch.slots)
    return episodes, matches, acted, assignment


@pytest.mark.parametrize("make", [SerialPool, ProcessPool], ids=["serial", "process"])
@pytest.mark.parametrize("game", [Cards, Roulette, Guests, Spectators, Mortal], ids=lambda game: game.__name__)
def test_episodes_belong_to_who_played_them(game, make):
    """Games in which an agent is out before its first turn, or never plays, too."""
    with make(Factory(make=game), PoolConfig(num_envs=NUM_ENVS, workers=1), seed=3) as pool:
        episodes, matches, acted, assignment = play(pool, 1500)
    assert len(episodes) > 200 and len(matches) > 100
    for (slot, number), policies in acted.items():
        assert len(policies) == 1, (slot, number, "no policy takes over in the middle of a game")
    for episode in episodes:
        if episode.length > 0:
            assert {episode.policy} == acted[episode.slot, episode.match]
    for match in matches:
        numbers = {episode.match for played in match.episodes for episode in played}
        assert len(numbers) == 1, "a match is one game"
    games = [
        (
            next(e.slot for played in match.episodes for e in played) // pool.spec.agents_per_env,
            next(e.match for played in match.episodes for e in played),
        )
        for match in matches
    ]
    assert len(games) == len(set(games)), "a game is one match"
    assert len(assignment._unobserved) <= pool.spec.num_slots, "nothing waits for ever"


def test_an_episode_of_a_game_that_nobody_received_does_not_wait_for_ever():
    """An agent may be out before anyone's first turn, and the simulator be replaced before this game is received."""
    with SerialPool(Factory(make=Cards), PoolConfig(num_envs=1), seed=3) as pool:
        *_, assignment = play(pool, 50)
        present = int(pool.recv().episode[0])
    assert present > 2 and assignment._unobserved == []
    past, future = (Episode(0, 1.0, 0, match=number) for number in (present - 2, present + 1))
    assert assignment.take_finished([past, future]).episodes == []
    assert assignment._unobserved == [future]


@pytest.mark.parametrize("game", [Guests, Spectators], ids=lambda game: game.__name__)
def test_agents_that_do_not_play_are_no_experience(game):
    with SerialPool(Factory(make=game), PoolConfig(num_envs=1), seed=0) as pool:
        for _ in range(20):
            batch = pool.recv(min_slots=None)
            assert batch.active.tolist() == [True, True, False]
            pool.send(np.zeros(3, np.int64), batch.slots)
        assert {episode.slot for episode in pool.take_episodes()} == {0, 1}


def test_episodes_that_are_taken_while_a_step_is_in_flight_shift_nothing(monkeypatch):
    """A learner thread takes them when it likes. The slow slot has an episode for each 200 of the fast one."""
    monkeypatch.setattr(OneStep, "lengths", torch.tensor([1, 200]))
    pool = TensorPool([OneStep()], 0)
    assignment = PolicyAssignment(pool.spec, RandomMapping(POLICIES, 1), np.random.default_rng(0))
    batch, episodes = pool.recv(min_slots=None), []
    for step in range(1, 4001):
        pool.send(torch.from_numpy(assignment.policies.copy()), batch.slots)
        if step in (800, 1600, 2400) or (step > 2400 and step % 50 == 0):
            episodes += assignment.take_finished(pool.take_episodes()).episodes
        batch = pool.recv(min_slots=None)
        assignment.observe(batch)
    assert {episode.slot for episode in episodes} == {0, 1}
    assert all(episode.episode_return == episode.policy for episode in episodes)


def test_slots_that_begin_anew_count_anew():
    """The pool may still report episodes from before."""
    counts = CountedEpisodes(1)
    for policy in range(3):
        counts.note(np.array([0]), np.array([policy]), np.array([policy]))
    counts.start_anew(np.array([0]), np.array([0]))
    counts.note(np.array([0]), np.array([7]), np.array([7]))
    reported = [counts.who_played(Episode(0, 0.0, 1, match=count)) for count in (1, 2, 0, 1)]
    assert reported == [PlayedBy(1, 1), PlayedBy(2, 2), PlayedBy(7, 7), None]


def test_checkpoints_of_older_versions_credit_episodes_in_order():
    counts = CountedEpisodes(1)
    counts.load_state_dict({"ended": [[(4, 0), (5, 1)]]})
    counts.note(np.array([0]), np.array([6]), np.array([2]))
    assert [counts.who_played(Episode(0, 0.0, 1, match=30 + n)).policy for n in range(3)] == [4, 5, 6]


class OneStep:
    """Two batched environments, by default with episodes of one step, whose return is the last action."""

    num_envs, device, frameskip = 2, torch.device("cpu"), 1
    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(POLICIES)

    lengths = torch.ones(2, dtype=torch.int64)

    def reset(self, seed: int):
        self.steps = 0
        return {"obs": torch.zeros(2, 1)}

    def step(self, actions):
        self.steps += 1
        obs, ends = {"obs": torch.zeros(2, 1)}, self.steps % self.lengths == 0
        return TensorStep(obs, torch.where(ends, actions.float(), 0.0), ends, ends & False, obs)

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state) -> None:
        self.steps = state["steps"]


@pytest.mark.parametrize("resumed", [False, True])
def test_episodes_that_the_pool_has_dropped_shift_nothing(resumed):
    pool = TensorPool([OneStep()], 0)
    assignment = PolicyAssignment(pool.spec, RandomMapping(POLICIES, 1), np.random.default_rng(0))
    batch = pool.recv(min_slots=None)
    for steps in (10, 3 * EPISODES_PER_SLOT, 10, EPISODES_PER_SLOT):
        for _ in range(steps):
            pool.send(torch.from_numpy(assignment.policies.copy()), batch.slots)
            batch = pool.recv(min_slots=None)
            assignment.observe(batch)
        if resumed:
            state, saved = assignment.state_dict(), pool.state()
            pool = TensorPool([OneStep()], 0)
            pool.recv(min_slots=None)
            assert len(pool.restore(saved)) == 0
            batch = pool.recv(min_slots=None)
            assignment = PolicyAssignment(pool.spec, RandomMapping(POLICIES, 1), np.random.default_rng(1))
            assignment.load_state_dict(state)
        finished = assignment.take_finished(pool.take_episodes())
        assert len(finished.episodes) == 2 * min(steps, EPISODES_PER_SLOT)
        assert all(episode.episode_return == episode.policy for episode in finished.episodes)
        assert len(finished.matches) == len(finished.episodes)
