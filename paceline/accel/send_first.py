"""`SendFirst`: acting for perceptrons on a CPU, whose rows take longer to write than their actions take to choose.

Simulators get their actions first. Log-probabilities, values and rows are computed and written while simulators step,
outcomes of the step before included. The result equals that of `PlainActing` to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.accel.perceptron import Act, Perceptron
from paceline.collect.actor import Actor
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
    act: Act


class SendFirst:
    """An `Acting`."""

    def __init__(self, actor: Actor, buffer: RolloutBuffer, perceptron: Perceptron) -> None:
        self._actor, self._buffer, self._perceptron = actor, buffer, perceptron
        self._starts = actor.with_spare_slot()[1].numpy()
        """[N + 1] bool: the actor's own memory."""
        self._pending: PendingDecision | None = None
        self._outcomes: list[tuple[StepBatch, Rows]] = []
        """Outcomes that are not written yet, and their rows."""

    def start(self, batch: StepBatch) -> None:
        assert self._pending is None, "write_decisions was not called after the last start"
        kept = copied(batch)
        obs = {name: torch.from_numpy(values) for name, values in kept.obs.items()}
        act = self._perceptron.act(obs)
        self._pending = PendingDecision(kept, obs, act)

    def actions(self) -> Mapping[str, Any]:
        assert self._pending is not None
        return self._pending.act.drawn.env_actions

    def write_decisions(self) -> None:
        assert self._pending is not None
        self.flush()
        batch, obs, act = self._pending
        self._pending = None
        self._actor.remember_active(batch)
        log_prob, value = self._perceptron.judge(act)
        decision = Decision(
            obs=obs,
            actions=act.drawn.actions,
            log_prob=log_prob,
            value=value,
            state=self._actor.state[: len(batch)],  # it has no numbers
            episode_start=torch.from_numpy(self._starts[batch.slots]),
            active=torch.from_numpy(batch.active),
            version=self._actor.inference.policy.version,
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
