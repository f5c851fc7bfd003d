"""APPO (Petrenko et al., 2020, Sample Factory): collection never stops, and a learner thread learns at the same time.

The main thread acts for the slots that are ready, always with the latest weights. The learner thread learns from
trajectories of T steps as soon as there are enough for a batch. Only chunk numbers pass between the two. Rows are some
updates older than the weights that learn from them: V-trace corrects for that, and clipping bounds it. On a CPU each
thread computes on half of the cores, and the learner on all of them while collection waits for it.

With several ranks every rank has both threads, and learner threads meet in the gradient all-reduce. All communication
between ranks is theirs, except for checkpoints, at which they wait.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import NamedTuple

import torch

from paceline.accel.kernels import use_threads
from paceline.collect.sampler import Sampler
from paceline.config import Config
from paceline.distributed.config import PreemptionKind
from paceline.experience.chunks import Chunks
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.experience.rows import Truncations
from paceline.experience.selection import Selection
from paceline.experience.training_batch import TrainingBatch
from paceline.learner.ppo import PPOLearner
from paceline.pool.protocol import Episode, StepBatch
from paceline.schedule.learner_thread import POLL_SECONDS, LearnerThread
from paceline.schedule.protocol import TrainingRun


class APPO:
    """Section 3 of the paper."""

    preempts_by: PreemptionKind = "count"

    @staticmethod
    def learns_concurrently(config: Config) -> bool:
        return True

    @staticmethod
    def update_rows(config: Config, num_slots: int) -> int:
        """Rows of an update: whole chunks."""
        return batch_chunks(config, num_slots) * config.rollout_steps

    @staticmethod
    def buffer_rows(config: Config, num_slots: int) -> int:
        """Rows of the buffer, to check its memory before it is made."""
        chunks = batch_chunks(config, num_slots)
        return Chunks.rows_needed(config.rollout_steps, num_slots, chunks, config.appo.waiting)

    def __init__(self, run: TrainingRun, config: Config, learner: PPOLearner, sampler: Sampler) -> None:
        self._run, self._sampler = run, sampler
        slots, steps = run.pool.spec.num_slots, config.rollout_steps
        size = batch_chunks(config, slots)
        self._layout = Chunks(steps, slots, size, config.appo.waiting)
        self._buffer = RolloutBuffer(self._layout, run.group.device, spare=True)
        self._concurrent = _is_concurrent(run, config, sampler)
        self._updates = BatchQueue(run, config, learner, self._buffer, size, concurrent=self._concurrent)
        self._batch_steps = size * steps
        self._held: StepBatch | None = None

    def __call__(self) -> None:
        run, sampler, updates = self._run, self._sampler, self._updates
        if self._held is None:
            on_cpu = run.group.device.type == "cpu"
            sampler.fill(self._buffer, learner_shares_cores=self._concurrent and on_cpu)
            self._held = run.receive_all()
            sampler.begin(self._held)
        held, collected = self._held, 0
        with sampler, updates.thread as thread:
            while not thread.is_over:
                if thread.wants_checkpoint:
                    held = sampler.drain(held)
                    thread.save()
                if run.stop.is_requested:
                    thread.wait()  # it ends, together with those of the other ranks
                    continue
                with run.clock.time("learning"):
                    if not updates.submit_all():
                        continue
                if len(held):
                    sampler.act(held)
                held = sampler.receive()
                collected = (collected + len(held)) % self._batch_steps
                run.phases.show("collecting", collected, self._batch_steps)
            self._held = sampler.drain(held)  # the last checkpoint has every simulator


def batch_chunks(config: Config, num_slots: int) -> int:
    """Chunks of a batch."""
    return num_slots if config.appo.batch is None else max(1, round(config.appo.batch / config.rollout_steps))


def _is_concurrent(run: TrainingRun, config: Config, sampler: Sampler) -> bool:
    """By default collection and learning take turns only for one rank of a small perceptron over EnvPool: there both
    threads mostly hold Python's interpreter lock."""
    if config.appo.concurrent is not None:
        return config.appo.concurrent
    spec, perceptron = run.pool.spec, sampler.actor.inference.perceptron
    small = perceptron is not None and perceptron.is_few(spec.num_slots)
    return not (small and spec.in_step and run.group.size == 1)


class Submission(NamedTuple):
    """A batch for the learner thread."""

    selection: Selection
    truncations: Truncations | None
    episodes: list[Episode]
    written: torch.cuda.Event | None
    """When the rows are on the device."""


class BatchQueue:
    """Batches from collection to the learner thread, which learns from them in order, counts and reports."""

    def __init__(
        self,
        run: TrainingRun,
        config: Config,
        learner: PPOLearner,
        buffer: RolloutBuffer[Chunks],
        size: int,
        *,
        concurrent: bool,
    ) -> None:
        """`size`: chunks of a batch. Without `concurrent`, collection waits while the learner learns."""
        self._run, self._learner, self._buffer, self._size, self._concurrent = run, learner, buffer, size, concurrent
        self._config, self._layout, self._batch = config.appo, buffer.layout, TrainingBatch(buffer)
        self._submissions: queue.SimpleQueue[Submission] = queue.SimpleQueue()
        self._unacknowledged = 0
        """Batches submitted but not yet acknowledged."""
        self._acknowledged = threading.Semaphore(0)
        """Released by the learner thread after each update."""
        self._next: Submission | None = None
        """A batch that could not be submitted yet."""
        self._collection_waits = False
        self.thread = LearnerThread(run, self._learn_until_over)
        self._threads, self._threads_alone = run.threads, learner.threads_alone or run.threads
        # Compiled code is compiled for a number of threads.
        if self._threads_alone > self._threads and not config.compute.compile:
            learner.before_pass = self._share_cores

    # ---------------------------------------------------------------- collection's side

    def submit_all(self) -> bool:
        """Submit all full batches. Returns whether that was possible.

        If the learner is behind, or if both take turns, this waits for it: not for long, because the learner may itself
        wait for a checkpoint.
        """
        if not self._concurrent and not self._wait_until(0):
            return False
        while self._next is not None or self._layout.num_full >= self._size:
            self._next = self._next or self._take()
            if not self._wait_until(self._config.waiting):
                return False
            self._collection_waits = not self._concurrent
            self._submissions.put(self._next)
            self._next = None
            self._unacknowledged += 1
            if not self._concurrent:
                return False
        return True

    def _wait_until(self, unacknowledged: int) -> bool:
        """Wait for a moment. Returns whether at most so many batches are not acknowledged."""
        while self._unacknowledged > unacknowledged:
            if not self._acknowledged.acquire(blocking=False):
                self._collection_waits = True
                if not self._acknowledged.acquire(timeout=POLL_SECONDS):
                    return False
                self._collection_waits = False
            self._unacknowledged -= 1
        return True

    def _take(self) -> Submission:
        selection = self._layout.take(self._size)
        truncations = self._buffer.take_truncations(selection)
        # After that: it gathers truncations on the device.
        written = torch.cuda.current_stream().record_event() if self._buffer.device.type == "cuda" else None
        return Submission(selection, truncations, self._run.pool.take_episodes(), written)

    # ---------------------------------------------------------------- the learner thread's side

    def _learn_until_over(self) -> None:
        run, free_since = self._run, time.perf_counter()
        self._threads, self._collection_waits = run.threads, False
        while not run.finished() and (submission := self._receive()) is not None:
            begin = time.perf_counter()
            losses = self._learn(submission)
            end = time.perf_counter()
            losses["learner_busy"] = (end - begin) / (end - free_since)
            free_since = end
            run.report(self._batch.num_steps, losses, submission.episodes)
            self._layout.release(submission.selection)
            self._collection_waits = False
            self._acknowledged.release()
            if run.checkpoint_due:
                self.thread.let_save()

    def _receive(self) -> Submission | None:
        """The next batch; None once the main thread has left. Raises `StopRun` if the run has to stop."""
        while not self.thread.is_closed:
            if self._run.stop.is_requested:
                self._run.stop.raise_if_agreed()
            with contextlib.suppress(queue.Empty):
                return self._submissions.get(timeout=POLL_SECONDS)
        return None

    def _learn(self, submission: Submission) -> dict[str, float]:
        run, learner, batch = self._run, self._learner, self._batch
        run.stop.raise_if_agreed()
        if submission.written is not None:
            torch.cuda.current_stream().wait_event(submission.written)
        learner.before_pass()  # targets take a pass through the network, too
        batch.select(submission.selection, submission.truncations)
        dropped = batch.drop_older(learner.policy.version - self._config.max_lag)
        learner.targets.complete_chunks(batch, learner.policy)
        losses = learner.learn(batch, run.progress)  # waits for the device: after it the rows may be overwritten
        learner.publish()
        return losses | {"dropped_rows": float(dropped)}

    def _share_cores(self) -> None:
        """On a CPU: learn on all cores while collection waits."""
        wanted = self._threads_alone if self._collection_waits else self._run.threads
        if wanted != self._threads:
            use_threads(wanted)
            self._threads = wanted
