"""`Actor`: decisions for the slots of a batch, and the state of every slot between them.

Legend: N slots of the pool, B slots of a batch, C truncated rows, D numbers of recurrent state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.accel.config import ComputeConfig
from paceline.collect.inference import Inference
from paceline.experience.rows import Decision, Outcome, Truncations, as_tensor
from paceline.nets.ppo_policy import PPOPolicy, few_values
from paceline.pool.protocol import PoolSpec, StepBatch
from paceline.telemetry.clock import Clock


class Actor:
    """Acts for the slots of a pool. Recurrent states and episode starts are indexed by slot, on the policy's device."""

    def __init__(
        self,
        policy: PPOPolicy,
        spec: PoolSpec,
        device: torch.device,
        compute: ComputeConfig | None = None,
        clock: Clock | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self._policy, self._spec, self._device = policy, spec, device
        self.clock = clock or Clock()
        self.state = policy.initial_state(spec.num_slots).to(device)
        """[N, D]: before the next decision."""
        self.episode_start = torch.ones(spec.num_slots, dtype=torch.bool, device=device)
        """[N]: the next decision is the first of an episode."""
        self._was_active: Any = self._pool_array(torch.ones(spec.num_slots, dtype=torch.bool))
        """[N]: the slot was active in its last batch. A NumPy array, or a tensor if the pool is on a device."""
        self.inference = Inference(policy, spec.num_slots, device, compute or ComputeConfig(), generator)

    def decide(self, batch: StepBatch) -> Decision:
        """Sample actions for a batch. The recurrent states of its slots advance."""
        obs, slots = self._to_device(batch.obs), self._slots(batch)
        active = self._tensor(batch.active).clone()  # it is read again after the memory of the pool was reused
        self.remember_active(batch)
        state, episode_start = self._of(self.state, slots), self._of(self.episode_start, slots)
        choice = self.inference(obs, state)
        self.state = self._with(self.state, slots, choice.state)
        return Decision(
            obs=obs,
            actions=choice.actions,
            log_prob=choice.log_prob,
            value=choice.value,
            state=state,
            episode_start=episode_start,
            active=active,
            version=self._policy.version.clone(),
        )

    def env_actions(self, chosen: dict[str, Tensor]) -> dict[str, Any]:
        """Actions as the pool takes them: within bounds, and where the simulators are."""
        actions = self._policy.head.env_actions(chosen)
        if self._spec.on_device:
            return dict(actions)
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()  # so that the timer counts only the copy
        with self.clock.time("transfer"):
            return {name: values.cpu().numpy() for name, values in actions.items()}

    def observe(self, batch: StepBatch) -> Outcome:
        """The outcome of the last decisions of a batch's slots. Slots whose episode is over get a fresh state."""
        slots = self._slots(batch)
        truncations = None if self._spec.on_device else self.truncations(batch)
        candidates = self._candidates(batch, slots) if self._spec.on_device else None
        fresh = self._tensor(self.fresh(batch))
        some_lost = self._spec.on_device or batch.lost.any()
        if self.state.shape[1]:
            kept = torch.where(fresh[:, None], 0.0, self._of(self.state, slots))
            self.state = self._with(self.state, slots, kept)
        self.episode_start = self._with(self.episode_start, slots, fresh)
        return Outcome(
            reward=self._tensor(batch.reward),
            terminated=self._tensor(batch.terminated),
            truncated=self._tensor(batch.truncated),
            lost=self._tensor(batch.lost) if some_lost else None,
            truncations=truncations,
            candidates=candidates,
        )

    def fresh(self, batch: StepBatch) -> Any:
        """[B]: slots whose next decision is the first of an episode. It lives where the arrays of the pool live."""
        return batch.terminated | batch.truncated | batch.lost | (batch.active & ~self._was_active[batch.slots])

    def truncations(self, batch: StepBatch) -> Truncations | None:
        """Final observations of truncated episodes, from simulators on the host. Call it before `observe`."""
        rows = np.flatnonzero(batch.truncated)
        if len(rows) == 0:
            return None
        slots = batch.slots[rows]
        final = {name: values[slots] for name, values in batch.final_obs.items()}
        state = self.state[torch.from_numpy(slots).to(self._device)]
        return Truncations(rows=torch.from_numpy(rows), obs=self._to_device(final), state=state)

    def _candidates(self, batch: StepBatch, slots: Tensor | None) -> Truncations:
        """All rows of a batch whose truncations only the device knows."""
        final = batch.final_obs if slots is None else {name: v[slots] for name, v in batch.final_obs.items()}
        rows = torch.arange(len(batch.slots), device=self._device)
        return Truncations(rows=rows, obs=final, state=self._of(self.state, slots))

    def remember_active(self, batch: StepBatch) -> None:
        """Remember which slots were asked for a decision."""
        if self._spec.on_device and len(batch) == self._spec.num_slots:
            self._was_active = batch.active.clone()
        else:
            self._was_active[batch.slots] = batch.active

    def with_spare_slot(self) -> tuple[Tensor, Tensor]:
        """States [N + 1, D] and episode starts [N + 1] in memory that stays where it is, which the caller writes
        from now on. The last entry belongs to no slot. `decide` and `observe` must not be called afterwards."""
        state = torch.cat([self.state, torch.zeros_like(self.state[:1])])
        starts = torch.cat([self.episode_start, torch.ones_like(self.episode_start[:1])])
        self.state, self.episode_start = state[:-1], starts[:-1]
        return state, starts

    def _share_slots(self, other: Actor, own: np.ndarray) -> None:
        """Keep the states of slots in the memory of `other`, which has a spare slot. This actor acts in `own` [B]."""
        at = torch.from_numpy(own).to(self._device)
        for mine, theirs in ((self.state, other.state), (self.episode_start, other.episode_start)):
            theirs.index_copy_(0, at, mine[at])
        other._was_active[own] = self._was_active[own]
        self.state, self.episode_start, self._was_active = other.state, other.episode_start, other._was_active

    @torch.no_grad()
    def last_values(self, batch: StepBatch) -> Tensor:
        """[N]: V of the observations of a batch, by slot; 0 for other slots. No state advances."""
        slots, obs = self._slots(batch), self._to_device(batch.obs)
        if slots is None:
            return self._policy.value(obs, self.state)
        values = torch.zeros(self._spec.num_slots, device=self._device)
        if len(slots):
            values[slots] = few_values(self._policy, obs, self.state[slots])
        return values

    def truncated_values(self, truncations: Truncations) -> Tensor:
        """[C]: V of final observations."""
        return few_values(self._policy, truncations.obs, truncations.state)

    def start_anew(self, slots: np.ndarray) -> None:
        """The next decisions of `slots` [B] are the first of episodes. No decision of theirs may wait to be written."""
        at = torch.from_numpy(slots)
        self.state.index_fill_(0, at.to(self._device), 0.0)
        self.episode_start.index_fill_(0, at.to(self._device), True)
        self._was_active[at if self._spec.on_device else slots] = True

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "state": self.state.cpu(),
            "episode_start": self.episode_start.cpu(),
            "was_active": torch.as_tensor(self._was_active).cpu(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.state.copy_(state["state"])
        self.episode_start.copy_(state["episode_start"])
        self._was_active = self._pool_array(state["was_active"])

    def _pool_array(self, flags: Tensor) -> Any:
        """A copy of host flags where the arrays of the pool live."""
        return flags.to(self._device, copy=True) if self._spec.on_device else flags.numpy().copy()

    def _slots(self, batch: StepBatch) -> Tensor | None:
        """[B]; None stands for all slots in order, which need no indexing."""
        return None if len(batch.slots) == self._spec.num_slots else self._tensor(batch.slots)

    @staticmethod
    def _of(table: Tensor, slots: Tensor | None) -> Tensor:
        return table if slots is None else table[slots]

    @staticmethod
    def _with(table: Tensor, slots: Tensor | None, values: Tensor) -> Tensor:
        """A copy of `table` with `values` at `slots`. A decision may still hold the old table."""
        return values if slots is None else table.index_copy(0, slots, values)

    def _to_device(self, arrays: dict[str, Any]) -> dict[str, Tensor]:
        with self.clock.time("transfer"):
            return {name: self._tensor(values) for name, values in arrays.items()}

    def _tensor(self, values: Any) -> Tensor:
        if self._spec.on_device:
            return values
        tensor = as_tensor(values)
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)


def share_slots(actors: Sequence[Actor], numbers: Sequence[int], policies: np.ndarray | None) -> tuple[Tensor, Tensor]:
    """Several actors keep the states of slots in the same memory, which the caller writes from now on.

    `policies` [N] has the number of the policy that acts in each slot; `numbers` are those of the actors. See
    `Actor.with_spare_slot` for what it returns.
    """
    memory = actors[0].with_spare_slot()
    for number, actor in zip(numbers[1:], actors[1:], strict=True):
        assert policies is not None
        actor._share_slots(actors[0], np.flatnonzero(policies == number))
    return memory
