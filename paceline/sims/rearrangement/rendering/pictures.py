"""Pictures for people: what a robot sees, the robot from outside, and the house from above, side by side."""

from __future__ import annotations

import numpy as np
import torch

from paceline.sims.navigation.rendering.maps import centered
from paceline.sims.rearrangement.episode_record import EpisodeRecord
from paceline.sims.rearrangement.physics.world import State
from paceline.sims.rearrangement.rendering.goals import goals_of
from paceline.sims.rearrangement.rendering.house_map import house_map
from paceline.sims.rearrangement.rendering.painter import HousePainter, Moments
from paceline.sims.rearrangement.rendering.watching import Watcher

SIDE = 320
GAP = 8
DEPTH_RANGE = 0.5
"""Depths from this share of `MAX_DEPTH` on have the last colour."""
DEPTH_COLORS = (
    (0.0, (13, 8, 72)),
    (0.15, (72, 12, 140)),
    (0.35, (160, 32, 140)),
    (0.55, (218, 75, 100)),
    (0.75, (248, 140, 65)),
    (0.9, (252, 200, 75)),
    (1.0, (250, 245, 150)),
)
"""From near to far."""


class EpisodePictures:
    """Pictures of one episode of `task`, in the order of time: the camera outside follows the robot."""

    def __init__(self, painter: HousePainter, task: str, scene: int, resolution: int) -> None:
        """`resolution` is that of the robot's images."""
        self._painter, self._task, self._resolution = painter, task, resolution
        self._watcher = Watcher(painter.solids(scene))

    def picture(self, episode: EpisodeRecord, side: int = SIDE) -> np.ndarray:
        """uint8 [side, W, 3]: depth, the robot from outside and the map, after the last step of `episode`."""
        now = moments_of(episode, [-1])
        depth = depth_colors(self._painter.depth(now, self._resolution))[0]
        watched = self.watched(episode, side)
        goals = goals_of(self._task, self._painter.bank, episode)
        above = house_map(self._painter, episode, goals, side, whole=True)
        gap = np.full((side, GAP, 3), 255, np.uint8)
        return np.concatenate([enlarged(depth, side), gap, watched, gap, centered(above, side, side)], 1)

    def watched(self, episode: EpisodeRecord, side: int) -> np.ndarray:
        """uint8 [side, side, 3]: the robot from outside, after the last step of `episode`."""
        camera = torch.tensor([self._watcher.look(episode.bases[-1], episode.targets[-1])])
        return self._painter.watched(moments_of(episode, [-1]), camera, side)[0]


def moments_of(episode: EpisodeRecord, numbers: list[int]) -> Moments:
    """The states `numbers` of an episode."""
    scenes, episodes = (torch.full((len(numbers),), value) for value in (episode.scene, episode.number))
    return Moments(scenes, episodes, State(*(part[numbers] for part in episode.states)))


def depth_colors(depth: np.ndarray) -> np.ndarray:
    """uint8 [..., 3] from depths as a share of `MAX_DEPTH`."""
    shares, colors = zip(*DEPTH_COLORS, strict=True)
    scaled = np.sqrt((depth / DEPTH_RANGE).clip(0.0, 1.0))  # most of what matters is near
    channels = [np.interp(scaled, shares, channel) for channel in zip(*colors, strict=True)]
    return np.stack(channels, -1).round().astype(np.uint8)


def enlarged(image: np.ndarray, side: int) -> np.ndarray:
    """uint8 [side, side, 3]: every pixel as a block."""
    rows, columns = (np.arange(side) * length // side for length in image.shape[:2])
    return image[rows][:, columns]
