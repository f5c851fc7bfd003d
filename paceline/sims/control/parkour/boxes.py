"""The boxes that courses are built from, and what is where among them.

The boxes of a body are made once, as MuJoCo's mocap bodies. An episode only moves them (`course.py`). So nothing is
compiled again, and MuJoCo's state contains the course.

Legend: B boxes, P points.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from paceline.sims.control.parkour.limits import CourseLimits

DEPTH = 2.0
"""Height of tiles, hurdles and walls. Most of a hurdle is inside its tile."""
START, RUNWAY = 20.0, 150.0
"""Lengths of the floor at the start and behind the last obstacle."""
HURDLE, SLAB, WALL = 0.12, 1.0, 0.25
"""Lengths along x of a hurdle, a hovering platform and a wall."""
MARGIN = 0.02
"""Hurdles are that much narrower than tiles, so that sides of both are not at one place in pictures."""
THICKNESS = 0.1
"""Of a hovering platform."""
UNUSED = (-100.0, 0.0, -50.0)
"""Where boxes are that a course does not need."""
DARK, LIGHT, RED, BLUE = (0.5, 0.55, 0.57, 1.0), (0.6, 0.65, 0.66, 1.0), (0.8, 0.35, 0.25, 1.0), (0.3, 0.5, 0.75, 1.0)
COLOURS = {"tile": (DARK, LIGHT), "hurdle": (RED,), "slab": (BLUE,), "right": (BLUE,), "left": (BLUE,)}
"""Colours of a group's boxes, in turn. Other groups are light."""


class Boxes:
    """Groups of boxes: the start, the runway behind the last obstacle, a tile and what may stand on it for each
    obstacle, and the sides of a corridor."""

    def __init__(self, limits: CourseLimits) -> None:
        width, num = limits.width, limits.num_obstacles
        sizes = {
            "start": np.array([[START, width, DEPTH]]),
            "runway": np.array([[RUNWAY, width, DEPTH]]),
            "tile": np.array([[length, width, DEPTH] for length in np.linspace(*limits.tiles, num)]),
            "hurdle": np.tile([HURDLE, width - MARGIN, DEPTH], (num, 1)),
        }
        if "platforms" in limits.kinds:
            sizes["slab"] = np.tile([SLAB, width, THICKNESS], (num, 1))
        if "walls" in limits.kinds:
            sizes |= {side: np.tile([WALL, width, DEPTH], (num, 1)) for side in ("right", "left")}
            sizes["side"] = np.tile([START + RUNWAY, width, DEPTH], (2, 1))
        self.halves = np.concatenate(list(sizes.values())) / 2
        """[B, 3]: half of the boxes' sizes, in the order of the mocap bodies."""
        ends = np.cumsum([len(group) for group in sizes.values()]).tolist()
        self.groups = {name: slice(end - len(sizes[name]), end) for name, end in zip(sizes, ends, strict=True)}
        self._hovers = np.zeros(len(self.halves), bool)
        self._hovers[self.groups.get("slab", slice(0))] = True

    def add_to(self, spec: mujoco.MjSpec) -> None:
        """Add the boxes to a body's model."""
        for group, members in self.groups.items():
            colours = COLOURS.get(group, (LIGHT,))
            for number, half in enumerate(self.halves[members]):
                name = f"{group}_{number}"
                body = spec.worldbody.add_body(name=name, mocap=True, pos=UNUSED)
                body.add_geom(
                    name=name,
                    type=mujoco.mjtGeom.mjGEOM_BOX,
                    size=half,
                    rgba=colours[number % len(colours)],
                    contype=0,
                    conaffinity=1,
                    mass=0.0,
                    friction=[0.9, 0.01, 0.001],
                )

    def near(self, centres: np.ndarray, x: float, reach: float) -> Surfaces:
        """What is at most `reach` away along the course. `centres` [B, 3] are the boxes' places."""
        chosen = np.flatnonzero(np.abs(centres[:, 0] - x) <= self.halves[:, 0] + reach)
        low, high = centres[chosen] - self.halves[chosen], centres[chosen] + self.halves[chosen]
        return Surfaces(low=low, high=high, hovers=self._hovers[chosen])


@dataclass(frozen=True, kw_only=True)
class Surfaces:
    """Upper and lower sides of boxes."""

    low: np.ndarray
    """[B, 3]."""
    high: np.ndarray
    """[B, 3]."""
    hovers: np.ndarray
    """bool [B]."""

    def tops(self, points: np.ndarray) -> np.ndarray:
        """[P]: the highest surface at points [P, 2]. -inf where there is none."""
        return np.where(self._covers(points), self.high[:, 2], -np.inf).max(1, initial=-np.inf)

    def floors(self, points: np.ndarray) -> np.ndarray:
        """[P]: the highest surface below points [P, 3]. -inf where there is none."""
        is_floor = self._covers(points) & (self.high[:, 2] < points[:, 2:])
        return np.where(is_floor, self.high[:, 2], -np.inf).max(1, initial=-np.inf)

    def undersides(self, points: np.ndarray) -> np.ndarray:
        """[P]: the lower side of a platform that hovers over points [P, 2]. inf where there is none."""
        return np.where(self._covers(points) & self.hovers, self.low[:, 2], np.inf).min(1, initial=np.inf)

    def _covers(self, points: np.ndarray) -> np.ndarray:
        """bool [P, B]: whether a point is above, in or below a box."""
        x, y = points[:, :1], points[:, 1:2]
        low, high = self.low, self.high
        return (x >= low[:, 0]) & (x <= high[:, 0]) & (y >= low[:, 1]) & (y <= high[:, 1])
