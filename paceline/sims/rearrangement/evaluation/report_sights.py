"""What the robot saw in some episodes, with the moments of grasp and release, and one episode as an animation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.evaluation import report_page
from paceline.evaluation.report_images import gif, png
from paceline.sims.navigation.rendering.render import MAX_DEPTH
from paceline.sims.rearrangement.episode_record import EpisodeRecord
from paceline.sims.rearrangement.evaluation.played import PlayedRobots
from paceline.sims.rearrangement.evaluation.report_robots import caption
from paceline.sims.rearrangement.rendering.painter import HousePainter
from paceline.sims.rearrangement.rendering.pictures import DEPTH_RANGE, EpisodePictures, depth_colors, moments_of

NUM_EVEN, NUM_EVENTS = 4, 4
"""Frames of a strip: at even times, and most grasps and releases."""
NUM_ANIMATED = 60
"""Most frames of the animation."""
SIDE = 200
"""Pixels of the pictures from outside."""
ANIMATED_SIDE = 280


def sights(played: PlayedRobots, painter: HousePainter, shown: Sequence[int]) -> str:
    """Strips of one successful and one failed episode of those `shown`, as far as there are any."""
    success = played.measures["success"] > 0
    groups = [[number for number in shown if success[number] == wanted] for wanted in (True, False)]
    numbers = [group[len(group) // 2] for group in groups if group]
    sees = "The policy sees no images." if played.config.sensors == "blind" else "The policy sees the depth."
    lead = (
        f"Above: depth through the robot's camera, {played.config.resolution} pixels a side, from dark (near) to "
        f"bright ({DEPTH_RANGE * MAX_DEPTH:g} m or farther). Below: the same moments from outside. {sees}"
    )
    parts = [part for number in numbers for part in _strips(played, painter, number)]
    animation = report_page.figure(_animation(played, painter, numbers[0]), "The episode as an animation")
    moving = f'<div class="moving" style="max-width: 60rem">{animation}</div>'
    return report_page.section("views", "What it saw", lead, *parts, moving)


def moments_to_show(episode: EpisodeRecord) -> dict[int, str]:
    """Numbers of states and their captions: the start, the end, grasps, releases, and some between."""
    last = len(episode.steps)
    found = {int(number): "" for number in np.linspace(0, last, NUM_EVEN + 2).round()}
    found[last] = "end"
    events = [(number, "grasp") for number in episode.grasps()] + [(number, "release") for number in episode.releases()]
    for number, name in sorted(events)[:NUM_EVENTS]:
        found[number] = f"{name}, end" if number == last else name
    return {number: f"step {number}{f': {name}' if name else ''}" for number, name in sorted(found.items())}


def _strips(played: PlayedRobots, painter: HousePainter, number: int) -> list[str]:
    episode = played.episodes[number]
    captions = moments_to_show(episode)
    depths = painter.depth(moments_of(episode, list(captions)), played.config.resolution)
    pictures = EpisodePictures(painter, played.task, episode.scene, played.config.resolution)
    above, below = [], []
    for (step, text), depth in zip(captions.items(), depth_colors(depths), strict=True):
        above.append(report_page.figure(png(depth), f"Depth at step {step}", pixels=True))
        outside = pictures.watched(episode.until(step), SIDE)
        below.append(report_page.figure(png(outside), f"The robot at step {step}", caption=text))
    return [report_page.heading(" ".join(caption(played, number))), report_page.film(above), report_page.film(below)]


def _animation(played: PlayedRobots, painter: HousePainter, number: int) -> str:
    """Depth, the robot from outside and the map as a GIF."""
    episode = played.episodes[number]
    steps = np.unique(np.linspace(0, len(episode.steps), NUM_ANIMATED).round().astype(int))
    pictures = EpisodePictures(painter, played.task, episode.scene, played.config.resolution)
    return gif([pictures.picture(episode.until(int(step)), ANIMATED_SIDE) for step in steps])
