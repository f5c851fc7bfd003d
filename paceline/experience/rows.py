"""What becomes a row: a decision, and what came of it.

Legend: N slots, C truncated rows, D numbers of recurrent state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What an actor decided for all N slots."""

    obs: dict[str, Tensor]
    """[N, ...]: what it decided on, inputs of its own (the previous action) included."""
    actions: dict[str, Tensor]
    """[N, ...] by action leaf, as the policy chose them."""
    log_prob: Tensor
    """[N]."""
    value: Tensor
    """[N]: V of the observation."""
    state: Tensor
    """[N, D]: the recurrent state BEFORE the step."""
    episode_start: Tensor
    """[N] bool: the observation is the first of an episode; `state` is zero."""
    active: Tensor
    """[N] bool: the observation asked for a decision."""
    version: Tensor
    """[] int64: which weights decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of those decisions."""

    reward: Tensor
    """[N] float32."""
    terminated: Tensor
    """[N] bool."""
    truncated: Tensor
    """[N] bool."""
    lost: Tensor | None
    """[N] bool: the simulator was replaced; the decision led nowhere. None where it is known that none was."""
    cuts: Cuts | None = None
    """Where episodes were truncated; None where none was, or where the host does not know it."""
    unsure_cuts: Cuts | None = None
    """Then this has all N slots, and only those that `truncated` marks are cuts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Where truncated episodes would have gone on: what V is still to be computed of."""

    rows: Tensor
    """[C] int64: positions in a batch, or rows of a rollout; on the host where the host knows them."""
    obs: dict[str, Tensor]
    """[C, ...]: final observations."""
    state: Tensor
    """[C, D]: recurrent states after those rows."""

    def part(self, which: Tensor) -> Cuts:
        """Those that the mask `which` [C], on the host, names."""
        at = torch.nonzero(which).squeeze(1)
        on_device = at.to(self.state.device)
        obs = {name: values[on_device] for name, values in self.obs.items()}
        return Cuts(rows=self.rows[at], obs=obs, state=self.state[on_device])


class DeviceCuts:
    """Truncations that only the device knows of, kept without asking it: up to `most`, in the order in which they came."""

    def __init__(self, example: Cuts, most: int) -> None:
        def cells(values: Tensor) -> Tensor:
            # One cell more than needed: every slot is written somewhere, and those without a cut go there.
            return values.new_zeros((most + 1, *values.shape[1:]))

        self._most = most
        self._rows, self._state = cells(example.rows), cells(example.state)
        self._obs = {name: cells(values) for name, values in example.obs.items()}
        self._count = torch.zeros((), dtype=torch.int64, device=example.rows.device)

    def clear(self) -> None:
        self._count.zero_()

    def add(self, slots: Cuts, truncated: Tensor, first_row: int) -> None:
        order = truncated.cumsum(0)
        cells = torch.where(truncated, self._count + order - 1, self._most).clamp(max=self._most)
        self._rows.index_copy_(0, cells, slots.rows + first_row)
        self._state.index_copy_(0, cells, slots.state)
        for name, values in slots.obs.items():
            self._obs[name].index_copy_(0, cells, values)
        self._count += order[-1]

    def take(self) -> Cuts | None:
        """Waits for the device."""
        count = int(self._count)
        if count > self._most:
            raise AssertionError(f"{count} truncations, but the pool's truncation_gap promises at most {self._most}")
        if count == 0:
            return None
        obs = {name: values[:count] for name, values in self._obs.items()}
        return Cuts(rows=self._rows[:count], obs=obs, state=self._state[:count])


def as_tensor(values: np.ndarray) -> Tensor:
    """An array as a tensor, in the same memory, unless that is not to be written to, of which PyTorch would warn."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())
