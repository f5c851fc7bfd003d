"""Episodes of a scene: starts, headings and goals, most of them without a straight path to the goal.

The geodesic distance of start and goal is within the tier's limits. If its ratio to the Euclidean distance is below
`STRAIGHT`, the pair is accepted with probability 20 (ratio - 0.98)^2: 0.8 % for straight lines, 29 % just below
`STRAIGHT`.

Legend: S starts, G goals, E episodes, V nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.errors import UsageError
from paceline.sims.navigation.scenes.farthest import farthest_places, floor_corners
from paceline.sims.navigation.scenes.free_space import is_free
from paceline.sims.navigation.scenes.generator import Tier
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.scene import Scene

NUM_STARTS = 384
NUM_GOALS = 64
NUM_EPISODES = 256
CLEARANCE = 0.05
"""Distance of the agent's side from obstacles at starts and goals."""
STRAIGHT = 1.1


@dataclass(frozen=True)
class Episodes:
    """The episodes of one scene, by ascending distance."""

    rows: np.ndarray
    """float32 [E, 6]: start x, y, heading (radians from the x axis towards y), goal x, y, geodesic distance."""
    goals: np.ndarray
    """int64 [E]: the number of the goal."""
    node_distances: np.ndarray
    """float32 [G, V]: distance from every node to every goal; inf without a path."""
    farthest: np.ndarray
    """float32 [G, 3]: x and y of the place farthest from each goal, and its distance."""


def draw_episodes(scene: Scene, graph: Graph, tier: Tier) -> Episodes:
    """`NUM_EPISODES` episodes, the same for the same scene. If few pairs qualify, some appear more than once."""
    rng = np.random.default_rng((7, scene.seed + 1, len(scene.boxes)))
    starts, goals = _places(scene, rng, NUM_STARTS), _places(scene, rng, NUM_GOALS)
    distances = graph.between_points(starts, goals)
    chosen = _choose(rng, distances, np.linalg.norm(starts[:, None] - goals[None], axis=2), tier)
    start, goal = chosen[np.argsort(distances[chosen[:, 0], chosen[:, 1]], kind="stable")].T
    headings = rng.uniform(-np.pi, np.pi, len(start))
    rows = np.column_stack([starts[start], headings, goals[goal], distances[start, goal]])
    corners = floor_corners(scene)
    far = farthest_places(
        np.concatenate([corners, starts]), np.concatenate([graph.between_points(corners, goals), distances])
    )
    to_goals = graph.to_goals(goals).T
    return Episodes(rows.astype(np.float32), goal, to_goals.astype(np.float32), far.astype(np.float32))


def _places(scene: Scene, rng: np.random.Generator, count: int) -> np.ndarray:
    """[count, 2]: uniform over the free floor."""
    clearance, found = scene.radius + CLEARANCE, np.empty((0, 2))
    low, high = np.array(scene.interior[:2]), np.array(scene.interior[2:])
    for _ in range(100):
        points = rng.uniform(low, high, (2 * count, 2))
        found = np.concatenate([found, points[is_free(scene, points, clearance)]])
        if len(found) >= count:
            return found[:count]
    raise UsageError(
        f"hardly any free floor is {clearance:g} m or more away from walls and obstacles; allowed: more of it, because "
        "episodes start and end there"
    )


def _choose(rng: np.random.Generator, geodesic: np.ndarray, straight: np.ndarray, tier: Tier) -> np.ndarray:
    """int64 [E, 2]: pairs of a start and a goal."""
    possible = (geodesic >= tier.min_distance) & (geodesic <= tier.max_distance)
    ratio = np.divide(geodesic, straight, out=np.ones_like(geodesic), where=possible)
    taken = (ratio >= STRAIGHT) | (rng.random(ratio.shape) < 20.0 * (ratio - 0.98) ** 2)
    pairs = np.argwhere(possible & taken)
    if not len(pairs):
        raise UsageError(
            f"no goal was found at {tier.min_distance:g} to {tier.max_distance:g} m of path from a start; allowed: a "
            "larger scene"
        )
    return pairs[rng.permutation(max(len(pairs), NUM_EPISODES))[:NUM_EPISODES] % len(pairs)]
