"""`Player`: a policy's decisions outside training, for whatever slots are ready.

Legend: N slots of a pool, B rows of a batch, D numbers of recurrent state.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.pool.protocol import StepBatch


class Playable(Protocol):
    """What acts outside training."""

    def initial_state(self, count: int) -> Tensor: ...

    def play(
        self, obs: dict[str, Tensor], state: Tensor, generator: torch.Generator | None = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The best actions, or with a generator sampled ones, as the environment takes them; and the state after."""
        ...


class Player:
    """Acts for the slots of one pool: by the likeliest actions, or by sampled ones.

    A slot's recurrent state starts from zero with each of its episodes, and at no other time: it is kept here between
    calls, however many slots a batch has.
    """

    def __init__(
        self, policy: Playable, num_slots: int, device: torch.device, *, sampled: bool = False, seed: int = 0
    ) -> None:
        self._policy, self._device = policy, device
        self._generator = torch.Generator(device).manual_seed(seed) if sampled else None
        self._state = policy.initial_state(num_slots).to(device)
        self._was_active = torch.ones(num_slots, dtype=torch.bool, device=device)

    @torch.no_grad()
    def act(self, batch: StepBatch) -> dict[str, Any]:
        """Actions for every row of a batch, as the batch's pool takes them."""
        on_device = isinstance(batch.slots, Tensor)
        slots, active = self._tensor(batch.slots), self._tensor(batch.active)
        fresh = self._tensor(batch.ended()) | self._tensor(batch.lost) | (active & ~self._was_active[slots])
        self._was_active[slots] = active
        state = self._state[slots].masked_fill(fresh[:, None], 0.0)
        obs = {name: self._tensor(values) for name, values in batch.obs.items()}
        actions, self._state[slots] = self._policy.play(obs, state, self._generator)
        return {name: values if on_device else values.cpu().numpy() for name, values in actions.items()}

    def _tensor(self, values: Any) -> Tensor:
        if isinstance(values, Tensor):
            return values
        # A copy: some pools lend memory that may not be written, which PyTorch has no tensors for.
        return torch.tensor(values, device=self._device)
