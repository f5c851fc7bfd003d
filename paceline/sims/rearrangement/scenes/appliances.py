"""The fridge with its door, and the cabinet with its two drawers, along a wall.

Moving parts leave a gap of some millimetres to what they are in, so that rounding does not decide about contacts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paceline.sims.navigation.scenes.furniture import Solid
from paceline.sims.rearrangement.scenes.house import FRIDGE, LOWER_DRAWER, UPPER_DRAWER, Surface
from paceline.sims.rearrangement.scenes.wall_frame import WallFrame

Color = tuple[int, int, int]

COUNTER_DEPTH, COUNTER_HEIGHT = 0.58, 0.9
FRIDGE_DEPTH = 0.6
DOOR_LIMIT = 2.2
"""Of the fridge's door, in radians."""
DRAWER_LIMIT = 0.45
DOOR_THICKNESS = 0.05
HANDLE_LENGTH = 0.05
"""How far handles stick out."""
_BOARD = 0.02
_PLAY = 0.002
"""Gap between a closed door or drawer and the body."""
_INSET = 0.01
"""How much narrower the door is than the fridge, on each side."""
_DRAWERS = ((UPPER_DRAWER, 0.48), (LOWER_DRAWER, 0.11))
"""The joints, and the heights of the lower side of the drawers' bottoms."""
_DRAWER_DEPTH, _DRAWER_SIDE, _FRONT_HEIGHT = 0.5, 0.12, 0.36
METAL: Color = (90, 92, 96)


@dataclass
class Appliance:
    """A piece of furniture with joints."""

    kind: str
    solids: list[Solid] = field(default_factory=list)
    colors: list[Color] = field(default_factory=list)
    joints: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """Rows of `House.joints`."""
    moving: list[tuple[int, tuple[float, ...], Color]] = field(default_factory=list)
    """The joint, the box and the colour of each moving box. The last one of a joint is its handle."""
    surfaces: list[Surface] = field(default_factory=list)

    def add(self, frame: WallFrame, spans: tuple[float, ...], color: Color) -> None:
        """Add a box that does not move. `spans` are a0, b0, a1, b1 along the wall, z0 and z1."""
        self.solids.append((frame.rect(*spans[:4]), round(spans[4], 4), round(spans[5], 4)))
        self.colors.append(color)

    def add_moving(self, joint: int, frame: WallFrame, spans: tuple[float, ...], color: Color) -> None:
        x0, y0, x1, y1 = frame.rect(*spans[:4])
        z0, z1 = spans[4:]
        box = ((x0 + x1) / 2, (y0 + y1) / 2, (z0 + z1) / 2, (x1 - x0) / 2, (y1 - y0) / 2, (z1 - z0) / 2, 0.0)
        self.moving.append((joint, box, color))


def draw_fridge(rng: np.random.Generator, frame: WallFrame, a: float, width: float, hinge_at_end: bool) -> Appliance:
    """A fridge from `a` along the wall. Its hinge is at the larger `a` if `hinge_at_end`, otherwise at the smaller."""
    height, base, shelf, grip = (
        round(float(rng.uniform(*span)), 2) for span in ((1.7, 1.9), (0.4, 0.5), (0.82, 0.9), (0.85, 1.05))
    )
    shade = int(rng.integers(175, 246))
    body, light = (shade, shade, min(255, shade + 4)), (225, 235, 240)
    end, deep, side = a + width, FRIDGE_DEPTH, 0.03
    fridge = Appliance("fridge")
    fridge.add(frame, (a, 0.0, end, deep, 0.0, base), body)
    fridge.add(frame, (a, 0.0, end, deep, height - 0.05, height), body)
    fridge.add(frame, (a, 0.0, a + side, deep, base, height - 0.05), body)
    fridge.add(frame, (end - side, 0.0, end, deep, base, height - 0.05), body)
    fridge.add(frame, (a + side, 0.0, end - side, 0.04, base, height - 0.05), body)
    fridge.add(frame, (a + side, 0.04, end - side, 0.57, shelf - _BOARD, shelf), light)
    for z in (base, shelf):
        fridge.surfaces.append(Surface(frame.rect(a + side, 0.04, end - side, 0.57), z, "fridge", FRIDGE))
    inner, outer = deep + _PLAY, deep + _PLAY + DOOR_THICKNESS
    start, stop = a + _INSET, end - _INSET
    # The axis is at the outer side, so that the door never turns into what is beside the fridge.
    hinge = frame.point(stop if hinge_at_end else start, outer)
    fridge.joints[FRIDGE] = (0.0, *hinge, float(frame.turn * (-1 if hinge_at_end else 1)), 0.0, DOOR_LIMIT)
    fridge.add_moving(FRIDGE, frame, (start, inner, stop, outer, 0.08, height), body)
    at = start + 0.06 if hinge_at_end else stop - 0.06
    fridge.add_moving(
        FRIDGE, frame, (at - 0.015, outer, at + 0.015, outer + HANDLE_LENGTH, grip - 0.15, grip + 0.15), METAL
    )
    return fridge


def draw_cabinet(frame: WallFrame, a: float, width: float, color: Color) -> Appliance:
    """A cabinet from `a` along the wall, with a counter on top."""
    end, deep, high = a + width, COUNTER_DEPTH, COUNTER_HEIGHT
    cabinet = Appliance("cabinet")
    cabinet.add(frame, (a, 0.0, end, deep, high - 2 * _BOARD, high), color)
    cabinet.add(frame, (a, 0.0, end, deep, 0.0, 0.1), color)
    cabinet.add(frame, (a, 0.0, a + _BOARD, deep, 0.1, high - 2 * _BOARD), color)
    cabinet.add(frame, (end - _BOARD, 0.0, end, deep, 0.1, high - 2 * _BOARD), color)
    cabinet.add(frame, (a + _BOARD, 0.0, end - _BOARD, _BOARD, 0.1, high - 2 * _BOARD), color)
    cabinet.surfaces.append(Surface(frame.rect(a, 0.0, end, deep), high, "counter"))
    for joint, z in _DRAWERS:
        _add_drawer(cabinet, joint, frame, a, width, z, color)
    return cabinet


def _add_drawer(
    cabinet: Appliance, joint: int, frame: WallFrame, a: float, width: float, z: float, color: Color
) -> None:
    wood: Color = (200, 175, 140)
    start, stop = a + _BOARD + 0.01, a + width - _BOARD - 0.01
    front = COUNTER_DEPTH + _PLAY
    back, low, high = front - _DRAWER_DEPTH, z + _BOARD, z + _BOARD + _DRAWER_SIDE
    middle, face = a + width / 2, front + _BOARD
    cabinet.joints[joint] = (1.0, 0.0, 0.0, *frame.outward(), DRAWER_LIMIT)
    parts = [
        (start, back, stop, front, z, low),
        (a + 0.005, front, a + width - 0.005, face, z, z + _FRONT_HEIGHT),
        (start, back, stop, back + _BOARD, low, high),
        (start, back + _BOARD, start + _BOARD, front, low, high),
        (stop - _BOARD, back + _BOARD, stop, front, low, high),
    ]
    for spans, tone in zip(parts, (wood, color, wood, wood, wood), strict=True):
        cabinet.add_moving(joint, frame, spans, tone)
    grip = z + 0.27
    cabinet.add_moving(
        joint, frame, (middle - 0.12, face, middle + 0.12, face + HANDLE_LENGTH, grip - 0.015, grip + 0.015), METAL
    )
    inside = frame.rect(start + _BOARD, back + _BOARD, stop - _BOARD, front)
    cabinet.surfaces.append(Surface(inside, round(low, 4), "drawer", joint))
