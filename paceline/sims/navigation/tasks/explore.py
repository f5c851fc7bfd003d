"""Exploration: visit as many places as possible.

The floor is divided into cells of 1 m, along and across the agent's first heading, with the start at a corner of four
cells. The reward is 0.25 for every cell that the agent enters for the first time. The cell of the start counts as
visited from the beginning.

Legend: N streams, S cells along a side of the map.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium.spaces import Space
from torch import Tensor

from paceline.errors import UsageError
from paceline.sims.navigation.config import ExploreConfig
from paceline.sims.navigation.tasks.protocol import Columns, Judgement, Marks, Streams

REWARD = 0.25
CELL = 1.0
NUDGE = 1e-4
"""Added to positions in metres, so that rounding does not decide for an agent that walks whole metres."""
# Columns of the state: the start's pose, and the number of visited cells.
START_X, START_Y, START_HEADING, CELLS = range(3, 7)


class Explore:
    """A `Task`."""

    measure_names = ("cells", "collisions")
    num_columns = 4

    def __init__(self, config: ExploreConfig, streams: Streams) -> None:
        self._streams = streams
        self.spaces: dict[str, Space] = {}
        self._reach = _needed_reach(streams.bank.interior)
        side = 2 * self._reach + 1
        self._visited = torch.zeros(len(streams.rows), side**2, dtype=torch.bool, device=streams.rows.device)
        """[N, S * S]: a map of the cells, with the start's cell in the middle."""

    def check_scenes(self, rows: Mapping[str, Tensor]) -> None:
        if _needed_reach(rows["interior"]) > self._reach:
            raise UsageError(f"explore: a new scene is too large; allowed: up to {self._reach - 1} m across, as before")

    def scenes_changed(self) -> None:
        self._streams.choices.fill_(self._streams.bank.num_episodes)

    def begin(self, ended: Tensor, rows: Tensor) -> Tensor:
        starts = self._streams.bank.episodes.view(-1, 6)[rows, :3]
        self._visited.logical_and_(~ended[:, None])
        self._visited[:, self._visited.shape[1] // 2].logical_or_(ended)
        return torch.cat((starts, starts, torch.ones_like(starts[:, :1])), 1)

    def advance(self, columns: Tensor, positions: Tensor) -> Columns:
        start_x, start_y, heading, count = columns.unbind(1)
        at = cells(columns[:, :3], positions).add_(self._reach)
        place = at[:, :1] * (2 * self._reach + 1) + at[:, 1:]
        is_new = ~self._visited.gather(1, place)[:, 0]
        self._visited.scatter_(1, place, True)
        return start_x, start_y, heading, count + is_new

    def judge(self, before: Tensor, after: Tensor, stopped: Tensor) -> Judgement:
        count = after[:, CELLS]
        return Judgement((count - before[:, CELLS]).mul_(REWARD), {"cells": count})

    def observe(self, state: Tensor, rows: Tensor, noise_keys: Tensor) -> dict[str, Tensor]:
        return {}

    def marks(self, row: int) -> Marks:
        x, y = self._streams.bank.episodes.view(-1, 6)[row, :2].tolist()
        return Marks((x, y))

    def state_dict(self) -> dict[str, Any]:
        return {"visited": self._visited.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._visited.copy_(state["visited"])


def _needed_reach(interior: Tensor) -> int:
    """Cells from the start to the farthest place, in the direction of any heading; `interior` [K, 4] of all scenes."""
    x0, y0, x1, y1 = interior.unbind(1)
    return math.ceil(float(torch.hypot(x1 - x0, y1 - y0).amax()) / CELL) + 1


def cells(starts: Tensor, positions: Tensor) -> Tensor:
    """int64 [N, 2]: the cells of `positions` [N, 2], counted from `starts` [N, 3] ahead and to the left."""
    x, y = (positions - starts[:, :2]).unbind(1)
    cos, sin = starts[:, 2].cos(), starts[:, 2].sin()
    ahead, left = x * cos + y * sin, y * cos - x * sin
    return torch.stack((ahead, left), 1).add_(NUDGE).div_(CELL).floor_().long()
