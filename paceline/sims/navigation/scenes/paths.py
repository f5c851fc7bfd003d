"""`Paths`: lengths of shortest paths from N places to their targets, by tensors on a CPU and by a kernel on a GPU.

A table of a bank, for example `node_distances`, has the distances of all nodes from every goal of a scene.

Legend: N places, K scenes, G goals of a table, V nodes, M targets.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from paceline.sims.navigation.scenes import geodesic
from paceline.sims.navigation.scenes.tensor_bank import TensorBank


class Destinations(NamedTuple):
    """Where N places want to go."""

    scenes: Tensor
    """int64 [N]."""
    table: Tensor
    """[K, G, V]: the distance of every node from every goal; see `SceneBank`."""
    goals: Tensor
    """int64 [N]: the goal of each place, a number in its scene's part of the table."""
    targets: Tensor
    """[N, M, 2]: the points of the goal that can be reached by a straight line."""


class Paths:
    """Shortest paths in the scenes of a bank."""

    def __init__(self, bank: TensorBank[Any]) -> None:
        self._bank = bank
        self._most = (bank.limits.max_obstacles, bank.limits.max_nodes)

    def scenes_changed(self) -> None:
        """On a CPU, use less padding than the tier allows, because no kernel skips padding there."""
        if self._bank.device.type == "cpu":
            num_obstacles, num_nodes = self._bank.counts[:, 2:].amax(0).clamp_(min=1).tolist()
            self._most = (num_obstacles, num_nodes)

    def lengths(self, positions: Tensor, to: Destinations) -> Tensor:
        """[N]: from `positions` [N, 2]."""
        if positions.is_cuda:
            # Imported here, because Triton is installed only with CUDA.
            from paceline.sims.navigation.scenes import geodesic_triton

            return geodesic_triton.query(self._bank, to.scenes, to.table, to.goals, positions, to.targets)
        return geodesic.query(*self._sights(positions, to))

    def next_places(self, positions: Tensor, to: Destinations) -> Tensor:
        """[N, 2]: the next bend of each shortest path, or its end."""
        targets, lengths = geodesic.candidates(*self._sights(positions, to))
        return targets.gather(1, lengths.argmin(1)[:, None, None].expand(-1, 1, 2))[:, 0]

    def _sights(self, positions: Tensor, to: Destinations) -> tuple[Tensor, ...]:
        """The arguments of `geodesic.query`."""
        bank, (num_obstacles, num_nodes) = self._bank, self._most
        distances = to.table[:, :, :num_nodes][to.scenes, to.goals]
        nodes, sight = bank.nodes[:, :num_nodes][to.scenes], bank.sight[:, :num_obstacles][to.scenes]
        return positions, nodes, distances, to.targets, sight
