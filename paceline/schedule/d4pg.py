"""D4PG (Barth-Maron et al., 2018): many streams fill a replay, and a learner draws from it (algorithm 1).

The main thread acts with noise for the slots that are ready; a learner thread learns. A limiter holds the ratio of
draws to insertions, so that results do not depend on which thread is faster: the thread that is ahead waits. Each
rank has its own streams, replay and learner thread. Learner threads meet in the gradient all-reduce.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from paceline.collect.batching import AdaptiveBatching
from paceline.collect.policy_assignment import Finished
from paceline.collect.replay_sampler import ReplaySampler
from paceline.config import Config
from paceline.learner.d4pg import D4PGLearner
from paceline.learner.replay_updates import ReplayUpdates
from paceline.pool.batches import part, union
from paceline.pool.protocol import Episode, StepBatch
from paceline.schedule.learner_thread import POLL_SECONDS, LearnerThread
from paceline.schedule.protocol import TrainingRun

UPDATES_PER_REPORT = 16
"""A report waits for the device, and for all ranks."""
FILLING_SECONDS = 30.0
"""A deterministic run that is stopped while it fills its replay repeats at most this much."""


class D4PG:
    """Algorithm 1 of the paper: its actors in `Actors`, its learner in `Updates`."""

    def __init__(self, run: TrainingRun, config: Config, learner: D4PGLearner, sampler: ReplaySampler) -> None:
        self._run, self._limiter = run, sampler.limiter
        # On a device simulators and learner take turns. A deterministic run must not depend on which thread is faster.
        self._concurrent = config.d4pg.concurrent and not config.deterministic and not run.pool.spec.on_device
        self._actors = Actors(run, config, sampler)
        recorded = run.group.device.type == "cuda" and config.compute.cuda_graphs and run.group.size == 1
        updates = ReplayUpdates(
            learner,
            sampler.replay,
            sampler.limiter,
            replay_lock=sampler.replay_lock,
            networks_lock=sampler.networks_lock,
            batch=config.d4pg.batch,
            recorded=recorded,
        )
        self._updates = Updates(run, learner, sampler, updates)
        self._thread = LearnerThread(run, self._learn_until_over)
        self._deterministic, self._kept_at = config.deterministic, time.monotonic()

    def __call__(self) -> None:
        self._actors.begin()
        if self._concurrent:
            self._concurrently()
        else:
            self._in_turn()
        self._actors.drain()  # the last checkpoint has every simulator

    def _in_turn(self) -> None:
        """Collect until there is something to learn from, and learn as much as belongs to it."""
        run, updates, actors = self._run, self._updates, self._actors
        run.begin_iteration()
        while not run.finished():
            while not self._limiter.may_draw():
                run.stop.keep_signals()
                self._save_while_filling()
                actors.step(all_slots=True)
                updates.stop_if_requested()
            updates.stop_if_requested()
            with run.clock.time("learning"):
                updates.update(actors.take_episodes())
            if updates.has_reported:
                actors.drain()
                run.begin_iteration()

    def _concurrently(self) -> None:
        """Collect here, learn in the learner thread."""
        run, actors = self._run, self._actors
        with self._thread as thread:
            while not thread.is_over:
                run.stop.keep_signals()
                if thread.wants_checkpoint:
                    actors.drain()
                    thread.save()
                if run.stop.is_requested:
                    thread.wait()  # it ends, together with those of the other ranks
                    continue
                with run.clock.time("learning"):
                    if not self._limiter.wait(to_draw=False, seconds=POLL_SECONDS):
                        continue  # the learner is behind
                self._save_while_filling()
                actors.step()

    def _save_while_filling(self) -> None:
        """Before the first update there are no reports, in which ranks agree to save. A single rank saves here."""
        run, now = self._run, time.monotonic()
        if self._limiter.has_begun:
            return
        if run.group.size == 1 and run.checkpoint_is_late:
            self._actors.drain()
            if not self._limiter.has_begun:  # otherwise the learner thread has begun
                run.save()
        if self._deterministic and now - self._kept_at >= FILLING_SECONDS:
            self._kept_at = now
            run.keep_state()

    def _learn_until_over(self) -> None:
        updates, thread = self._updates, self._thread
        while not (thread.is_closed or self._run.finished()):
            updates.stop_if_requested()
            if self._limiter.wait(to_draw=True, seconds=POLL_SECONDS):
                updates.update(self._actors.take_episodes())
                if updates.has_reported:
                    thread.save_if_due()


class Actors:
    """Decisions with noise. Their outcomes go into the replay."""

    def __init__(self, run: TrainingRun, config: Config, sampler: ReplaySampler) -> None:
        self._run, self._sampler, self._pool, self._clock = run, sampler, run.pool, run.clock
        self._minimum, self._remote = config.limiter.minimum, sampler.remote
        self._batching = AdaptiveBatching(run.pool, config.batching)
        self._episodes: list[Episode] = []
        self._lock = threading.Lock()
        self._held: StepBatch | None = None
        self._in_flight = 0

    def begin(self) -> None:
        """Receive the first observations, and start remote actors."""
        if self._held is None:
            self._held = self._run.receive_all()
            if self._remote is not None:
                self._remote.start()

    def step(self, *, all_slots: bool = False) -> None:
        """Act for the slots that are held, and receive those that are ready next."""
        run, sampler, pool, clock = self._run, self._sampler, self._pool, self._clock
        assert self._held is not None
        with clock.time("inference"):
            actions = sampler.act(self._held)
        with clock.time("simulation"):
            pool.send(actions, self._held.slots)
            self._in_flight += len(self._held)
            self._held = pool.recv(min_slots=None) if all_slots else self._batching.receive(self._in_flight)
            self._in_flight -= len(self._held)
        if len(self._held) == 0:
            return  # the wait was ended: the run has to stop
        with clock.time("inference"):
            sampler.observe(self._held)
        if not sampler.limiter.has_begun:
            run.phases.show("filling the replay", sampler.collected, self._minimum, "steps")
        explored, evaluated = sampler.explorer.split(pool.take_episodes())
        sampler.count_evaluated(evaluated)
        if self._remote is not None:
            with clock.time("communication"):
                explored += self._remote.receive()
        with self._lock:
            self._episodes += explored

    def drain(self) -> None:
        """Wait for everything in flight: then all slots are held, unless the run has to stop."""
        self._batching.pause()
        if self._in_flight == 0 or self._run.stop.is_requested:
            return
        assert self._held is not None
        kept = part(self._held, np.ones(len(self._held), bool))  # its arrays hold until the next `recv` only
        with self._clock.time("simulation"):
            batch = self._pool.recv(min_slots=self._in_flight)
        self._in_flight -= len(batch)
        self._sampler.observe(batch)
        self._held = union([kept, batch])

    def take_episodes(self) -> list[Episode]:
        """Episodes that have finished since the last call, for either thread."""
        with self._lock:
            episodes, self._episodes = self._episodes, []
        return episodes


class Updates:
    """Updates, counted and reported."""

    def __init__(self, run: TrainingRun, learner: D4PGLearner, sampler: ReplaySampler, updates: ReplayUpdates) -> None:
        self._run, self._learner, self._sampler, self._updates = run, learner, sampler, updates
        self._episodes: list[Episode] = []
        self.has_reported = False
        """Whether the last update ended with a report."""

    def update(self, episodes: list[Episode]) -> None:
        """One update. Every `UPDATES_PER_REPORT`-th ends with a report of all ranks."""
        learner, sampler = self._learner, self._sampler
        self._run.phases.clear()
        losses = self._updates.update()
        self._episodes += episodes
        self.has_reported = learner.updates % UPDATES_PER_REPORT == 0
        if not self.has_reported:
            return
        report = learner.check(losses) | sampler.evaluation()
        report |= {"updates": float(learner.updates), "replay": float(len(sampler.replay))}
        self._run.report(sampler.take_collected(), report, Finished(self._episodes))
        self._episodes = []

    def stop_if_requested(self) -> None:
        """Raise `StopRun` if the run has to stop, together with the other ranks."""
        if self._run.stop.is_requested:
            self._learner.stop_together()
