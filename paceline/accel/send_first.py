"""`SendFirst`: acting for perceptrons on a CPU, whose rows take longer to write than their actions take to choose.

Simulators get their actions first. Log-probabilities, values and rows are computed and written while simulators step,
outcomes of the step before included. The result equals that of `PlainActing` to the bit.

Several policies act together. Each computes its own rows of a batch; everything else is done once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.accel.perceptron_team import PerceptronTeam
from paceline.collect.actor import Actor, share_slots
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.experience.rows import Decision, Outcome
from paceline.experience.selection import Rows
from paceline.pool.batches import copied, without_obs
from paceline.pool.protocol import StepBatch


class PendingDecision(NamedTuple):
    """Actions that were chosen, and whose rows are not written yet."""

    batch: StepBatch
    """A copy: the simulators use the memory again."""
    obs: dict[str, Tensor]
    actions: dict[str, Tensor]
    env_actions: dict[str, np.ndarray]
    judge: Callable[[], tuple[Tensor, Tensor]]
    """Computes log-probabilities and values."""
    version: Tensor
    """[], or [B] of several policies."""


class SendFirst:
    """An `Acting`."""

    def __init__(self, actors: Sequence[Actor], buffer: RolloutBuffer, numbers: Sequence[int] = (0,)) -> None:
        """`numbers`, ascending, are those of the actors' policies in the layout of the buffer."""
        self._actor, self._buffer, self._numbers = actors[0], buffer, np.array(numbers)
        self._policies = [actor.inference.policy for actor in actors]
        perceptrons = [actor.inference.perceptron for actor in actors]
        self._team = PerceptronTeam([perceptron for perceptron in perceptrons if perceptron is not None])
        assert len(self._team) == len(actors), "a policy is no perceptron"
        self._starts = share_slots(actors, numbers, buffer.layout.policies)[1].numpy()
        """[N + 1] bool: the actors' own memory."""
        self._pending: PendingDecision | None = None
        self._outcomes: list[tuple[StepBatch, Rows]] = []
        """Outcomes that are not written yet, and their rows."""

    def start(self, batch: StepBatch) -> None:
        assert self._pending is None, "write_decisions was not called after the last start"
        kept = copied(batch)
        obs = {name: torch.from_numpy(values) for name, values in kept.obs.items()}
        which = self._which(kept.slots)
        act = self._team.act(obs, which)
        self._pending = PendingDecision(kept, obs, *act, self._versions(which))

    def _which(self, slots: np.ndarray) -> np.ndarray | None:
        """[B]: the position of the policy that acts in each of `slots`; None if there is one policy."""
        if len(self._policies) == 1:
            return None
        assert self._buffer.layout.policies is not None
        return np.searchsorted(self._numbers, self._buffer.layout.policies[slots])

    def _versions(self, which: np.ndarray | None) -> Tensor:
        if which is None:
            return self._policies[0].version
        return torch.stack([policy.version for policy in self._policies])[torch.from_numpy(which)]

    def actions(self) -> Mapping[str, Any]:
        assert self._pending is not None
        return self._pending.env_actions

    def write_decisions(self) -> None:
        assert self._pending is not None
        self.flush()
        batch, pending = self._pending.batch, self._pending
        self._pending = None
        self._actor.remember_active(batch)
        log_prob, value = pending.judge()
        decision = Decision(
            obs=pending.obs,
            actions=pending.actions,
            log_prob=log_prob,
            value=value,
            state=self._actor.state[: len(batch)],  # it has no numbers
            episode_start=torch.from_numpy(self._starts[batch.slots]),
            active=torch.from_numpy(batch.active),
            version=pending.version,
        )
        self._buffer.begin(decision, batch)

    def write_outcomes(self, batch: StepBatch) -> None:
        rows = self._buffer.layout.complete(batch)
        if batch.truncated.any():  # final observations are the pool's memory
            truncations = self._actor.truncations(batch)
            assert truncations is not None
            self._buffer.add_truncations(truncations, rows)
        self._outcomes.append((without_obs(batch), rows))

    def flush(self) -> None:
        for batch, rows in self._outcomes:
            outcome = Outcome(
                reward=torch.from_numpy(batch.reward),
                terminated=torch.from_numpy(batch.terminated),
                truncated=torch.from_numpy(batch.truncated),
                lost=torch.from_numpy(batch.lost) if batch.lost.any() else None,
            )
            self._buffer.write_outcome(outcome, rows)
            self._starts[batch.slots] = self._actor.fresh(batch)
        self._outcomes.clear()
