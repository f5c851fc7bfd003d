"""DD-PPO (Wijmans et al., 2020): every rank collects in lock-step, stragglers are preempted, gradients are averaged.

There is no server. All ranks run this loop, and meet in the gradient all-reduce of the update.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.collect.kind_slots import KindSlots, all_kinds
from paceline.collect.sampler import Sampler
from paceline.config import Config
from paceline.distributed.config import PreemptionKind
from paceline.distributed.ownership import Ownership
from paceline.distributed.preemption import make_preemption
from paceline.experience.layouts import LockStep
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.learner.ppo import PPOLearner
from paceline.pool.protocol import StepBatch
from paceline.schedule.policy_updates import PolicyUpdates
from paceline.schedule.protocol import TrainingRun


class DDPPO:
    """The algorithm of the paper's figure 9. Simulators on a device are stepped this way under every PPO system."""

    preempts_by: PreemptionKind = "count"

    @staticmethod
    def learns_concurrently(config: Config) -> bool:
        return False

    @staticmethod
    def update_rows(config: Config, kind: KindSlots, ownership: Ownership) -> int:
        """Rows of an update."""
        return config.rollout_steps * kind.spec.num_slots

    @staticmethod
    def buffer_rows(config: Config, kind: KindSlots, ownership: Ownership) -> int:
        """Rows of the buffer of a kind, to check its memory before it is made."""
        return config.rollout_steps * kind.spec.num_slots

    def __init__(
        self,
        run: TrainingRun,
        config: Config,
        learners: Sequence[PPOLearner],
        sampler: Sampler,
        preempts_by: PreemptionKind = "count",
    ) -> None:
        self._run, self._sampler, self._steps = run, sampler, config.rollout_steps
        spec, steps = run.pool.spec, config.rollout_steps
        layouts = [LockStep(steps, kind.spec.num_slots) for kind in all_kinds(spec)]
        self._buffers = [RolloutBuffer(own, run.group.device, truncation_gap=spec.truncation_gap) for own in layouts]
        """By kind."""
        self._updates = PolicyUpdates(run, learners, sampler, self._buffers)
        self._preemption = make_preemption(
            config.preemption, run.group, steps * spec.num_slots, preempts_by, deterministic=config.deterministic
        )
        self._held: StepBatch | None = None

    def __call__(self) -> None:
        """Collect, learn, collect, learn."""
        run, preemption, clock = self._run, self._preemption, self._run.clock
        if self._held is None:
            self._sampler.fill(self._buffers)
            self._held = run.receive_all()
        while run.begin_iteration():
            for buffer in self._buffers:
                buffer.start_rollout()
            steps = self._collect()
            run.stop.raise_if_agreed()
            finished = self._sampler.take_finished()  # before learning: simulators on a device raise their errors here
            preemption.finished(steps)
            run.rollout_is_complete()
            with clock.time("learning"):
                self._updates.complete(self._held)
                losses = self._updates.learn(run.progress)
            preemption.learned()
            run.report(self._updates.num_steps, losses, finished)

    def _collect(self) -> int:
        """T steps of all slots, or fewer if enough ranks are done. Returns their number."""
        run, sampler, slots = self._run, self._sampler, self._run.pool.spec.num_slots
        assert self._held is not None
        self._preemption.begin(0)
        run.phases.show("collecting", 0, self._steps)
        for step in range(1, self._steps + 1):
            sampler.act(self._held)
            self._held = sampler.receive_all()
            if len(self._held) < slots:  # the wait was ended: the run has to stop
                break
            run.phases.show("collecting", step, self._steps)
            run.stop.keep_signals()
            if run.stop.is_requested or self._preemption.should_stop(step * slots):
                break
        sampler.flush()
        return step * slots
