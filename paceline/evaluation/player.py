"""`Player`: a policy that acts outside training, with one recurrent state per slot.

Legend: B rows.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.pool.protocol import StepBatch


class Playable(Protocol):
    """A policy that can act outside training."""

    def initial_state(self, count: int) -> Tensor: ...

    def play(
        self, obs: dict[str, Tensor], state: Tensor, generator: torch.Generator | None = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The most likely actions, or sampled ones with a generator, as the environment takes them; the new state."""
        ...


class Player:
    """Chooses the most likely actions, or samples them. The recurrent state of a slot is zero at episode starts."""

    def __init__(
        self, policy: Playable, num_slots: int, device: torch.device, *, sampled: bool = False, seed: int = 0
    ) -> None:
        self._policy, self._device = policy, device
        self._generator = torch.Generator(device).manual_seed(seed) if sampled else None
        self._state = policy.initial_state(num_slots).to(device)
        self._was_active = torch.ones(num_slots, dtype=torch.bool, device=device)

    def act(self, batch: StepBatch, *, on_device: bool) -> dict[str, Any]:
        """Actions for every row of a batch: on the device if its pool is `on_device`, otherwise NumPy arrays."""

        def tensor(values: Any) -> Tensor:
            # A copy of arrays, because some pools lend read-only memory, which PyTorch does not support.
            return values if on_device else torch.tensor(values, device=self._device)

        slots, active = tensor(batch.slots), tensor(batch.active)
        fresh = tensor(batch.ended()) | tensor(batch.lost) | (active & ~self._was_active[slots])
        self._was_active[slots] = active
        actions = self.decide({name: tensor(values) for name, values in batch.obs.items()}, fresh, slots)
        return {name: values if on_device else values.cpu().numpy() for name, values in actions.items()}

    def start_anew(self, slots: np.ndarray) -> None:
        """Forget the recurrent state of `slots`, in which another player acted before."""
        self._state[torch.as_tensor(slots, device=self._device)] = 0.0

    @torch.no_grad()
    def decide(self, obs: dict[str, Tensor], fresh: Tensor, slots: Tensor | slice = slice(None)) -> dict[str, Tensor]:
        """Actions for `slots`. `fresh` (bool [B]) marks the first observations of episodes."""
        state = self._state[slots].masked_fill(fresh[:, None], 0.0)
        actions, self._state[slots] = self._policy.play(obs, state, self._generator)
        return actions
