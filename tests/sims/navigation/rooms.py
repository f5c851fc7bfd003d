"""Scenes and episodes made by hand, so that what must come of them can be worked out on paper."""

import numpy as np
import torch

from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.scene import CEILING, Rect, Scene


def room(width=6.0, depth=4.0, boxes=(), seed=-1):
    """A room from the origin on, with `boxes` (x0, y0, x1, y1, z0, z1) in it; box i has the colour (10 i, 15 i, 200)."""
    walls = [
        (-0.2, -0.2, 0.0, depth + 0.2, 0.0, CEILING),
        (width, -0.2, width + 0.2, depth + 0.2, 0.0, CEILING),
        (0.0, -0.2, width, 0.0, 0.0, CEILING),
        (0.0, depth, width, depth + 0.2, 0.0, CEILING),
    ]
    solids = np.array([*walls, *boxes], float)
    colors = np.array([(10 * i, 15 * i, 200) for i in range(len(solids))], np.uint8)
    return Scene(boxes=solids, colors=colors, interior=Rect(0.0, 0.0, width, depth), seed=seed)


def divided_room():
    """6 x 4 m; a wall at x = 2.9 to 3.1 leaves free only y > 3."""
    return room(boxes=[(2.9, 0.0, 3.1, 3.0, 0.0, CEILING)])


def bank_of_one(scene, start, heading, goal, tier="small"):
    """A bank of one scene in which every episode is this one."""
    bank = SceneBank.of_scenes([scene], tier)
    graph = Graph.of(scene)
    distance = graph.between_points(np.array([start], float), np.array([goal], float))[0, 0]
    bank.episodes[0] = torch.tensor([*start, heading, *goal, distance])
    bank.episode_goals[0] = 0
    bank.node_distances[0, 0, : len(graph.nodes)] = torch.from_numpy(graph.to_goals(np.array([goal], float))[:, 0])
    return bank
