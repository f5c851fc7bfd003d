"""`NStep`: turns streams of single steps into n-step transitions for D4PG's replay.

Legend: n steps per transition, N slots, B slots of a batch, E complete transitions.

Each decision starts exactly one transition. It has n steps, or fewer if the episode ends earlier. Rewards are
discounted from the decision onwards. No transition crosses the end of an episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transitions:
    """E transitions, in no particular order."""

    obs: Arrays
    """[E, ...]: observations before the first step."""
    action: np.ndarray
    """[E, A]."""
    reward: np.ndarray
    """[E] float32: sum over steps k of discount^k times the reward of step k."""
    discount: np.ndarray
    """[E] float32: factor of V(`next_obs`): discount^m after m steps, 0 after a termination."""
    next_obs: Arrays
    """[E, ...]: observations after the last step. At a truncation, the final observation of the episode."""


class NStep:
    """The pending decisions of each slot, in a ring of n places. Their transitions are not yet complete."""

    def __init__(self, steps: int, num_slots: int, discount: float) -> None:
        self._steps, self.discount = steps, discount
        self._num_pending = np.zeros(num_slots, np.int64)
        """[N]: pending decisions of each slot."""
        self._oldest = np.zeros(num_slots, np.int64)
        """[N]: place of each slot's oldest pending decision."""
        self._obs: Arrays = {}
        self._action = np.empty(0)
        self._return = np.zeros((steps, num_slots), np.float64)
        """[n, N]: discounted return since each pending decision."""
        self._next_discount = np.zeros((steps, num_slots), np.float64)
        """[n, N]: discount of the next reward for each pending decision."""

    def decide(self, slots: np.ndarray, obs: Arrays, action: np.ndarray) -> None:
        """Record decisions of B slots. `complete` must be called for a slot before its next decision."""
        if not self._obs:
            self._allocate(obs, action)
        has_room = self._num_pending[slots] < self._steps
        assert has_room.all(), "a slot decides before its last decision was completed"
        place = (self._oldest[slots] + self._num_pending[slots]) % self._steps
        for name, values in obs.items():
            self._obs[name][place, slots] = values
        self._action[place, slots] = action
        self._return[place, slots], self._next_discount[place, slots] = 0.0, 1.0
        self._num_pending[slots] += 1

    def complete(
        self,
        slots: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        lost: np.ndarray,
        next_obs: Arrays,
    ) -> Transitions:
        """Record the outcomes of the last decisions of B slots. Returns the transitions that are now complete.

        `next_obs` [B, ...] is the final observation where an episode ended. An episode's end completes all pending
        decisions of its slot. Otherwise a slot's oldest decision is complete after n steps. Where a simulator was
        `lost`, the slot's pending decisions are dropped.
        """
        pending = self._pending(slots)
        self._return[:, slots] += np.where(pending, self._next_discount[:, slots] * reward, 0.0)
        self._next_discount[:, slots] *= self.discount
        ended = terminated | truncated
        is_oldest = np.arange(self._steps)[:, None] == self._oldest[slots]
        ready = pending & np.where(ended, True, is_oldest & (self._num_pending[slots] == self._steps)) & ~lost
        place, column = np.nonzero(ready)
        transitions = Transitions(
            obs={name: values[place, slots[column]] for name, values in self._obs.items()},
            action=self._action[place, slots[column]],
            reward=self._return[place, slots[column]].astype(np.float32),
            discount=np.where(terminated[column], 0.0, self._next_discount[place, slots[column]]).astype(np.float32),
            next_obs={name: values[column] for name, values in next_obs.items()},
        )
        num_done = np.where(ended | lost, self._num_pending[slots], self._num_pending[slots] == self._steps)
        self._oldest[slots] = (self._oldest[slots] + num_done) % self._steps
        self._num_pending[slots] -= num_done
        return transitions

    def drop(self, slots: np.ndarray) -> None:
        """Drop the pending decisions of `slots`, whose episodes do not continue."""
        self._num_pending[slots] = 0

    def state_dict(self) -> dict[str, Any]:
        """The pending decisions."""
        arrays: Arrays = {"count": self._num_pending, "begin": self._oldest}
        arrays |= {"return": self._return, "worth": self._next_discount}
        if self._obs:
            arrays |= {"action": self._action, **{f"obs/{name}": values for name, values in self._obs.items()}}
        return {name: torch.from_numpy(values.copy()) for name, values in arrays.items()}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore pending decisions. They are dropped if n has changed. Returns whether they were restored."""
        if state["return"].shape != self._return.shape:
            return False
        arrays = {name: tensor.numpy().copy() for name, tensor in state.items()}
        self._num_pending, self._oldest = arrays.pop("count"), arrays.pop("begin")
        self._return, self._next_discount = arrays.pop("return"), arrays.pop("worth")
        if arrays:
            self._action = arrays.pop("action")
            self._obs = {name.removeprefix("obs/"): values for name, values in arrays.items()}
        return True

    def _pending(self, slots: np.ndarray) -> np.ndarray:
        """[n, B] bool: places that hold a pending decision."""
        age = (np.arange(self._steps)[:, None] - self._oldest[slots]) % self._steps
        return age < self._num_pending[slots]

    def _allocate(self, obs: Arrays, action: np.ndarray) -> None:
        shape = self._return.shape
        self._obs = {name: np.zeros((*shape, *values.shape[1:]), values.dtype) for name, values in obs.items()}
        self._action = np.zeros((*shape, *action.shape[1:]), action.dtype)
