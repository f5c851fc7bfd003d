"""The evaluation of Exploration: its measures and baselines.

Legend: P places all over the floor of a scene, V nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from paceline.sims.navigation.evaluation.baselines import AlwaysForward, RandomWalk
from paceline.sims.navigation.evaluation.evaluator import evaluator_of_task
from paceline.sims.navigation.evaluation.guide import Guide
from paceline.sims.navigation.evaluation.oracle import Steering
from paceline.sims.navigation.evaluation.task_evaluation import Baseline, Measure, TaskEvaluation
from paceline.sims.navigation.layout import STOP
from paceline.sims.navigation.scenes.free_space import REST, is_free
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.scene import Scene
from paceline.sims.navigation.simulator import Navigation
from paceline.sims.navigation.tasks.explore import cells

ARRIVED = 0.15
"""Distance in metres at which the oracle has arrived at a place."""
SPACING = 0.4
"""Distance of neighbouring places, in metres: every cell with room for the agent has about six."""


@dataclass(frozen=True)
class Places:
    """Places all over the floor of a scene."""

    points: np.ndarray
    """float64 [P, 2]."""
    graph: Graph
    to_nodes: np.ndarray
    """float64 [V, P]: the distance of every node from every place."""

    @classmethod
    def of(cls, scene: Scene, graph: Graph) -> Places:
        x0, y0, x1, y1 = scene.interior
        x, y = np.meshgrid(np.arange(x0, x1, SPACING), np.arange(y0, y1, SPACING))
        points = np.column_stack([x.ravel(), y.ravel()])
        points = points[is_free(scene, points, REST)]
        return cls(points, graph, graph.to_goals(points))

    def nearest(self, pose: np.ndarray, wanted: np.ndarray, turn: float) -> int | None:
        """The number of the nearest of the `wanted` (bool [P]) places from `pose` [3]; None if there is none.

        A radian between the heading and the straight line to the place counts as `turn` metres.
        """
        x, y = (self.points - pose[:2]).T
        angles = np.abs((np.arctan2(y, x) - pose[2] + np.pi) % (2 * np.pi) - np.pi)
        lengths = self.graph.between_points(pose[None, :2], self.points, self.to_nodes)[0] + turn * angles
        lengths = np.where(wanted, lengths, np.inf)
        return int(lengths.argmin()) if np.isfinite(lengths).any() else None


class ExploreOracle:
    """Knows the map: it walks to the place of an unvisited cell that takes the fewest steps, and stops when there is
    none."""

    def __init__(self, simulator: Navigation, seed: int = 0) -> None:
        self._simulator, self._guide, self._steering = (
            simulator,
            Guide(simulator.bank, simulator.num_envs, simulator.device),
            Steering(simulator),
        )
        self._places = cache(lambda scene: Places.of(simulator.bank.scene(scene), self._guide.graph(scene)))
        self._cells = [np.empty((0, 2), np.int64)] * simulator.num_envs
        self._is_new = [np.empty(0, bool)] * simulator.num_envs
        """The cells of the places of each stream's scene, [P, 2], and whether they are not yet visited, [P]."""
        self._turn = simulator.config.forward_step / math.radians(simulator.config.turn_angle)
        self._aims: list[int | None] = [None] * simulator.num_envs
        """The places that the streams walk to."""

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        simulator = self._simulator
        poses, scenes, columns = simulator.poses, simulator.scenes.tolist(), simulator.columns
        here = cells(columns[:, :3], poses[:, :2]).cpu().numpy()
        exact = poses.double().cpu().numpy()
        for stream in began.nonzero()[:, 0].tolist():
            self._begin(stream, scenes[stream], columns[stream, :3], here[stream])
            self._aim(stream, scenes[stream], exact[stream])
        arrived = ((self._guide.distances(poses[:, :2]) <= ARRIVED) & ~began).tolist()
        for stream, is_new in enumerate(self._is_new):
            is_new &= (self._cells[stream] != here[stream]).any(1)
            aim = self._aims[stream]
            if aim is not None and arrived[stream]:
                is_new[aim] = False  # whole steps need not lead into a cell that has little room
            if aim is None or not is_new[aim]:
                self._aim(stream, scenes[stream], exact[stream])
        moves = self._steering.actions(self._guide.distances, self._guide.next_places)
        return torch.where(torch.tensor([aim is None for aim in self._aims], device=moves.device), STOP, moves)

    def _begin(self, stream: int, scene: int, start: Tensor, here: np.ndarray) -> None:
        """Start an episode in the cell `here` [2]."""
        points = torch.from_numpy(self._places(scene).points).to(start)
        self._cells[stream] = cells(start.expand(len(points), -1), points).cpu().numpy()
        self._is_new[stream] = (self._cells[stream] != here).any(1)

    def _aim(self, stream: int, scene: int, pose: np.ndarray) -> None:
        places = self._places(scene)
        aim = self._aims[stream] = places.nearest(pose, self._is_new[stream], self._turn)
        self._guide.lead(stream, scene, pose[:2] if aim is None else places.points[aim])


def caption(measures: Mapping[str, float]) -> tuple[str, str]:
    steps = f"{measures['steps']:.0f} step{'s' if measures['steps'] > 1 else ''}"
    return f"{measures['cells']:.0f} cells.", f"{measures['path_length']:.1f} m walked in {steps}."


EVALUATION = TaskEvaluation(
    task="explore",
    measures={
        "cells": Measure("cells visited", "{:.1f}"),
        "path_length": Measure("metres walked", "{:.1f} m"),
        "collisions": Measure("collisions an episode", "{:.1f}"),
    },
    main=("cells",),
    rates=(),
    baselines={
        "random": Baseline(RandomWalk),
        "forward": Baseline(AlwaysForward),
        "oracle": Baseline(ExploreOracle),
    },
    in_report={"random": "random walk", "forward": "always forward", "oracle": "oracle"},
    about_baselines="The baselines play the same episodes; the oracle knows the map and walks to the next new cell.",
    order="cells",
    order_words="visited cells",
    caption=caption,
)
EVALUATOR = evaluator_of_task(EVALUATION)
