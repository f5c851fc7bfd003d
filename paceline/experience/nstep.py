"""N-step transitions from streams of single steps: what D4PG's actors store.

Legend: n steps of a transition, N slots, B slots of a batch, E transitions that come of it.

Every decision becomes the start of exactly one transition: of n steps, or of those that were left when its episode ended. The
return is discounted forwards from the decision; nothing reaches across an episode's end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transitions:
    """E transitions, in no order."""

    obs: Arrays
    """[E, ...]: what was decided on."""
    action: np.ndarray
    """[E, A]."""
    reward: np.ndarray
    """[E] float32: the sum of discount^k times the reward of the k-th step."""
    discount: np.ndarray
    """[E] float32: what V of `next_obs` is worth: discount^m after m steps, 0 after a termination."""
    next_obs: Arrays
    """[E, ...]: what followed the last step: the final observation where the episode was truncated."""


class NStep:
    """The latest decisions of every slot, until they have become transitions."""

    def __init__(self, steps: int, num_slots: int, discount: float) -> None:
        self._steps, self.discount = steps, discount
        self._count = np.zeros(num_slots, np.int64)
        """[N]: decisions of each slot that wait; the oldest is at `_begin`."""
        self._begin = np.zeros(num_slots, np.int64)
        self._obs: Arrays = {}
        self._action = np.empty(0)
        self._return = np.zeros((steps, num_slots), np.float64)
        """[n, N]: of each waiting decision, its return so far ..."""
        self._worth = np.zeros((steps, num_slots), np.float64)
        """... and what the next reward is worth to it."""

    def decide(self, slots: np.ndarray, obs: Arrays, action: np.ndarray) -> None:
        """Decisions of B slots; each must have been completed before it decides again."""
        if not self._obs:
            self._allocate(obs, action)
        if (self._count[slots] >= self._steps).any():
            raise AssertionError("a slot decides before its last decision was completed")
        at = (self._begin[slots] + self._count[slots]) % self._steps
        for name, values in obs.items():
            self._obs[name][at, slots] = values
        self._action[at, slots] = action
        self._return[at, slots], self._worth[at, slots] = 0.0, 1.0
        self._count[slots] += 1

    def complete(
        self,
        slots: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        lost: np.ndarray,
        next_obs: Arrays,
    ) -> Transitions:
        """What came of the last decisions of B slots; `next_obs` [B, ...] is the final observation where an episode ended.

        The transitions that are complete by it: the oldest of each slot with n steps, all of one whose episode ended. Where a
        simulator was lost the last step does not exist: what waits ends before it, and is dropped.
        """
        waiting = self._waiting(slots)
        self._return[:, slots] += np.where(waiting, self._worth[:, slots] * reward, 0.0)
        self._worth[:, slots] *= self.discount
        ended = terminated | truncated
        oldest = np.arange(self._steps)[:, None] == self._begin[slots]
        ready = waiting & np.where(ended, True, oldest & (self._count[slots] == self._steps)) & ~lost
        at, column = np.nonzero(ready)
        found = Transitions(
            obs={name: values[at, slots[column]] for name, values in self._obs.items()},
            action=self._action[at, slots[column]],
            reward=self._return[at, slots[column]].astype(np.float32),
            discount=np.where(terminated[column], 0.0, self._worth[at, slots[column]]).astype(np.float32),
            next_obs={name: values[column] for name, values in next_obs.items()},
        )
        over = ended | lost
        gone = np.where(over, self._count[slots], self._count[slots] == self._steps)
        self._begin[slots] = (self._begin[slots] + gone) % self._steps
        self._count[slots] -= gone
        return found

    def drop(self, slots: np.ndarray) -> None:
        """Forget what waits of `slots`, whose episodes do not go on."""
        self._count[slots] = 0

    def state_dict(self) -> dict[str, Any]:
        """What waits."""
        arrays = {"count": self._count, "begin": self._begin, "return": self._return, "worth": self._worth}
        if self._obs:
            arrays |= {"action": self._action, **{f"obs/{name}": values for name, values in self._obs.items()}}
        return {name: torch.from_numpy(values.copy()) for name, values in arrays.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what waited. What waited for another number of steps is dropped."""
        if state["return"].shape != self._return.shape:
            return
        arrays = {name: tensor.numpy().copy() for name, tensor in state.items()}
        self._count, self._begin = arrays.pop("count"), arrays.pop("begin")
        self._return, self._worth = arrays.pop("return"), arrays.pop("worth")
        if arrays:
            self._action = arrays.pop("action")
            self._obs = {name.removeprefix("obs/"): values for name, values in arrays.items()}

    def _waiting(self, slots: np.ndarray) -> np.ndarray:
        """[n, B] bool: places that hold a decision."""
        age = (np.arange(self._steps)[:, None] - self._begin[slots]) % self._steps
        return age < self._count[slots]

    def _allocate(self, obs: Arrays, action: np.ndarray) -> None:
        shape = self._return.shape
        self._obs = {name: np.zeros((*shape, *values.shape[1:]), values.dtype) for name, values in obs.items()}
        self._action = np.zeros((*shape, *action.shape[1:]), action.dtype)
