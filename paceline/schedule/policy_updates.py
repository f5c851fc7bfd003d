"""Updates from rollouts: each learner learns from the rows of its own policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from paceline.collect.sampler import Sampler
from paceline.experience.layouts import LockStep, Variable
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.experience.training_batch import TrainingBatch
from paceline.learner.finite import naming_policy
from paceline.learner.ppo import PPOLearner
from paceline.pool.protocol import StepBatch
from paceline.schedule.meeting import Learned, learn_and_meet
from paceline.schedule.protocol import TrainingRun


class PolicyUpdates:
    """A training batch for every learner of this rank. All ranks call it together."""

    def __init__(
        self,
        run: TrainingRun,
        learners: Sequence[PPOLearner],
        sampler: Sampler,
        buffers: Sequence[RolloutBuffer[LockStep]] | Sequence[RolloutBuffer[Variable]],
        *,
        weighted: bool = False,
    ) -> None:
        """`learners` are those of the policies that this rank trains. Each kind of agents has one of `buffers`."""
        self._run, self._learners, self._sampler = run, learners, sampler
        self._policies = run.ownership.own
        """The policy of each learner."""
        self._buffers = [buffers[policy % len(buffers)] for policy in self._policies]
        """By learner, like `_batches`."""
        self._batches = [TrainingBatch(buffer, weighted=weighted) for buffer in self._buffers]

    @property
    def num_steps(self) -> int:
        """Steps of the present batches. Waits for the device."""
        return sum(batch.num_steps for batch in self._batches)

    def complete(self, held: StepBatch) -> None:
        """The rollout becomes the training batches, with their targets. `held` has the observations after its last
        rows."""
        assignment = self._sampler.assignment
        if assignment is None:
            self._complete(0, held, None)
            return
        following = {part.policy: part.batch for part in assignment.parts(held)}
        for number, policy in enumerate(self._policies):
            own = following[policy] if policy in following else assignment.no_rows(policy, held).batch
            self._complete(number, own, policy)

    def _complete(self, number: int, following: StepBatch, selected: int | None) -> None:
        learner, batch, buffer = self._learners[number], self._batches[number], self._buffers[number]
        selection = buffer.layout.select(selected)
        batch.select(selection, buffer.take_truncations(None if selected is None else selection))
        learner.targets.complete(batch, following, self._sampler.actors[self._policies[number]])

    def learn(self, progress: float) -> dict[str, float]:
        """One update of every policy that has rows on any of the ranks that train it. Returns the losses of all
        policies."""
        learned = learn_and_meet(self._run, partial(self._learn, progress))
        single = self._run.ownership.num_policies == 1
        losses = learned.losses[0] if single else by_policy(learned.losses)
        if learned.dropped is not None:
            losses["dropped_rows"] = learned.dropped
        return losses

    def _learn(self, progress: float) -> Learned:
        # Here, because weights may be taken over after `complete`.
        dropped = [
            batch.drop_older(torch.tensor(learner.first_version, device=batch.device))
            for learner, batch in zip(self._learners, self._batches, strict=True)
            if learner.first_version
        ]
        with_rows = self._with_rows()
        losses = {}
        for policy, learner, batch in zip(self._policies, self._learners, self._batches, strict=True):
            if policy in with_rows:
                with naming_policy(policy, self._run.ownership.num_policies):
                    losses[policy] = learner.learn(batch, progress)
        return Learned(losses, float(sum(int(count) for count in dropped)) if dropped else None)

    def _with_rows(self) -> Sequence[int]:
        """The policies that have rows on any of their ranks."""
        ownership = self._run.ownership
        if ownership.num_policies == 1:
            return self._policies
        rows = torch.stack([batch.trained().sum() for batch in self._batches]).to(torch.float64)
        some = ownership.group.sum_(rows).tolist()
        return [policy for policy, count in zip(self._policies, some, strict=True) if count]


def by_policy(losses: Mapping[int, dict[str, float]]) -> dict[str, float]:
    """The means over the policies, and `policy_P/name` for each of them."""
    names = dict.fromkeys(name for own in losses.values() for name in own)
    found = {}
    for name in names:
        values = [own[name] for own in losses.values() if name in own]
        found[name] = sum(values) / len(values)
    return found | {f"policy_{p}/{name}": value for p, own in losses.items() for name, value in own.items()}
