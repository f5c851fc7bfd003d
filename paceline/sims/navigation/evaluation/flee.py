"""The evaluation of Flee: its measures and baselines."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.sims.navigation.evaluation.baselines import AlwaysForward, RandomWalk
from paceline.sims.navigation.evaluation.evaluator import evaluator_of_task
from paceline.sims.navigation.evaluation.guide import Guide
from paceline.sims.navigation.evaluation.oracle import Steering
from paceline.sims.navigation.evaluation.task_evaluation import Baseline, Bins, Measure, TaskEvaluation
from paceline.sims.navigation.layout import STOP
from paceline.sims.navigation.simulator import Navigation

ARRIVED = 0.15
"""Distance from the farthest place, in metres, where the oracle stops."""


class FleeOracle:
    """Knows the map: it walks to the farthest place and stops there."""

    def __init__(self, simulator: Navigation, seed: int = 0) -> None:
        self._simulator, self._guide, self._steering = (
            simulator,
            Guide(simulator.bank, simulator.num_envs, simulator.device),
            Steering(simulator),
        )

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        bank = self._simulator.bank
        rows = self._simulator.rows
        for stream in began.nonzero()[:, 0].tolist():
            row = int(rows[stream])
            scene = row // bank.num_episodes
            farthest = bank.farthest[scene, bank.episode_goals.view(-1)[row], :2]
            self._guide.lead(stream, scene, farthest.cpu().numpy())
        moves = self._steering.actions(self._guide.distances, self._guide.next_places)
        return torch.where(self._guide.distances(self._simulator.poses[:, :2]) <= ARRIVED, STOP, moves)


def caption(measures: Mapping[str, float]) -> tuple[str, str]:
    steps = f"{measures['steps']:.0f} step{'s' if measures['steps'] > 1 else ''}"
    far = f"{measures['distance_from_start']:.1f} m of {measures['largest_distance']:.1f} m away"
    return f"D {measures['fled']:.2f}.", f"{far}, {measures['path_length']:.1f} m walked in {steps}."


EVALUATION = TaskEvaluation(
    task="flee",
    measures={
        "fled": Measure("share of the largest distance"),
        "distance_from_start": Measure("distance from the start at the end", "{:.2f} m"),
        "collisions": Measure("collisions an episode", "{:.1f}"),
    },
    main=("fled",),
    rates=("fled",),
    baselines={
        "random": Baseline(RandomWalk),
        "forward": Baseline(AlwaysForward),
        "oracle": Baseline(FleeOracle),
    },
    in_report={"random": "random walk", "forward": "always forward", "oracle": "oracle"},
    about_baselines="The baselines play the same episodes; the oracle knows the map.",
    order="largest_distance",
    order_words="the largest distance",
    caption=caption,
    bins=Bins("largest_distance", "geodesic distance from the start to the farthest place", "By largest distance"),
)
EVALUATOR = evaluator_of_task(EVALUATION)
