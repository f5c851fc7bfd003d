"""Episodes of a list that a policy or a baseline has played, with a record of each. For reports.

Legend: L episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from paceline.evaluation.evaluators import REPORT_EPISODES, EvaluationOptions
from paceline.evaluation.saved import SavedRun
from paceline.sims.navigation.evaluation.episode_list import Act, fixed_episodes
from paceline.sims.navigation.evaluation.policy_episodes import NUM_STREAMS, play_samples, policy_act
from paceline.sims.navigation.evaluation.task_evaluation import Bins, Measure
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.episode_record import EpisodeRecord
from paceline.sims.rearrangement.evaluation.baselines import BASELINES
from paceline.sims.rearrangement.evaluation.recorder import RobotRecorder
from paceline.sims.rearrangement.scenes.bank import HouseBank
from paceline.sims.rearrangement.simulator import Rearrangement, load_bank

START_DISTANCE = "start_distance"
"""The name of a measure: from the base to the target at the start, over the floor, in metres."""
MEASURES = {
    "success": Measure("success", "{:.1%}"),
    "picked": Measure("picked", "{:.1%}"),
    "placed": Measure("placed", "{:.1%}"),
    "grasped": Measure("handle taken", "{:.1%}"),
    "reached": Measure("moved to its end", "{:.1%}"),
    "mistake": Measure("mistakes", "{:.1%}"),
    "distance": Measure("distance to the target at the end", "{:.2f} m"),
    "angle": Measure("angle to the target at the end", "{:.2f} rad"),
    "collisions": Measure("collisions an episode", "{:.1f}"),
}
"""How measures are shown."""


BINS = Bins(
    START_DISTANCE,
    "distance from the start to the target",
    "By distance at the start",
    edges=(0.0, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0),
)


@dataclass(frozen=True)
class SkillEvaluation:
    """A `ShownMeasures`: what a report shows of a task's measures."""

    names: tuple[str, ...]
    bins: Bins = BINS

    @property
    def measures(self) -> Mapping[str, Measure]:
        return {name: MEASURES.get(name, Measure(name)) for name in self.names}

    @property
    def rates(self) -> tuple[str, ...]:
        return tuple(name for name, measure in self.measures.items() if measure.form.endswith("%}"))

    @property
    def main(self) -> tuple[str, ...]:
        """The last thing before success, and success."""
        parts = [name for name in ("placed", "picked", "reached") if name in self.names]
        return (*parts[:1], "success")

    @property
    def labels(self) -> dict[str, str]:
        return {name: measure.label for name, measure in self.measures.items()}


@dataclass(frozen=True, kw_only=True)
class PlayedRobots:
    task: str
    config: RearrangementConfig
    bank: HouseBank
    """On the host."""
    evaluation: SkillEvaluation
    measures: dict[str, np.ndarray]
    """[L] each: those of `Rearrangement.last_measures`, and `START_DISTANCE`."""
    episodes: list[EpisodeRecord]


def played_by_policy(run: SavedRun, task: str, config: RearrangementConfig, episodes: int | None) -> PlayedRobots:
    """The first `episodes` of the list, or the usual number, with the most likely actions."""
    bank = load_bank(config)
    listed = fixed_episodes(bank, episodes, usual=REPORT_EPISODES)
    num = min(max(run.config.pool.num_envs, NUM_STREAMS), len(listed[0]))
    simulator = Rearrangement(num, run.device(), task, config, bank=bank)
    return _played(simulator, policy_act(run, simulator, EvaluationOptions()), *listed)


def played_by_baseline(
    name: str, task: str, config: RearrangementConfig, episodes: int | None, bank: HouseBank | None = None
) -> PlayedRobots:
    """The same episodes. `bank` replaces the houses of `config`."""
    blind, bank = replace(config, sensors="blind"), bank or load_bank(config)
    listed = fixed_episodes(bank, episodes, usual=REPORT_EPISODES)
    simulator = Rearrangement(min(NUM_STREAMS, len(listed[0])), "cpu", task, blind, bank=bank)
    played = _played(simulator, BASELINES[name].make(simulator, 0).act, *listed)
    return replace(played, config=config)


def _played(simulator: Rearrangement, act: Act, scenes: list[int], numbers: list[int]) -> PlayedRobots:
    recorder = RobotRecorder(simulator, act)
    measures = play_samples(simulator, recorder.act, scenes, numbers, 1)
    episodes = recorder.episodes(len(scenes))
    starts = [np.hypot(*(episode.targets[0] - episode.bases[0])[:2]) for episode in episodes]
    return PlayedRobots(
        task=simulator.task_name,
        config=simulator.config,
        bank=simulator.bank.to("cpu"),
        evaluation=SkillEvaluation(simulator.measure_names),
        measures={**measures, START_DISTANCE: np.array(starts)},
        episodes=episodes,
    )
