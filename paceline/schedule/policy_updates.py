"""Updates from rollouts: each learner learns from the rows of its own policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from paceline.collect.sampler import Sampler
from paceline.distributed.runtime import Group
from paceline.experience.layouts import LockStep, Variable
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.experience.training_batch import TrainingBatch
from paceline.learner.ppo import PPOLearner
from paceline.pool.protocol import StepBatch


class PolicyUpdates:
    """A training batch for every learner. Policy p is the policy of learner p. All ranks call it together."""

    def __init__(
        self,
        learners: Sequence[PPOLearner],
        sampler: Sampler,
        buffers: Sequence[RolloutBuffer[LockStep]] | Sequence[RolloutBuffer[Variable]],
        group: Group,
        *,
        weighted: bool = False,
    ) -> None:
        """Each kind of agents has one of `buffers`."""
        self._learners, self._sampler, self._group = learners, sampler, group
        self._buffers = [buffers[policy % len(buffers)] for policy in range(len(learners))]
        """By policy."""
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
        for policy in range(len(self._learners)):
            own = following[policy] if policy in following else assignment.no_rows(policy, held).batch
            self._complete(policy, own, policy)

    def _complete(self, policy: int, following: StepBatch, selected: int | None) -> None:
        learner, batch, buffer = self._learners[policy], self._batches[policy], self._buffers[policy]
        selection = buffer.layout.select(selected)
        batch.select(selection, buffer.take_truncations(None if selected is None else selection))
        learner.targets.complete(batch, following, self._sampler.actors[policy])

    def learn(self, progress: float) -> dict[str, float]:
        """One update of every policy that has rows on any rank. Returns their losses."""
        # Here, because weights may be taken over after `complete`.
        dropped = [
            batch.drop_older(torch.tensor(learner.first_version, device=batch.device))
            for learner, batch in zip(self._learners, self._batches, strict=True)
            if learner.first_version
        ]
        if len(self._learners) == 1:
            losses = self._learners[0].learn(self._batches[0], progress)
        else:
            rows = torch.stack([batch.trained().sum() for batch in self._batches]).to(torch.float64)
            some = self._group.sum_(rows).tolist()
            losses = by_policy(
                {
                    policy: learner.learn(self._batches[policy], progress)
                    for policy, learner in enumerate(self._learners)
                    if some[policy]
                }
            )
        if dropped:
            losses["dropped_rows"] = float(sum(int(count) for count in dropped))
        return losses


def by_policy(losses: Mapping[int, dict[str, float]]) -> dict[str, float]:
    """The means over the policies, and `policy_P/name` for each of them."""
    names = dict.fromkeys(name for own in losses.values() for name in own)
    found = {}
    for name in names:
        values = [own[name] for own in losses.values() if name in own]
        found[name] = sum(values) / len(values)
    return found | {f"policy_{p}/{name}": value for p, own in losses.items() for name, value in own.items()}
