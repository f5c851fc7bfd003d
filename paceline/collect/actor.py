"""`Actor`: decisions for whatever slots are ready, and the recurrent state of every slot between them.

Legend: N slots of the pool, B rows of a batch, D numbers of recurrent state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.accel.config import ComputeConfig
from paceline.collect.chooser import Choice, Chooser
from paceline.experience.rows import Cuts, Decision, Outcome, as_tensor
from paceline.nets.actor_critic import ActorCritic, few_values
from paceline.pool.protocol import PoolSpec, StepBatch
from paceline.telemetry.clock import Clock


class Question(NamedTuple):
    """What B slots are to be decided on, on the policy's device."""

    obs: dict[str, Tensor]
    state: Tensor
    """[B, D]."""
    slots: Tensor | None
    """[B]; None for all."""
    episode_start: Tensor
    active: Tensor


class Actor:
    """Acts for the slots of a pool. States and episode starts are arrays indexed by slot, on the policy's device."""

    def __init__(
        self,
        policy: ActorCritic,
        spec: PoolSpec,
        device: torch.device,
        compute: ComputeConfig | None = None,
        clock: Clock | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self._policy, self._num_slots, self._device = policy, spec.num_slots, device
        self._on_cpu = device.type == "cpu"
        self.clock = clock or Clock()
        self.state = policy.initial_state(spec.num_slots).to(device)
        """[N, D]: before the next decision."""
        self.episode_start = torch.ones(spec.num_slots, dtype=torch.bool, device=device)
        """[N]: the next decision is the first of an episode."""
        self._was_active: Any = None
        """[N]: the last decision was asked for; where the pool's arrays are. None before the first."""
        self.chooser = Chooser(policy, spec.num_slots, device, compute or ComputeConfig(), generator)

    def decide(self, batch: StepBatch) -> Decision:
        """Sample actions for a batch; the recurrent states of its slots move on."""
        question = self.ask(batch)
        choice = self.chooser(question.obs, question.state)
        return self.settle(question, choice, self._policy.version.clone())

    def ask(self, batch: StepBatch) -> Question:
        """What is to be decided for a batch. Whoever chooses may be another thread, and meanwhile other slots may be asked about;
        `settle` has to follow before this batch's slots are observed."""
        obs = self._to_device(batch.obs)
        slots = self._slots(batch)
        active = self._tensor(batch.active).clone()  # it is looked at again when the pool's memory has moved on
        self.note_active(batch)
        return Question(obs, self._of(self.state, slots), slots, self._of(self.episode_start, slots), active)

    def settle(self, question: Question, choice: Choice, version: Tensor) -> Decision:
        """What was chosen, by weights of `version`, is decided: the recurrent states of its slots move on."""
        self.state = self._with(self.state, question.slots, choice.state)
        return Decision(
            obs=question.obs,
            actions=choice.actions,
            log_prob=choice.log_prob,
            value=choice.value,
            state=question.state,
            episode_start=question.episode_start,
            active=question.active,
            version=version,
        )

    def env_actions(self, chosen: dict[str, Tensor], batch: StepBatch) -> dict[str, Any]:
        """Actions as the pool takes them: within bounds, and where the pool's simulators are. For any thread."""
        actions = self._policy.head.env_actions(chosen)
        if isinstance(batch.reward, Tensor):
            return dict(actions)
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()  # the wait for the decision is no transfer
        with self.clock.time("transfer"):
            return {name: values.cpu().numpy() for name, values in actions.items()}

    def observe(self, batch: StepBatch) -> Outcome:
        """What came of the last decisions of a batch's slots; those whose episode is over start anew, with a fresh state."""
        slots = self._slots(batch)
        cuts, unsure = self._cuts(batch, slots)
        fresh = self._tensor(self.fresh(batch))
        some_lost = isinstance(batch.lost, Tensor) or batch.lost.any()
        if self.state.shape[1]:
            kept = torch.where(fresh[:, None], 0.0, self._of(self.state, slots))
            self.state = self._with(self.state, slots, kept)
        self.episode_start = self._with(self.episode_start, slots, fresh)
        return Outcome(
            reward=self._tensor(batch.reward),
            terminated=self._tensor(batch.terminated),
            truncated=self._tensor(batch.truncated),
            lost=self._tensor(batch.lost) if some_lost else None,
            cuts=cuts,
            unsure_cuts=unsure,
        )

    def fresh(self, batch: StepBatch) -> Any:
        """[B]: whose next decision is the first of an episode."""
        # Where the pool's arrays are: on the host they are small, and cost less than a tensor's operations.
        was_active = self._was_active[batch.slots]
        return batch.terminated | batch.truncated | batch.lost | (batch.active & ~was_active)

    def cuts(self, batch: StepBatch) -> Cuts | None:
        """Where episodes of simulators on the host were truncated; asked before those slots start anew."""
        rows = np.flatnonzero(batch.truncated)
        if len(rows) == 0:
            return None
        cut_slots = batch.slots[rows]
        final = {name: values[cut_slots] for name, values in batch.final_obs.items()}
        state = self.state[torch.from_numpy(cut_slots).to(self._device)]
        return Cuts(rows=torch.from_numpy(rows), obs=self._to_device(final), state=state)

    def note_active(self, batch: StepBatch) -> None:
        """Remember who is asked for a decision."""
        on_device = isinstance(batch.active, Tensor)
        if on_device and len(batch) == self._num_slots:
            self._was_active = batch.active.clone()
            return
        if not isinstance(self._was_active, type(batch.active)):  # the first time, or restored
            known = torch.ones(self._num_slots, dtype=torch.bool) if self._was_active is None else self._was_active
            self._was_active = known.to(self._device) if on_device else known.cpu().numpy().copy()
        self._was_active[batch.slots] = batch.active

    def make_room(self) -> tuple[Tensor, Tensor]:
        """States [N + 1, D] and episode starts [N + 1] in memory that stays: what is written there is this actor's from now on,
        until it decides or observes by itself. The last cells belong to no slot."""
        state = torch.cat([self.state, torch.zeros_like(self.state[:1])])
        starts = torch.cat([self.episode_start, torch.ones_like(self.episode_start[:1])])
        self.state, self.episode_start = state[:-1], starts[:-1]
        return state, starts

    @torch.no_grad()
    def values(self, batch: StepBatch) -> Tensor:
        """[B]: V of a batch's observations. No state moves: the same observations are decided on later."""
        return self._policy.value(self._to_device(batch.obs), self._of(self.state, self._slots(batch)))

    def last_values(self, batch: StepBatch) -> Tensor:
        """[N]: V of the observations that are held, by slot; 0 for the other slots."""
        slots = self._slots(batch)
        if slots is None:
            return self.values(batch)
        values = torch.zeros(self._num_slots, device=self._device)
        if len(slots):
            values[slots] = few_values(self._policy, self._to_device(batch.obs), self.state[slots])
        return values

    def cut_values(self, cuts: Cuts) -> Tensor:
        """[C]: V of final observations."""
        return few_values(self._policy, cuts.obs, cuts.state)

    def start_anew(self, slots: Tensor) -> None:
        """The next decisions of `slots` [B] are the first of episodes."""
        self.state = self.state.index_fill(0, slots, 0.0)
        self.episode_start = self.episode_start.index_fill(0, slots, True)
        self._was_active = torch.as_tensor(self._was_active).cpu().index_fill(0, slots.cpu(), True)

    def state_dict(self) -> dict[str, Tensor]:
        was_active = (
            torch.ones_like(self.episode_start) if self._was_active is None else torch.as_tensor(self._was_active)
        )
        return {"state": self.state, "episode_start": self.episode_start, "was_active": was_active}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.state.copy_(state["state"])
        self.episode_start.copy_(state["episode_start"])
        self._was_active = state["was_active"].clone()

    def _cuts(self, batch: StepBatch, slots: Tensor | None) -> tuple[Cuts | None, Cuts | None]:
        """Where episodes were truncated, if the host knows it; else all rows, of which the device knows."""
        if isinstance(batch.truncated, Tensor):
            final = batch.final_obs if slots is None else {name: v[slots] for name, v in batch.final_obs.items()}
            every = Cuts(
                rows=torch.arange(len(batch.slots), device=self._device), obs=final, state=self._of(self.state, slots)
            )
            return None, every
        return self.cuts(batch), None

    def _slots(self, batch: StepBatch) -> Tensor | None:
        """[B]; None stands for all slots in order, which need no indexing."""
        return None if len(batch.slots) == self._num_slots else self._tensor(batch.slots)

    @staticmethod
    def _of(table: Tensor, slots: Tensor | None) -> Tensor:
        return table if slots is None else table[slots]

    @staticmethod
    def _with(table: Tensor, slots: Tensor | None, values: Tensor) -> Tensor:
        """`table` after `values` came to `slots`. The old one is not written to where a decision may still hold it."""
        return values if slots is None else table.index_copy(0, slots, values)

    def _to_device(self, arrays: dict[str, Any]) -> dict[str, Tensor]:
        with self.clock.time("transfer"):
            return {name: self._tensor(values) for name, values in arrays.items()}

    def _tensor(self, values: Any) -> Tensor:
        if isinstance(values, Tensor):
            return values
        tensor = as_tensor(values)
        return tensor if self._on_cpu else tensor.to(self._device, non_blocking=True)
