"""DD-PPO (Wijmans et al., 2020): every rank collects in lock-step, stragglers are preempted, gradients are averaged.

There is no server: all ranks run this loop, and meet in the gradient all-reduce of `learner.update`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.distributed.preemption import Preemption
from paceline.experience.rollout import Rollout

if TYPE_CHECKING:
    from paceline.run import Run


def ddppo(run: Run) -> None:
    """Algorithm of the paper's figure 9."""
    config, pool, actor, learner, clock = run.config, run.pool, run.actor, run.learner, run.clock
    rollout = Rollout(config.rollout_steps, pool.spec.num_slots, run.group.device)
    preemption = Preemption(config.preemption, run.group, config.rollout_steps)
    with clock.time("simulation"):
        batch = pool.recv(min_slots=None)
    while not run.finished():
        rollout.clear()
        for step in range(1, config.rollout_steps + 1):
            with clock.time("inference"):
                decision = actor.decide(batch)
                rollout.begin(decision)
            with clock.time("simulation"):
                pool.send(actor.env_actions(decision), batch.slots)
                batch = pool.recv(min_slots=None)
            with clock.time("inference"):
                rollout.complete(actor.observe(batch))
            if preemption.should_stop(step):
                break
        preemption.finished()
        with clock.time("learning"):
            cuts = rollout.cuts()
            rollout.finish(
                actor.values(batch),
                actor.cut_values(cuts) if cuts is not None else None,
                discount=config.ppo.discount,
                trace_decay=config.ppo.trace_decay,
            )
            losses = learner.update(rollout, run.progress)
            run.policy.absorb(rollout, run.group)
        run.report(rollout, losses)
