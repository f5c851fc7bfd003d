"""Camera images of one played episode, and the episode as an animation.

Legend: T decisions of the episode.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.evaluation import charts, report_page
from paceline.evaluation.report_images import gif, png
from paceline.sims.navigation.evaluation.policy_episodes import PlayedEpisodes
from paceline.sims.navigation.evaluation.report_maps import map_image
from paceline.sims.navigation.evaluation.task_evaluation import TaskEvaluation
from paceline.sims.navigation.rendering import maps, render

NUM_FRAMES = 8
NUM_ANIMATED = 60
"""Most frames of the animation."""
VIEW_SIDE = 160


def views(evaluation: TaskEvaluation, played: PlayedEpisodes, shown: Sequence[int]) -> str:
    """Camera images of one shown episode: the best of the second half of the good ones, if there are any."""
    *_, last = evaluation.main
    worth = played.measures[last]
    good = [number for number in shown if worth[number] > 0] or list(shown)
    number = max(good[len(good) // 2 :], key=lambda candidate: float(worth[candidate]))
    route = played.routes[number].poses
    at = np.unique(np.linspace(0, len(route) - 1, NUM_FRAMES).round().astype(int))
    sensors, side = played.config.sensors, played.config.resolution
    seen = {"depth": "only the depth", "rgb": "only the colours", "depth+rgb": "both", "blind": "neither"}[sensors]
    lead = (
        f"Map {shown.index(number) + 1} above, through the agent's camera. Colours are drawn at "
        f"{VIEW_SIDE} pixels a side, depth (the brighter, the farther) at {side}, as in training; this policy sees "
        f"{seen}."
    )
    colors, _ = look(played, number, route[at], VIEW_SIDE)
    _, depths = look(played, number, route[at], side)
    color_strip, depth_strip = [], []
    for step, color, depth in zip(at, colors, depths, strict=True):
        color_strip.append(report_page.figure(png(color), f"Colours at step {step}"))
        depth_alt = f"Depth at step {step}"
        depth_strip.append(report_page.figure(png(depth), depth_alt, caption=f"step {step}", pixels=True))
    strips = [report_page.film(color_strip), report_page.film(depth_strip)]
    animation = report_page.figure(_animation(played, number), "The episode as an animation")
    return report_page.section("views", "What it saw", lead, *strips, f'<div class="moving">{animation}</div>')


def look(played: PlayedEpisodes, number: int, poses: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [T, side, side, 3] each: colours and depth from `poses` [T, 3] in the scene of an episode."""
    where = torch.from_numpy(poses)
    scenes = torch.full((len(poses),), played.scenes[number])
    camera = render.Camera(side)
    view = render.trace(played.bank, camera, scenes, where, surfaces=True)
    colors = render.shade(played.bank, camera, scenes, where, view).permute(0, 2, 3, 1).numpy()
    return colors, charts.colored((view.depth / view.depth.max()).numpy())


def _animation(played: PlayedEpisodes, number: int) -> str:
    """An episode as a GIF: the view ahead beside a map."""
    route, side = played.routes[number].poses, 2 * VIEW_SIDE
    at = np.unique(np.linspace(0, len(route) - 1, NUM_ANIMATED).round().astype(int))
    colors, _ = look(played, number, route[at], side)
    frames = []
    for step, image in zip(at, colors, strict=True):
        chart = map_image(played, number, side, route[: step + 1], route[step].tolist())
        gap = np.full((side, 16, 3), 255, np.uint8)
        frames.append(np.concatenate([image, gap, maps.centered(chart, side, chart.shape[1])], 1))
    return gif(frames)
