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
import torch

from paceline.policy.batching import AdaptiveBatching
from paceline.pool.batches import part, union
from paceline.pool.protocol import Episode, StepBatch

if TYPE_CHECKING:
    from paceline.agent.off_policy import OffPolicy
    from paceline.run import Run

POLL_SECONDS = 0.2
"""How often a waiting thread looks whether the other is still there."""
JOIN_SECONDS = 30.0
UPDATES_PER_REPORT = 16
"""Ranks meet in every report, and the device is waited for."""


def d4pg(run: Run[OffPolicy]) -> None:
    """Algorithm 1 of the paper: its actors here, its learner in `Lessons`."""
    collection, lessons = Collection(run), Lessons(run)
    if run.agent.beside:
        beside(run, collection, lessons)
    else:
        in_turn(run, collection, lessons)
    collection.take_in()  # the last checkpoint has every simulator


def in_turn(run: Run[OffPolicy], collection: Collection, lessons: Lessons) -> None:
    """Collect until there is something to learn from, learn as much as belongs to it."""
    limiter = run.agent.limiter
    while not lessons.over:
        while limiter.may_insert() and not limiter.may_draw():
            collection.step(all_slots=True)
        with run.clock.time("learning"):
            lessons.learn(collection.take_episodes())
        if lessons.checkpoint_due:
            collection.take_in()
            lessons.save()


def beside(run: Run[OffPolicy], collection: Collection, lessons: Lessons) -> None:
    """Collect here, learn in another thread."""
    with Learning(run, lessons, collection) as learning:
        while not learning.is_over:
            if learning.wants_checkpoint:
                collection.take_in()
                learning.save()
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
        with run.clock.time("simulation"):
            self._held = run.pool.recv(min_slots=None)
        self._in_flight = 0

    def step(self, *, all_slots: bool = False) -> None:
        """Decide for those held, and receive whoever is ready next."""
        agent, pool, clock = self._agent, self._pool, self._clock
        with clock.time("inference"):
            agent.pick_up()
            actions = agent.act(self._held)
        with clock.time("simulation"):
            pool.send(actions, self._held.slots)
            self._in_flight += len(self._held)
            self._held = pool.recv(min_slots=None) if all_slots else self._batching.receive(self._in_flight)
            self._in_flight -= len(self._held)
        with clock.time("inference"):
            agent.complete(self._held)
        with self._lock:
            self._episodes += pool.take_episodes()

    def take_in(self) -> None:
        """Wait for everything in flight: then all slots are held."""
        if self._in_flight == 0:
            return
        kept = part(self._held, np.ones(len(self._held), bool))  # its arrays hold until the next `recv` only
        with self._clock.time("simulation"):
            batch: StepBatch = self._pool.recv(min_slots=self._in_flight)
        self._in_flight = 0
        self._agent.complete(batch)
        self._held = union([kept, batch])

    def take_episodes(self) -> list[Episode]:
        """Those that have finished since the last call, for whichever thread learns."""
        with self._lock:
            episodes, self._episodes = self._episodes, []
        return episodes


class Lessons:
    """Updates, counted and reported."""

    def __init__(self, run: Run[OffPolicy]) -> None:
        self._run, self._agent = run, run.agent
        self._counted = run.agent.collected
        self._updates = 0
        self._episodes: list[Episode] = []
        self.over = self.checkpoint_due = False

    def learn(self, episodes: list[Episode]) -> None:
        """One update; now and then, by all ranks together, a report and a look whether the run is over."""
        run, agent = self._run, self._agent
        losses = agent.learn()
        self._updates += 1
        self._episodes += agent.take_evaluated(episodes)
        if self._updates % UPDATES_PER_REPORT:
            return
        collected = agent.collected
        told = {name: float(value) for name, value in losses.items()} | agent.evaluation()
        told |= {"updates": float(agent.learner.updates), "replay": float(len(agent.replay))}
        run.report(collected - self._counted, told, self._episodes)
        self._counted, self._episodes = collected, []
        self.checkpoint_due = run.checkpoint_due()
        self.over = run.finished()

    def save(self) -> None:
        """A checkpoint; all slots are held."""
        self.checkpoint_due = False
        self._run.save()


class Learning:
    """The thread that learns. A checkpoint is the main thread's: it has the simulators."""

    def __init__(self, run: Run[OffPolicy], lessons: Lessons, collection: Collection) -> None:
        self._run, self._lessons, self._collection = run, lessons, collection
        self._over, self._closed = threading.Event(), threading.Event()
        self._saving, self._saved = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="learner", daemon=True)

    def __enter__(self) -> Learning:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._saved.set()
        self._thread.join(JOIN_SECONDS)

    @property
    def is_over(self) -> bool:
        """Whether the run is. Raises what ended the thread otherwise."""
        if self._error is not None:
            raise self._error
        return self._over.is_set()

    @property
    def wants_checkpoint(self) -> bool:
        return self._saving.is_set()

    def save(self) -> None:
        """The checkpoint that was wanted; all slots are held."""
        self._saving.clear()
        self._lessons.save()
        self._saved.set()

    def _work(self) -> None:
        try:
            torch.set_num_threads(self._run.threads)
            on_gpu = self._run.group.device.type == "cuda"
            with torch.cuda.stream(torch.cuda.Stream()) if on_gpu else contextlib.nullcontext():
                self._learn_until_over()
        except BaseException as error:
            self._error = error

    def _learn_until_over(self) -> None:
        run, lessons, limiter = self._run, self._lessons, self._run.agent.limiter
        while not self._closed.is_set():
            if not limiter.wait(to_draw=True, seconds=POLL_SECONDS):
                # Nothing is learned yet. Ranks do not meet here, so that only a lone one may notice that it is to stop.
                if run.group.size == 1 and run.finished():
                    break
                continue
            lessons.learn(self._collection.take_episodes())
            if lessons.checkpoint_due:
                self._let_save()
            if lessons.over:
                break
        self._over.set()

    def _let_save(self) -> None:
        """Stand still until the main thread has saved."""
        self._saved.clear()
        self._saving.set()
        while not (self._saved.wait(POLL_SECONDS) or self._closed.is_set()):
            pass
