"""Pictures for people: what a robot sees, and the house from above."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from paceline.sims.navigation.rendering.maps import Canvas, Color, centered, draw_scene
from paceline.sims.rearrangement.objects import OBJECT_KINDS
from paceline.sims.rearrangement.physics.world import State, World, arm_of, moving_boxes, object_boxes
from paceline.sims.rearrangement.rendering import render
from paceline.sims.rearrangement.rendering.camera import scenery
from paceline.sims.rearrangement.rendering.candidates import StaticBoxes
from paceline.sims.rearrangement.rendering.head import head_camera
from paceline.sims.rearrangement.robot.body import RADIUS

if TYPE_CHECKING:
    from paceline.sims.rearrangement.simulator import Rearrangement, Stream

SIDE = 320
BASE: Color = (55, 65, 81)
ARM: Color = (250, 204, 21)
TARGET: Color = (220, 38, 38)


def picture(simulator: Rearrangement, stream: Stream) -> np.ndarray:
    """uint8 [SIDE, 2 SIDE, 3]: the view of the first robot beside the map of its house."""
    return np.concatenate([view(simulator, stream), centered(from_above(simulator, stream), SIDE, SIDE)], 1)


def view(simulator: Rearrangement, stream: Stream) -> np.ndarray:
    """uint8 [SIDE, SIDE, 3]: what the first robot sees, in colour."""
    bank, scenes = simulator.bank, stream.scenes[:1].cpu()
    bank = bank.to("cpu")
    static, camera = StaticBoxes.of(bank), head_camera(SIDE)
    world = World(*(part[:1].cpu() for part in simulator.world_of(stream)))
    state = State(*(part[:1].cpu() for part in stream.state))
    seen = scenery(world, state, scenes)
    kinds = bank.object_kinds[scenes, stream.episodes[:1].cpu()]
    of_kinds = torch.tensor([kind.color for kind in OBJECT_KINDS], dtype=torch.uint8)
    colors = torch.cat((bank.moving_colors[scenes], of_kinds[kinds]), 1)
    traced = render.trace(static, camera, *seen, surfaces=True)
    image = render.shade(static, camera, scenes, seen.poses, traced, colors, seen.capsules.shape[1])
    return image[0].permute(1, 2, 0).numpy()


def from_above(simulator: Rearrangement, stream: Stream) -> np.ndarray:
    """uint8 [H, W, 3]: the first robot in its house. Its target is red. The longer side has SIDE pixels."""
    bank, scene, episode = simulator.bank, int(stream.scenes[0]), int(stream.episodes[0])
    canvas = draw_scene(bank.scene(scene), SIDE)
    world, state = simulator.world_of(stream), stream.state
    moving = moving_boxes(world, state.values)[0].cpu().double().numpy()
    for box, color in zip(moving, bank.moving_colors[scene].tolist(), strict=True):
        canvas.box(box[[0, 1, 3, 4, 6]], tuple(color))
    things = object_boxes(world, state)[0].cpu().double().numpy()
    for box, kind in zip(things, bank.object_kinds[scene, episode].tolist(), strict=True):
        canvas.box(box[[0, 1, 3, 4, 6]], OBJECT_KINDS[kind].color)
    _draw_robot(canvas, simulator, stream)
    return canvas.pixels()


def _draw_robot(canvas: Canvas, simulator: Rearrangement, stream: Stream) -> None:
    x, y, heading = stream.state.pose[0].tolist()
    canvas.disc(x, y, RADIUS, BASE)
    ahead = np.array([[x, y], [x + RADIUS * np.cos(heading), y + RADIUS * np.sin(heading)]])
    canvas.line(ahead, [(229, 231, 235)], 0.04)
    arm = arm_of(stream.state)
    joints = np.array([place[0, :2].tolist() for place in arm])
    canvas.line(joints, [ARM] * 3, 0.07)
    target = simulator.task.target(stream.columns, simulator.facts_of(stream))[0].tolist()
    canvas.disc(target[0], target[1], 0.05, TARGET)
