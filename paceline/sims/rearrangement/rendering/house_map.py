"""Top-down maps of houses as images, with the fridge, the drawers, objects and goals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.sims.navigation.rendering.maps import Color, draw_pose, draw_scene
from paceline.sims.rearrangement.objects import OBJECT_KINDS
from paceline.sims.rearrangement.scenes.bank import HouseBank
from paceline.sims.rearrangement.scenes.house import IN_THE_OPEN

TARGET: Color = (30, 64, 175)
GOAL: Color = (220, 38, 38)
SWEPT: Color = (250, 204, 21)
_FRAME = 0.025


def house_map(
    bank: HouseBank,
    house: int,
    episode: int | None = None,
    *,
    values: Sequence[float] = (0.0, 0.0, 0.0),
    poses: Sequence[Sequence[float]] = (),
    size: int = 512,
) -> np.ndarray:
    """uint8 [H, W, 3]: house number `house` with its joints at `values`; the longer side has `size` pixels.

    Pale yellow shows doors and drawers that are fully open. Objects of `episode` have their own colours, and a blue
    frame if they have a goal. A red line leads to the goal, which has a red frame. `poses` (x, y, heading) are pointed
    discs. What is inside the fridge and the drawers is drawn on top of them.
    """
    content = bank.house(house)
    canvas = draw_scene(content.scene, size)
    limits = content.joints[:, 5]
    for box in content.moved(limits):
        canvas.box(box[[0, 1, 3, 4, 6]], SWEPT, 0.35)
    for box, color in zip(content.moved(np.array(values)), content.moving_colors.tolist(), strict=True):
        canvas.box(box[[0, 1, 3, 4, 6]], tuple(color))
    for pose in poses:
        draw_pose(canvas, *map(float, pose))
    if episode is None:
        return canvas.pixels()
    objects, goals, kinds, joints = (
        tensor[house, episode].cpu().numpy()
        for tensor in (bank.objects, bank.goals, bank.object_kinds, bank.object_joint)
    )
    for number, (x, y, _, yaw) in enumerate(objects.astype(np.float64)):
        kind = OBJECT_KINDS[kinds[number]]
        if joints[number] > IN_THE_OPEN and content.joints[joints[number], 0]:
            x, y = np.array([x, y]) + content.joints[joints[number], 3:5] * values[joints[number]]
        half_x, half_y, _ = kind.half_extents
        if number < len(goals):
            goal_x, goal_y = goals[number, :2].astype(np.float64)
            canvas.line(np.array([(x, y), (goal_x, goal_y)]), [GOAL], 0.01)
            canvas.box((goal_x, goal_y, half_x + _FRAME, half_y + _FRAME, 0.0), GOAL)
            canvas.box((goal_x, goal_y, half_x, half_y, 0.0), kind.color)
            canvas.box((x, y, half_x + _FRAME, half_y + _FRAME, yaw), TARGET)
        canvas.box((x, y, half_x, half_y, yaw), kind.color)
    return canvas.pixels()
