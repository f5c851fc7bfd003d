"""The sections of a report with maps: where the robot went, and why it failed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.evaluation import report_page
from paceline.evaluation.report_images import png
from paceline.sims.navigation.evaluation.report_failures import FailureColumn, failure_section
from paceline.sims.navigation.rendering.maps import centered
from paceline.sims.rearrangement.evaluation.failures import RobotFailure, robot_failure
from paceline.sims.rearrangement.evaluation.played import PlayedRobots
from paceline.sims.rearrangement.rendering.goals import goals_of
from paceline.sims.rearrangement.rendering.house_map import KEY, house_map
from paceline.sims.rearrangement.rendering.painter import HousePainter
from paceline.wording import counted

MAP_SIDE = 640


def trajectories(played: PlayedRobots, painter: HousePainter, shown: Sequence[int]) -> str:
    """The section with the episodes `shown`."""
    lead = (
        "Seen from above: some successful and some failed episodes, the short ones first. Whatever has moved is faint "
        "where it was at the start, and closed drawers are faint. A bar shows 1 m. The robot itself never sees a map."
    )
    return report_page.section("trajectories", "Where it went", lead, _legend(), _map_grid(played, painter, shown))


def failures(played: PlayedRobots, painter: HousePainter) -> str:
    """The section about failed episodes."""
    classes: dict[RobotFailure, list[int]] = {kind: [] for kind in RobotFailure}
    for number in np.flatnonzero(played.measures["success"] <= 0).tolist():
        classes[robot_failure(played.task, played.bank, played.episodes[number])].append(number)
    collisions = played.measures["collisions"]
    column = FailureColumn("mean collisions", lambda numbers: f"{collisions[numbers].mean():.1f}")
    return failure_section(
        classes,
        len(played.episodes),
        column,
        "The maps show the first episodes of each class.",
        _legend(),
        lambda shown: _map_grid(played, painter, shown),
    )


def caption(played: PlayedRobots, number: int) -> tuple[str, str]:
    """The result of an episode in a word, and a sentence about it."""
    episode, measures = played.episodes[number], {name: values[number] for name, values in played.measures.items()}
    failure = "" if measures["success"] else robot_failure(played.task, played.bank, episode).label
    text = f"{counted(len(episode.steps), 'step')}, {measures['path_length']:.1f} m driven"
    if measures["collisions"]:
        text += f", {counted(round(measures['collisions']), 'collision')}"
    return (f"Failed: {failure}." if failure else "Success."), f"{text}."


def _legend() -> str:
    colors = {name: f"rgb{color}" for name, color in KEY.items()}
    return report_page.legend(colors)


def _map_grid(played: PlayedRobots, painter: HousePainter, shown: Sequence[int]) -> str:
    return report_page.grid([_map_figure(played, painter, number) for number in shown], "17rem")


def _map_figure(played: PlayedRobots, painter: HousePainter, number: int) -> str:
    episode = played.episodes[number]
    image = house_map(painter, episode, goals_of(played.task, played.bank, episode), MAP_SIDE)
    result, text = caption(played, number)
    uri = png(centered(image, MAP_SIDE, MAP_SIDE))
    return report_page.figure(uri, f"Map of episode {number}", strong=result, caption=text)
