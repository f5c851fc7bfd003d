"""A resumed D4PG run goes on where it was stopped: also while its replay is filled, and between two reports."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from paceline.config import CheckpointConfig
from paceline.experience.config import LimiterConfig, ReplayConfig
from paceline.learner.config import D4PGConfig
from paceline.pool.config import PoolConfig
from paceline.saving import Saver
from paceline.schedule import d4pg
from paceline.schedule.d4pg import D4PG
from paceline.session import Session
from tests.integration.envs import Chase
from tests.integration.ranks import on_ranks
from tests.integration.test_d4pg import small
from tests.integration.test_training import assert_equal, weights

STEPS = 400
"""Of the environment, before a job is stopped."""


class Job:
    """Makes environments. Stops its session after a number of their steps."""

    def __init__(self, at: int) -> None:
        self.left, self.session = at, None

    def __call__(self) -> Chase:
        return Stopping(self)


class Stopping(Chase):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job

    def step(self, action):
        self.job.left -= 1
        if self.job.left == 0:
            self.job.session.state.stop.request("signal")
        return super().step(action)

    def get_state(self):
        return self.steps, self.shown, self.np_random.bit_generator.state

    def set_state(self, state):
        self.steps, self.shown, self.np_random.bit_generator.state = state


def work(config, folder, *, resume: bool, at: int = STEPS) -> tuple[int, int, int, int]:
    """Transitions and updates at the start and at the end of a job that is stopped after `at` steps."""
    job = Job(at)
    with Session(config, folder, env=job, resume=True if resume else None) as session:
        job.session = session
        sampler, learner = session.state.collection, session.learners[0]
        before = len(sampler.replay), learner.updates
        session.run()
        return *before, len(sampler.replay), learner.updates


@pytest.mark.parametrize(
    "changes", [{}, {"d4pg": D4PGConfig(batch=32, steps=3, concurrent=False)}, {"deterministic": True}]
)
def test_a_run_that_is_stopped_while_it_fills_its_replay_goes_on_filling(tmp_path, monkeypatch, changes):
    monkeypatch.setattr("paceline.schedule.d4pg.FILLING_SECONDS", 0.0)
    config = small(steps=10_000, limiter=LimiterConfig(samples_per_insert=4.0, minimum=5000), **changes)
    config = dataclasses.replace(config, replay=ReplayConfig(capacity=6000))
    held = 0
    for number in range(3):
        start, _, held_now, updates = work(config, tmp_path, resume=number > 0)
        assert start == held and updates == 0
        # Three of four environments explore. A deterministic run leaves out the steps that were under way.
        assert held_now > held + 0.7 * STEPS
        held = held_now if not config.deterministic else held_at_rest(config, tmp_path)
        assert held > 0.7 * 0.7 * STEPS * (number + 1)


def held_at_rest(config, folder) -> int:
    """The transitions in the checkpoint."""
    with Session(config, folder, env=Job(10**9), resume=True) as session:
        return len(session.state.collection.replay)


def test_updates_between_a_resume_and_the_first_report_are_kept(tmp_path):
    """A job of less than 16 updates, which is when a report is due."""
    rare = D4PGConfig(batch=256, steps=3, concurrent=False)
    config = small(steps=10_000, d4pg=rare, limiter=LimiterConfig(samples_per_insert=8.0, minimum=200))
    counts = [work(config, tmp_path, resume=number > 0, at=300)[1::2] for number in range(3)]
    (_, first), (then, second), (again, third) = counts
    assert first == then < second == again < third < second + 16


def test_checkpoints_are_written_while_the_replay_is_filled(tmp_path, monkeypatch):
    """And the run that goes on from one has what was collected until then."""
    monkeypatch.setattr("paceline.saving.Saver.save_stopped", lambda self: None)  # as if the process were killed
    config = small(steps=10_000, limiter=LimiterConfig(samples_per_insert=4.0, minimum=5000))
    config = dataclasses.replace(config, replay=ReplayConfig(capacity=6000), checkpoint=CheckpointConfig(seconds=0.001))
    work(config, tmp_path, resume=False)
    assert held_at_rest(config, tmp_path) > 0.5 * STEPS


def test_weights_that_are_published_rarely_are_those_of_before_the_resume(tmp_path):
    rare = D4PGConfig(batch=32, steps=3, actors_period=10, noise=0.1, actor_rate=3e-3, critic_rate=3e-3)
    config = small(deterministic=True, steps=800, d4pg=rare)
    for folder, parts in (("whole", [None]), ("parts", [450, None])):
        for number, until in enumerate(parts):
            with Session(config, tmp_path / folder, env=Job(10**9), resume=True if number else None) as session:
                session.run(until=until)
                assert until is None or session.learners[0].updates % 10, "the last publication is some updates ago"
    assert_equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))


def test_published_weights_bring_no_bounds_with_them(tmp_path):
    rare = D4PGConfig(batch=32, steps=3, actors_period=10**6)
    with Session(small(steps=600, d4pg=rare), tmp_path, env=Job(10**9)) as session:
        session.run()

    class Narrow(Chase):
        action_space = spaces.Box(-0.5, 0.5, (1,), np.float32)

        def step(self, action):
            assert self.action_space.contains(action), f"{action} is outside"
            return super().step(action)

    with Session(small(steps=800, d4pg=rare), tmp_path, env=Narrow, resume=True) as session:
        session.run()


def test_the_learner_does_not_learn_while_the_filled_replay_is_saved(tmp_path, monkeypatch):
    """What is in flight completes the filling just when a checkpoint is due."""
    monkeypatch.setattr(D4PG, "_save_while_filling", due_at_the_end(D4PG._save_while_filling))
    updates, plain = [], Saver._take

    def take(self, **options):
        before = self._run.learners[0].updates
        taken = plain(self, **options)
        time.sleep(0.2)
        updates.append((before, self._run.learners[0].updates))
        return taken

    monkeypatch.setattr(Saver, "_take", take)
    config = small(steps=600, pool=PoolConfig(num_envs=4, kind="process", workers=2))
    with Session(config, tmp_path) as session:
        session.run()
    assert updates and all(before == after for before, after in updates)


def due_at_the_end(save_while_filling):
    def changed(self):
        limiter, in_flight = self._limiter, self._actors._in_flight
        if in_flight and limiter._inserted + in_flight >= limiter._minimum:
            self._run.last_checkpoint_at = -1e9
        save_while_filling(self)

    return changed


def test_ranks_of_a_deterministic_run_go_on_filling(tmp_path):
    limits = {"limiter": LimiterConfig(samples_per_insert=4.0, minimum=5000), "replay": ReplayConfig(capacity=6000)}
    config, folder = small(steps=30_000, deterministic=True, **limits), str(tmp_path)

    def job(resume=True):
        d4pg.FILLING_SECONDS = 0.0  # in a process of its own
        return work(config, Path(folder), resume=resume)[0]

    def first():
        return job(resume=False)

    assert on_ranks(2, first) == [0, 0]
    held = on_ranks(2, job)
    assert min(held) > 0.5 * STEPS
    assert min(on_ranks(2, job)) > min(held) + 0.5 * STEPS


AGENTS = ["anna", "bert", "cleo"]
TURNS = 61


class Turns:
    """A PettingZoo AEC game. Every turn pays 1 to everybody, so a decision earns 3 until the agent's next turn."""

    render_mode = None

    def __init__(self, env: int = 0) -> None:
        self.metadata: dict = {}
        self.possible_agents, self.agents = list(AGENTS), []

    @property
    def unwrapped(self):
        return self

    def observation_space(self, agent):
        return spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, seed=None, options=None):
        self.agents, self.turn, self.agent_selection = list(AGENTS), 0, AGENTS[0]
        self.terminations, self.truncations = dict.fromkeys(AGENTS, False), dict.fromkeys(AGENTS, False)
        self.sums = dict.fromkeys(AGENTS, 0.0)

    def observe(self, agent):
        return np.array([self.turn], np.float32)

    def last(self):
        agent = self.agent_selection
        ends = self.terminations[agent], self.truncations[agent]
        return self.observe(agent), self.sums[agent], *ends, {}

    def step(self, action):
        agent = self.agent_selection
        if self.truncations[agent]:
            self.agents.remove(agent)
        else:
            self.sums[agent], self.turn = 0.0, self.turn + 1
            self.sums = {other: paid + 1.0 for other, paid in self.sums.items()}
            self.truncations = dict.fromkeys(AGENTS, self.turn == TURNS)
        if self.agents:
            self.agent_selection = self.agents[0] if self.truncations[AGENTS[0]] else AGENTS[self.turn % 3]

    def get_state(self):
        return dict(self.__dict__)

    def set_state(self, state):
        self.__dict__.update(state)

    def close(self): ...


@pytest.mark.parametrize("steps", [1, 3])
def test_agents_that_wait_for_their_turn_keep_their_decisions(tmp_path, steps):
    """The run is resumed, and each transition has the whole reward until the agent's next turns."""
    config = small(
        steps=1500,
        pool=PoolConfig(num_envs=4, kind="serial"),
        d4pg=D4PGConfig(batch=16, steps=steps, discount=1.0, evaluation_envs=0, concurrent=False),
        replay=ReplayConfig(capacity=5000, prioritized=False),
        limiter=LimiterConfig(samples_per_insert=1.0, minimum=100),
    )
    for until in (700, None):
        with Session(config, tmp_path, env=Turns, resume=True if until is None else None) as session:
            session.run(until=until)
            (rows,) = session.state.collection.replay.state_dict()["parts"]
            before, after = rows["obs/obs"][:, 0], rows["next_obs/obs"][:, 0]
            inside = after < TURNS
            assert inside.sum() > 0.5 * min(session.step, 700)
            assert (rows["reward"][inside] == (after - before)[inside]).all()
            assert math.isclose(float((after - before)[inside].max()), 3 * steps)
