"""Exact shortest paths: among rectangular obstacles they are straight lines with bends at corners of obstacles.

A graph of the corners ("nodes") that see each other gives all distances. The shortest path from any place goes straight
to the goal if the goal is visible, and otherwise through one of the visible nodes. `query` computes this in every step.
Everything else is computed once per scene, on the host, in double precision.

Legend: N streams, V nodes, Q obstacles, P points, G goals, M goals of a stream or rectangles, L points of a path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.sims.navigation.scenes.free_space import NODE, Growths, convex_corners, is_free
from paceline.sims.navigation.scenes.geometry import FAR, boxed, is_blocked
from paceline.sims.navigation.scenes.scene import Scene

_PAIRS_AT_ONCE = 1_000_000
"""Sight lines times obstacles in one test: a few arrays of this size fit into a cache."""


@dataclass(frozen=True)
class Graph:
    """The nodes of a scene and the distances between them."""

    obstacles: np.ndarray
    """float64 [Q, 4], not grown."""
    nodes: np.ndarray
    """float64 [V, 2]."""
    between: np.ndarray
    """float64 [V, V]: lengths of shortest paths; inf without a path."""
    radius: float
    """Of the agent."""

    @classmethod
    def of(cls, scene: Scene) -> Graph:
        nodes = convex_corners(scene)
        direct = np.where(sees(nodes, nodes, scene.obstacles, scene.radius), _distances(nodes, nodes), np.inf)
        return cls(scene.obstacles, nodes, _all_pairs(direct), scene.radius)

    def to_goals(self, goals: np.ndarray) -> np.ndarray:
        """[V, G]: the distance from every node to each of `goals` [G, 2]."""
        return _over_nodes(self.between, self.over_sight(self.nodes, goals))

    def between_points(self, points: np.ndarray, goals: np.ndarray, to_goals: np.ndarray | None = None) -> np.ndarray:
        """[P, G]: distances from `points` [P, 2] to `goals` [G, 2]; inf without a path. `to_goals` [V, G] is the result
        of that method, if it is known."""
        direct = self.over_sight(points, goals)
        to_goals = self.to_goals(goals) if to_goals is None else to_goals
        over = _over_nodes(self.over_sight(points, self.nodes), to_goals)
        return np.minimum(direct, over)

    def to_rects(self, rects: np.ndarray, points: np.ndarray | None = None) -> np.ndarray:
        """[P, M]: the distance from `points` [P, 2], by default the nodes, until the agent touches each of `rects`
        [M, 4]; inf without a path."""
        from_nodes = _over_nodes(self.between, self.to_touch(self.nodes, rects))
        if points is None:
            return from_nodes
        over = _over_nodes(self.over_sight(points, self.nodes), from_nodes)
        return np.minimum(self.to_touch(points, rects), over)

    def to_touch(self, points: np.ndarray, rects: np.ndarray) -> np.ndarray:
        """[P, M]: straight distances from `points` to where the agent touches `rects`; inf if that place is hidden."""
        if not len(points) or not len(rects):
            return np.empty((len(points), len(rects)))
        reach = Growths.of(self.radius).node
        touch = touching(torch.from_numpy(points), torch.from_numpy(rects).expand(len(points), -1, -1), reach)
        lengths = (touch - torch.from_numpy(points)[:, None]).norm(dim=2)
        if len(self.obstacles):
            grown = boxed(torch.from_numpy(self.obstacles + np.array([-1, -1, 1, 1]) * self.radius))
            hidden = is_blocked(torch.from_numpy(points), touch, grown.expand(len(points), -1, -1))
            lengths = lengths.masked_fill(hidden, torch.inf)
        return lengths.numpy()

    def over_sight(self, points: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """[P, V]: straight distances from `points` [P, 2] to `targets` [V, 2]; inf to hidden ones."""
        return np.where(sees(points, targets, self.obstacles, self.radius), _distances(points, targets), np.inf)


def touching(positions: Tensor, rects: Tensor, reach: float = NODE) -> Tensor:
    """[N, M, 2]: the place nearest to each of `positions` [N, 2] where the agent touches each of `rects` [N, M, 4],
    which it does at a distance of `reach`."""
    low, high = rects[..., :2] - reach, rects[..., 2:] + reach
    return torch.minimum(torch.maximum(positions[:, None], low), high)


def query(positions: Tensor, nodes: Tensor, node_distances: Tensor, goals: Tensor, rects: Tensor) -> Tensor:
    """[N]: distances from `positions` [N, 2] to the nearest of `goals` [N, M, 2].

    Each stream has the `nodes` [N, V, 2] of its scene, their distances to its goals [N, V] and the obstacles
    [N, Q, 4], boxed and grown by SIGHT. Padding nodes have the distance FAR; padding goals are far away.
    """
    return candidates(positions, nodes, node_distances, goals, rects)[1].amin(1)


def candidates(
    positions: Tensor, nodes: Tensor, node_distances: Tensor, goals: Tensor, rects: Tensor
) -> tuple[Tensor, Tensor]:
    """Possible next targets [N, V + M, 2], the goals last, and the path length over each [N, V + M]; FAR if hidden."""
    targets = torch.cat((nodes, goals), 1)
    lengths = (targets - positions[:, None]).square_().sum(2).sqrt_()
    lengths[:, : nodes.shape[1]] += node_distances
    return targets, lengths.masked_fill_(is_blocked(positions, targets, rects), FAR)


def shortest_path(scene: Scene, start: tuple[float, float], goal: tuple[float, float]) -> np.ndarray:
    """float64 [L, 2]: the points of the shortest path, including both ends."""
    for name, place in (("start", start), ("goal", goal)):
        if not is_free(scene, np.array([place]))[0]:
            raise UsageError(
                f"the {name} {tuple(place)} is outside the scene or too close to something in it; allowed: free floor"
            )
    graph = Graph.of(scene)
    goals = np.array([goal], np.float64)
    to_goal = graph.to_goals(goals)[:, 0]
    path = [np.array(start, np.float64)]
    while True:
        here = path[-1][None]
        over_nodes = graph.over_sight(here, graph.nodes)[0]
        over_nodes[over_nodes == 0.0] = np.inf  # the current node itself
        over_nodes += to_goal
        direct = graph.over_sight(here, goals)[0, 0]
        if direct <= over_nodes.min(initial=np.inf):
            if not np.isfinite(direct):
                raise UsageError(f"the goal {tuple(goal)} cannot be reached from {tuple(start)}; allowed: one that can")
            return np.stack([*path, goals[0]])
        path.append(graph.nodes[over_nodes.argmin()])


def sees(points: np.ndarray, targets: np.ndarray, obstacles: np.ndarray, radius: float) -> np.ndarray:
    """bool [P, V]: whether an agent can walk straight from `points` [P, 2] to `targets` [V, 2].

    The outer walls are never in the way, because the interior is convex.
    """
    if not (len(points) and len(targets) and len(obstacles)):
        return np.ones((len(points), len(targets)), bool)
    grown = boxed(torch.from_numpy(obstacles + np.array([-1, -1, 1, 1]) * radius))
    far = torch.from_numpy(np.ascontiguousarray(targets, np.float64))
    rows = max(1, _PAIRS_AT_ONCE // (len(targets) * len(obstacles)))
    parts = []
    for near in torch.from_numpy(np.ascontiguousarray(points, np.float64)).split(rows):
        parts.append(~is_blocked(near, far.expand(len(near), -1, -1), grown.expand(len(near), -1, -1)))
    return torch.cat(parts).numpy()


def _distances(points: np.ndarray, targets: np.ndarray) -> np.ndarray:
    difference = points[:, None] - targets[None]
    return np.sqrt(np.einsum("pvk,pvk->pv", difference, difference))


def _all_pairs(direct: np.ndarray) -> np.ndarray:
    """The Floyd-Warshall algorithm."""
    lengths = direct.copy()
    np.fill_diagonal(lengths, 0.0)
    for over in range(len(lengths)):
        np.minimum(lengths, lengths[:, over, None] + lengths[None, over], out=lengths)
    return lengths


def _over_nodes(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """[P, G]: the least sum of `first` [P, V] and `second` [V, G] over nodes; inf without nodes."""
    result = np.full((len(first), second.shape[1]), np.inf)
    for node in range(first.shape[1]):
        np.minimum(result, first[:, node, None] + second[None, node], out=result)
    return result
