"""Episode statistics on a device, kept without ever asking the device for anything.

Legend: N slots of one group, R cells of the ring.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.errors import Failure, SimulatorError
from paceline.pool.protocol import Episode

log = logging.getLogger(__name__)


class EpisodeRing:
    """The last R finished episodes as rows (slot, return, length, measures), read once in a while by `take`."""

    def __init__(self, num_cells: int, device: torch.device, measures: Sequence[str] = ()) -> None:
        self._num_cells, self._measures = num_cells, tuple(measures)
        # One cell more than the ring: a write has a place for every slot, and those without an end go there.
        self._cells = torch.zeros(num_cells + 1, 3 + len(measures), device=device)
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def write(self, ended: Tensor, rows: Tensor) -> None:
        """Append those `rows` [N, 3 + measures] whose `ended` [N] is set."""
        order = ended.cumsum(0)
        cells = torch.where(ended, (self._count + order - 1) % self._num_cells, self._num_cells)
        self._cells.index_copy_(0, cells, rows)
        self._count += order[-1]

    def take(self) -> list[Episode]:
        """Everything since the last call, oldest first. Waits for the device."""
        count = int(self._count)
        if count > self._num_cells:
            log.warning(
                "%d of %d finished episodes were not kept: read them more often", count - self._num_cells, count
            )
        kept = min(count, self._num_cells)
        cells = [(count - kept + i) % self._num_cells for i in range(kept)]
        rows = self._cells.cpu()[cells].tolist() if kept else []
        self._count.zero_()
        return [
            Episode(int(slot), episode_return, int(length), dict(zip(self._measures, measured, strict=True)))
            for slot, episode_return, length, *measured in rows
        ]

    def state_dict(self) -> dict[str, Any]:
        return {"cells": self._cells, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._cells.copy_(state["cells"])
        self._count.copy_(state["count"])


class GroupEpisodes:
    """What the running episodes of one group add up to, and the first non-finite reward that each slot has had."""

    def __init__(self, slots: Tensor, ring: EpisodeRing) -> None:
        self._slots, self._ring = slots.float(), ring
        self._returns = torch.zeros_like(self._slots)
        self._lengths = torch.zeros_like(self._slots)
        # The latest reward, until one is not finite: then that one stays, with the step it came at.
        self._reward = torch.zeros_like(self._slots)
        self._step = torch.zeros_like(self._slots)

    def clear(self) -> None:
        for tensor in (self._returns, self._lengths, self._reward, self._step):
            tensor.zero_()

    def add(self, reward: Tensor, ended: Tensor, measured: Sequence[Tensor] = ()) -> None:
        fine = self._reward.isfinite()
        # In place, as all that is kept from step to step: the steps may be a recording.
        self._reward.copy_(torch.where(fine, reward, self._reward))
        self._step.copy_(torch.where(fine, self._lengths, self._step))
        self._returns += reward
        self._lengths += 1
        self._ring.write(ended, torch.stack((self._slots, self._returns, self._lengths, *measured), dim=1))
        self._returns.masked_fill_(ended, 0)
        self._lengths.masked_fill_(ended, 0)

    def check(self) -> None:
        """Raise for the first slot that has had a non-finite reward. Waits for the device."""
        bad = (~self._reward.isfinite()).nonzero()
        if len(bad):
            row = int(bad[0])
            slot, step, value = int(self._slots[row]), int(self._step[row]), float(self._reward[row])
            cause = f"the reward is {value}"
            raise SimulatorError(Failure(cause=cause, phase="step", envs=(slot,), slots=(slot,), step=step))

    def state_dict(self) -> dict[str, Any]:
        return {"returns": self._returns, "lengths": self._lengths, "reward": self._reward, "step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._returns.copy_(state["returns"])
        self._lengths.copy_(state["lengths"])
        self._reward.copy_(state["reward"])
        self._step.copy_(state["step"])
