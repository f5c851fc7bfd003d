"""VER (Wijmans et al., 2022): T * N steps from whichever environments are ready; nobody waits for the slowest.

The main process decides and learns in turn. What is in flight when a rollout is full stays in flight while the policy
learns, and is the beginning of the next rollout. docs/ver.md has the invariants of that bookkeeping.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from paceline.distributed.preemption import Preemption, make_preemption
from paceline.experience.book import Variable
from paceline.experience.rollout import Rollout
from paceline.policy.batching import AdaptiveBatching
from paceline.pool.batches import part, union
from paceline.pool.protocol import StepBatch
from paceline.schedule.ddppo import lock_step

if TYPE_CHECKING:
    from paceline.run import Run


@dataclass(frozen=True, kw_only=True)
class VERConfig:
    """What is VER's own."""

    variable: bool = True
    """Take steps from whoever is ready; without it every stream gives exactly T a rollout (the paper's NoVER)."""
    importance_weights: bool = True
    """Rows of streams that gave more than the mean weigh less, so that fast simulators do not decide what is learned."""


def ver(run: Run) -> None:
    """Section 2 of the paper."""
    config, pool, clock = run.config, run.pool, run.clock
    slots = pool.spec.num_slots
    book = Variable(config.rollout_steps, slots)
    rollout = Rollout(config.rollout_steps, slots, run.group.device, book=book, weighted=config.ver.importance_weights)
    preemption = make_preemption(config.preemption, run.group, book.goal, own="deadline")
    with clock.time("simulation"):
        held = pool.recv(min_slots=None)
    if isinstance(held.reward, Tensor):  # a batched simulator steps all of its streams at once: nothing is uneven
        lock_step(run, held, own="deadline")
        return
    run.keep(rollout)
    batching = AdaptiveBatching(pool, config.batching)
    while not run.finished():
        held = collect(run, rollout, book, preemption, batching, held)
        with clock.time("learning"):
            run.targets.complete(rollout, held)
            losses = run.learner.update(rollout, run.progress)
            run.policy.absorb(rollout, run.group)
        preemption.learned()
        run.report(rollout, losses)
        rollout.clear()
        due = run.checkpoint_due()
        if due or config.deterministic:
            held = take_in(run, rollout, book, held)
        if due:
            run.save()
    take_in(run, rollout, book, held)  # the last checkpoint has every simulator


def collect(
    run: Run, rollout: Rollout, book: Variable, preemption: Preemption, batching: AdaptiveBatching, held: StepBatch
) -> StepBatch:
    """Fill a rollout, beginning with the slots that are held; those that are held when it is full."""
    pool, actor, clock, steps = run.pool, run.actor, run.clock, run.config.rollout_steps
    parked: list[StepBatch] = []
    preemption.begin()
    while book.missing and not preemption.should_stop(book.completed):
        if not run.config.ver.variable:
            done = book.collected[held.slots] >= steps
            parked.append(part(held, done))
            held = part(held, ~done)
        if len(held):
            with clock.time("inference"):
                decision = actor.decide(held)
                rollout.begin(decision, held)
                actions = actor.env_actions(decision, held)
            with clock.time("simulation"):
                pool.send(actions, held.slots)
        with clock.time("simulation"):
            held = batching.receive(int(book.in_flight.sum()), book.missing, preemption.seconds_left())
        with clock.time("inference"):
            rollout.complete(actor.observe(held), held)
    preemption.finished(book.completed)
    batching.pause()
    return union([*parked, held]) if parked else held


def take_in(run: Run, rollout: Rollout, book: Variable, held: StepBatch) -> StepBatch:
    """Wait for everything in flight, which the next rollout begins with: all slots, held."""
    flying = int(np.count_nonzero(book.in_flight))
    if flying == 0:
        return held
    everything = np.ones(len(held), bool)
    kept = part(held, everything)  # its arrays hold until the next `recv` only
    with run.clock.time("simulation"):
        batch = run.pool.recv(min_slots=flying)
    rollout.complete(run.actor.observe(batch), batch)
    return union([kept, batch])
