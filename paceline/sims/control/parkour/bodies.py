"""The planar walker and the humanoid: how they stand, what they feel, and which points of the terrain they see."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Protocol

import mujoco
import numpy as np

from paceline.sims.control.parkour.boxes import Boxes, Surfaces
from paceline.sims.control.parkour.limits import LIMITS, CourseLimits

REACH = 7.0
"""No point that is seen or stood on is farther from the torso along the course."""
LOWEST, HIGHEST = -2.5, 1.0
"""Bounds of heights of the terrain relative to the torso."""
FALLEN = 0.6
"""A body whose torso is less high above the floor has fallen. Its tilt does not matter: a torso tilts in a few steps,
and a body that cannot run yet would learn to end episodes so."""


class ParkourBody(Protocol):
    """A body on a course."""

    limits: CourseLimits
    boxes: Boxes
    model: mujoco.MjModel
    num_felt: int
    """Proprioceptive numbers."""
    num_seen: int
    """Numbers of the terrain."""

    def stand(self, data: mujoco.MjData, random: np.random.Generator) -> None:
        """At the start, with slightly bent joints."""

    def position(self, data: mujoco.MjData) -> np.ndarray:
        """[3]: of the torso."""

    def feel(self, data: mujoco.MjData, surfaces: Surfaces) -> list[np.ndarray]: ...

    def see(self, data: mujoco.MjData, surfaces: Surfaces) -> list[np.ndarray]: ...


class Walker:
    """A body that moves in the plane of x and z: 9 degrees of freedom, 6 torques."""

    num_felt, num_seen = 19, 101
    AHEAD = np.stack([np.linspace(-1.0, 3.9, 50), np.zeros(50)], axis=1)
    """[50, 2]: the points that are seen, relative to the torso: every 10 cm."""
    BENT = np.array([0.1, -0.15, 0.05, 0.1, -0.15, 0.05])
    """Angles of hip, knee and ankle, of the right leg and of the left one."""

    def __init__(self) -> None:
        self.limits = LIMITS["walker"]
        self.boxes, self.model = _boxes("walker"), _model("walker")
        self._torso, self._weight = self.model.body("torso").id, _weight(self.model)

    def stand(self, data: mujoco.MjData, random: np.random.Generator) -> None:
        data.qpos[3:] = self.BENT + random.uniform(-0.1, 0.1, 6)

    def position(self, data: mujoco.MjData) -> np.ndarray:
        return data.xpos[self._torso]

    def feel(self, data: mujoco.MjData, surfaces: Surfaces) -> list[np.ndarray]:
        pitch = data.qpos[2]
        touch = np.tanh(data.sensordata / self._weight)
        return [data.qpos[3:], data.qvel[3:], np.array([math.sin(pitch), math.cos(pitch)]), data.qvel[:3], touch]

    def see(self, data: mujoco.MjData, surfaces: Surfaces) -> list[np.ndarray]:
        position = self.position(data)
        points = position[:2] + self.AHEAD
        seen = [surfaces.tops(points), surfaces.undersides(points), surfaces.floors(position[None])]
        return [_relative(heights, position[2]) for heights in seen]


class Humanoid:
    """A body in a corridor: 28 numbers of its position, 21 torques."""

    num_felt, num_seen = 79, 461
    GRID = np.stack(np.meshgrid(np.linspace(-0.5, 5.0, 23), np.linspace(-1.9, 1.9, 20), indexing="ij"), axis=2)
    """[23, 20, 2]: the points that are seen, forwards and to the left of the torso: every 25 cm and every 20 cm."""
    LIMBS = ("right_hand", "left_hand", "right_foot", "left_foot")
    TOUCHES = 4

    def __init__(self) -> None:
        self.limits = LIMITS["humanoid"]
        self.boxes, self.model = _boxes("humanoid"), _model("humanoid")
        self._torso, self._weight = self.model.body("torso").id, _weight(self.model)
        self._limbs = [self.model.site(name).id for name in self.LIMBS]
        self._points = self.GRID.reshape(-1, 2)

    def stand(self, data: mujoco.MjData, random: np.random.Generator) -> None:
        data.qpos[7:] += random.uniform(-0.05, 0.05, 21)
        for side in ("right", "left"):
            for joint, angle in (("hip_y", 0.15), ("knee", -0.25), ("ankle_y", 0.1), ("elbow", 0.6)):
                data.qpos[self.model.joint(f"{side}_{joint}").qposadr[0]] += angle

    def position(self, data: mujoco.MjData) -> np.ndarray:
        return data.xpos[self._torso]

    def feel(self, data: mujoco.MjData, surfaces: Surfaces) -> list[np.ndarray]:
        axes, position = data.xmat[self._torso].reshape(3, 3), self.position(data)
        velocity = np.empty(6)
        mujoco.mj_objectVelocity(self.model, data, mujoco.mjtObj.mjOBJ_XBODY, self._torso, velocity, 1)
        limbs = data.site_xpos[self._limbs]
        feet = limbs[2:]
        touch, centre_velocity = data.sensordata[: self.TOUCHES], data.sensordata[self.TOUCHES :]
        return [
            data.qpos[7:],
            data.qvel[6:],
            ((limbs - position) @ axes).ravel(),
            velocity[3:],
            velocity[:3],
            axes[2],  # the world's up, as the torso sees it
            axes[0],  # the direction of the corridor
            (data.subtree_com[1] - position) @ axes,
            centre_velocity @ axes,
            np.tanh(touch / self._weight),
            position[1:2],
            feet[:, 2] - np.maximum(surfaces.floors(feet), feet[:, 2] + LOWEST),
        ]

    def see(self, data: mujoco.MjData, surfaces: Surfaces) -> list[np.ndarray]:
        position, forward = self.position(data), data.xmat[self._torso, [0, 3]]
        length = math.hypot(*forward)
        x, y = forward / length if length > 0 else (1.0, 0.0)
        points = position[:2] + self._points @ np.array([[x, y], [-y, x]])
        return [_relative(heights, position[2]) for heights in (surfaces.tops(points), surfaces.floors(position[None]))]


BODIES: dict[str, type[ParkourBody]] = {"walker": Walker, "humanoid": Humanoid}


def _relative(heights: np.ndarray, to: float) -> np.ndarray:
    return np.clip(heights - to, LOWEST, HIGHEST)


@functools.cache
def _boxes(body: str) -> Boxes:
    return Boxes(LIMITS[body])


@functools.cache
def _model(body: str) -> mujoco.MjModel:
    """Never changed, so all environments of a process share it."""
    spec = mujoco.MjSpec.from_file(str(Path(__file__).with_name(f"{body}.xml")))
    _boxes(body).add_to(spec)
    return spec.compile()


def _weight(model: mujoco.MjModel) -> float:
    """In newtons."""
    return float(-model.opt.gravity[2] * model.body_mass.sum())
