"""`Actor`: decisions for whatever slots are ready, and the recurrent state of every slot between them.

Legend: N slots, D numbers of recurrent state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.experience.rollout import Cuts, Decision, Outcome
from paceline.policy.actor_critic import ActorCritic
from paceline.pool.protocol import PoolSpec, StepBatch


class Actor:
    """Acts for all slots of a pool. States and episode starts are arrays indexed by slot, on the policy's device."""

    def __init__(self, policy: ActorCritic, spec: PoolSpec, device: torch.device) -> None:
        self._policy, self._device = policy, device
        self.state = policy.initial_state(spec.num_slots).to(device)
        """[N, D]: before the next decision."""
        self.episode_start = torch.ones(spec.num_slots, dtype=torch.bool, device=device)
        """[N]: the next decision is the first of an episode."""
        self._was_active = torch.ones(spec.num_slots, dtype=torch.bool, device=device)

    @torch.no_grad()
    def decide(self, batch: StepBatch) -> Decision:
        """Sample actions for a batch of all slots; the recurrent states move on."""
        obs = self._to_device(batch.obs)
        state, start = self.state, self.episode_start
        params, value, self.state = self._policy.act(obs, state)
        actions = self._policy.head.sample(params)
        self.episode_start = torch.zeros_like(start)
        self._was_active = self._tensor(batch.active)
        return Decision(
            obs=obs,
            actions=actions,
            log_prob=self._policy.head.log_prob(params, actions),
            value=value,
            state=state,
            episode_start=start,
            active=self._was_active,
        )

    def env_actions(self, decision: Decision) -> dict[str, Any]:
        """A decision's actions as the pool takes them: within bounds, and on the host unless the pool is on a device."""
        return {name: values.cpu().numpy() for name, values in self._policy.head.env_actions(decision.actions).items()}

    def observe(self, batch: StepBatch) -> Outcome:
        """What came of the last decision; slots whose episode is over start the next one with a fresh state."""
        terminated, truncated, lost = map(self._tensor, (batch.terminated, batch.truncated, batch.lost))
        cuts = self._cuts(batch)
        fresh = terminated | truncated | lost | (self._tensor(batch.active) & ~self._was_active)
        if self.state.shape[1]:
            self.state = torch.where(fresh[:, None], 0.0, self.state)
        self.episode_start = fresh
        return Outcome(
            reward=self._tensor(batch.reward), terminated=terminated, truncated=truncated, lost=lost, cuts=cuts
        )

    @torch.no_grad()
    def values(self, batch: StepBatch) -> Tensor:
        """[N]: V of a batch's observations. No state moves: the same observations are decided on later."""
        return self._policy.value(self._to_device(batch.obs), self.state)

    @torch.no_grad()
    def cut_values(self, cuts: Cuts) -> Tensor:
        """[C]: V of final observations."""
        return self._policy.value(cuts.obs, cuts.state)

    def state_dict(self) -> dict[str, Tensor]:
        return {"state": self.state, "episode_start": self.episode_start, "was_active": self._was_active}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.state = state["state"].to(self._device)
        self.episode_start = state["episode_start"].to(self._device)
        self._was_active = state["was_active"].to(self._device)

    def _cuts(self, batch: StepBatch) -> Cuts | None:
        truncated = batch.truncated
        if isinstance(truncated, Tensor):
            slots = torch.nonzero(truncated).squeeze(1)
            final = {name: values[slots] for name, values in batch.final_obs.items()}
        else:
            rows = np.flatnonzero(truncated)
            final = {name: values[rows] for name, values in batch.final_obs.items()}
            slots = torch.from_numpy(rows).to(self._device)
        if len(slots) == 0:
            return None
        return Cuts(rows=slots, obs=self._to_device(final), state=self.state[slots])

    def _to_device(self, arrays: dict[str, Any]) -> dict[str, Tensor]:
        return {name: self._tensor(values) for name, values in arrays.items()}

    def _tensor(self, values: Any) -> Tensor:
        if isinstance(values, Tensor):
            return values
        return torch.from_numpy(values).to(self._device, non_blocking=True)
