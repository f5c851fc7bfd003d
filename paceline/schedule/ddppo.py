"""DD-PPO (Wijmans et al., 2020): every rank collects in lock-step, stragglers are preempted, gradients are averaged.

There is no server: all ranks run this loop, and meet in the gradient all-reduce of `learner.update`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch import Tensor

from paceline.collect.acting import StepByStep, make_acting
from paceline.distributed.preemption import make_preemption
from paceline.experience.rollout import Rollout
from paceline.pool.protocol import StepBatch

if TYPE_CHECKING:
    from paceline.agent.on_policy import OnPolicy
    from paceline.run import Run


def ddppo(run: Run[OnPolicy]) -> None:
    """Algorithm of the paper's figure 9."""
    lock_step(run, run.receive_all(), own="count")


def lock_step(run: Run[OnPolicy], batch: StepBatch, own: Literal["count", "deadline"]) -> None:
    """Rollouts of T steps of all slots, the first of which begins with `batch`."""
    config, pool, agent, clock = run.config, run.pool, run.agent, run.clock
    slots = pool.spec.num_slots
    rollout = Rollout(config.rollout_steps, slots, run.group.device, pool.spec.truncation_gap)
    on_device = isinstance(batch.reward, Tensor)
    acting = StepByStep(agent.actor, rollout) if on_device else make_acting(agent.actor, rollout, recorded=False)
    goal = config.rollout_steps * slots
    preemption = make_preemption(config.preemption, run.group, goal, own, deterministic=config.deterministic)
    while run.begin_iteration():
        rollout.clear()
        preemption.begin(0)
        run.phases.show("collecting", 0, config.rollout_steps)
        for step in range(1, config.rollout_steps + 1):
            with clock.time("inference"):
                actions = acting.decide(batch)
            with clock.time("simulation"):
                pool.send(actions, batch.slots)
            with clock.time("inference"):
                acting.note()  # while simulators step
            with clock.time("simulation"):
                batch = pool.recv(min_slots=None)
            if len(batch) < slots:  # the wait was ended: the run has to stop
                break
            with clock.time("inference"):
                acting.complete(batch)
            run.phases.show("collecting", step, config.rollout_steps)
            if run.stop.is_requested or preemption.should_stop(step * slots):
                break
        acting.flush()
        run.stop.raise_if_agreed()
        episodes = pool.take_episodes()  # before learning: a simulator on the device names its mistakes here
        preemption.finished(step * slots)
        with clock.time("learning"):
            agent.targets.complete(rollout, batch)
            losses = agent.learn(rollout, run.progress)
        preemption.learned()
        run.report(rollout.num_steps, losses, episodes)
