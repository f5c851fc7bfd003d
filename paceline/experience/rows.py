"""What becomes a row: a decision, and its outcome.

Legend: B slots of a batch, C truncated rows, D numbers of recurrent state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What an actor decided for B slots."""

    obs: dict[str, Tensor]
    """[B, ...]: the observations it decided on."""
    actions: dict[str, Tensor]
    """[B, ...] by action leaf, as the policy chose them."""
    log_prob: Tensor
    """[B]."""
    value: Tensor
    """[B]: V of the observation."""
    state: Tensor
    """[B, D]: the recurrent state BEFORE the step."""
    episode_start: Tensor
    """[B] bool: the observation is the first of an episode; `state` is zero."""
    active: Tensor
    """[B] bool: the observation asked for a decision."""
    version: Tensor
    """[] int64: the version of the weights that decided; [B] where several policies decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What followed those decisions."""

    reward: Tensor
    """[B] float32."""
    terminated: Tensor
    """[B] bool."""
    truncated: Tensor
    """[B] bool."""
    lost: Tensor | None
    """[B] bool: the simulator was replaced, and the decision has no outcome. None: no simulator was replaced."""
    truncations: Truncations | None = None
    """Where episodes were truncated. None where none was, or where only the device knows it."""
    candidates: Truncations | None = None
    """Final observations of all B slots, where only the device knows which episodes were truncated: those that
    `truncated` marks. The host does not wait for the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncations:
    """Final observations of truncated episodes. Their values are the bootstrap values of the truncated rows."""

    rows: Tensor
    """[C] int64: positions in a batch, or rows of a buffer; on the host where the host knows them."""
    obs: dict[str, Tensor]
    """[C, ...]: final observations."""
    state: Tensor
    """[C, D]: recurrent states after those rows."""

    def part(self, which: Tensor) -> Truncations:
        """Those that the mask `which` [C], on the host, selects."""
        at = torch.nonzero(which).squeeze(1)
        on_device = at.to(self.state.device)
        obs = {name: values[on_device] for name, values in self.obs.items()}
        return Truncations(rows=self.rows[at], obs=obs, state=self.state[on_device])


class DeviceTruncations:
    """Up to `most` truncations that only the device knows, in order of arrival. Adding never waits for the device."""

    def __init__(self, example: Truncations, most: int) -> None:
        def cells(values: Tensor) -> Tensor:
            # One cell more than needed: slots without a truncation are written there.
            return values.new_zeros((most + 1, *values.shape[1:]))

        self._most = most
        self._rows, self._state = cells(example.rows), cells(example.state)
        self._obs = {name: cells(values) for name, values in example.obs.items()}
        self._count = torch.zeros((), dtype=torch.int64, device=example.rows.device)

    def clear(self) -> None:
        self._count.zero_()

    def add(self, candidates: Truncations, truncated: Tensor, rows: slice | Tensor) -> None:
        """Those of `candidates` that `truncated` marks; `rows` are their rows of the buffer."""
        order = truncated.cumsum(0)
        cells = torch.where(truncated, self._count + order - 1, self._most).clamp(max=self._most)
        at = candidates.rows + rows.start if isinstance(rows, slice) else rows
        self._rows.index_copy_(0, cells, at)
        self._state.index_copy_(0, cells, candidates.state)
        for name, values in candidates.obs.items():
            self._obs[name].index_copy_(0, cells, values)
        self._count += order[-1]

    def take(self) -> Truncations | None:
        """All of them. Waits for the device."""
        count = int(self._count)
        if count > self._most:
            raise AssertionError(f"{count} truncations, but the pool's truncation_gap promises at most {self._most}")
        if count == 0:
            return None
        obs = {name: values[:count] for name, values in self._obs.items()}
        return Truncations(rows=self._rows[:count], obs=obs, state=self._state[:count])


SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Signed types of the same size."""


def signed(values: Tensor) -> Tensor:
    """The same memory as signed numbers where they are unsigned, because PyTorch can index few unsigned types."""
    return values.view(SIGNED.get(values.dtype, values.dtype))


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On a host their memory is taken page by page as it is written, because filling gigabytes takes long."""
    if device.type != "cpu":
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(tuple(shape), torch.empty(0, dtype=dtype).numpy().dtype))


def as_tensor(values: np.ndarray) -> Tensor:
    """An array as a tensor in the same memory. A read-only array is copied, because PyTorch warns of it."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())
