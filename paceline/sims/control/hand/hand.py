"""The hand, a cylinder and a table: addresses in MuJoCo's model, and what the tasks ask about them."""

from __future__ import annotations

import functools
from pathlib import Path

import mujoco
import numpy as np

FILE = Path(__file__).with_name("hand.xml")
JOINTS, ACTUATORS = 22, 13
INCREMENT = 0.08
"""Largest change of an actuator's target in one step, as a share of its range."""
LOST = -0.05
"""A cylinder whose centre is lower has fallen off the table. The table's underside is at -4 cm."""
PALM_DOWN, PALM_UP = -np.pi / 2, np.pi / 2
"""Angles of the wrist's rotation."""
OBJECT_RGBA, TARGET_RGBA = (0.2, 0.45, 0.75, 1.0), (0.3, 0.75, 0.35, 0.35)


class Hand:
    """The hand's model with a cylinder of a task, and with a translucent one where the task has a target.

    The order of joints and actuators is that of hand.xml. Only the hand's own 22 joints come first in `qpos`; the
    cylinder's position and quaternion follow.
    """

    def __init__(self, *, radius: float, half_length: float, mass: float, has_target: bool) -> None:
        self.radius, self.half_length = radius, half_length
        self._shape = (radius, half_length, mass, has_target)
        self.model = _model(*self._shape)
        self._grasp = self.model.site("grasp").id
        self._object, self._table = self.model.geom("object").id, self.model.geom("table").id
        self.low, self.high = self.model.actuator_ctrlrange.T
        # The joint that each actuator drives: all transmissions are joints.
        self._driven = self.model.jnt_qposadr[self.model.actuator_trnid[:, 0]]

    def make_spec(self) -> mujoco.MjSpec:
        """The model before MuJoCo compiles it, for programs that add to it."""
        return _make_spec(*self._shape)

    def pose(self, data: mujoco.MjData, **targets: float) -> None:
        """Put the actuators' targets and all joints into a pose. Actuators that are not named are at 0."""
        for name, value in targets.items():
            data.ctrl[self.model.actuator(name).id] = value
        data.ctrl[:] = np.clip(data.ctrl, self.low, self.high)
        data.qpos[self._driven] = data.ctrl
        for equality in range(self.model.neq):
            follower, leader = self.model.eq_obj1id[equality], self.model.eq_obj2id[equality]
            share = self.model.eq_data[equality, 1]
            data.qpos[self.model.jnt_qposadr[follower]] = share * data.qpos[self.model.jnt_qposadr[leader]]

    def move(self, data: mujoco.MjData, action: np.ndarray) -> None:
        """Change the actuators' targets. `action` [13] is in [-1, 1]."""
        data.ctrl[:] = np.clip(data.ctrl + INCREMENT * (self.high - self.low) * action, self.low, self.high)

    def place(self, data: mujoco.MjData, position: np.ndarray, quaternion: np.ndarray) -> None:
        """Place the cylinder."""
        data.qpos[JOINTS : JOINTS + 3], data.qpos[JOINTS + 3 :] = position, quaternion

    def place_target(self, data: mujoco.MjData, position: np.ndarray, quaternion: np.ndarray) -> None:
        data.mocap_pos[0], data.mocap_quat[0] = position, quaternion

    def grasp_point(self, data: mujoco.MjData) -> np.ndarray:
        """The centre of a cylinder in the hand: in front of the palm."""
        return data.site_xpos[self._grasp]

    def palm_frame(self, data: mujoco.MjData) -> np.ndarray:
        """The hand's axes as columns: along the fingers, towards the thumb, out of the back."""
        return data.site_xmat[self._grasp].reshape(3, 3)

    def position(self, data: mujoco.MjData) -> np.ndarray:
        return data.qpos[JOINTS : JOINTS + 3]

    def quaternion(self, data: mujoco.MjData) -> np.ndarray:
        return data.qpos[JOINTS + 3 :]

    def touches_table(self, data: mujoco.MjData) -> bool:
        """Whether the cylinder does."""
        pairs = data.contact.geom
        return bool(((pairs == self._object).any(1) & (pairs == self._table).any(1)).any())

    def is_lost(self, data: mujoco.MjData) -> bool:
        """Whether the cylinder has fallen off the table."""
        return bool(self.position(data)[2] < LOST)

    def observe(self, data: mujoco.MjData) -> list[np.ndarray]:
        """What all tasks observe, in the order of the paper's table 2: 70 numbers."""
        return [data.qpos[:JOINTS], data.qvel[:JOINTS], data.ctrl, data.qpos[JOINTS:], data.qvel[JOINTS:]]


@functools.cache
def _model(radius: float, half_length: float, mass: float, has_target: bool) -> mujoco.MjModel:
    return _make_spec(radius, half_length, mass, has_target).compile()


def _make_spec(radius: float, half_length: float, mass: float, has_target: bool) -> mujoco.MjSpec:
    spec = mujoco.MjSpec.from_file(str(FILE))
    size = [radius, half_length, 0.0]
    body = spec.worldbody.add_body(name="object")
    body.add_freejoint()
    body.add_geom(
        name="object",
        type=mujoco.mjtGeom.mjGEOM_CYLINDER,
        size=size,
        mass=mass,
        rgba=OBJECT_RGBA,
        condim=4,
    )
    _add_stripe(body, size, OBJECT_RGBA)
    if has_target:
        target = spec.worldbody.add_body(name="target", mocap=True)
        target.add_geom(
            type=mujoco.mjtGeom.mjGEOM_CYLINDER, size=size, rgba=TARGET_RGBA, contype=0, conaffinity=0, mass=0
        )
        _add_stripe(target, size, TARGET_RGBA)
    return spec


def _add_stripe(body: mujoco.MjsBody, size: list[float], rgba: tuple[float, ...]) -> None:
    """A dark stripe along y, which shows how the cylinder is turned. It touches nothing."""
    radius, half_length, _ = size
    stripe = [0.1 * radius, 0.5 * radius, half_length + 0.0005]
    dark = (*(0.4 * colour for colour in rgba[:3]), rgba[3])
    body.add_geom(
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=stripe,
        pos=[0, 0.5 * radius, 0],
        rgba=dark,
        contype=0,
        conaffinity=0,
        mass=0,
    )


def random_quaternion(random: np.random.Generator) -> np.ndarray:
    """A rotation drawn uniformly."""
    drawn = random.normal(size=4)
    return drawn / np.linalg.norm(drawn)


def axis(quaternion: np.ndarray, number: int) -> np.ndarray:
    """An axis of a rotated frame: 0 is x, 2 is z."""
    matrix = np.empty(9)
    mujoco.mju_quat2Mat(matrix, quaternion)
    return matrix.reshape(3, 3)[:, number]


def angle(first: np.ndarray, second: np.ndarray) -> float:
    """The angle between two vectors, in radians; pi if one of them is zero."""
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    return float(np.arccos(np.clip(first @ second / lengths, -1.0, 1.0))) if lengths > 0 else np.pi
