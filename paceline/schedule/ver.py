"""VER (Wijmans et al., 2022): T * N steps from whichever environments are ready; nobody waits for the slowest.

The main process decides and learns in turn. What is in flight when a rollout is full stays in flight while the policy
learns, and is the beginning of the next rollout. docs/ver.md has the invariants of that bookkeeping.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.accel.kernels import use_threads
from paceline.distributed.preemption import Preemption, make_preemption
from paceline.errors import UsageError
from paceline.experience.layouts import Variable
from paceline.experience.rollout import Rollout
from paceline.pool.batches import part, union
from paceline.pool.protocol import StepBatch
from paceline.schedule.ddppo import lock_step
from paceline.schedule.turns import Turns

if TYPE_CHECKING:
    from paceline.agent.on_policy import OnPolicy
    from paceline.run import Run


def ver(run: Run[OnPolicy]) -> None:
    """Section 2 of the paper."""
    config, pool = run.config, run.pool
    held = run.receive_all()
    if isinstance(held.reward, Tensor):  # a batched simulator steps all of its streams at once: nothing is uneven
        if config.ver.overlap:
            raise UsageError("ver.overlap is for simulators in other processes; batched ones step in this one")
        lock_step(run, held, own="deadline")
        return
    slots = pool.spec.num_slots
    book = Variable(config.rollout_steps, slots, kept=2 if config.ver.overlap else 0)
    weighted = config.ver.importance_weights
    rollout = Rollout(config.rollout_steps, slots, run.group.device, book=book, weighted=weighted, spare=True)
    run.agent.keep(rollout)
    preemption = make_preemption(
        config.preemption, run.group, book.goal, own="deadline", deterministic=config.deterministic
    )
    with Turns(run, rollout, book) as turns:
        collector = Collector(run, turns, book, preemption, held)
        if config.ver.overlap:
            overlapping(run, rollout, preemption, collector)
        else:
            in_turn(run, rollout, preemption, collector)
        collector.take_in()  # the last checkpoint has every simulator


def in_turn(run: Run[OnPolicy], rollout: Rollout, preemption: Preemption, collector: Collector) -> None:
    """Collect, learn, collect, learn."""
    while collector.begin_iteration():
        collector.collect()
        run.stop.raise_if_agreed()
        with run.clock.time("learning"):
            run.agent.targets.complete(rollout, collector.held)
            losses = run.agent.learn(rollout, run.progress)
        preemption.learned()
        run.report(rollout.num_steps, losses)
        rollout.clear()


def overlapping(run: Run[OnPolicy], rollout: Rollout, preemption: Preemption, collector: Collector) -> None:
    """Learn from a rollout beside the collection of the next. Ranks meet either here or in the update, never in both."""
    agent = run.agent
    lesson: Rollout | None = None
    with ThreadPoolExecutor(1, initializer=use_threads, initargs=(torch.get_num_threads(),)) as beside:
        while collector.begin_iteration():
            learning = beside.submit(_timed, agent.learn, lesson, run.progress) if lesson is not None else None
            collector.collect()
            with run.clock.time("learning"):
                losses, seconds = learning.result() if learning is not None else ({}, 0.0)
                run.stop.raise_if_agreed()
                agent.targets.complete(rollout, collector.held)
                agent.publish()
                agent.pick_up()
            preemption.learned(concurrent_seconds=seconds)
            if lesson is not None:
                run.report(lesson.num_steps, losses)
            lesson = rollout.frozen()
            rollout.clear()


def _timed(
    learn: Callable[[Rollout, float], dict[str, float]], rollout: Rollout, progress: float
) -> tuple[dict[str, float], float]:
    begin = time.monotonic()
    return learn(rollout, progress), time.monotonic() - begin


class Collector:
    """Fills rollouts from whoever is ready; between two of them it holds the slots that were received last."""

    def __init__(
        self, run: Run[OnPolicy], turns: Turns, book: Variable, preemption: Preemption, held: StepBatch
    ) -> None:
        self._run, self._turns, self._book, self._preemption = run, turns, book, preemption
        self.held = held

    def collect(self) -> None:
        """Steps until the rollout is full, or until the deadline."""
        run, turns, book, preemption = self._run, self._turns, self._book, self._preemption
        parked: list[StepBatch] = []
        held = self.held
        preemption.begin(book.completed)
        while not (book.is_full or run.stop.is_requested or preemption.should_stop(book.completed)):
            run.phases.show("collecting", book.completed, book.goal)
            missing = book.goal - book.completed
            if not run.config.ver.variable:
                done = book.collected[held.slots] >= run.config.rollout_steps
                if done.any():
                    parked.append(part(held, done))
                    held = part(held, ~done)
            if len(held):
                turns.decide(held)
            held = turns.receive(missing, preemption.seconds_left(), first=book.collected)
        preemption.finished(book.completed)
        turns.pause()
        self.held = union([*parked, held]) if parked else held

    def begin_iteration(self) -> bool:
        """Save if it is time to, with all simulators; whether the run goes on. A deterministic run takes the same course whether it
        saves or not."""
        if self._run.checkpoint_due or self._run.config.deterministic:
            self.take_in()
        return self._run.begin_iteration()

    def take_in(self) -> None:
        """Wait for everything in flight, which the next rollout begins with."""
        self.held = self._turns.take_in(self.held)
