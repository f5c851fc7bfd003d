"""VER (Wijmans et al., 2022): T * N steps from the environments that are ready. None waits for the slowest.

One process acts and learns in turn. Rows in flight when a rollout is full stay in flight while the policy learns, and
are the first rows of the next rollout. docs/ver.md has the invariants of this bookkeeping.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from paceline.accel.kernels import use_threads
from paceline.collect.kind_slots import KindSlots
from paceline.collect.sampler import Sampler
from paceline.config import Config
from paceline.distributed.config import PreemptionKind
from paceline.distributed.ownership import Ownership
from paceline.distributed.preemption import make_preemption
from paceline.learner.ppo import PPOLearner
from paceline.pool.batches import part, union
from paceline.pool.protocol import StepBatch
from paceline.schedule.kind_rollouts import KindRollouts
from paceline.schedule.policy_updates import PolicyUpdates
from paceline.schedule.protocol import TrainingRun

KEPT = 2
"""Rollouts that the buffer keeps besides the present one, where learning overlaps with collection."""


class VER:
    """Section 2 of the paper."""

    preempts_by: PreemptionKind = "deadline"

    @staticmethod
    def learns_concurrently(config: Config) -> bool:
        return config.ver.overlap

    @staticmethod
    def update_rows(config: Config, kind: KindSlots, ownership: Ownership) -> int:
        """Rows of an update."""
        return config.rollout_steps * kind.spec.num_slots

    @staticmethod
    def buffer_rows(config: Config, kind: KindSlots, ownership: Ownership) -> int:
        """Rows of the buffer of a kind, to check its memory before it is made."""
        return KindRollouts.rows_needed(config.rollout_steps, kind, KEPT if config.ver.overlap else 0)

    def __init__(
        self,
        run: TrainingRun,
        config: Config,
        learners: Sequence[PPOLearner],
        sampler: Sampler,
        *,
        lock_step: bool = False,
    ) -> None:
        """With `lock_step`, every decision waits for all simulators, and rollouts are preempted as in DD-PPO: that is
        DD-PPO in turn-based games."""
        self._run, self._learners, self._sampler, self._config = run, learners, sampler, config
        self._lock_step, self._overlap = lock_step, config.ver.overlap and not lock_step
        self._variable = config.ver.variable or lock_step
        weighted = config.ver.importance_weights and not lock_step
        kept = KEPT if self._overlap else 0
        self._rollout = KindRollouts(
            config.rollout_steps, run.pool.spec, run.group.device, kept=kept, weighted=weighted
        )
        self._updates = PolicyUpdates(run, learners, sampler, self._rollout.buffers, weighted=weighted)
        self._preemption = make_preemption(
            config.preemption,
            run.group,
            self._rollout.goal,
            "count" if lock_step else self.preempts_by,
            deterministic=config.deterministic,
        )
        self._held: StepBatch | None = None
        self._has_batch = False
        """Whether a rollout waits to be learned from, where learning overlaps with collection."""

    def __call__(self) -> None:
        if self._held is None:
            self._sampler.fill(self._rollout.buffers)
            self._held = self._run.receive_all()
            self._sampler.begin(self._held)
        with self._sampler:
            if self._overlap:
                self._overlapping()
            else:
                self._in_turn()
            self._drain()  # the last checkpoint has every simulator

    def _in_turn(self) -> None:
        """Collect, learn, collect, learn."""
        run = self._run
        while self._begin_iteration():
            self._collect()
            run.stop.raise_if_agreed()
            run.rollout_is_complete()
            with run.clock.time("learning"):
                self._complete()
                losses = self._updates.learn(run.progress)
            self._preemption.learned()
            run.report(self._updates.num_steps, losses, self._sampler.take_finished())
            self._rollout.start()

    def _overlapping(self) -> None:
        """Learn from a rollout while collecting the next. Ranks communicate here or in the update, never in both."""
        run = self._run
        begin = partial(_begin_thread, torch.get_num_threads(), run.group.device)
        with ThreadPoolExecutor(1, initializer=begin) as executor:
            while self._begin_iteration():
                learning = executor.submit(self._learn) if self._has_batch else None
                self._collect()
                run.rollout_is_complete()
                with run.clock.time("learning"):
                    losses, steps, seconds = learning.result() if learning is not None else ({}, 0, 0.0)
                    run.stop.raise_if_agreed()
                    self._complete()
                    for learner in self._learners:
                        learner.publish()
                self._preemption.learned(concurrent_seconds=seconds)
                if self._has_batch:
                    run.report(steps, losses, self._sampler.take_finished())
                self._has_batch = True
                self._rollout.start()

    def _learn(self) -> tuple[dict[str, float], int, float]:
        begin = time.monotonic()
        losses = self._updates.learn(self._run.progress)
        return losses, self._updates.num_steps, time.monotonic() - begin

    def _complete(self) -> None:
        """The rollout becomes what is learned from."""
        assert self._held is not None
        self._rollout.end()
        self._updates.complete(self._held)

    def _collect(self) -> None:
        """Steps until the rollout is full, or until the deadline."""
        run, sampler, rollout, preemption = self._run, self._sampler, self._rollout, self._preemption
        parked: list[StepBatch] = []
        held = self._held
        assert held is not None
        preemption.begin(rollout.completed)
        while not (rollout.is_full or run.stop.is_requested or preemption.should_stop(rollout.completed)):
            run.stop.keep_signals()
            run.phases.show("collecting", rollout.completed, rollout.goal)
            missing = rollout.goal - rollout.completed
            if not self._variable:
                held = self._park(held, parked)
            if len(held):
                sampler.act(held)
            if self._lock_step:
                held = sampler.receive_all()
            else:
                held = sampler.receive(missing, preemption.seconds_left(), first=rollout.collected)
        preemption.finished(rollout.completed)
        sampler.flush()
        self._held = union([*parked, held]) if parked else held

    def _park(self, held: StepBatch, parked: list[StepBatch]) -> StepBatch:
        """The paper's NoVER: environments that have given T steps per slot wait. Returns the slots that continue."""
        agents = self._run.pool.spec.agents_per_env
        collected = self._rollout.collected.reshape(-1, agents).sum(axis=1)
        done = collected[held.slots // agents] >= self._config.rollout_steps * agents
        if not np.any(done):
            return held
        parked.append(part(held, done))
        return part(held, ~done)

    def _begin_iteration(self) -> bool:
        """Save all simulators if a checkpoint is due. A deterministic run waits for them even if it does not save."""
        if self._run.checkpoint_due or self._config.deterministic:
            self._drain()
        return self._run.begin_iteration()

    def _drain(self) -> None:
        """Wait for everything in flight. The next rollout begins with it."""
        assert self._held is not None
        self._held = self._sampler.drain(self._held)


def _begin_thread(threads: int, device: torch.device) -> None:
    """PyTorch's threads and GPU of a new thread: every thread has its own."""
    use_threads(threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
