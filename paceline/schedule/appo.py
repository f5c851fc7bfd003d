"""APPO (Petrenko et al., 2020, Sample Factory): collection never stops, and a learner thread learns at the same time.

The main thread acts for the slots that are ready, always with the latest weights. The learner thread learns from
trajectories of T steps as soon as there are enough for a batch. Only chunk numbers pass between the two. Rows are some
updates older than the weights that learn from them: V-trace corrects for that, and clipping bounds it. On a CPU each
thread computes on half of the cores, and the learner on all of them while collection waits for it.

With several ranks every rank has both threads, and learner threads meet in the gradient all-reduce. All communication
between ranks is theirs, except for checkpoints, at which they wait.

With several policies, every batch has trajectories of one policy, and the learner thread updates that policy. If each
rank trains policies of its own, each updates one of them, and learner threads meet after it.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch

from paceline.accel.kernels import use_threads
from paceline.collect.kind_slots import KindSlots, all_kinds
from paceline.collect.policy_assignment import Finished
from paceline.collect.sampler import Sampler
from paceline.config import Config
from paceline.distributed.config import PreemptionKind
from paceline.distributed.ownership import Ownership
from paceline.errors import UsageError
from paceline.experience.chunks import Chunks
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.experience.rows import Truncations
from paceline.experience.selection import Selection
from paceline.experience.training_batch import TrainingBatch
from paceline.learner.finite import naming_policy
from paceline.learner.ppo import PPOLearner
from paceline.pool.protocol import StepBatch
from paceline.schedule.learner_thread import POLL_SECONDS, LearnerThread
from paceline.schedule.meeting import Learned, learn_and_meet
from paceline.schedule.policy_updates import by_policy
from paceline.schedule.protocol import TrainingRun

AGREE_SECONDS = 0.02
"""How often ranks with several policies compare which of them have a batch on each rank."""


class APPO:
    """Section 3 of the paper."""

    preempts_by: PreemptionKind = "count"

    @staticmethod
    def learns_concurrently(config: Config) -> bool:
        return True

    @staticmethod
    def update_rows(config: Config, kind: KindSlots, ownership: Ownership) -> int:
        """Rows of an update: whole chunks."""
        return batch_chunks(config, kind, ownership) * config.rollout_steps

    @staticmethod
    def buffer_rows(config: Config, kind: KindSlots, ownership: Ownership) -> int:
        """Rows of the buffer of a kind, to check its memory before it is made."""
        chunks, learners = batch_chunks(config, kind, ownership), len(ownership.own)
        changing = config.population.policies > 1 or config.league.is_used
        slots, waiting = kind.spec.num_slots, config.appo.waiting
        return Chunks.rows_needed(config.rollout_steps, slots, chunks, waiting, learners, changing=changing)

    def __init__(self, run: TrainingRun, config: Config, learners: Sequence[PPOLearner], sampler: Sampler) -> None:
        self._run, self._sampler = run, sampler
        kinds, steps = all_kinds(run.pool.spec), config.rollout_steps
        own = run.ownership.own
        sizes = [batch_chunks(config, kind, run.ownership) for kind in kinds]
        _require_streams(learners, min(sizes))
        fresh = torch.nan if sampler.assignment is None else 0.0
        self._buffers = [
            RolloutBuffer(
                Chunks(
                    steps,
                    kind.spec.num_slots,
                    size,
                    config.appo.waiting,
                    own,
                    changing=sampler.assignment is not None,
                ),
                run.group.device,
                spare=True,
                fresh=fresh,
            )
            for kind, size in zip(kinds, sizes, strict=True)
        ]
        """By kind. Batches of all policies of this rank may wait, so each buffer has room for as many of its kind."""
        self._concurrent = _is_concurrent(run, config, sampler)
        self._updates = BatchQueue(run, config, learners, sampler, self._buffers, sizes, concurrent=self._concurrent)
        self._batch_steps = sum(sizes) * steps
        self._held: StepBatch | None = None

    def __call__(self) -> None:
        run, sampler, updates = self._run, self._sampler, self._updates
        if self._held is None:
            on_cpu = run.group.device.type == "cpu"
            sampler.fill(self._buffers, learner_shares_cores=self._concurrent and on_cpu)
            self._held = run.receive_all()
            sampler.begin(self._held)
        held, collected = self._held, 0
        with sampler, updates.thread as thread:
            while not thread.is_over:
                run.stop.keep_signals()
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


def batch_chunks(config: Config, kind: KindSlots, ownership: Ownership) -> int:
    """Chunks of a batch, which is one policy's. By default a rank with the largest share of the policies learns from
    all its slots once per update of each. On all ranks batches are as large, because ranks update one policy each, and
    then meet."""
    if config.appo.batch is None:
        return -(-kind.spec.num_slots // ownership.largest_share(kind.policies(config.population.policies)))
    return max(1, round(config.appo.batch / config.rollout_steps))


def _require_streams(learners: Sequence[PPOLearner], chunks: int) -> None:
    """Refuse mini-batches of whole chunks, if a batch has fewer. Batches with chunks that were closed early have more
    of them, so the first batches may fit by chance."""
    for learner in learners:
        ppo = learner.config
        whole = ppo.traces_minibatches or (learner.policy.is_recurrent and ppo.sequences == "columns")
        if whole and chunks < ppo.minibatches:
            instead = "--ppo.trace update" if ppo.traces_minibatches else "--ppo.sequences packed"
            raise UsageError(
                f"ppo.minibatches is {ppo.minibatches}, but a batch has only {chunks} chunks to divide; allowed: fewer "
                f"mini-batches, a larger --appo.batch, more --pool.num-envs, or {instead}"
            )


def _is_concurrent(run: TrainingRun, config: Config, sampler: Sampler) -> bool:
    """By default collection and learning take turns only for one rank of a small perceptron over EnvPool: there both
    threads mostly hold Python's interpreter lock."""
    meets = run.ownership.group.size > 1 and len(run.ownership.own) > 1
    if config.appo.concurrent is False and meets:
        raise UsageError(
            "appo.concurrent cannot be off for several ranks with several policies: each rank collects until all have "
            "a batch of the same policy; allowed: on, or one rank, or one policy"
        )
    if config.appo.concurrent is not None:
        return config.appo.concurrent
    spec, perceptron = run.pool.spec, sampler.actors[0].inference.perceptron
    small = perceptron is not None and perceptron.is_few(spec.num_slots)
    return not (small and spec.in_step and run.group.size == 1)


class Submission(NamedTuple):
    """A batch for the learner thread."""

    policy: int
    selection: Selection
    truncations: Truncations | None
    finished: Finished
    written: torch.cuda.Event | None
    """When the rows are on the device."""


class BatchQueue:
    """Batches from collection to the learner thread, which learns from them in order, counts and reports."""

    def __init__(
        self,
        run: TrainingRun,
        config: Config,
        learners: Sequence[PPOLearner],
        sampler: Sampler,
        buffers: Sequence[RolloutBuffer[Chunks]],
        sizes: Sequence[int],
        *,
        concurrent: bool,
    ) -> None:
        """`buffers` and `sizes`, the chunks of a batch, are by kind. Without `concurrent`, collection waits while the
        learner learns."""
        self._run, self._sampler = run, sampler
        self._config, self._concurrent = config.appo, concurrent
        own = run.ownership.own
        self._learners = dict(zip(own, learners, strict=True))
        """By policy, like all that follows: those that this rank trains."""
        self._buffers = {policy: buffers[policy % len(buffers)] for policy in own}
        self._sizes = {policy: sizes[policy % len(sizes)] for policy in own}
        self._batches = {policy: TrainingBatch(buffer) for policy, buffer in self._buffers.items()}
        self._arrived: dict[int, deque[Submission]] = {policy: deque() for policy in own}
        """Batches that the learner thread has received, and not learned from yet."""
        self._submissions: queue.SimpleQueue[Submission] = queue.SimpleQueue()
        self._unacknowledged = dict.fromkeys(own, 0)
        """Batches submitted but not yet acknowledged."""
        self._acknowledged: queue.SimpleQueue[int] = queue.SimpleQueue()
        """The policy of each batch that the learner thread is done with."""
        self._versions, self._dropped_batches = dict.fromkeys(own, 0), dict.fromkeys(own, 0)
        self._agrees = len(own) > 1 and run.ownership.group.size > 1
        """Whether several ranks train the same policies, so that they have to find one for which all have a batch."""
        self._unreported: list[Finished] = []
        """What came with batches that were given up."""
        self._losses: dict[int, dict[str, float]] = {}
        """By policy, those of other ranks included: the losses of its last update."""
        self._collection_waits = False
        self.thread = LearnerThread(run, self._learn_until_over)
        self._threads, self._threads_alone = run.threads, learners[0].threads_alone or run.threads
        # Compiled code is compiled for a number of threads.
        if self._threads_alone > self._threads and not config.compute.compile:
            for learner in learners:
                learner.before_pass = self._share_cores

    # ---------------------------------------------------------------- collection's side

    def submit_all(self) -> bool:
        """Submit all full batches. Returns whether that was possible.

        If the learner is behind, or if both take turns, this waits for it: not for long, because the learner may itself
        wait for a checkpoint.
        """
        self._count_acknowledged()
        if not self._concurrent and any(self._unacknowledged.values()) and not self._wait():
            return False
        while full := self._full():
            allowed = [policy for policy in full if self._may_submit(policy)]
            if not allowed:
                if not self._wait():
                    return False
                continue
            self._collection_waits = not self._concurrent
            self._submissions.put(self._take(allowed[0]))
            self._unacknowledged[allowed[0]] += 1
            if not self._concurrent:
                return False
        return True

    def _may_submit(self, policy: int) -> bool:
        """A batch that waits while other policies are updated does not grow old. So each policy has a bound of its own.

        Ranks that train the same policies have to find one for which each has a batch. So they collect until each
        policy has one. `_drop_surplus` bounds their number."""
        if self._agrees:
            return sum(self._unacknowledged.values()) < (self._config.waiting + 1) * len(self._learners)
        return self._unacknowledged[policy] <= self._config.waiting

    def _full(self) -> list[int]:
        """The policies whose full chunks make a batch, first those with the most for the size of their batches."""
        shares = {p: self._buffers[p].layout.num_full(p) / self._sizes[p] for p in self._learners}
        return sorted((p for p, share in shares.items() if share >= 1), key=lambda p: -shares[p])

    def _wait(self) -> bool:
        """Wait for a moment until the learner is done with a batch. Returns whether it is."""
        self._collection_waits = True
        try:
            self._unacknowledged[self._acknowledged.get(timeout=POLL_SECONDS)] -= 1
        except queue.Empty:
            return False
        self._collection_waits = False
        return True

    def _count_acknowledged(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._unacknowledged[self._acknowledged.get_nowait()] -= 1

    def _take(self, policy: int) -> Submission:
        buffer = self._buffers[policy]
        selection = buffer.layout.take(self._sizes[policy], policy)
        truncations = buffer.take_truncations(selection)
        # After that: it gathers truncations on the device.
        written = torch.cuda.current_stream().record_event() if buffer.device.type == "cuda" else None
        return Submission(policy, selection, truncations, self._sampler.take_finished(), written)

    # ---------------------------------------------------------------- the learner thread's side

    def _learn_until_over(self) -> None:
        run, free_since = self._run, time.perf_counter()
        self._threads, self._collection_waits = run.threads, False
        while not run.finished() and (submission := self._receive()) is not None:
            run.rollout_is_complete()
            begin = time.perf_counter()
            losses = self._learn(submission)
            end = time.perf_counter()
            losses["learner_busy"] = (end - begin) / (end - free_since)
            free_since = end
            finished = [*self._unreported, submission.finished]
            self._unreported = []
            run.report(self._batches[submission.policy].num_steps, losses, Finished.join(finished))
            self._acknowledge(submission)
            self.thread.save_if_due()

    def _acknowledge(self, submission: Submission) -> None:
        """Its rows may be overwritten."""
        self._buffers[submission.policy].layout.release(submission.selection)
        self._collection_waits = False
        self._acknowledged.put(submission.policy)

    def _receive(self) -> Submission | None:
        """The next batch; None once the main thread has left. Raises `StopRun` if the run has to stop."""
        if self._agrees:
            return self._receive_agreed()
        while not self.thread.is_closed:
            if self._run.stop.is_requested:
                self._run.stop.raise_if_agreed()
            with contextlib.suppress(queue.Empty):
                return self._submissions.get(timeout=POLL_SECONDS)
        return None

    def _receive_agreed(self) -> Submission | None:
        """The same where ranks have to learn from batches of the same policy: the next policy for which all have one,
        first those that were updated less often."""
        stop, group = self._run.stop, self._run.group
        while not self.thread.is_closed:
            with contextlib.suppress(queue.Empty):
                submission = self._submissions.get(timeout=AGREE_SECONDS)
                self._arrived[submission.policy].append(submission)
            self._drop_surplus()
            mine = [float(len(arrived) > 0) for arrived in self._arrived.values()]
            *ready, stops = group.sum_(torch.tensor([*mine, float(stop.is_requested)], device=group.device)).tolist()
            stop.raise_if(stops > 0)
            counts = zip(self._arrived, ready, strict=True)
            versions = {p: self._versions[p] for p, count in counts if count == group.size}
            if versions:
                policy = min(versions, key=versions.__getitem__)
                self._versions[policy] += 1
                return self._arrived[policy].popleft()
        return None

    def _drop_surplus(self) -> None:
        """If a policy has more batches than may wait, give up its oldest: other ranks have none of this policy yet."""
        for policy, arrived in self._arrived.items():
            while len(arrived) > self._config.waiting + 1:
                self._dropped_batches[policy] += 1
                dropped = arrived.popleft()
                self._unreported.append(dropped.finished)
                self._acknowledge(dropped)

    def _learn(self, submission: Submission) -> dict[str, float]:
        self._run.stop.raise_if_agreed()
        learned = learn_and_meet(self._run, partial(self._update, submission))
        self._losses |= learned.losses
        if self._run.ownership.num_policies == 1:
            return self._losses[0]
        return by_policy(self._losses) | {"dropped_rows": learned.dropped or 0.0}  # a count of this update, no mean

    def _update(self, submission: Submission) -> Learned:
        run, policy = self._run, submission.policy
        learner, batch = self._learners[policy], self._batches[policy]
        if submission.written is not None:
            torch.cuda.current_stream().wait_event(submission.written)
        learner.before_pass()  # targets take a pass through the network, too
        batch.select(submission.selection, submission.truncations)
        oldest = (learner.policy.version - self._config.max_lag).clamp(min=learner.first_version)
        decided = batch.valid.clone()
        dropped = batch.drop_older(oldest)
        losses: dict[str, float] = {}
        if not learner.first_version or float(run.ownership.group.sum_(batch.valid.sum().float()[None])):
            learner.targets.complete_chunks(batch, learner.policy, decided)
            with naming_policy(policy, run.ownership.num_policies):
                losses = learner.learn(batch, run.progress)  # waits for the device: then rows may be overwritten
            learner.publish()
        surplus, self._dropped_batches[policy] = self._dropped_batches[policy], 0
        losses["dropped_rows"] = float(dropped) + surplus * self._sizes[policy] * self._buffers[policy].layout.steps
        return Learned({policy: losses}, losses["dropped_rows"])

    def _share_cores(self) -> None:
        """On a CPU: learn on all cores while collection waits."""
        wanted = self._threads_alone if self._collection_waits else self._run.threads
        if wanted != self._threads:
            use_threads(wanted)
            self._threads = wanted
