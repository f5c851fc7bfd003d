"""APPO (Petrenko et al., 2020, Sample Factory): collection never stops, and learning goes on beside it. (Both take turns only where
the interpreter lets no two threads compute: `APPOConfig.beside`.)

The main thread decides for whoever is ready, always with the latest weights; another learns from trajectories of T steps as
soon as there are enough of them. Only numbers of chunks travel between the two (see `experience.chunks`). Rows are therefore
some updates behind the weights that learn from them: V-trace corrects for that, and clipping bounds what it can do. On a CPU
each computes on half of the cores, and the learner on all while collection waits for it.

With several ranks every rank has both threads, and those that learn meet in the gradient all-reduce. All communication between
ranks is theirs, but for checkpoints, at which they stand still.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from paceline.accel.kernels import use_threads
from paceline.experience.chunks import Chunks
from paceline.experience.rollout import Batch, Rollout
from paceline.pool.protocol import Episode
from paceline.schedule.ddppo import lock_step
from paceline.schedule.learner_thread import POLL_SECONDS, Companion
from paceline.schedule.turns import Turns

if TYPE_CHECKING:
    from paceline.agent.on_policy import OnPolicy
    from paceline.run import Run


def appo(run: Run[OnPolicy]) -> None:
    """Section 3 of the paper."""
    config, pool, clock = run.config, run.pool, run.clock
    held = run.receive_all()
    if isinstance(held.reward, Tensor):  # a batched simulator shares its device with the learner: they take turns
        lock_step(run, held, own="count")
        return
    slots, steps = pool.spec.num_slots, config.rollout_steps
    size = max(1, round(config.appo.batch / steps)) if config.appo.batch is not None else slots
    book = Chunks(steps, slots, size, config.appo.waiting)
    rollout = Rollout(steps, slots, run.group.device, book=book, spare=True)
    beside = _collects_beside(run)
    learning = Learning(run, rollout, book, size, beside=beside)
    collected = 0
    with Turns(run, rollout, book, learning=beside) as turns, learning.thread as thread:
        while not thread.is_over:
            if thread.wants_checkpoint:
                held = turns.take_in(held)
                thread.save()
            if run.stop.is_requested:
                thread.wait()  # it ends, together with those of the other ranks
                continue
            with clock.time("learning"):
                if not learning.offer_all():
                    continue
            if len(held):
                turns.decide(held)
            held = turns.receive()
            collected = (collected + len(held)) % (size * steps)
            run.phases.show("collecting", collected, size * steps)
        turns.take_in(held)  # the last checkpoint has every simulator


def _collects_beside(run: Run[OnPolicy]) -> bool:
    if run.config.appo.beside is not None:
        return run.config.appo.beside
    spec, perceptron = run.pool.spec, run.agent.actor.chooser.perceptron
    small = perceptron is not None and perceptron.is_few(spec.num_slots)
    return not (small and spec.in_step and run.group.size == 1)


class Offer(NamedTuple):
    """A batch, and what else the thread that learns needs to know of it."""

    batch: Batch
    episodes: list[Episode]
    written: torch.cuda.Event | None
    """When the rows are on the device."""


class Learning:
    """What the other thread does: learn from batch after batch, in the order in which they were offered, count and report."""

    def __init__(self, run: Run[OnPolicy], rollout: Rollout, book: Chunks, size: int, *, beside: bool) -> None:
        self._run, self._rollout, self._book, self._size, self._beside = run, rollout, book, size, beside
        self._offers: queue.SimpleQueue[Offer] = queue.SimpleQueue()
        self._unlearned = 0
        """Batches that were handed over, less those of which collection knows that they were learned from."""
        self._learned = threading.Semaphore(0)
        """Of these it does not know yet."""
        self._on_gpu = run.group.device.type == "cuda"
        self._offer: Offer | None = None
        """What could not be handed over yet."""
        self._is_waited_for = False
        """Whether collection stands still until a batch was learned from."""
        self.thread = Companion(run, self._learn_until_over)
        self._threads, self._threads_alone = run.threads, run.agent.threads_alone or run.threads
        # What is compiled is compiled for a number of threads.
        if self._threads_alone > self._threads and not run.config.compute.compile:
            run.agent.learner.before_pass = self._share_cores

    def offer_all(self) -> bool:
        """Hand all whole batches over; whether that was possible. Where enough are with the learner already, it is behind: then this
        waits, though not for long, since it may itself be waiting for a checkpoint. It also waits where both take turns."""
        if not self._beside and not self._waited_until(0):
            return False
        while self._offer is not None or self._book.num_full >= self._size:
            self._offer = self._offer or self._next_offer()
            if not self._waited_until(self._run.config.appo.waiting):
                return False
            self._is_waited_for = not self._beside
            self._offers.put(self._offer)
            self._offer = None
            self._unlearned += 1
            if not self._beside:
                return False
        return True

    def _waited_until(self, unlearned: int) -> bool:
        """Whether no more batches than this are left to learn from, at once or soon."""
        while self._unlearned > unlearned:
            if not self._learned.acquire(blocking=False):
                self._is_waited_for = True
                if not self._learned.acquire(timeout=POLL_SECONDS):
                    return False
                self._is_waited_for = False
            self._unlearned -= 1
        return True

    def _next_offer(self) -> Offer:
        batch = self._rollout.take(self._size)
        # After that: it gathers cuts on the device.
        written = torch.cuda.current_stream().record_event() if self._on_gpu else None
        return Offer(batch, self._run.pool.take_episodes(), written)

    def _learn_until_over(self) -> None:
        run = self._run
        lesson, free_since = self._rollout.view(), time.perf_counter()
        while (offer := self._next()) is not None:
            begin = time.perf_counter()
            losses = self._learn(lesson, offer)
            end = time.perf_counter()
            losses["learner_busy"] = (end - begin) / (end - free_since)
            free_since = end
            run.report(lesson.num_steps, losses, offer.episodes)
            self._book.release(offer.batch.book)
            self._is_waited_for = False
            self._learned.release()
            if run.checkpoint_due:
                self.thread.let_save()
            if self.thread.is_closed or run.finished():
                return

    def _learn(self, lesson: Rollout, offer: Offer) -> dict[str, float]:
        run, agent = self._run, self._run.agent
        run.stop.raise_if_agreed()
        if offer.written is not None:
            torch.cuda.current_stream().wait_event(offer.written)
        agent.learner.before_pass()  # what is left to know about the batch takes one too
        lesson.show(offer.batch)
        dropped = lesson.drop_older(agent.policy.version - run.config.appo.max_lag)
        agent.targets.complete_chunks(lesson, agent.policy)
        losses = agent.learn(lesson, run.progress)  # waits for the device: after it the rows may be overwritten
        agent.publish()
        return losses | {"dropped_rows": float(dropped)}

    def _share_cores(self) -> None:
        """On a CPU: learn on all cores while collection waits for it."""
        wanted = self._threads_alone if self._is_waited_for else self._run.threads
        if wanted != self._threads:
            use_threads(wanted)
            self._threads = wanted

    def _next(self) -> Offer | None:
        """The next batch; None once the main thread has left. Raises `StopRun` if the run has to stop."""
        while not self.thread.is_closed:
            if self._run.stop.is_requested:
                self._run.stop.raise_if_agreed()
            with contextlib.suppress(queue.Empty):
                return self._offers.get(timeout=POLL_SECONDS)
        return None
