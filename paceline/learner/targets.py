"""Advantages and value targets of a collected batch, from rewards as they are or normalised."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.distributed.runtime import Group
from paceline.experience.rows import Truncations
from paceline.experience.training_batch import TrainingBatch
from paceline.learner.config import PPOConfig
from paceline.learner.hyperparameters import Hyperparameters
from paceline.nets.normalizer import ReturnNormalizer
from paceline.nets.ppo_policy import PPOPolicy, few_values
from paceline.pool.protocol import StepBatch


class Values(Protocol):
    """The values that bootstrap returns."""

    def last_values(self, batch: StepBatch) -> Tensor:
        """[N]: V of the observations in `batch`, by slot; 0 for other slots."""
        ...

    def truncated_values(self, truncations: Truncations) -> Tensor:
        """[C]: V of the final observations of truncated episodes."""
        ...


class Targets:
    """Completes batches. All ranks call it together, because they share the scale of returns."""

    def __init__(self, hyperparameters: Hyperparameters, group: Group, num_slots: int) -> None:
        self._hyperparameters, self._group = hyperparameters, group
        self._normalizer: ReturnNormalizer | None = None
        if self._config.normalize_returns:
            self._normalizer = ReturnNormalizer(num_slots, gamma=self._config.discount).to(group.device)

    @property
    def _config(self) -> PPOConfig:
        return self._hyperparameters.section("ppo")

    def complete(self, batch: TrainingBatch, following: StepBatch, values: Values) -> None:
        """`following` holds the observations after the last rows of the slots."""
        self._scale_rewards(batch)
        truncations = batch.truncations
        truncated_value = values.truncated_values(truncations) if truncations is not None else None
        last_value = values.last_values(following)
        if batch.num_streams < len(last_value):  # other slots have no rows of this policy
            last_value = last_value[torch.from_numpy(batch.selection.slots).to(batch.device)]
        self._finish(batch, last_value, truncated_value)

    def complete_chunks(self, batch: TrainingBatch, policy: PPOPolicy, decided: Tensor | None = None) -> None:
        """The same for chunks: the buffer holds the observations after them, and `policy` gives their values. `decided`
        are the rows with a decision, also those that are not learned from; None: the valid ones."""
        self._scale_rewards(batch, decided)
        assert batch.selection.following is not None
        after, truncations = torch.from_numpy(batch.selection.following).to(batch.device), batch.truncations
        last = few_values(policy, {name: values[after] for name, values in batch.obs.items()}, batch.state[after])
        truncated_value = None
        if truncations is not None:
            truncated_value = few_values(policy, truncations.obs, truncations.state)
        self._finish(batch, last, truncated_value)

    def _finish(self, batch: TrainingBatch, last_value: Tensor, truncated_value: Tensor | None) -> None:
        batch.set_next_values(last_value, truncated_value)
        if not self._config.is_traced:
            batch.set_advantages(self._config.discount, self._config.trace_decay)

    def _scale_rewards(self, batch: TrainingBatch, decided: Tensor | None = None) -> None:
        """Normalise the rewards of completed rows. The running return of every slot advances step by step."""
        normalizer = self._normalizer
        if normalizer is None:
            return
        normalizer.gamma = self._config.discount
        sums = torch.zeros(3, dtype=torch.float64, device=batch.device)
        turns = batch.in_turns()
        for slots, rows in turns:
            columns = (batch.reward, batch.terminated, batch.truncated, batch.valid if decided is None else decided)
            sums += normalizer.observe(slots, *(column[rows] for column in columns))
        normalizer.absorb(self._group.sum_(sums))
        for _, rows in turns:
            batch.reward[rows] = normalizer(batch.reward[rows])

    def take_over(self, donor: dict[str, Any]) -> None:
        """Continue with the scale of returns in the state of another learner. Running returns stay: episodes go on."""
        if self._normalizer is not None and donor:
            running = self._normalizer.running.clone()
            self._normalizer.load_state_dict(donor | {"running": running})

    def state_dict(self) -> dict[str, Any]:
        return self._normalizer.state_dict() if self._normalizer is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the scale of returns, which is the same on all ranks. Every slot starts a new episode."""
        if self._normalizer is not None and state:
            running = torch.zeros_like(self._normalizer.running)
            self._normalizer.load_state_dict(state | {"running": running})

    def continue_episodes(self, state: dict[str, Any]) -> None:
        """Restore the running returns of this rank's slots, whose episodes continue."""
        if self._normalizer is not None and state:
            self._normalizer.running.copy_(state["running"])

    def start_anew(self, slots: Tensor) -> None:
        """`slots` [B] start new episodes."""
        if self._normalizer is not None:
            self._normalizer.running.index_fill_(0, slots, 0.0)
