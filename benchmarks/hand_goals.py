"""What the planner of the hand wants: values of simulated states, for each task.

Legend: S sequences, H steps.

Values are the task's reward and terms that lead to it: a planner that looks half a second ahead would otherwise not
begin to reach for a cylinder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from paceline.sims.control.hand.env import HandEnv
from paceline.sims.control.hand.hand import JOINTS
from paceline.sims.control.hand.tasks import CM, DEGREE, RotateInHand
from paceline.sims.control.soft_indicator import STEEPNESS


class Simulated(NamedTuple):
    """What the sequences lead to, after each step."""

    position: np.ndarray
    """[S, H, 3]: of the cylinder."""
    axes: np.ndarray
    """[S, H, 3, 3]: of the cylinder, as columns."""
    grasp: np.ndarray
    """[S, H, 3]: the point in front of the palm."""
    tips: np.ndarray
    """[S, H, 5, 3]: the tips of the fingers."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """How to plan for a task."""

    values: Callable[[HandEnv, Simulated], np.ndarray]
    """[S, H]: the value of each step."""
    horizon: int
    """Steps to look ahead."""
    sequences: int
    """Simulated for each plan."""
    grasps: bool
    """Whether a third of the sequences close the hand and move the wrist then."""
    last: int
    """These steps count twice."""


def pick_up(env: HandEnv, seen: Simulated) -> np.ndarray:
    """The cylinder is near the target, near the palm and among the fingers, and its axis is right."""
    target, axis = env.data.mocap_pos[0], rotation_matrices(env.data.mocap_quat[0])[:, 2]
    distance = np.linalg.norm(seen.position - target, axis=-1)
    tilt = np.arccos(np.clip(seen.axes[..., 2] @ axis, -1.0, 1.0))
    reward = 0.5 * _psi(distance, 1 * CM, 5 * CM) * (1 + _psi(tilt, 5 * DEGREE, 10 * DEGREE))
    near = np.exp(-distance / (6 * CM)) * (1 + np.exp(-tilt / 0.4))
    in_hand = np.exp(-np.linalg.norm(seen.position - seen.grasp, axis=-1) / (4 * CM))
    gaps = np.linalg.norm(seen.tips - seen.position[..., None, :], axis=-1) - 3 * CM
    touched = np.exp(-np.maximum(gaps, 0.0) / (3 * CM)).mean(-1)
    return reward + 0.6 * near + 0.4 * in_hand + 0.4 * touched - 0.4 * tilt


def rotate(env: HandEnv, seen: Simulated) -> np.ndarray:
    """The cylinder has the target's angle, is level, and stays in the palm. The target moves on as it moves now."""
    assert isinstance(env.task, RotateInHand)
    angle, speed = env.task.get_state()
    steps = np.arange(1, seen.position.shape[1] + 1)
    target = angle + speed * (1 - (1 - env.task.DRIFT) ** steps) / env.task.DRIFT
    turned = np.arctan2(-seen.axes[..., 0, 1], seen.axes[..., 1, 1])
    error = np.abs((turned - target + np.pi) % (2 * np.pi) - np.pi)
    tilt = np.arccos(np.clip(seen.axes[..., 2, 2], -1.0, 1.0))
    beside = np.linalg.norm((seen.position - seen.grasp)[..., :2], axis=-1)
    reward = _psi(error, 5 * DEGREE, 40 * DEGREE) * _psi(tilt, 45 * DEGREE, 45 * DEGREE)
    value = reward + 1 - error / np.pi - 0.3 * np.maximum(tilt - 0.3, 0.0) - 5 * np.maximum(beside - 2 * CM, 0.0)
    fallen = np.maximum.accumulate((seen.position[..., 2] < 4 * CM) | (beside > 6 * CM), axis=1)
    return np.where(fallen, -2.0, value)


GOALS = {
    "pick_up_and_orient": Goal(values=pick_up, horizon=30, sequences=48, grasps=True, last=6),
    "rotate_in_hand": Goal(values=rotate, horizon=25, sequences=32, grasps=False, last=8),
}


def rotation_matrices(quaternions: np.ndarray) -> np.ndarray:
    """[..., 3, 3] of [..., 4]."""
    w, x, y, z = np.moveaxis(quaternions, -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, -1) for row in rows], -2)


def simulated(positions: np.ndarray, sensors: np.ndarray) -> Simulated:
    """From the joints' positions [S, H, 29], and the sensors [S, H, 18]: the point in front of the palm, then tips."""
    cylinder, points = positions[..., JOINTS:], sensors.reshape(*sensors.shape[:2], -1, 3)
    return Simulated(cylinder[..., :3], rotation_matrices(cylinder[..., 3:7]), points[..., 0, :], points[..., 1:, :])


def _psi(error: np.ndarray, tolerance: float, margin: float) -> np.ndarray:
    """`soft_indicator` of arrays."""
    return 1 - np.tanh(STEEPNESS * np.maximum(np.abs(error) - tolerance, 0.0) / margin) ** 2
