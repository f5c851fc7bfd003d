"""The arm against MuJoCo's forward kinematics of the same chain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from paceline.sims.rearrangement.robot import arm
from paceline.sims.rearrangement.robot.arm import LIMITS, REST_ANGLES, forward_kinematics

AXES = {"pan": "0 0 1", "lift": "0 1 0", "upper": "1 0 0", "elbow": "0 1 0", "fore": "1 0 0", "wrist": "0 1 0"}


def chain() -> str:
    """MJCF of the arm on a base that moves and turns."""
    places = [
        (*arm.SHOULDER,),
        (arm.TO_LIFT[0], 0, arm.TO_LIFT[1]),
        (0, 0, 0),
        (arm.UPPER_ARM, 0, 0),
        (0, 0, 0),
        (arm.FOREARM, 0, 0),
    ]
    body = f'<site name="tip" pos="{arm.HAND} 0 0"/>'
    for (name, axis), place in reversed(list(zip(AXES.items(), places, strict=True))):
        body = f"""<body name="{name}" pos="{" ".join(map(str, place))}">
            <joint type="hinge" axis="{axis}"/><geom size="0.01"/>{body}</body>"""
    return f"""<mujoco><worldbody><body>
        <joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 1 0"/><joint type="hinge" axis="0 0 1"/>
        <geom size="0.01"/>{body}</body></worldbody></mujoco>"""


def angles(num: int) -> torch.Tensor:
    low, high = torch.tensor(LIMITS, dtype=torch.float64).unbind(1)
    return low + (high - low) * torch.rand(num, 7, dtype=torch.float64)


def test_places_of_the_links_are_those_of_mujoco():
    mujoco = pytest.importorskip("mujoco")
    torch.manual_seed(1)
    model = mujoco.MjModel.from_xml_string(chain())
    data = mujoco.MjData(model)
    turns = angles(100)
    poses = torch.randn(100, 3, dtype=torch.float64) * 3
    placed = forward_kinematics(turns).placed(poses)
    for number in range(100):
        data.qpos[:] = [*poses[number], *turns[number, :6]]
        mujoco.mj_kinematics(model, data)
        for name, place in (("lift", placed.shoulder), ("elbow", placed.elbow), ("wrist", placed.wrist)):
            np.testing.assert_allclose(place[number], data.body(name).xpos, atol=1e-12)
        np.testing.assert_allclose(placed.tip[number], data.site("tip").xpos, atol=1e-12)


def test_links_have_their_lengths_and_the_hand_ends_at_the_tip():
    reached = forward_kinematics(angles(50))
    starts, ends = reached.links()
    lengths = (ends - starts).norm(dim=2)
    wanted = [arm.UPPER_ARM, arm.FOREARM, arm.HAND - arm.LINK_RADII[2]]
    torch.testing.assert_close(lengths, torch.tensor([wanted] * 50, dtype=torch.float64))
    torch.testing.assert_close((reached.tip - ends[:, 2]).norm(dim=1), torch.full((50,), 0.04, dtype=torch.float64))


def test_at_rest_the_hand_points_down():
    reached = forward_kinematics(torch.tensor([REST_ANGLES]))
    down = (reached.tip - reached.wrist) / arm.HAND
    assert down[0, 2] == pytest.approx(-1.0, abs=1e-3)
    assert all(low <= angle <= high for angle, (low, high) in zip(REST_ANGLES, LIMITS, strict=True))
    assert 0.9 < float(reached.tip[0, 2]) < 1.1 and math.hypot(*reached.tip[0, :2]) < 0.65
