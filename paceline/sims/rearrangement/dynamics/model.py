"""The MuJoCo model of a house: walls and furniture, doors and drawers, objects, and the robot.

Only sizes of objects differ between the episodes of a house. So a house is compiled once, and an episode has a copy.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import mujoco
import numpy as np

from paceline.sims.navigation.scenes.scene import CEILING
from paceline.sims.rearrangement.dynamics.robot import (
    HIT_BY_OBJECT,
    MOVING,
    OBJECT,
    STATIC,
    motors_xml,
    robot_xml,
)
from paceline.sims.rearrangement.objects import HALF_EXTENTS
from paceline.sims.rearrangement.surroundings import static_boxes

TIMESTEP = 1.0 / 120.0
HOUSE_JOINTS = ("fridge", "upper_drawer", "lower_drawer")
NEAREST, FARTHEST = 0.02, 20.0
"""What the camera sees, in metres."""
_DENSITY = 300.0
"""Of objects, in kg/m³."""
_DOOR_MASS, _DRAWER_MASS = 8.0, 4.0
_DAMPING = {"fridge": 2.0, "upper_drawer": 10.0, "lower_drawer": 10.0}
_FRICTION = {"fridge": 1.0, "upper_drawer": 4.0, "lower_drawer": 4.0}
"""Of the joints of the house: in Nm or N."""
_PULL_SECONDS = 0.05
"""How softly a handle is tied to the hand, as the time of a spring: suction cups give. It is hard from 5 cm on."""
_FAR_AWAY = 1e3
_KEPT = 64
"""Compiled houses that a process keeps."""


def episode_model(bank: Any, house: int, kinds: np.ndarray, resolution: int) -> mujoco.MjModel:
    """A house with objects of `kinds` (int [O]). The caller may change it."""
    model = copy.copy(_compiled(_house_xml(bank, house, len(kinds), resolution)))
    for number, kind in enumerate(kinds):
        _resize(model, object_name(number), np.array(HALF_EXTENTS[kind]))
    mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


def object_name(number: int) -> str:
    return f"object{number}"


def _house_xml(bank: Any, house: int, num_objects: int, resolution: int) -> str:
    boxes = static_boxes(bank)[house].double().numpy()
    joints, moving = bank.joints[house].double().numpy(), bank.moving[house].double().numpy()
    return f"""
    <mujoco>
      <compiler angle="radian"/>
      <option timestep="{TIMESTEP}" integrator="implicitfast"/>
      <statistic extent="1" center="0 0 0"/>
      <visual>
        <global offwidth="{max(resolution, 640)}" offheight="{max(resolution, 480)}"/>
        <map znear="{NEAREST}" zfar="{FARTHEST}"/>
        <quality offsamples="0" shadowsize="0"/>
      </visual>
      <worldbody>
        <light pos="0 0 10" castshadow="false"/>
        <geom name="floor" type="plane" size="30 30 1" contype="{STATIC}" conaffinity="0"/>
        <geom type="box" pos="0 0 {CEILING + 0.1}" size="30 30 0.1" contype="0" conaffinity="0"/>
        {"".join(_box(box, f'contype="{STATIC}" conaffinity="0"') for box in boxes if _exists(box))}
        {"".join(_jointed(n, joints[n], moving[bank.moving_joint[house].numpy() == n]) for n in range(len(joints)))}
        {"".join(map(_object, range(num_objects)))}
        {robot_xml(resolution)}
      </worldbody>
      <equality>
        <weld name="holds" body1="hand" body2="{object_name(0)}" active="false"/>
        <connect name="pulls" body1="hand" body2="{HOUSE_JOINTS[0]}" anchor="0 0 0" active="false"
                 solref="{_PULL_SECONDS} 1" solimp="0.3 0.9 0.05 0.5 2"/>
      </equality>
      <actuator>{motors_xml()}</actuator>
    </mujoco>"""


@functools.lru_cache(_KEPT)
def _compiled(xml: str) -> mujoco.MjModel:
    """The text is the key: two banks may have the same label, and other houses."""
    return mujoco.MjModel.from_xml_string(xml)


def _exists(box: np.ndarray) -> bool:
    """Whether a box is no padding."""
    return bool((box[3:6] > 0.0).all() and np.abs(box[:3]).max() < _FAR_AWAY)


def _box(box: np.ndarray, attributes: str, origin: tuple[float, float] = (0.0, 0.0)) -> str:
    x, y, z, ex, ey, ez, yaw = box
    return (
        f'<geom type="box" pos="{x - origin[0]} {y - origin[1]} {z}" size="{ex} {ey} {ez}" euler="0 0 {yaw}" '
        f"{attributes}/>"
    )


def _jointed(number: int, joint: np.ndarray, boxes: np.ndarray) -> str:
    """A door or drawer."""
    is_slide, x, y, dx, dy, limit = joint
    name = HOUSE_JOINTS[number]
    kind, axis, origin = ("slide", f"{dx} {dy} 0", (0.0, 0.0)) if is_slide else ("hinge", f"0 0 {dx}", (x, y))
    boxes = boxes[[_exists(box) for box in boxes]]
    mass = (_DRAWER_MASS if is_slide else _DOOR_MASS) / max(len(boxes), 1)
    attributes = f'mass="{mass}" contype="{MOVING}" conaffinity="0"'
    return f"""
    <body name="{name}" pos="{origin[0]} {origin[1]} 0" gravcomp="1">
      <joint name="{name}" type="{kind}" axis="{axis}" range="0 {limit}" limited="true" damping="{_DAMPING[name]}"
             frictionloss="{_FRICTION[name]}"/>
      {"".join(_box(box, attributes, origin) for box in boxes)}
    </body>"""


def _object(number: int) -> str:
    name = object_name(number)
    return f"""
    <body name="{name}">
      <freejoint name="{name}"/>
      <geom name="{name}" type="box" size="0.05 0.05 0.05" density="{_DENSITY}" contype="{OBJECT}"
            conaffinity="{HIT_BY_OBJECT}" friction="0.8 0.005 0.0001"/>
    </body>"""


def _resize(model: mujoco.MjModel, name: str, extents: np.ndarray) -> None:
    """Give an object half `extents` [3], and the mass that follows from them."""
    body, geom = model.body(name).id, model.geom(name).id
    mass = _DENSITY * 8.0 * extents.prod()
    squares = extents**2
    model.geom_size[geom], model.geom_rbound[geom] = extents, np.linalg.norm(extents)
    model.geom_aabb[geom] = (0.0, 0.0, 0.0, *extents)
    model.body_mass[body], model.body_inertia[body] = mass, mass / 3.0 * (squares.sum() - squares)
