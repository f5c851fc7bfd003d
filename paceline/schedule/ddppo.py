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
    config, pool, actor, clock = run.config, run.pool, run.actor, run.clock
    rollout = Rollout(config.rollout_steps, pool.spec.num_slots, run.group.device, pool.spec.truncation_gap)
    preemption = Preemption(config.preemption, run.group, config.rollout_steps)
    with clock.time("simulation"):
        batch = pool.recv(min_slots=None)
    while not run.finished():
        rollout.clear()
        for step in range(1, config.rollout_steps + 1):
            with clock.time("inference"):
                decision = actor.decide(batch)
                rollout.begin(decision)
                actions = actor.env_actions(decision, batch)
            with clock.time("simulation"):
                pool.send(actions, batch.slots)
                batch = pool.recv(min_slots=None)
            with clock.time("inference"):
                rollout.complete(actor.observe(batch))
            if preemption.should_stop(step):
                break
        preemption.finished()
        with clock.time("learning"):
            run.targets.complete(rollout, batch)
            losses = run.learner.update(rollout, run.progress)
            run.policy.absorb(rollout, run.group)
        run.report(rollout, losses)
