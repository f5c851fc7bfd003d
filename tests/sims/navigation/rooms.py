"""Scenes and episodes made by hand, with results that can be worked out on paper; random steps."""

import numpy as np
import torch

from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.scene import CEILING, Piece, Rect, Scene


def room(width=6.0, depth=4.0, boxes=(), seed=-1, furniture=()):
    """A room with a corner at the origin, and `boxes` (x0, y0, x1, y1, z0, z1) of colours (10 i, 15 i, 200).

    `furniture` names the kinds of the first boxes.
    """
    walls = [
        (-0.2, -0.2, 0.0, depth + 0.2, 0.0, CEILING),
        (width, -0.2, width + 0.2, depth + 0.2, 0.0, CEILING),
        (0.0, -0.2, width, 0.0, 0.0, CEILING),
        (0.0, depth, width, depth + 0.2, 0.0, CEILING),
    ]
    solids = np.array([*walls, *boxes], float)
    colors = np.array([(10 * i, 15 * i, 200) for i in range(len(solids))], np.uint8)
    pieces = tuple(Piece(kind, (4 + number,)) for number, kind in enumerate(furniture))
    interior = Rect(0.0, 0.0, width, depth)
    return Scene(boxes=solids, colors=colors, interior=interior, seed=seed, furniture=pieces)


def divided_room():
    """6 x 4 m, with a wall at x = 2.9 to 3.1 that is open only at y > 3."""
    return room(boxes=[(2.9, 0.0, 3.1, 3.0, 0.0, CEILING)])


def bank_of_one(scene, start, heading, goal, tier="small"):
    """A bank of one scene whose episodes are all the same."""
    bank = SceneBank.of_scenes([scene], tier)
    graph = Graph.of(scene)
    distance = graph.between_points(np.array([start], float), np.array([goal], float))[0, 0]
    bank.episodes[0] = torch.tensor([*start, heading, *goal, distance])
    bank.episode_goals[0] = 0
    bank.node_distances[0, 0, : len(graph.nodes)] = torch.from_numpy(graph.to_goals(np.array([goal], float))[:, 0])
    return bank


def random_steps(simulator, count, stop=0.05, seed=0):
    """`count` steps. A stream gets the same random actions in any simulator."""
    rng = torch.Generator().manual_seed(seed)
    chances = torch.tensor([stop, 0.6, 0.2, 0.2 - stop])
    first = int(simulator._streams[0])
    for _ in range(count):
        actions = torch.multinomial(chances, 64, True, generator=rng)
        yield simulator.step(actions[first : first + simulator.num_envs])
