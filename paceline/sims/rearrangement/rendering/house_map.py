"""Maps of episodes: the house from above with fridge door, drawers and objects, and what the robot did there.

Legend: T steps of the episode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from paceline.sims.navigation.rendering.maps import START, TRAJECTORIES, Canvas, Color, draw_scene, gradient
from paceline.sims.navigation.scenes.scene import Rect
from paceline.sims.rearrangement.episode_record import EpisodeRecord
from paceline.sims.rearrangement.objects import OBJECT_KINDS
from paceline.sims.rearrangement.physics.world import FRIDGE, State, arm_of, moving_boxes, object_boxes
from paceline.sims.rearrangement.rendering.painter import HousePainter, Moments
from paceline.sims.rearrangement.robot.body import RADIUS

BASE: Color = (55, 65, 81)
ARM: Color = (250, 204, 21)
BASE_PATH, HAND_PATH = TRAJECTORIES[:2]
TARGET: Color = (220, 38, 38)
GRASP: Color = (22, 163, 74)
RELEASE: Color = (192, 38, 211)
EDGE: Color = (51, 65, 85)
WHITE: Color = (255, 255, 255)
KEY = {
    "path of the base, from dark to light": BASE_PATH[0],
    "path of the hand": HAND_PATH[0],
    "start": START,
    "target, or goal (15 cm)": TARGET,
    "grasp": GRASP,
    "release": RELEASE,
    "robot at the end": BASE,
    "its arm": ARM,
}
"""What the colours mean."""
GOAL_RADIUS = 0.15
SMALLEST_STEP = 0.04
"""Points of paths are at least so far apart, in metres."""
LARGEST_MAP = 6.5
"""Of a larger house, a map shows the part where the robot was."""
AROUND = 1.2
"""Metres around what the robot did."""
FAINT = 0.3
CLOSED = 0.02
"""A drawer that is open by less, in metres, counts as closed."""
GLYPHS = {"1": ("010", "110", "010", "010", "111"), "m": ("00000", "11010", "10101", "10101", "10101")}


class Goal(NamedTuple):
    """Where a target is, or an object belongs."""

    x: float
    y: float
    color: Color | None = None
    """Of the object."""


def house_map(
    painter: HousePainter, episode: EpisodeRecord, goals: Sequence[Goal], side: int, *, whole: bool = False
) -> np.ndarray:
    """uint8 [H, W, 3]: an episode until its last state. The longer side has `side` pixels. `whole`: also of a large
    house the whole map."""
    scene = painter.bank.scene(episode.scene)
    area = scene.interior.grown(0.2)
    if not whole and max(area.width, area.depth) > LARGEST_MAP:
        area = _window(episode, goals, area)
    canvas = draw_scene(scene, side, area)
    _draw_things(canvas, painter, episode)
    for goal in goals:
        _ring(canvas, goal.x, goal.y, GOAL_RADIUS, 0.07, WHITE)
        _ring(canvas, goal.x, goal.y, GOAL_RADIUS, 0.04, TARGET)
        if goal.color is not None:
            canvas.disc(goal.x, goal.y, 0.05, goal.color)
    _draw_way(canvas, episode)
    _draw_robot(canvas, State(*(part[-1:] for part in episode.states)))
    _draw_events(canvas, episode)
    _draw_scale(canvas, area)
    return canvas.pixels()


def _window(episode: EpisodeRecord, goals: Sequence[Goal], area: Rect) -> Rect:
    """The square around what the robot did, as far as it is in `area`."""
    points = np.concatenate([episode.bases[:, :2], episode.tips[:, :2], [(goal.x, goal.y) for goal in goals]])
    low, high = points.min(0), points.max(0)
    side = max(float((high - low).max()) + 2 * AROUND, 4.0)
    sides = min(side, area.width), min(side, area.depth)
    corner = [
        float(np.clip((a + b - length) / 2, start, end - length))
        for a, b, length, start, end in zip(low, high, sides, area[:2], area[2:], strict=True)
    ]
    return Rect(corner[0], corner[1], corner[0] + sides[0], corner[1] + sides[1])


def _draw_things(canvas: Canvas, painter: HousePainter, episode: EpisodeRecord) -> None:
    """Doors, drawers and objects: faint where they were at the start, and solid where they are now.

    Closed drawers are faint.
    """
    bank, ends = painter.bank, [0, len(episode.states.pose) - 1]
    scenes, numbers = torch.tensor([episode.scene] * 2), torch.tensor([episode.number] * 2)
    moments = Moments(scenes, numbers, State(*(part[ends] for part in episode.states)))
    world = painter.world(moments)
    kinds = bank.object_kinds[episode.scene, episode.number].tolist()
    joints = bank.moving_joint[episode.scene]
    is_hidden = (joints != FRIDGE) & (moments.state.values[-1, joints] < CLOSED)
    groups = (
        (moving_boxes(world, moments.state.values), bank.moving_colors[episode.scene].tolist(), is_hidden.tolist()),
        (object_boxes(world, moments.state), [OBJECT_KINDS[kind].color for kind in kinds], [False] * len(kinds)),
    )
    for boxes, colors, hidden in groups:
        first, last = boxes.double().numpy()[:, :, [0, 1, 3, 4, 6]]
        for was, now, color in zip(first, last, colors, strict=True):
            if np.abs(was - now).max() > 0.02:
                _outlined(canvas, was, tuple(color), FAINT)
        for now, color, inside in zip(last, colors, hidden, strict=True):
            _outlined(canvas, now, tuple(color), FAINT if inside else 1.0)


def _outlined(canvas: Canvas, box: np.ndarray, color: Color, opacity: float) -> None:
    canvas.box([*box[:2], *(box[2:4] + 0.012), box[4]], EDGE, opacity)
    canvas.box([*box[:2], *box[2:4], box[4]], color, opacity)


def _draw_way(canvas: Canvas, episode: EpisodeRecord) -> None:
    for points, colors, thickness in (
        (episode.bases[:, :2], BASE_PATH, 0.07),
        (episode.tips[:, :2], HAND_PATH, 0.035),
    ):
        kept = thinned(points)
        canvas.line(kept, gradient(colors, len(kept) - 1), thickness)
    x, y = episode.bases[0, :2]
    canvas.rectangle(x - 0.09, y - 0.09, x + 0.09, y + 0.09, WHITE)
    canvas.rectangle(x - 0.065, y - 0.065, x + 0.065, y + 0.065, START)


def thinned(points: np.ndarray) -> np.ndarray:
    """[L, 2]: those of `points` [T, 2] that are `SMALLEST_STEP` from the one before, and the last one."""
    kept = [points[0]]
    for point in points[1:]:
        if np.hypot(*(point - kept[-1])) >= SMALLEST_STEP:
            kept.append(point)
    return np.array([*kept, points[-1]])


def _draw_robot(canvas: Canvas, state: State) -> None:
    """One robot."""
    x, y, heading = state.pose[0].tolist()
    _ring(canvas, x, y, RADIUS - 0.02, 0.04, BASE)
    canvas.box((x, y, 0.1, 0.1, heading), BASE)
    ahead = np.array([[x, y], [x + RADIUS * math.cos(heading), y + RADIUS * math.sin(heading)]])
    canvas.line(ahead, [BASE], 0.05)
    joints = np.array([place[0, :2].tolist() for place in arm_of(state)])
    canvas.line(joints, [EDGE] * 3, 0.075)
    canvas.line(joints, [ARM] * 3, 0.05)


def _draw_events(canvas: Canvas, episode: EpisodeRecord) -> None:
    tips = episode.tips
    for numbers, color in ((episode.grasps(), GRASP), (episode.releases(), RELEASE)):
        for number in numbers:
            x, y, _ = tips[number]
            canvas.disc(x, y, 0.075, WHITE)
            canvas.disc(x, y, 0.055, color)


def _draw_scale(canvas: Canvas, area: Rect) -> None:
    """A bar of 1 m in the lower left corner."""
    x, y, unit = area.x0 + 0.3, area.y0 + 0.05, max(area.width, area.depth) / 250
    canvas.rectangle(x - 3 * unit, y - 2 * unit, x + 1.0 + 16 * unit, y + 9 * unit, WHITE, 0.85)
    canvas.rectangle(x, y + 2 * unit, x + 1.0, y + 4 * unit, EDGE)
    for end in (x, x + 1.0):
        canvas.rectangle(end - unit / 2, y, end + unit / 2, y + 6 * unit, EDGE)
    for glyph, left in (("1", 3), ("m", 8)):
        for row, pixels in enumerate(GLYPHS[glyph]):
            for column, pixel in enumerate(pixels):
                if pixel == "1":
                    at, top = x + 1.0 + (left + column) * unit, y + (6 - row) * unit
                    canvas.rectangle(at, top - unit, at + unit, top, EDGE)


def _ring(canvas: Canvas, x: float, y: float, radius: float, thickness: float, color: Color) -> None:
    angles = np.linspace(0.0, 2.0 * math.pi, 33)
    points = np.column_stack([x + radius * np.cos(angles), y + radius * np.sin(angles)])
    canvas.line(points, [color] * 32, thickness)
