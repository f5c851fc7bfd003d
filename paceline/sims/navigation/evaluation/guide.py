"""`Guide`: shortest paths to targets of a planner's own choice, which can change at every step.

A planner on the host names the targets. Distances and next bends are computed for all streams at once.

Legend: N streams, V nodes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.sims.navigation.scenes import geodesic
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.geometry import FAR
from paceline.sims.navigation.scenes.tensor_bank import TensorBank


class Guide:
    """The targets of N streams in the scenes of a bank. `lead` must be called for a stream before it is queried."""

    def __init__(self, bank: TensorBank[Any], num: int, device: torch.device) -> None:
        self._bank, most = bank, bank.limits.max_nodes
        self._scenes = torch.zeros(num, dtype=torch.int64, device=device)
        self._nodes = torch.zeros(num, most, 2, device=device)
        self._distances = torch.full((num, most), FAR, device=device)
        self._targets = torch.zeros(num, 1, 2, device=device)
        self.graph = cache(lambda scene: Graph.of(self._bank.scene(scene)))
        """From the number of a scene to its graph."""

    def lead(self, stream: int, scene: int, target: np.ndarray) -> None:
        """Lead a stream in a scene to `target` [2]."""
        graph = self.graph(scene)
        to_target = np.minimum(graph.to_goals(target[None].astype(np.float64))[:, 0], FAR)
        num_nodes = len(graph.nodes)
        self._scenes[stream] = scene
        self._nodes[stream, :num_nodes] = torch.from_numpy(graph.nodes).to(self._nodes)
        self._distances[stream] = FAR
        self._distances[stream, :num_nodes] = torch.from_numpy(to_target).to(self._distances)
        self._targets[stream, 0] = torch.from_numpy(target).to(self._targets)

    def distances(self, positions: Tensor, streams: Tensor | None = None) -> Tensor:
        """[N]: from `positions` [N, 2] to the targets, of all streams or of `streams` (int64 [N])."""
        return geodesic.query(*self._sights(positions, streams))

    def next_places(self, positions: Tensor, streams: Tensor | None = None) -> Tensor:
        """[N, 2]: the next bends of the paths from `positions` [N, 2], or the targets."""
        targets, lengths = geodesic.candidates(*self._sights(positions, streams))
        return targets.gather(1, lengths.argmin(1)[:, None, None].expand(-1, 1, 2))[:, 0]

    def _sights(self, positions: Tensor, streams: Tensor | None) -> tuple[Tensor, ...]:
        rows = slice(None) if streams is None else streams
        sight = self._bank.sight[self._scenes[rows]]
        return positions, self._nodes[rows], self._distances[rows], self._targets[rows], sight
