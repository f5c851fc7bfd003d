"""The robot as a part of a MuJoCo model: a base that slides and turns on the floor, and an arm of seven hinges.

Every joint has a motor that follows a speed. It is as strong as it needs to be to carry things, and gives way to walls.
Gravity does not act on the robot: its motors carry its own weight.
"""

from __future__ import annotations

from paceline.sims.rearrangement.rendering.head import HEAD_FORWARD, HEAD_HEIGHT, HEAD_SHIFT
from paceline.sims.rearrangement.robot.arm import (
    FOREARM,
    HAND,
    LIMITS,
    LINK_RADII,
    SHOULDER,
    TO_LIFT,
    UPPER_ARM,
)
from paceline.sims.rearrangement.robot.body import HEIGHT, OWN_BODY, RADIUS

STATIC, MOVING, OBJECT, BASE, ARM, BODY, HELD = (1 << bit for bit in range(7))
"""What collides with what. A geom has one of these bits as its type, and meets the types in its affinity."""
HIT_BY_BASE = STATIC | MOVING | OBJECT
HIT_BY_ARM = STATIC | MOVING | OBJECT
HIT_BY_HAND = HIT_BY_ARM | BODY
HIT_BY_OBJECT = STATIC | MOVING | OBJECT
HIT_BY_HELD = HIT_BY_OBJECT | BASE | BODY
"""An object in the hand does not meet the arm."""
HIDDEN = 4
"""The group of geoms that the camera does not see."""
BASE_JOINTS = ("base_x", "base_y", "base_heading")
ARM_JOINTS = ("pan", "lift", "upper_roll", "elbow", "forearm_roll", "wrist", "wrist_roll")
CAMERA, HAND_BODY = "head", "hand"

_BASE_MASS, _BASE_INERTIA = 80.0, 4.0
_BASE_FORCE, _BASE_TORQUE, _ARM_TORQUE = 2000.0, 500.0, 80.0
"""The most that motors can do, in N and Nm."""
_BASE_GAIN, _TURN_GAIN, _ARM_GAIN = 2e4, 2e3, 150.0
"""Force for each unit of speed that is missing."""
_ARM_ARMATURE = 0.3
"""Inertia of the arm's motors in kg m², beside that of the links."""
_LINK_MASSES = (4.0, 3.0, 2.0)


def robot_xml(resolution: int) -> str:
    """The body of the robot, at the origin. Its camera has images of `resolution` pixels."""
    upper, forearm, hand = (
        f'<geom name="{name}" type="capsule" fromto="0 0 0 {length} 0 0" size="{radius}" mass="{mass}" '
        f'contype="{ARM}" conaffinity="{hit}"/>'
        for name, length, radius, mass, hit in zip(
            ("upper_arm", "forearm", HAND_BODY),
            # The round end of the hand touches the tip.
            (UPPER_ARM, FOREARM, HAND - LINK_RADII[2]),
            LINK_RADII,
            _LINK_MASSES,
            (HIT_BY_ARM, HIT_BY_HAND, HIT_BY_HAND),
            strict=True,
        )
    )
    own = "".join(
        f'<geom type="box" pos="{x} {y} {z}" size="{ex} {ey} {ez}" mass="0" group="{HIDDEN}" contype="{BODY}" '
        'conaffinity="0"/>'
        for x, y, z, ex, ey, ez, _ in OWN_BODY
    )
    low = 0.02  # above the floor, which the base does not touch: its joints hold it up
    return f"""
    <body name="base" gravcomp="1">
      <joint name="base_x" type="slide" axis="1 0 0"/>
      <joint name="base_y" type="slide" axis="0 1 0"/>
      <joint name="base_heading" axis="0 0 1"/>
      <inertial pos="0 0 0.3" mass="{_BASE_MASS}" diaginertia="{_BASE_INERTIA} {_BASE_INERTIA} {_BASE_INERTIA}"/>
      <geom name="base" type="cylinder" pos="0 0 {(HEIGHT + low) / 2}" size="{RADIUS} {(HEIGHT - low) / 2}" mass="0"
            group="{HIDDEN}" contype="{BASE}" conaffinity="{HIT_BY_BASE}"/>
      {own}
      <camera name="{CAMERA}" pos="{HEAD_FORWARD} 0 {HEAD_HEIGHT}" xyaxes="0 -1 0 0 0 1" sensorsize="2 2" focal="1 1"
              principal="0 {-HEAD_SHIFT}" resolution="{resolution} {resolution}"/>
      <body name="shoulder" pos="{_text(SHOULDER)}" gravcomp="1">
        {_hinge(0, "0 0 1")}
        <inertial pos="0 0 0" mass="2" diaginertia="0.02 0.02 0.02"/>
        <body name="upper_arm" pos="{TO_LIFT[0]} 0 {TO_LIFT[1]}" gravcomp="1">
          {_hinge(1, "0 1 0")}{_hinge(2, "1 0 0")}
          {upper}
          <body name="forearm" pos="{UPPER_ARM} 0 0" gravcomp="1">
            {_hinge(3, "0 1 0")}{_hinge(4, "1 0 0")}
            {forearm}
            <body name="{HAND_BODY}" pos="{FOREARM} 0 0" gravcomp="1">
              {_hinge(5, "0 1 0")}{_hinge(6, "1 0 0")}
              {hand}
            </body>
          </body>
        </body>
      </body>
    </body>"""


def motors_xml() -> str:
    """The motors, in the order of `BASE_JOINTS` and `ARM_JOINTS`."""
    strengths = {
        **dict.fromkeys(BASE_JOINTS[:2], (_BASE_GAIN, _BASE_FORCE)),
        BASE_JOINTS[2]: (_TURN_GAIN, _BASE_TORQUE),
        **dict.fromkeys(ARM_JOINTS, (_ARM_GAIN, _ARM_TORQUE)),
    }
    return "".join(
        f'<velocity joint="{name}" kv="{gain}" forcerange="{-most} {most}"/>'
        for name, (gain, most) in strengths.items()
    )


def _hinge(number: int, axis: str) -> str:
    low, high = LIMITS[number]
    return (
        f'<joint name="{ARM_JOINTS[number]}" axis="{axis}" range="{low} {high}" limited="true" '
        f'armature="{_ARM_ARMATURE}"/>'
    )


def _text(numbers: tuple[float, ...]) -> str:
    return " ".join(map(str, numbers))
