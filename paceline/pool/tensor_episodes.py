"""Episode statistics on a device, kept without waiting for it.

Legend: N slots of one group, R cells of the ring.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from paceline.errors import SimulatorError, SimulatorFailure
from paceline.pool.protocol import Episode

log = logging.getLogger(__name__)


class EpisodeRing:
    """The last R finished episodes as rows (slot, return, length, measures, number among those of the slot)."""

    def __init__(self, num_cells: int, device: torch.device, measures: Sequence[str] = ()) -> None:
        self._num_cells, self._measures = num_cells, tuple(measures)
        # The last cell is not part of the ring. Slots whose episode has not ended write there.
        self._cells = torch.zeros(num_cells + 1, 4 + len(measures), device=device)
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def write(self, ended: Tensor, rows: Tensor) -> None:
        """Append those `rows` [N, 4 + measures] whose `ended` [N] is set."""
        order = ended.cumsum(0)
        cells = torch.where(ended, (self._count + order - 1) % self._num_cells, self._num_cells)
        self._cells.index_copy_(0, cells, rows)
        self._count += order[-1]

    def take(self) -> list[Episode]:
        """The episodes since the last call, oldest first. Waits for the device."""
        count = int(self._count)
        if count > self._num_cells:
            shown = "%d episodes have ended since the last report; the metrics have the latest %d of them"
            log.warning(shown, count, self._num_cells)
        kept = min(count, self._num_cells)
        cells = [(count - kept + i) % self._num_cells for i in range(kept)]
        rows = self._cells.cpu()[cells].tolist() if kept else []
        self._count.zero_()
        return [
            Episode(int(slot), total, int(length), dict(zip(self._measures, measured, strict=True)), int(number))
            for slot, total, length, *measured, number in rows
        ]

    def state_dict(self) -> dict[str, Any]:
        return {"cells": self._cells, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        cells = state["cells"]
        if cells.shape[1] < self._cells.shape[1]:  # older versions have no numbers
            cells = torch.cat([cells, torch.full_like(cells[:, :1], -1.0)], 1)
        self._cells.copy_(cells)
        self._count.copy_(state["count"])


class GroupEpisodes:
    """Sums over the current episodes of one group, and the first step of each slot with a number that is not finite.

    `entries` are the names of the floating-point observations. All tensors stay in the same memory, because a CUDA
    graph may replay the steps.
    """

    def __init__(self, slots: Tensor, ring: EpisodeRing, entries: Sequence[str] = (), agents_per_env: int = 1) -> None:
        self._slots, self._ring, self._entries = slots.float(), ring, tuple(entries)
        self._agents_per_env = agents_per_env
        self._seed: int | None = None
        self._returns = torch.zeros_like(self._slots)
        self._lengths = torch.zeros_like(self._slots)
        self._episode = torch.zeros_like(self._slots)
        # A column of `_facts` describes the latest step of a slot. Once a number in it is not finite, the column stays.
        # Rows: episode, step, whether the step ended the episode, reward, the largest magnitude in each entry of
        # `final_obs` (0 where no episode ended) and in each entry of `obs`.
        self._facts = torch.zeros(4 + 2 * len(self._entries), len(slots), device=slots.device)

    def begin(self, obs: Mapping[str, Tensor], seed: int) -> None:
        """Start the first episode of all slots, with the observations `obs`."""
        self._seed = seed
        for tensor in self._tensors().values():
            tensor.zero_()
        # As if a step had just ended an episode with the number -1.
        self._facts[0].fill_(-1)
        self._facts[2].fill_(1)
        for row, name in enumerate(self._entries, start=4 + len(self._entries)):
            self._facts[row] = _largest(obs[name])

    def add(
        self,
        reward: Tensor,
        ended: Tensor,
        obs: Mapping[str, Tensor],
        final_obs: Mapping[str, Tensor],
        measured: Sequence[Tensor] = (),
        counted: Tensor | None = None,
    ) -> None:
        """Add a step. It counts only where `counted` [N] is set; None: everywhere."""
        going_on = ~ended
        found = [_largest(obs[name]) for name in self._entries]
        lasts = [
            # A final observation is valid only where an episode ended.
            (largest if final_obs[name] is obs[name] else _largest(final_obs[name])).masked_fill(going_on, 0)
            for name, largest in zip(self._entries, found, strict=True)
        ]
        facts = torch.stack((self._episode, self._lengths, ended.float(), reward, *lasts, *found))
        self._facts.copy_(torch.where(self._fine(), facts, self._facts))
        self._returns += reward
        self._lengths += 1 if counted is None else counted
        self._ring.write(
            ended, torch.stack((self._slots, self._returns, self._lengths, *measured, self._episode), dim=1)
        )
        self._returns.masked_fill_(ended, 0)
        self._lengths.masked_fill_(ended, 0)
        self._episode += ended

    def check(self) -> None:
        """Raise for the first slot with a number that is not finite. Waits for the device."""
        bad = (~self._fine()).nonzero()
        if len(bad):
            column = int(bad[0])
            raise SimulatorError(self._failure(int(self._slots[column]), self._facts[:, column].tolist()))

    def _fine(self) -> Tensor:
        """[N] bool: all facts of the slot are finite. x - x is zero only if x is finite."""
        return (self._facts - self._facts).sum(0) == 0

    def _failure(self, slot: int, facts: list[float]) -> SimulatorFailure:
        episode, step, ended, reward, *largest = facts
        phase = "step"
        if not isfinite(reward):
            cause = f"the reward is {reward}"
        else:
            index = next(index for index, value in enumerate(largest) if not isfinite(value))
            name = self._entries[index % len(self._entries)]
            cause = f"observation {name!r} is not finite: its largest magnitude is {largest[index]}"
            if ended and index >= len(self._entries):
                phase, episode, step = "reset", episode + 1, 0
        return SimulatorFailure(
            cause=cause,
            phase=phase,
            envs=(slot // self._agents_per_env,),
            slots=(slot,),
            seed=self._seed,
            episode=int(episode),
            step=int(step),
        )

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self._seed} | self._tensors()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`. States of earlier versions lack some entries, which then do not change."""
        self._seed = state.get("seed", self._seed)
        for name, tensor in self._tensors().items():
            if name in state:
                tensor.copy_(state[name])

    def _tensors(self) -> dict[str, Tensor]:
        return {"returns": self._returns, "lengths": self._lengths, "episode": self._episode, "facts": self._facts}


def _largest(values: Tensor) -> Tensor:
    """[N]: the largest magnitude in each of the N rows. It is not finite if a number of the row is not."""
    if values.ndim == 1:
        return values
    if values.is_cuda:  # one kernel; on a CPU the two operations below are much faster
        return torch.linalg.vector_norm(values, inf, dim=tuple(range(1, values.ndim)))
    return values.flatten(1).abs().amax(1)
