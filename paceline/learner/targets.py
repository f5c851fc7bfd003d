"""What a rollout is to teach: advantages and value targets, from rewards as they are or normalised."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.collect.actor import Actor, few_values
from paceline.distributed.runtime import Group
from paceline.experience.chunks import ChunkBatch
from paceline.experience.rollout import Rollout
from paceline.experience.rows import Cuts
from paceline.learner.config import PPOConfig
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.normalizer import ReturnNormalizer
from paceline.pool.protocol import StepBatch


class Targets:
    """Completes rollouts. Called by all ranks together: the scale of returns is everybody's."""

    def __init__(self, actor: Actor, group: Group, config: PPOConfig, num_slots: int) -> None:
        self._actor, self._group, self._config = actor, group, config
        self._normalizer: ReturnNormalizer | None = None
        if config.normalize_returns:
            self._normalizer = ReturnNormalizer(num_slots, gamma=config.discount).to(group.device)

    def complete(self, rollout: Rollout, batch: StepBatch) -> None:
        """Advantages and value targets of a collected rollout; `batch` is what follows the last rows of its slots."""
        if self._normalizer is not None:
            self._scale_rewards(rollout, self._normalizer)
        cuts = rollout.cuts()
        self._finish(
            rollout, self._actor.last_values(batch), cuts, self._actor.cut_values(cuts) if cuts is not None else None
        )

    def complete_chunks(self, lesson: Rollout, policy: ActorCritic) -> None:
        """The same for a batch of chunks: what follows them is in the table, and is judged by `policy`."""
        if self._normalizer is not None:
            self._scale_rewards(lesson, self._normalizer)
        assert isinstance(lesson.book, ChunkBatch)
        after = lesson.book.after.to(lesson.device)
        last = few_values(policy, {name: values[after] for name, values in lesson.obs.items()}, lesson.state[after])
        cuts = lesson.cuts()
        self._finish(lesson, last, cuts, few_values(policy, cuts.obs, cuts.state) if cuts is not None else None)

    def _finish(self, rollout: Rollout, last_value: Tensor, cuts: Cuts | None, cut_value: Tensor | None) -> None:
        rollout.finish(
            last_value,
            cuts,
            cut_value,
            discount=self._config.discount,
            trace_decay=self._config.trace_decay,
            advantages=not self._config.is_traced,
        )

    def _scale_rewards(self, rollout: Rollout, normalizer: ReturnNormalizer) -> None:
        """Turn by turn, every slot's running return moves on; a row in flight waits for the next rollout."""
        sums = torch.zeros(3, dtype=torch.float64, device=rollout.device)
        turns = rollout.completed_turns()
        for slots, rows in turns:
            columns = (rollout.reward, rollout.terminated, rollout.truncated, rollout.valid)
            sums += normalizer.observe(slots, *(column[rows] for column in columns))
        normalizer.absorb(self._group.sum_(sums))
        for _, rows in turns:
            rollout.reward[rows] = normalizer(rollout.reward[rows])

    def state_dict(self) -> dict[str, Any]:
        return self._normalizer.state_dict() if self._normalizer is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the scale of returns, which is the same on all ranks; every slot begins a new episode."""
        if self._normalizer is not None and state:
            running = torch.zeros_like(self._normalizer.running)
            self._normalizer.load_state_dict(state | {"running": running})

    def continue_episodes(self, state: dict[str, Any]) -> None:
        """The slots go on where this rank's `state` was taken."""
        if self._normalizer is not None and state:
            self._normalizer.running.copy_(state["running"])

    def start_anew(self, slots: Tensor) -> None:
        """`slots` [B] begin new episodes."""
        if self._normalizer is not None:
            self._normalizer.running.index_fill_(0, slots, 0.0)
