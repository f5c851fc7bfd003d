"""D4PG (Barth-Maron et al., 2018): many streams fill a replay, and a learner draws from it (algorithm 1).

The main thread acts with noise for whoever is ready; another learns. A limiter holds draws and insertions at a ratio, so that
what is learned does not depend on which of the two is faster: whoever is ahead waits. With several ranks every rank has its
streams, its share of the replay and its learner, and learners meet in the gradient all-reduce.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import numpy as np

from paceline.collect.batching import AdaptiveBatching
from paceline.pool.batches import part, union
from paceline.pool.protocol import Episode, StepBatch
from paceline.schedule.learner_thread import POLL_SECONDS, Companion

if TYPE_CHECKING:
    from paceline.agent.off_policy import OffPolicy
    from paceline.collect.remote import RemoteActors
    from paceline.run import Run

UPDATES_PER_REPORT = 16
"""Ranks meet in every report, and the device is waited for."""


def d4pg(run: Run[OffPolicy]) -> None:
    """Algorithm 1 of the paper: its actors in `Collection`, its learner in `Lessons`."""
    with contextlib.closing(Collection(run)) as collection:
        lessons = Lessons(run)
        if run.agent.beside:
            beside(run, collection, lessons)
        else:
            in_turn(run, collection, lessons)
        collection.take_in()  # the last checkpoint has every simulator


def in_turn(run: Run[OffPolicy], collection: Collection, lessons: Lessons) -> None:
    """Collect until there is something to learn from, learn as much as belongs to it."""
    limiter = run.agent.limiter
    run.begin_iteration()
    while not lessons.over:
        while not limiter.may_draw():
            collection.step(all_slots=True)
            lessons.stop_if_requested()
        lessons.stop_if_requested()
        with run.clock.time("learning"):
            lessons.learn(collection.take_episodes())
        if lessons.have_reported:
            collection.take_in()
            run.begin_iteration()


def beside(run: Run[OffPolicy], collection: Collection, lessons: Lessons) -> None:
    """Collect here, learn in another thread."""

    def learn_until_over() -> None:
        while not (thread.is_closed or lessons.over):
            lessons.stop_if_requested()
            if run.agent.limiter.wait(to_draw=True, seconds=POLL_SECONDS):
                lessons.learn(collection.take_episodes())
                if lessons.have_reported and run.checkpoint_due:
                    thread.let_save()

    thread = Companion(run, learn_until_over)
    with thread:
        while not thread.is_over:
            if thread.wants_checkpoint:
                collection.take_in()
                thread.save()
            if run.stop.is_requested:
                thread.wait()  # it ends, together with those of the other ranks
                continue
            with run.clock.time("learning"):
                if not run.agent.limiter.wait(to_draw=False, seconds=POLL_SECONDS):
                    continue  # the learner is behind
            collection.step()


class Collection:
    """The actors: decisions with noise, and what comes of them into the replay."""

    def __init__(self, run: Run[OffPolicy]) -> None:
        self._run, self._agent, self._pool, self._clock = run, run.agent, run.pool, run.clock
        self._batching = AdaptiveBatching(run.pool, run.config.batching)
        self._episodes: list[Episode] = []
        self._lock = threading.Lock()
        self._held = run.receive_all()
        self._in_flight = 0
        self._remote = make_remote(run)

    def step(self, *, all_slots: bool = False) -> None:
        """Decide for those held, and receive whoever is ready next."""
        run, agent, pool, clock = self._run, self._agent, self._pool, self._clock
        with clock.time("inference"):
            actions = agent.act(self._held)
        with clock.time("simulation"):
            pool.send(actions, self._held.slots)
            self._in_flight += len(self._held)
            self._held = pool.recv(min_slots=None) if all_slots else self._batching.receive(self._in_flight)
            self._in_flight -= len(self._held)
        if len(self._held) == 0:
            return  # the wait was ended: the run has to stop
        with clock.time("inference"):
            agent.complete(self._held)
        if not agent.limiter.has_begun:
            run.phases.show("filling the replay", agent.collected, run.config.limiter.minimum, "steps")
        finished = pool.take_episodes()
        explored, evaluated = agent.explorer.divide(finished)
        agent.note_evaluated(evaluated)
        if self._remote is not None:
            with clock.time("communication"):
                explored += self._remote.take_in()
        with self._lock:
            self._episodes += explored

    def take_in(self) -> None:
        """Wait for everything in flight: then all slots are held, unless the run is to stop."""
        self._batching.pause()
        if self._in_flight == 0 or self._run.stop.is_requested:
            return
        kept = part(self._held, np.ones(len(self._held), bool))  # its arrays hold until the next `recv` only
        with self._clock.time("simulation"):
            batch: StepBatch = self._pool.recv(min_slots=self._in_flight)
        self._in_flight -= len(batch)
        self._agent.complete(batch)
        self._held = union([kept, batch])

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()

    def take_episodes(self) -> list[Episode]:
        """Those that have finished since the last call, for whichever thread learns."""
        with self._lock:
            episodes, self._episodes = self._episodes, []
        return episodes


def make_remote(run: Run[OffPolicy]) -> RemoteActors | None:
    """Actors elsewhere, if there are to be any."""
    if run.config.remote.actors == 0:
        return None
    from paceline.collect.remote import RemoteActors

    return RemoteActors(run.config, run.agent, run.group.rank)


class Lessons:
    """Updates, counted and reported."""

    def __init__(self, run: Run[OffPolicy]) -> None:
        self._run, self._agent = run, run.agent
        self._episodes: list[Episode] = []
        self.over = self.have_reported = False

    def learn(self, episodes: list[Episode]) -> None:
        """One update; now and then, by all ranks together, a report and a look whether the run is over."""
        run, agent = self._run, self._agent
        run.phases.clear()
        losses = agent.learn()
        self._episodes += episodes
        self.have_reported = agent.learner.updates % UPDATES_PER_REPORT == 0
        if not self.have_reported:
            return
        told = agent.learner.check(losses) | agent.evaluation()
        told |= {"updates": float(agent.learner.updates), "replay": float(len(agent.replay))}
        run.report(agent.take_collected(), told, self._episodes)
        self._episodes = []
        self.over = run.finished()

    def stop_if_requested(self) -> None:
        """Raise `StopRun` if the run has to stop, together with the other ranks."""
        if self._run.stop.is_requested:
            self._agent.learner.stop_together()
